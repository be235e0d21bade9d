"""Encoded corpora on disk, and batches of similar lengths from them.

A corpus is written once, in chunks, and never read into memory. ``Batches`` sorts its
pairs into a short list of shapes (R, S, T); ``batch_at(step)`` is a pure function, so
that a run goes on from nothing but its step.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import os
import pathlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from transformer import config
from transformer.config import UserError
from transformer.data.tokenizers import Tokenizer, Vocabulary
from transformer.ids import EOS, PAD

Batch = dict[str, np.ndarray]
Shape = tuple[int, int, int]  # rows R, source length S, target length T

# ---- the corpus on disk --------------------------------------------------------------

_CHUNK = 50_000  # pairs in memory while a corpus is written
_CHUNKS_A_MESSAGE = 10


@dataclasses.dataclass(frozen=True)
class Counts:
    """How many pairs a corpus was made of, and how many it left out."""

    kept: int = 0
    empty: int = 0  # left out: nothing on one side
    long: int = 0  # left out: more than max_length tokens on one side

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.kept + other.kept, self.empty + other.empty, self.long + other.long
        )


class Side:
    """The sequences of one language, each ended by EOS, on disk.

    The offsets are memory-mapped. The ids are read where they lie: were they mapped,
    the pages around every row ever read would count as memory of the process, 5 GB
    for 36 M pairs.

    Attributes:
      offsets: (pairs + 1,) int64; sequence i is ids offsets[i] to offsets[i + 1] - 1.
    """

    def __init__(self, stem: pathlib.Path, dtype: str):
        self.offsets = np.memmap(f"{stem}.offsets", np.int64, "r").view(np.ndarray)
        self._dtype = np.dtype(dtype)
        self._ids = open(f"{stem}.ids", "rb", buffering=0)
        size = os.fstat(self._ids.fileno()).st_size // self._dtype.itemsize
        if size != self.offsets[-1]:
            raise UserError(
                f"{stem}.ids: expected {self.offsets[-1]:,} ids, got {size:,}: the "
                "file was damaged; remove the prepared folder"
            )

    def __del__(self) -> None:
        if hasattr(self, "_ids"):
            self._ids.close()

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> list[int]:
        start, end = self.offsets[row : row + 2]
        return self._read([start], [end - start]).tolist()

    def __iter__(self) -> Iterator[list[int]]:
        return (self[row] for row in range(len(self)))

    def _read(self, starts: Sequence[int], lengths: Sequence[int]) -> np.ndarray:
        size, file = self._dtype.itemsize, self._ids.fileno()
        rows = zip(starts, lengths, strict=True)
        parts = [os.pread(file, size * n, size * start) for start, n in rows]
        return np.frombuffer(b"".join(parts), self._dtype)

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """(pairs,) int32, EOS included."""
        lengths = np.empty(len(self), np.int32)
        for start in range(0, len(self), 1 << 20):
            part = self.offsets[start : start + (1 << 20) + 1]
            lengths[start : start + len(part) - 1] = np.diff(part)
        return lengths

    def padded(self, rows: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
        """Return sequences as one array.

        Args:
          rows: (n,) which ones.
          shape: (R, length) of the result, R >= n.

        Returns:
          (R, length) int32, PAD after each sequence and in the rows after the n-th.
        """
        starts = self.offsets[rows]
        lengths = self.offsets[rows.astype(np.int64) + 1] - starts
        out = np.full(shape, PAD, np.int32)
        real = np.arange(shape[1]) < lengths[:, None]
        out[: len(rows)][real] = self._read(starts.tolist(), lengths.tolist())
        return out


class Corpus:
    """One split, encoded: what ``write_corpus`` wrote.

    Args:
      folder: the prepared folder.
      split: "train", "validation" or "test".

    Attributes:
      source, target: the sequences.
      counts: pairs kept and left out.
    """

    def __init__(self, folder: pathlib.Path, split: str):
        folder = pathlib.Path(folder)
        record = json.loads((folder / f"{split}.json").read_text())
        self.source = Side(folder / f"{split}.source", record["source"])
        self.target = Side(folder / f"{split}.target", record["target"])
        self.counts = Counts(**record["counts"])

    def __len__(self) -> int:
        return len(self.source)


def write_corpus(
    folder: pathlib.Path,
    split: str,
    pairs: Iterable[tuple[str, str]],
    vocabulary: Vocabulary,
    max_length: int | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Counts:
    """Encode pairs to a folder, a chunk at a time.

    Args:
      folder: where ``split.*`` is written.
      split: the name of the corpus.
      pairs: texts.
      vocabulary: encodes them.
      max_length: leave out pairs with a side that is empty or longer than this, EOS
        included; None keeps all.
      say: told how far it is.

    Returns:
      The pairs kept and left out.

    Raises:
      UserError: if no pair is left.
    """
    folder = pathlib.Path(folder)
    counts = Counts()
    with (
        _Writer(folder / f"{split}.source", vocabulary.source) as source,
        _Writer(folder / f"{split}.target", vocabulary.target) as target,
    ):
        for number, chunk in enumerate(_chunks(pairs), 1):
            sides = zip(*chunk, strict=True)
            encoded = source.encode(next(sides)), target.encode(next(sides))
            counts += _write_chunk(source, target, encoded, max_length)
            if number % _CHUNKS_A_MESSAGE == 0:
                say(f"{split}: {counts.kept:,} pairs encoded")
    if not counts.kept:
        raise UserError(
            f"data.{split}: expected sentence pairs, got none ({counts.empty:,} empty, "
            f"{counts.long:,} longer than data.max_length = {max_length}); give others"
        )
    record = {
        "counts": dataclasses.asdict(counts),
        "source": source.dtype.name,
        "target": target.dtype.name,
    }
    (folder / f"{split}.json").write_text(json.dumps(record, indent=2) + "\n")
    return counts


def _chunks(pairs: Iterable[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    rest = iter(pairs)
    while chunk := list(itertools.islice(rest, _CHUNK)):
        yield chunk


def _write_chunk(
    source: _Writer,
    target: _Writer,
    encoded: tuple[list[list[int]], list[list[int]]],
    max_length: int | None,
) -> Counts:
    if max_length is None:
        source.write(encoded[0])
        target.write(encoded[1])
        return Counts(kept=len(encoded[0]))
    full = [(s, t) for s, t in zip(*encoded, strict=True) if s and t]
    kept = [(s, t) for s, t in full if max(len(s), len(t)) < max_length]
    source.write([s for s, _ in kept])
    target.write([t for _, t in kept])
    return Counts(len(kept), len(encoded[0]) - len(full), len(full) - len(kept))


class _Writer:
    """Appends sequences to the two files of a ``Side``."""

    def __init__(self, stem: pathlib.Path, tokenizer: Tokenizer):
        self.encode = tokenizer.encode_many
        self.dtype = np.dtype(np.uint16 if tokenizer.size <= 1 << 16 else np.uint32)
        self._ids = open(f"{stem}.ids", "wb")
        self._offsets = open(f"{stem}.offsets", "wb")
        self._end = np.zeros(1, np.int64)
        self._end.tofile(self._offsets)

    def write(self, sequences: list[list[int]]) -> None:
        ended = [[*ids, EOS] for ids in sequences]
        np.fromiter(itertools.chain.from_iterable(ended), self.dtype).tofile(self._ids)
        lengths = np.fromiter(map(len, ended), np.int64, len(ended))
        offsets = self._end + np.cumsum(lengths)
        offsets.tofile(self._offsets)
        self._end = offsets[-1:] if len(offsets) else self._end

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *error: object) -> None:
        self._ids.close()
        self._offsets.close()


# ---- the shapes of batches -----------------------------------------------------------

_LEVELS = 48  # lengths a side that the search for shapes tells apart

Box = tuple[int, int]  # S, T


@dataclasses.dataclass(frozen=True)
class _Budget:
    """How many rows a box has, and where pairs that fill no batch of it go on to."""

    tokens: int
    multiple: int

    def rows(self, box: Box) -> int:
        return self.tokens // max(box) // self.multiple * self.multiple

    def batches(self, boxes: Sequence[Box], counts: Sequence[int]) -> list[int]:
        """Return how many batches each box gives.

        Args:
          boxes: sorted by S + T, the last one holds all others.
          counts: pairs of each box.
        """
        counts, batches = list(counts), []
        for k, box in enumerate(boxes[:-1]):
            full, left = divmod(counts[k], self.rows(box))
            batches.append(full)
            counts[_next_box(boxes, k)] += left
        return [*batches, -(-counts[-1] // self.rows(boxes[-1]))]


def _next_box(boxes: Sequence[Box], k: int) -> int:
    """Return the smallest box after the k-th that holds it."""
    s, t = boxes[k]
    return next(j for j in range(k + 1, len(boxes)) if _holds(boxes[j], s, t))


def _holds(box: Box, s: int, t: int) -> bool:
    return box[0] >= s and box[1] >= t


def _by_area(boxes: Iterable[Box]) -> list[Box]:
    return sorted(boxes, key=lambda box: (sum(box), box))


def _choose_boxes(histogram: np.ndarray, budget: _Budget, limit: int) -> list[Box]:
    """Search for boxes (S, T) that leave little padding.

    Boxes are added one by one, each where it helps most. Moving them afterwards saved
    0.2 points of padding on Multi30k with 12 shapes and cost 0.2 with 16.

    Args:
      histogram: (longest S + 1, longest T + 1) number of pairs of each two lengths.
      budget: the rows of a box.
      limit: at most so many boxes.

    Returns:
      Boxes sorted by S + T; the last holds every pair.
    """
    levels = [_levels(histogram.sum(1)), _levels(histogram.sum(0))]
    coarse = np.add.reduceat(histogram, [0, *(levels[0][:-1] + 1)], 0)
    coarse = np.add.reduceat(coarse, [0, *(levels[1][:-1] + 1)], 1)

    @functools.cache
    def slots(cells: frozenset[Box]) -> int:
        where = {(int(levels[0][i]), int(levels[1][j])): (i, j) for i, j in cells}
        boxes, free, counts = _by_area(where), coarse.copy(), []
        for box in boxes:
            i, j = where[box]
            counts.append(int(free[: i + 1, : j + 1].sum()))
            free[: i + 1, : j + 1] = 0
        batches = budget.batches(boxes, counts)
        return sum(
            n * budget.rows(box) * sum(box)
            for n, box in zip(batches, boxes, strict=True)
        )

    root = coarse.shape[0] - 1, coarse.shape[1] - 1
    everywhere = [(i, j) for i in range(root[0] + 1) for j in range(root[1] + 1)]
    best = frozenset([root])
    while len(best) < min(limit, len(everywhere)):
        added = min((best | {cell} for cell in everywhere), key=slots)
        if slots(added) >= slots(best):
            break
        best = added
    return _by_area((int(levels[0][i]), int(levels[1][j])) for i, j in best)


def _levels(counts: np.ndarray) -> np.ndarray:
    """Return the lengths that boxes may have: all that occur, or evenly many."""
    lengths = np.flatnonzero(counts)
    if len(lengths) <= _LEVELS:
        return lengths
    share = np.cumsum(counts * np.arange(len(counts)))
    wanted = np.linspace(0, share[-1], _LEVELS + 1)[1:]
    return np.unique(np.append(np.searchsorted(share, wanted), lengths[-1]))


# ---- batches -------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Figures:
    """What one epoch holds, the same in each."""

    pairs: int
    batches: int
    source_tokens: int  # real ones, EOS included
    target_tokens: int
    slots: int  # of both sides, padding and empty rows included
    partly_empty: int  # batches with empty rows: 0 or 1

    @property
    def padding(self) -> float:
        """The share of slots that hold no token."""
        return 1 - (self.source_tokens + self.target_tokens) / self.slots


class Batches:
    """The training batches of every step, from corpus, settings and seed alone.

    They are one endless row, of which each step takes the next ``lengths``. Each epoch
    has every pair exactly once and as many batches as any other. Pairs that do not fill
    a batch of their shape go into a larger one, so that at most one batch of an epoch
    has empty rows.

    Args:
      corpus: the pairs.
      batch: slots a side, number of batches a step and of shapes, what rows and lengths
        are multiples of; with room for the longest pair, as ``config.resolve`` sees to.
      seed: of the order.

    Attributes:
      lengths: number of batches a step.
      shapes: list of (R, S, T), every shape that occurs; R * max(S, T) is at most
        tokens / lengths, S and T are multiples of ``batch.length_multiple``.
      per_epoch: number of batches.
      figures: of one epoch.
    """

    def __init__(self, corpus: Corpus, batch: config.Batch, seed: int):
        self._corpus, self._seed = corpus, seed % 2**64
        lengths = corpus.source.lengths, corpus.target.lengths
        self.lengths = batch.lengths
        histogram = _histogram(*lengths)
        budget = _Budget(batch.tokens // batch.lengths, batch.multiple)
        rounded = _rounded_up(histogram, batch.length_multiple)
        boxes = _choose_boxes(rounded, budget, batch.shapes)
        self._members = _members(boxes, *lengths)
        self._next = [_next_box(boxes, k) for k in range(len(boxes) - 1)]
        self._shapes: list[Shape] = [(budget.rows(box), *box) for box in boxes]
        self._numbers = budget.batches(boxes, [len(rows) for rows in self._members])
        used = zip(self._shapes, self._numbers, strict=True)
        self.shapes = [shape for shape, number in used if number]
        self.per_epoch = sum(self._numbers)
        self.figures = self._count(histogram)
        self._plan = functools.lru_cache(maxsize=2)(self._make_plan)
        self._lock = threading.Lock()  # two threads shall not make the same plan

    def _count(self, histogram: np.ndarray) -> Figures:
        both = list(zip(self._shapes, self._numbers, strict=True))
        rows = sum(number * shape[0] for shape, number in both)
        return Figures(
            pairs=len(self._corpus),
            batches=self.per_epoch,
            source_tokens=int(histogram.sum(1) @ np.arange(histogram.shape[0])),
            target_tokens=int(histogram.sum(0) @ np.arange(histogram.shape[1])),
            slots=sum(n * shape[0] * (shape[1] + shape[2]) for shape, n in both),
            partly_empty=int(rows > len(self._corpus)),
        )

    def of_step(
        self, step: int, wanted: Callable[[int], np.ndarray] = np.arange
    ) -> list[Batch]:
        """Return the ``lengths`` batches of a step; arguments as of ``batch_at``."""
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
          (R, S, T) is one of ``shapes``.
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
          Shapes (R, S, T) in the order in which they first come in the epoch of the
          first batch; if later ones are asked for, then all others.
        """
        epoch, first = divmod(start, self.per_epoch)
        last = first + max(stop - start, 0)
        with self._lock:
            numbers = self._plan(epoch)[2][first:last]
        found, places = np.unique(numbers, return_index=True)
        shapes = [self._shapes[k] for k in found[np.argsort(places)]]
        if last > self.per_epoch:
            shapes += [shape for shape in self.shapes if shape not in shapes]
        return shapes

    def rows_at(self, epoch: int, index: int) -> tuple[np.ndarray, Shape]:
        """Return which pairs of the corpus (n,) make a batch, and its shape."""
        with self._lock:
            rows, starts, shapes = self._plan(epoch)
        stop = starts[index] + self._shapes[shapes[index]][0]
        return rows[starts[index] : stop], self._shapes[shapes[index]]

    def _make_plan(self, epoch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return pairs in batch order, each batch's start there, each batch's shape."""
        # The raw bits of Philox never change between versions and machines, what
        # numpy's permutation makes of them may.
        bits = np.random.Philox(np.random.SeedSequence([self._seed, epoch]))
        parts: list[np.ndarray] = []
        carried: list[list[np.ndarray]] = [[] for _ in self._shapes]
        for k, members in enumerate(self._members):
            rows = np.concatenate([*carried[k], _shuffled(members, bits)])
            carried[k].clear()
            end = self._numbers[k] * self._shapes[k][0]
            parts.append(rows[:end])
            if end < len(rows):
                carried[self._next[k]].append(rows[end:])
        shapes = np.repeat(np.arange(len(parts)), self._numbers)
        heights = np.array([shape[0] for shape in self._shapes])[shapes]
        starts = np.cumsum(heights) - heights
        order = _shuffled(np.arange(self.per_epoch), bits)
        return np.concatenate(parts), starts[order], shapes[order]


def _histogram(s: np.ndarray, t: np.ndarray) -> np.ndarray:
    shape = int(s.max()) + 1, int(t.max()) + 1
    counts = np.zeros(shape[0] * shape[1], np.int64)
    for start in range(0, len(s), 1 << 20):
        part = slice(start, start + (1 << 20))
        cells = s[part].astype(np.int64) * shape[1] + t[part]
        counts += np.bincount(cells, minlength=len(counts))
    return counts.reshape(shape)


def _rounded_up(histogram: np.ndarray, multiple: int) -> np.ndarray:
    """Return the histogram of lengths that are rounded up to a multiple.

    Args:
      histogram: (longest S + 1, longest T + 1) number of pairs of each two lengths.
      multiple: what each length becomes a multiple of.
    """
    s, t = (config.round_up(np.arange(n), multiple) for n in histogram.shape)
    rounded = np.zeros((s[-1] + 1, t[-1] + 1), histogram.dtype)
    np.add.at(rounded, np.ix_(s, t), histogram)
    return rounded


def _members(boxes: list[Box], s: np.ndarray, t: np.ndarray) -> list[np.ndarray]:
    """Return the pairs of each box, every pair in the first box that holds it."""
    table = np.zeros((boxes[-1][0] + 1, boxes[-1][1] + 1), np.uint16)
    for k, (box_s, box_t) in reversed(list(enumerate(boxes))):
        table[: box_s + 1, : box_t + 1] = k
    assigned = np.empty(len(s), np.uint16)
    for start in range(0, len(s), 1 << 20):
        part = slice(start, start + (1 << 20))
        assigned[part] = table[s[part], t[part]]
    small = np.uint32 if len(s) < 1 << 32 else np.int64
    return [np.flatnonzero(assigned == k).astype(small) for k in range(len(boxes))]


def _shuffled(values: np.ndarray, bits: np.random.Philox) -> np.ndarray:
    """Return values in random order: sorted by random keys, none of them equal."""
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

    def padded(self, sequences: Sequence[Sequence[int]] | Side) -> np.ndarray:
        """Return the group's sequences as (height, length) int32, PAD elsewhere."""
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
      lengths: (N,) of the sequences; for pairs the larger of both sides.
      tokens: height * length is at most this, as far as ``multiple`` rows fit.
      multiple: heights are a multiple of this.

    Returns:
      Groups from short to long; only the last of each length may have empty rows.
    """
    if tokens < 1:
        raise ValueError(
            f"decode.tokens: expected 1 or more, got {tokens}; sizes.here(settings, V) "
            "puts the device's number in its place"
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
