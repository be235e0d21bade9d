"""What attention heads look at: their weights, statistics of them, word alignments."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from transformer.config import UserError

# Who attends to whom: the sides of the rows and of the columns of a map.
KINDS = {
    "encoder": ("source", "source"),
    "decoder": ("target", "target"),
    "cross": ("target", "source"),
}
STATISTICS = ("entropy", "distance", "previous", "same", "next")


@dataclasses.dataclass(frozen=True)
class Attention:
    """Attention weights of one sentence pair, N layers of H heads.

    Attributes:
      source: S source pieces, EOS included.
      target: T pieces of the decoder's input, from BOS.
      weights: of each kind of ``KINDS`` that the model has, (N, H, rows, columns); row
        t holds where position t looks.
    """

    source: list[str]
    target: list[str]
    weights: Mapping[str, np.ndarray]

    @property
    def encoder(self) -> np.ndarray:
        """Self-attention of the source (N, H, S, S)."""
        return self._of("encoder")

    @property
    def decoder(self) -> np.ndarray:
        """Masked self-attention of the target (N, H, T, T)."""
        return self._of("decoder")

    @property
    def cross(self) -> np.ndarray:
        """Attention of the decoder to the source (N, H, T, S)."""
        return self._of("cross")

    def _of(self, kind: str) -> np.ndarray:
        if kind not in self.weights:
            raise UserError(
                f"attention: expected {' or '.join(self.weights)}, the kinds that this "
                f"model has, got {kind}; change it"
            )
        return self.weights[kind]


def of_pair(
    padded: Mapping[str, np.ndarray], source: list[str], target: list[str]
) -> Attention:
    """Cut padding off the weights (N, H, ., .) of a pair with these pieces."""
    sizes = {"source": len(source), "target": len(target)}
    weights = {}
    for kind, found in padded.items():
        rows, columns = (sizes[side] for side in KINDS[kind])
        weights[kind] = found[..., :rows, :columns]
    return Attention(source, target, weights)


class Statistics:
    """Means over all positions of many sentences, of every head.

    Row t of a map holds where position t looks, ``w_ts`` with sum 1 over s.

    * entropy: ``-sum_s w_ts log w_ts``, nats; 0 for a single position.
    * distance: ``sum_s w_ts |t - s|``, positions.
    * previous, same, next: ``w_ts`` for s = t - 1, t, t + 1, over the positions for
      which there is such an s.

    In cross-attention position t is the one that writes piece t of the target; the
    pieces of both sides are counted from 0.
    """

    def __init__(self) -> None:
        self._sums: dict[str, np.ndarray | float] = dict.fromkeys(STATISTICS, 0.0)
        self._counts = dict.fromkeys(STATISTICS, 0)

    def add(self, weights: np.ndarray) -> None:
        """Add the maps of a sentence, (N, H, T, S)."""
        w = weights.astype(np.float64)
        rows, columns = w.shape[-2:]
        logs = np.log(w, out=np.zeros_like(w), where=w > 0)
        far = np.abs(np.arange(rows)[:, None] - np.arange(columns))
        self._add("entropy", -(w * logs).sum((-2, -1)), rows)
        self._add("distance", (w * far).sum((-2, -1)), rows)
        for name, offset in (("previous", -1), ("same", 0), ("next", 1)):
            diagonal = np.diagonal(w, offset, -2, -1)
            self._add(name, diagonal.sum(-1), diagonal.shape[-1])

    def _add(self, name: str, total: np.ndarray, count: int) -> None:
        self._sums[name] = self._sums[name] + total
        self._counts[name] += count

    def means(self) -> dict[str, np.ndarray]:
        """Return the mean of each statistic, (N, H)."""
        return {
            name: np.asarray(self._sums[name]) / max(self._counts[name], 1)
            for name in STATISTICS
        }


def align(
    weights: np.ndarray, source_words: Sequence[int], target_words: Sequence[int]
) -> list[tuple[int, int]]:
    """Align each target word with the source word that it attends to most.

    The weight between two words is summed over the pieces of the source word and
    averaged over those of the target word.

    Args:
      weights: (T, S), row t of target piece t; columns beyond the source's words, such
        as that of EOS, do not count.
      source_words: the number of each source piece's word, (S,) or fewer.
      target_words: the same of the target, (T,) or fewer.

    Returns:
      Pairs (source word, target word), one for each target word, in their order; none
      if a side is empty.

    >>> align(np.array([[0.9, 0.1, 0.0], [0.2, 0.3, 0.5]]), [0, 1, 1], [0, 1])
    [(0, 0), (1, 1)]
    """
    if not source_words or not target_words:
        return []
    pieces = weights[: len(target_words), : len(source_words)]
    # A target word's mean has its largest entry where its sum has.
    sums = np.zeros((target_words[-1] + 1, source_words[-1] + 1))
    np.add.at(sums, (np.array(target_words)[:, None], np.array(source_words)), pieces)
    return [(int(row.argmax()), number) for number, row in enumerate(sums)]


def pharaoh(pairs: Sequence[tuple[int, int]]) -> str:
    """Write an alignment as source-target numbers from 0.

    >>> pharaoh([(0, 0), (2, 1)])
    '0-0 2-1'
    """
    return " ".join(f"{source}-{target}" for source, target in sorted(pairs))
