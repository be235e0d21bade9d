"""Encoded corpora on disk, written once, in chunks, and never read into memory."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np

from transformer.config import UserError
from transformer.data.tokenizers import Tokenizer, Vocabulary
from transformer.ids import EOS, PAD

_CHUNK = 50_000  # pairs in memory while a corpus is written
_CHUNKS_PER_MESSAGE = 10


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


class Side(Protocol):
    """One side of a corpus, as batches are made of it.

    Attributes:
      lengths: (pairs,) positions that each item takes.
    """

    @property
    def lengths(self) -> np.ndarray: ...

    def padded(self, rows: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
        """Return items as one array.

        Args:
          rows: (n,) which ones.
          shape: (R, length) of the result, R >= n.

        Returns:
          (R, length, ...), padding after each item and in the rows after the n-th.
        """


class Sides(Protocol):
    """Pairs of a source and a target side."""

    @property
    def source(self) -> Side: ...

    @property
    def target(self) -> Side: ...

    def __len__(self) -> int: ...


class Sequences:
    """The sequences of one language, each with EOS at its end, on disk.

    The offsets are memory-mapped. The ids are read where they are: were they mapped,
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
        chunks = [os.pread(file, size * n, size * start) for start, n in rows]
        return np.frombuffer(b"".join(chunks), self._dtype)

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """(pairs,) int32, EOS included."""
        lengths = np.empty(len(self), np.int32)
        for start in range(0, len(self), 1 << 20):
            part = self.offsets[start : start + (1 << 20) + 1]
            lengths[start : start + len(part) - 1] = np.diff(part)
        return lengths

    def padded(self, rows: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
        """Return ``Side.padded``: (n,) rows as (R, length) int32, PAD elsewhere."""
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
        self.source = Sequences(folder / f"{split}.source", record["source"])
        self.target = Sequences(folder / f"{split}.target", record["target"])
        self.counts = Counts(**record["counts"])

    def __len__(self) -> int:
        return len(self.source)


def write_corpus(
    folder: pathlib.Path,
    split: str,
    pairs: Iterable[tuple[str, str]],
    vocabulary: Vocabulary,
    max_length: int | None = None,
    log: Callable[[str], None] = lambda line: None,
) -> Counts:
    """Encode pairs to a folder, a chunk at a time.

    Args:
      folder: where ``split.*`` is written.
      split: the name of the corpus.
      pairs: texts.
      vocabulary: encodes them.
      max_length: leave out pairs with a side that is empty or longer than this, EOS
        included; None keeps all.
      log: takes a line about progress now and then.

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
            if number % _CHUNKS_PER_MESSAGE == 0:
                log(f"{split}: {counts.kept:,} pairs encoded")
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
    """Appends to the two files of ``Sequences``."""

    def __init__(self, stem: pathlib.Path, tokenizer: Tokenizer):
        self.encode = tokenizer.encode_many
        self.dtype = np.dtype(np.uint16 if tokenizer.size <= 1 << 16 else np.uint32)
        self._ids = open(f"{stem}.ids", "wb")
        self._offsets = open(f"{stem}.offsets", "wb")
        self._end = np.zeros(1, np.int64)
        self._end.tofile(self._offsets)

    def write(self, sequences: list[list[int]]) -> None:
        with_eos = [[*ids, EOS] for ids in sequences]
        np.fromiter(itertools.chain.from_iterable(with_eos), self.dtype).tofile(
            self._ids
        )
        lengths = np.fromiter(map(len, with_eos), np.int64, len(with_eos))
        offsets = self._end + np.cumsum(lengths)
        offsets.tofile(self._offsets)
        self._end = offsets[-1:] if len(offsets) else self._end

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *error: object) -> None:
        self._ids.close()
        self._offsets.close()
