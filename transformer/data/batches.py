"""Batches of similar lengths, in an order that depends on seed and step alone.

``Batches`` sorts the pairs of a corpus into a short list of shapes (R, S, T);
``batch_at(step)`` is a pure function, so that a run resumes from its step alone.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from transformer import config
from transformer.data import buckets, vectors
from transformer.data.corpus import Sequences, Sides
from transformer.ids import PAD

Batch = dict[str, np.ndarray]
Shape = tuple[int, int, int]  # rows R, source length S, target length T


@dataclasses.dataclass(frozen=True)
class Epoch:
    """What one epoch holds; all epochs hold the same."""

    pairs: int
    source_tokens: int  # EOS included, padding not
    target_tokens: int
    padded_tokens: int  # of both sides, padding and empty rows included

    @property
    def padding(self) -> float:
        """The share of padding in the padded tokens."""
        return 1 - (self.source_tokens + self.target_tokens) / self.padded_tokens


class Batches:
    """The training batches of every step, from corpus, settings and seed alone.

    They form one endless sequence, from which each step takes the next ``lengths``.
    Each epoch has every pair exactly once and as many batches as any other. Pairs that
    do not fill a batch of their bucket go into a larger bucket, so that at most one
    batch of an epoch has empty rows.

    Args:
      corpus: the pairs.
      batch: padded tokens per side, number of batches per step and of shapes, what
        rows and lengths are multiples of; with room for the longest pair, which
        ``config.resolve`` checks.
      seed: of the order.

    Attributes:
      lengths: number of batches per step.
      shapes: list of (R, S, T), every shape that occurs; R * max(S, T) is at most
        tokens / lengths, S and T are multiples of ``batch.length_multiple``.
      per_epoch: number of batches.
      epoch: what each epoch holds.
    """

    def __init__(self, corpus: Sides, batch: config.Batch, seed: int):
        self._corpus, self._seed = corpus, seed % 2**64
        lengths = corpus.source.lengths, corpus.target.lengths
        self.lengths = batch.lengths
        histogram = buckets.count_lengths(*lengths)
        budget = buckets.Budget(batch.tokens // batch.lengths, batch.multiple)
        rounded = buckets.round_lengths(histogram, batch.length_multiple)
        chosen = buckets.choose(rounded, budget, batch.shapes)
        self._members = buckets.assign(chosen, *lengths)
        self._next = [buckets.next_bucket(chosen, k) for k in range(len(chosen) - 1)]
        self._shapes: list[Shape] = [(budget.rows(one), *one) for one in chosen]
        self._numbers = budget.batches(chosen, [len(rows) for rows in self._members])
        used = zip(self._shapes, self._numbers, strict=True)
        self.shapes = [shape for shape, number in used if number]
        self.per_epoch = sum(self._numbers)
        self.epoch = self._count(histogram)
        self._order = functools.lru_cache(maxsize=2)(self._make_order)
        self._lock = threading.Lock()  # so that no two threads make the same order

    def _count(self, histogram: np.ndarray) -> Epoch:
        """Return what an epoch holds, from the number of pairs of each (S, T)."""
        both = list(zip(self._shapes, self._numbers, strict=True))
        return Epoch(
            pairs=len(self._corpus),
            source_tokens=int(histogram.sum(1) @ np.arange(histogram.shape[0])),
            target_tokens=int(histogram.sum(0) @ np.arange(histogram.shape[1])),
            padded_tokens=sum(n * r * (s + t) for (r, s, t), n in both),
        )

    def of_step(
        self, step: int, wanted: Callable[[int], np.ndarray] = np.arange
    ) -> list[Batch]:
        """Return the ``lengths`` batches of a step; arguments as for ``batch_at``."""
        first = step * self.lengths
        return [self.batch_at(first + i, wanted) for i in range(self.lengths)]

    def batch_at(
        self, number: int, wanted: Callable[[int], np.ndarray] = np.arange
    ) -> Batch:
        """Return a batch, counted from 0, or some of its rows.

        Args:
          number: 0 or more; the number of the step where each takes one batch.
          wanted: given R, returns which rows (r,) are wanted, ascending; no other is
            read.

        Returns:
          ``{"source": (R, S), "target": (R, T)}`` int32, PAD after the EOS of a row;
          (R, S, T) is one of ``shapes``. Vectors are ``vectors.padded``.
        """
        epoch, index = divmod(number, self.per_epoch)
        pairs, (height, s, t) = self.rows_at(epoch, index)
        rows = wanted(height)
        pairs, height = pairs[rows[rows < len(pairs)]], len(rows)
        return {
            "source": self._corpus.source.padded(pairs, (height, s)),
            "target": self._corpus.target.padded(pairs, (height, t)),
        }

    def shape_at(self, number: int) -> Shape:
        """Return the shape (R, S, T) of a batch."""
        return self.rows_at(*divmod(number, self.per_epoch))[1]

    def shapes_between(self, start: int, stop: int) -> list[Shape]:
        """Return the shapes of batches start .. stop - 1, each once.

        Args:
          start: the first batch.
          stop: the batch after the last.

        Returns:
          Shapes (R, S, T) in the order in which they first occur in the epoch of the
          first batch; if later epochs are asked for, then all other shapes.
        """
        epoch, first = divmod(start, self.per_epoch)
        last = first + max(stop - start, 0)
        with self._lock:
            numbers = self._order(epoch)[2][first:last]
        found, places = np.unique(numbers, return_index=True)
        shapes = [self._shapes[k] for k in found[np.argsort(places)]]
        if last > self.per_epoch:
            shapes += [shape for shape in self.shapes if shape not in shapes]
        return shapes

    def rows_at(self, epoch: int, index: int) -> tuple[np.ndarray, Shape]:
        """Return which pairs of the corpus (n,) make a batch, and its shape."""
        with self._lock:
            rows, starts, shapes = self._order(epoch)
        stop = starts[index] + self._shapes[shapes[index]][0]
        return rows[starts[index] : stop], self._shapes[shapes[index]]

    def _make_order(self, epoch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the pairs of an epoch in batch order, and the batches among them.

        Returns:
          (pairs,) indices in the corpus, (batches,) where each batch starts among them,
          (batches,) its index in the shapes.
        """
        # The raw bits of Philox never change between versions and machines; what
        # numpy's permutation makes of them may.
        bits = np.random.Philox(np.random.SeedSequence([self._seed, epoch]))
        chosen: list[np.ndarray] = []
        carried: list[list[np.ndarray]] = [[] for _ in self._shapes]
        for k, members in enumerate(self._members):
            rows = np.concatenate([*carried[k], _shuffled(members, bits)])
            carried[k].clear()
            end = self._numbers[k] * self._shapes[k][0]
            chosen.append(rows[:end])
            if end < len(rows):
                carried[self._next[k]].append(rows[end:])
        shapes = np.repeat(np.arange(len(chosen)), self._numbers)
        heights = np.array([shape[0] for shape in self._shapes])[shapes]
        starts = np.cumsum(heights) - heights
        order = _shuffled(np.arange(self.per_epoch), bits)
        return np.concatenate(chosen), starts[order], shapes[order]


def _shuffled(values: np.ndarray, bits: np.random.Philox) -> np.ndarray:
    """Return values (n,) in random order: sorted by random keys, none of them equal."""
    width = np.uint64(max(len(values) - 1, 1).bit_length())
    keys = bits.random_raw(len(values)) << width
    keys |= np.arange(len(values), dtype=np.uint64)
    keys.sort()
    keys &= (np.uint64(1) << width) - np.uint64(1)
    return values[keys.astype(np.intp)]


def prefetch(
    batches: Batches,
    start: int,
    stop: int,
    wanted: Callable[[int], np.ndarray] = np.arange,
    buffer: int = 8,
) -> Iterator[tuple[int, list[Batch]]]:
    """Make the batches of steps start .. stop - 1 ahead of their use, in order.

    Args:
      batches: makes them.
      start: the first step.
      stop: the step after the last.
      wanted: which rows, see ``Batches.batch_at``.
      buffer: batches made ahead.

    Yields:
      (step, its batches).
    """
    if start >= stop:
        return
    yield start, batches.of_step(start, wanted)
    import grain  # the first step need not wait for it

    steps = grain.MapDataset.range(start + 1, stop)
    made = steps.map(lambda step: (int(step), batches.of_step(int(step), wanted)))
    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=buffer)
    yield from made.to_iter_dataset(options)


# ---- evaluation and translation ------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Group:
    """Sequences of similar length for one array (height, length)."""

    rows: np.ndarray  # (n,) indices of the sequences, n <= height
    height: int
    length: int

    def padded(self, sequences: Sequence[Sequence[int]] | Sequences) -> np.ndarray:
        """Return the group's sequences as (height, length) int32, PAD elsewhere.

        Vectors, arrays (length, F), become what ``vectors.padded`` returns.
        """
        if isinstance(sequences[self.rows[0]], np.ndarray):
            arrays = [np.asarray(sequences[row]) for row in self.rows]
            shape = self.height, self.length
            return vectors.padded(arrays, shape, arrays[0].shape[1])
        out = np.full((self.height, self.length), PAD, np.int32)
        for i, row in enumerate(self.rows):
            out[i, : len(sequences[row])] = sequences[row]
        return out


def in_order(
    lengths: Sequence[int] | np.ndarray, tokens: int, multiple: int = 1
) -> list[Group]:
    """Group sequences for evaluation: every one exactly once, few shapes.

    The lengths of groups are 16, 32, 64, ..., so that any two sets of sentences
    share their shapes.

    Args:
      lengths: (N,) of the sequences; for pairs the longer of both sides.
      tokens: height * length is at most this, as far as ``multiple`` rows fit.
      multiple: heights are a multiple of this.

    Returns:
      Groups from short to long; only the last of each length may have empty rows.
    """
    if tokens < 1:
        raise ValueError(
            f"decode.tokens: expected 1 or more, got {tokens}; sizes.here(settings, V) "
            "replaces it by the device's number"
        )
    lengths = np.asarray(lengths, np.int64)
    rungs = np.array([_rung(int(length)) for length in lengths], np.int64)
    groups = []
    for length in np.unique(rungs):
        rows = np.flatnonzero(rungs == length)
        rows = rows[np.argsort(lengths[rows], kind="stable")]
        height = max(tokens // int(length) // multiple, 1) * multiple
        groups += [
            Group(rows[start : start + height], height, int(length))
            for start in range(0, len(rows), height)
        ]
    return groups


def _rung(length: int) -> int:
    """Return the least power of two, from 16, that holds a length."""
    return max(16, 1 << max(length - 1, 0).bit_length())
