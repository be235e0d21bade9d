"""Error rates of sequences of symbols, as for words to phonemes: lower is better."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from transformer.metrics.bleu import check_counts
from transformer.metrics.scores import Score

if TYPE_CHECKING:
    import numpy as np

VARIANTS = ("wer", "per")


def score_all(
    hypotheses: Sequence[str], references: Sequence[str], language: str
) -> dict[str, Score]:
    """Score outputs by the share of wrong lines and by edit distance.

    ``wer`` is the share of lines with any symbol wrong: where a line is one word, the
    word error rate. ``per``, the phoneme error rate, is the edit distance of all lines
    over the number of symbols of all references.

    Args:
      hypotheses: symbols separated by white space, one output per line.
      references: the same, one per hypothesis.
      language: is not used.

    Returns:
      ``{variant: score}`` in the order of ``VARIANTS``, in percent.

    Raises:
      UserError: if there is nothing to score or the counts of lines differ.

    Source: the SIGMORPHON shared tasks (Gorman et al. 2020; Ashby et al. 2021).

    >>> [score.value for score in score_all(["a b", "c"], ["a b", "d e"], "").values()]
    [50.0, 50.0]
    """
    pairs = _pairs(hypotheses, references)
    wrong = sum(ours != theirs for ours, theirs in pairs)
    edits = sum(edit_distance(ours, theirs) for ours, theirs in pairs)
    symbols = sum(len(theirs) for _, theirs in pairs)
    lines = f"lines:{len(pairs)}"
    return {
        "wer": Score(100 * wrong / len(pairs), f"wrong lines|{lines}"),
        "per": Score(
            100 * edits / max(symbols, 1),
            f"edits of symbols|symbols:{symbols}|{lines}",
        ),
    }


def line_counts(
    hypotheses: Sequence[str], references: Sequence[str], variant: str, language: str
) -> np.ndarray:
    """Count in each line what an error rate of any lines is computed from.

    Args:
      hypotheses: symbols separated by white space, one output per line.
      references: the same, one per hypothesis.
      variant: one of ``VARIANTS``.
      language: is not used.

    Returns:
      (lines, 2): wrong lines and lines, or edits and symbols of the reference.

    Raises:
      UserError: as ``score_all``.
    """
    import numpy as np

    pairs = _pairs(hypotheses, references)
    if variant == "wer":
        return np.array([[ours != theirs, 1] for ours, theirs in pairs], int)
    return np.array([[edit_distance(a, b), len(b)] for a, b in pairs], int)


def _pairs(
    hypotheses: Sequence[str], references: Sequence[str]
) -> list[tuple[list[str], list[str]]]:
    check_counts(hypotheses, references)
    pairs = zip(hypotheses, references, strict=True)
    return [(ours.split(), theirs.split()) for ours, theirs in pairs]


def of_counts(counts: np.ndarray, variant: str) -> float:
    """Return the error rate of ``line_counts`` summed over lines, in percent.

    >>> import numpy as np
    >>> of_counts(line_counts(["a b", "c"], ["a b", "d e"], "per", "").sum(0), "per")
    50.0
    """
    errors, of = counts.tolist()
    return 100 * errors / max(of, 1)


def edit_distance(a: Sequence[str], b: Sequence[str]) -> int:
    """Return how many insertions, deletions and substitutions turn ``a`` into ``b``.

    >>> edit_distance("kitten", "sitting")
    3
    """
    row = list(range(len(b) + 1))  # distances of a prefix of a to every prefix of b
    for i, x in enumerate(a, 1):
        diagonal, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            diagonal, row[j] = (
                row[j],
                min(row[j] + 1, row[j - 1] + 1, diagonal + (x != y)),
            )
    return row[-1]
