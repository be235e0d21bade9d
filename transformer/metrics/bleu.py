"""BLEU in every variant that the literature compares, each with its signature.

The measure alone makes a difference of about 1.5 BLEU: the same model has 27.52 (13a),
28.33 (intl) and 29.02 (the paper's), so a number is never printed without its variant.

==================  ===================================================================
13a                 sacreBLEU's default, on detokenised text, cased
13a_lowercase       the same, lower-cased
intl                sacreBLEU's tokeniser for punctuation and symbols of all scripts
moses               Moses tokens, as ``tokenizer.perl | multi-bleu.perl``, cased
paper               Unicode punctuation made plain, Moses tokens, compounds split at
                    hyphens, ``multi-bleu``, cased: the paper's English-German figures
tokens              the words of the text as it stands, for text already tokenised
tokens_lowercase    the same, lower-cased
==================  ===================================================================
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from transformer.config import UserError
from transformer.metrics.scores import Score

if TYPE_CHECKING:
    import numpy as np
    from sacrebleu.metrics.bleu import BLEU

_MAX_ORDER = 4

# variant -> (sacreBLEU's tokeniser, lower case, smoothing); multi-bleu has no smoothing
_MEASURES = {
    "13a": ("13a", False, "exp"),
    "13a_lowercase": ("13a", True, "exp"),
    "intl": ("intl", False, "exp"),
    "moses": ("none", False, "none"),
    "paper": ("none", False, "none"),
    "tokens": ("none", False, "none"),
    "tokens_lowercase": ("none", True, "none"),
}
VARIANTS = tuple(_MEASURES)


@dataclasses.dataclass(frozen=True)
class BleuScore(Score):
    """BLEU, 0 to 100, and what it is computed from.

    The signature is sacreBLEU's with the tokeniser, then the highest n-gram order and
    the number of lines.

    Attributes:
      precisions: n-gram precisions in percent, n = 1 to the order.
      brevity_penalty: exp(1 - reference length / length) where too short, else 1.
    """

    precisions: tuple[float, ...]
    brevity_penalty: float


def score_all(
    hypotheses: Sequence[str], references: Sequence[str], language: str
) -> dict[str, BleuScore]:
    """Score translations by every variant.

    Args:
      hypotheses: detokenised translations, or tokenised ones for ``tokens``.
      references: one reference per hypothesis.
      language: of the text, as ``corpus_bleu``.

    Returns:
      ``{variant: score}`` in the order of ``VARIANTS``.

    Raises:
      UserError: as ``corpus_bleu``.
    """
    return {
        variant: corpus_bleu(hypotheses, [references], variant, language)
        for variant in VARIANTS
    }


def corpus_bleu(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    variant: str,
    language: str,
    order: int | None = None,
) -> BleuScore:
    """Compute BLEU = BP * exp(mean over n of log p_n) of a corpus.

    n goes up to 4, or to the longest reference where all are shorter than 4 tokens:
    4-grams that cannot occur would make a perfect translation score 0. The signature
    gives the order.

    >>> score = corpus_bleu(["ein Haus"], [["ein Haus"]], "13a", "de")
    >>> round(score.value, 2), score.signature.split("|")[-2:]
    (100.0, ['order:2', 'lines:1'])

    Args:
      hypotheses: one text per line.
      references: one or more sets of references, each with one text per hypothesis.
      variant: one of ``VARIANTS``.
      language: of the text, "en", "de", "fr" or another code, for the Moses tokeniser:
        apostrophes and abbreviations. For a language whose abbreviations it does not
        know, Moses uses the English ones.
      order: highest n; None = as above.

    Returns:
      The score.

    Raises:
      UserError: if there is nothing to score or the counts of lines differ.

    Source: Papineni et al. (2002); section 6.1 of the paper.
    """
    for one_set in references:
        check_counts(hypotheses, one_set)
    prepare, label = preparation(variant, language)
    prepared = [[prepare(line) for line in one_set] for one_set in references]
    order = order or order_of(variant, prepared)
    metric = metric_of(variant, order)
    result = metric.corpus_score([prepare(line) for line in hypotheses], prepared)
    signature = str(metric.get_signature()).replace("tok:none", f"tok:{label}")
    return BleuScore(
        value=result.score,
        signature=f"{signature}|order:{order}|lines:{len(hypotheses)}",
        precisions=tuple(result.precisions),
        brevity_penalty=result.bp,
    )


def line_counts(
    hypotheses: Sequence[str], references: Sequence[str], variant: str, language: str
) -> np.ndarray:
    """Count in each line what BLEU of any lines is computed from.

    Args:
      hypotheses: one text per line.
      references: one text per hypothesis.
      variant: one of ``VARIANTS``.
      language: as for ``corpus_bleu``.

    Returns:
      (lines, 2 n + 2): matching n-grams of each order, all n-grams of each order, the
      lengths of the hypothesis and of the reference.
    """
    import numpy as np

    check_counts(hypotheses, references)
    prepare, _ = preparation(variant, language)
    prepared = [prepare(line) for line in references]
    metric = metric_of(variant, order_of(variant, [prepared]))
    found = []
    for line, reference in zip(map(prepare, hypotheses), prepared, strict=True):
        one = metric.corpus_score([line], [[reference]])
        found.append([*one.counts, *one.totals, one.sys_len, one.ref_len])
    return np.array(found)


def of_counts(counts: np.ndarray, variant: str) -> float:
    """Return BLEU of ``line_counts`` that were summed over lines, 0 to 100."""
    from sacrebleu.metrics.bleu import BLEU

    *grams, length, reference_length = counts.tolist()
    n = len(grams) // 2
    return BLEU.compute_bleu(
        grams[:n],
        grams[n:],
        length,
        reference_length,
        smooth_method=_MEASURES[variant][2],
        max_ngram_order=n,
    ).score


def exact_match(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Return the share of the hypotheses whose words are those of the reference.

    >>> exact_match(["ein Haus", "Haus"], ["ein  Haus ", "haus"])
    0.5

    Args:
      hypotheses: one text per line.
      references: one text per hypothesis.

    Returns:
      A rate, 0 to 1. White space between words does not count, case does.

    Raises:
      UserError: as ``corpus_bleu``.
    """
    check_counts(hypotheses, references)
    pairs = zip(hypotheses, references, strict=True)
    return sum(h.split() == r.split() for h, r in pairs) / len(hypotheses)


def moses_tokenize(line: str, language: str) -> str:
    """Return the tokens of the Moses ``tokenizer.perl``, joined by spaces.

    >>> moses_tokenize('Er sagte: "Das kostet 1.000 Euro usw."', "de")
    'Er sagte : &quot; Das kostet 1.000 Euro usw. &quot;'

    Source: moses-smt/mosesdecoder, scripts/tokenizer/tokenizer.perl.
    """
    tokens: str = _moses(language).tokenize(line, return_str=True)
    # tokenizer.perl always splits the full stop off a line's last word, sacremoses
    # keeps it on an abbreviation. Runs of full stops stay whole in both.
    return re.sub(r"(?<=[^\s.])\.$", " .", tokens)


def split_compounds(tokens: str) -> str:
    """Put `` ##AT##-##AT## `` for a hyphen between two characters that are not spaces.

    From left to right without overlap, so the second hyphen of "a-b-c" stays:

    >>> split_compounds("a-b-c text-to-speech -5")
    'a ##AT##-##AT## b-c text ##AT##-##AT## to ##AT##-##AT## speech -5'

    Source: tensor2tensor, utils/get_ende_bleu.sh.
    """
    return re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", tokens)


def check_counts(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    """Check that there is a reference for each hypothesis, and something to score.

    Raises:
      UserError: if the counts differ, or are 0.
    """
    if len(hypotheses) != len(references):
        raise UserError(
            f"score: expected one reference per hypothesis, got {len(hypotheses)} "
            f"hypotheses and {len(references)} references; give the files of one set"
        )
    if not hypotheses:
        raise UserError("score: expected at least one line, got none; give some text")


def preparation(variant: str, language: str) -> tuple[Callable[[str], str], str]:
    """Return how a line is prepared for sacreBLEU, and its name in a signature."""
    if variant not in ("moses", "paper"):
        return str, "none"
    from sacremoses import MosesPunctNormalizer, __version__

    tokenize = functools.partial(moses_tokenize, language=language)
    label = f"moses-{language}-{__version__}"
    if variant == "moses":
        return tokenize, label
    plain = MosesPunctNormalizer().replace_unicode_punct
    return (
        lambda line: split_compounds(tokenize(plain(line))),
        f"punctuation+{label}+compounds",
    )


def common_order(parts: Sequence[Sequence[str]], variant: str, language: str) -> int:
    """Return the highest order of n-grams that ``corpus_bleu`` has for all parts.

    Args:
      parts: the references of each.
      variant: as for ``corpus_bleu``.
      language: as for ``corpus_bleu``.
    """
    prepare, _ = preparation(variant, language)
    return min(order_of(variant, [[*map(prepare, lines)]]) for lines in parts)


def order_of(variant: str, references: Sequence[Sequence[str]]) -> int:
    """Return the highest order of n-grams, at most 4, that prepared references have."""
    tokenize = metric_of(variant, _MAX_ORDER).tokenizer
    longest = max(len(tokenize(line).split()) for lines in references for line in lines)
    return min(max(longest, 1), _MAX_ORDER)


def metric_of(variant: str, order: int) -> BLEU:
    """Return sacreBLEU's BLEU of a variant, for prepared lines."""
    from sacrebleu.metrics.bleu import BLEU

    tokenizer, lowercase, smoothing = _MEASURES[variant]
    return BLEU(
        lowercase=lowercase,
        tokenize=tokenizer,
        smooth_method=smoothing,
        max_ngram_order=order,
        force=True,  # text is tokenised on purpose: no warning about it
    )


@functools.cache
def _moses(language: str) -> Any:
    from sacremoses import MosesTokenizer

    return MosesTokenizer(language)
