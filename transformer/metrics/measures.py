"""What evaluation adds to perplexity: a line of ``MEASURES`` for each measure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from transformer import config
from transformer.config import UserError
from transformer.metrics import bleu, chrf_ter, errors, parseval
from transformer.metrics.scores import Score

if TYPE_CHECKING:
    import numpy as np

# (hypotheses, references, target language) -> the score of each variant
Measure = Callable[[Sequence[str], Sequence[str], str], Mapping[str, Score]]

MEASURES: dict[str, Measure] = {
    "bleu": bleu.score_all,
    "f1": parseval.score_all,
    "errors": errors.score_all,
}
# Of each measure; the first is the one that reports use.
VARIANTS = {
    "bleu": bleu.VARIANTS,
    "f1": parseval.VARIANTS,
    "errors": errors.VARIANTS,
}
_LOWER_IS_BETTER = ("errors",)
# Of each measure that is a function of counts of lines: what counts, and the function.
_COUNTED = {
    "bleu": (bleu.line_counts, bleu.of_counts),
    "errors": (errors.line_counts, errors.of_counts),
}
# What "exact" means where it is not the words: (hypotheses, references) -> 0 to 1
_EXACT: dict[str, Callable[[Sequence[str], Sequence[str]], float]] = {
    "f1": parseval.exact_match
}

# (hypotheses, references) -> what the final evaluation adds to a measure, by name
Beside = Callable[[Sequence[str], Sequence[str]], Score]
BESIDE: dict[str, Mapping[str, Beside]] = {"bleu": chrf_ter.BESIDE}


def measure_of(data: config.Data) -> Measure:
    """Return the measure that ``data.measure`` names.

    Raises:
      UserError: for a name that no measure has.
    """
    if data.measure not in MEASURES:
        config.refuse("data.measure", f"one of {', '.join(MEASURES)}", data.measure)
    return MEASURES[data.measure]


def badness(data: config.Data, score: float) -> float:
    """Return a number that is lower for a better score of the measure."""
    return score if data.measure in _LOWER_IS_BETTER else -score


def line_counts(
    data: config.Data, hypotheses: Sequence[str], references: Sequence[str], name: str
) -> np.ndarray:
    """Return what a variant of the measure counts in each line, (lines, k)."""
    count, _ = _COUNTED[data.measure]
    return count(hypotheses, references, name, data.target_language)


def of_counts(data: config.Data, counts: np.ndarray, name: str) -> float:
    """Return a variant of the measure from counts that are summed over lines, (k,)."""
    return _COUNTED[data.measure][1](counts, name)


def variant_of(data: config.Data, name: str | None = None) -> str:
    """Return the name of a variant of the measure, None being that of reports.

    Raises:
      UserError: for a variant of another measure, and as ``measure_of``.
    """
    measure_of(data)
    known = VARIANTS[data.measure]
    if name is not None and name not in known:
        raise UserError(
            f"--variant: expected one of {', '.join(known)}, which belong to "
            f"data.measure={data.measure}, got {name}; change it"
        )
    return name or known[0]


def name_of(data: config.Data, variant: str) -> str:
    """Return what headings call a variant of the measure: "BLEU", "F1", "WER"."""
    return variant.upper() if data.measure == "errors" else data.measure.upper()


def score(
    data: config.Data,
    hypotheses: Sequence[str],
    references: Sequence[str],
    variant: str | None = None,
) -> Score:
    """Score outputs by one variant of the measure; see ``variant_of``."""
    return score_parts(data, [hypotheses], [references], variant)[0]


def score_parts(
    data: config.Data,
    hypotheses: Sequence[Sequence[str]],
    references: Sequence[Sequence[str]],
    variant: str | None = None,
) -> list[Score]:
    """Score parts of the outputs so that their scores compare.

    BLEU of all parts has the same order of n-grams; see ``score``.
    """
    chosen, language = variant_of(data, variant), data.target_language
    pairs = zip(hypotheses, references, strict=True)
    if chosen in bleu.VARIANTS:  # the others would be computed for nothing
        order = None  # of one part, ``corpus_bleu`` finds it
        if len(references) > 1:
            order = bleu.common_order(references, chosen, language)
        return [bleu.corpus_bleu(x, [y], chosen, language, order) for x, y in pairs]
    measure = measure_of(data)
    return [measure(x, y, language)[chosen] for x, y in pairs]


def exact_match(
    data: config.Data, hypotheses: Sequence[str], references: Sequence[str]
) -> float:
    """Return the share of outputs that are the reference, as the measure sees it."""
    return _EXACT.get(data.measure, bleu.exact_match)(hypotheses, references)
