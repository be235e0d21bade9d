"""chrF and TER, reported beside BLEU, each with its signature."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from transformer.metrics.bleu import check_counts
from transformer.metrics.scores import Score

if TYPE_CHECKING:
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.metrics.ter import TER


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Compute chrF2, the F-score of character n-grams, n = 1 to 6, of a corpus.

    ``(1 + b^2) P R / (b^2 P + R)`` with b = 2; P and R are means over n, white space
    does not count. 0 to 100, higher is better.

    >>> round(chrf(["ein Haus"], ["ein Haus"]).value, 2)
    100.0

    Args:
      hypotheses: detokenised translations.
      references: one text per hypothesis.

    Raises:
      UserError: if there is nothing to score or the counts of lines differ.

    Source: Popović (2015), "chrF: character n-gram F-score"; sacreBLEU's default.
    """
    return _score(chrf_metric(), hypotheses, references)


def ter(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Compute the translation edit rate of a corpus, in percent.

    ``100 (insertions + deletions + substitutions + shifts) / words of the reference``;
    lower is better.

    >>> round(ter(["a b c d"], ["a b d d"]).value, 2)
    25.0

    Args:
      hypotheses: detokenised translations; white space separates words, and case does
        not count.
      references: one text per hypothesis.

    Raises:
      UserError: as ``chrf``.

    Source: Snover et al. (2006); sacreBLEU's default.
    """
    return _score(ter_metric(), hypotheses, references)


def sentence_chrf(hypotheses: Sequence[str], references: Sequence[str]) -> list[float]:
    """Return chrF2 of each sentence, 0 to 100.

    Orders that a sentence is too short for are left out.

    Args:
      hypotheses: detokenised translations.
      references: one text per hypothesis.

    Raises:
      UserError: as ``chrf``.
    """
    check_counts(hypotheses, references)
    metric, pairs = chrf_metric(), zip(hypotheses, references, strict=True)
    return [metric.sentence_score(line, [wanted]).score for line, wanted in pairs]


BESIDE: dict[str, Callable[[Sequence[str], Sequence[str]], Score]] = {
    "chrF2": chrf,
    "TER": ter,
}


def chrf_metric() -> CHRF:
    """Return sacreBLEU's chrF with its default settings."""
    from sacrebleu.metrics.chrf import CHRF

    return CHRF()


def ter_metric() -> TER:
    """Return sacreBLEU's TER with its default settings."""
    from sacrebleu.metrics.ter import TER

    return TER()


def _score(
    metric: CHRF | TER, hypotheses: Sequence[str], references: Sequence[str]
) -> Score:
    check_counts(hypotheses, references)
    found = metric.corpus_score(list(hypotheses), [list(references)])
    signature = f"{metric.get_signature()}|lines:{len(hypotheses)}"
    return Score(found.score, signature)
