"""Encoded corpora on disk, written once, in chunks, and never read into memory."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO, Protocol

import numpy as np

from transformer.config import UserError
from transformer.data import vectors
from transformer.data.folder import Folder, opened
from transformer.data.tokenizers import Tokenizer, Vectors, Vocabulary
from transformer.files import sealed
from transformer.ids import EOS, PAD

_CHUNK = 50_000  # pairs in memory while a corpus is written
_CHUNK_OF_ARRAYS = 500
_CHUNKS_PER_MESSAGE = 10
_PART = 1 << 20  # offsets
_OFFSET = np.dtype(np.int64)
_DTYPES = {"uint16", "uint32"}  # of ids
_FLOAT = "float32"  # of vectors


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
    """One side of a corpus, as batches are made from it.

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

    The offsets are memory-mapped, and verified as a whole when first used. The ids are
    read from the file, each block verified with its first row: if they were mapped, the
    pages around every row ever read would count as memory of the process, 5 GB for 36 M
    pairs.

    Args:
      folder: the prepared folder.
      stem: of the names of the two files.
      dtype: of the ids.
      pairs: how many sequences there are.
      features: F of the vectors that ``Frames`` has in place of ids.

    Attributes:
      offsets: (pairs + 1,) int64; sequence i is ids offsets[i] to offsets[i + 1] - 1.
    """

    def __init__(
        self, folder: Folder, stem: str, dtype: str, pairs: int, features: int = 0
    ):
        self._folder, self._name, self._pairs = folder, f"{stem}.offsets", pairs
        self._dtype = np.dtype((dtype, (features,)) if features else dtype)
        self.features = features
        self._ids = folder.file(f"{stem}.ids")
        _check_size(folder, self._name, (pairs + 1) * _OFFSET.itemsize)

    @functools.cached_property
    def offsets(self) -> np.ndarray:
        path = self._folder.verify(self._name)
        offsets = np.memmap(path, _OFFSET, "r").view(np.ndarray)
        if not self._folder.recorded:
            self._check(offsets)
        # Earlier versions made digests of files that a full disk had cut off.
        name = self._name.replace(".offsets", ".ids")
        _check_size(self._folder, name, int(offsets[-1]) * self._dtype.itemsize)
        return offsets

    def _check(self, offsets: np.ndarray) -> None:
        """Refuse offsets that do not rise: they would make empty sequences."""
        rising = all((part[1:] > part[:-1]).all() for part in _parts(offsets))
        if offsets[0] != 0 or not rising:
            self._folder.refuse(self._name, "offsets that rise from 0", "others")

    def __len__(self) -> int:
        return self._pairs

    def __getitem__(self, row: int) -> list[int]:
        start, end = self.offsets[row : row + 2]
        return self._read([start], [end - start]).tolist()

    def __iter__(self) -> Iterator[list[int]]:
        return (self[row] for row in range(len(self)))

    def _read(self, starts: Sequence[int], lengths: Sequence[int]) -> np.ndarray:
        size, read = self._dtype.itemsize, self._ids.read
        rows = zip(starts, lengths, strict=True)
        chunks = [read(size * start, size * n) for start, n in rows]
        return np.frombuffer(b"".join(chunks), self._dtype)

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """(pairs,) int32, EOS included."""
        lengths = np.empty(len(self), np.int32)
        for number, part in enumerate(_parts(self.offsets)):
            lengths[number * _PART : (number + 1) * _PART] = np.diff(part)
        return lengths

    def padded(self, rows: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
        """Return ``Side.padded``: (n,) rows as (R, length) int32, PAD elsewhere."""
        starts = self.offsets[rows]
        lengths = self.offsets[rows.astype(np.int64) + 1] - starts
        out = np.full(shape, PAD, np.int32)
        real = np.arange(shape[1]) < lengths[:, None]
        out[: len(rows)][real] = self._read(starts.tolist(), lengths.tolist())
        return out


class Frames(Sequences):
    """The same for vectors: arrays (S, F) in place of ids, and no EOS."""

    def __getitem__(self, row: int) -> Any:
        start, end = self.offsets[row : row + 2]
        return self._read([start], [end - start])

    def padded(self, rows: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
        """Return ``Side.padded``: (n,) rows as ``vectors.padded`` has them."""
        return vectors.padded([self[row] for row in rows], shape, self.features)


def _parts(offsets: np.ndarray) -> Iterator[np.ndarray]:
    """Yield parts that fit into memory, each beginning with the end of the last."""
    for start in range(0, len(offsets) - 1, _PART):
        yield offsets[start : start + _PART + 1]


def _check_size(folder: Folder, name: str, expected: int) -> None:
    size = folder.file(name).bytes
    if size != expected:
        folder.refuse(name, f"{expected:,} bytes", f"{size:,}: the file was changed")


class Corpus:
    """One split, encoded: what ``write_corpus`` wrote.

    Args:
      folder: the prepared folder, or where it is.
      split: "train", "validation" or "test".

    Attributes:
      source, target: the sequences.
      counts: pairs kept and left out.

    Raises:
      UserError: if a file is absent or of another size; if its content differs, when
        that is first read.
    """

    def __init__(self, folder: pathlib.Path | Folder, split: str):
        folder = opened(folder)
        self.counts, dtypes, features = folder.json(f"{split}.json", _parse)
        kept, (of_source, of_target) = self.counts.kept, dtypes
        kind = Frames if features else Sequences
        self.source = kind(folder, f"{split}.source", of_source, kept, features)
        self.target = Sequences(folder, f"{split}.target", of_target, kept)

    def __len__(self) -> int:
        return len(self.source)


def _parse(record: dict[str, Any]) -> tuple[Counts, list[str], int]:
    """Return the counts, the types of both sides, and the features of vectors or 0."""
    counts = Counts(**record["counts"])
    dtypes = [record["source"], record["target"]]
    if not isinstance(counts.kept, int) or counts.kept < 1:
        raise ValueError(f"{counts.kept} pairs")
    features = record.get("features", 0)
    if not isinstance(features, int) or features < 0:
        raise ValueError(f"{features} features")
    if not set(dtypes) - ({_FLOAT} if features else set()) <= _DTYPES:
        raise ValueError(f"ids of {' and '.join(dtypes)}")
    return counts, dtypes, features


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
        _writer(folder / f"{split}.source", vocabulary.source) as source,
        _Writer(folder / f"{split}.target", vocabulary.target) as target,
    ):
        size = _CHUNK_OF_ARRAYS if source.also else _CHUNK
        for number, chunk in enumerate(_chunks(pairs, size), 1):
            sides = zip(*chunk, strict=True)
            encoded = source.encode(next(sides)), target.encode(next(sides))
            counts += _write_chunk(source, target, encoded, max_length)
            if number % _CHUNKS_PER_MESSAGE == 0:
                log(f"{split}: {counts.kept:,} pairs encoded")
    if not counts.kept:
        left_out = ""
        if max_length is not None:
            left_out = (
                f" ({counts.empty:,} empty, {counts.long:,} longer than "
                f"data.max_length = {max_length})"
            )
        raise UserError(
            f"data.{split}: expected sentence pairs, got none{left_out}; give others"
        )
    record = {
        "counts": dataclasses.asdict(counts),
        "source": source.dtype.name,
        "target": target.dtype.name,
        **source.also,
    }
    sealed.write_json(folder / f"{split}.json", record)
    return counts


def _chunks(
    pairs: Iterable[tuple[str, str]], size: int
) -> Iterator[list[tuple[str, str]]]:
    rest = iter(pairs)
    while chunk := list(itertools.islice(rest, size)):
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
    full = [(s, t) for s, t in zip(*encoded, strict=True) if len(s) and len(t)]
    kept = [
        (s, t)
        for s, t in full
        if len(s) + source.end <= max_length and len(t) < max_length
    ]
    source.write([s for s, _ in kept])
    target.write([t for _, t in kept])
    return Counts(len(kept), len(encoded[0]) - len(full), len(full) - len(kept))


def _writer(stem: pathlib.Path, tokenizer: Tokenizer) -> _Writer:
    """Return the writer of the source of a corpus."""
    kind = _FrameWriter if isinstance(tokenizer, Vectors) else _Writer
    return kind(stem, tokenizer)


class _Writer:
    """Appends to the two files of ``Sequences``."""

    end = 1  # what is added to the length of each: EOS

    def __init__(self, stem: pathlib.Path, tokenizer: Tokenizer):
        self.also: dict[str, int] = {}  # of the record
        self.encode = tokenizer.encode_many
        self.dtype = np.dtype(np.uint16 if tokenizer.size <= 1 << 16 else np.uint32)
        self._ids = open(f"{stem}.ids", "wb")
        self._offsets = open(f"{stem}.offsets", "wb")
        self._end = np.zeros(1, np.int64)
        _append(self._offsets, self._end)

    def write(self, sequences: list[list[int]]) -> None:
        with_eos = [[*ids, EOS] for ids in sequences]
        flat = itertools.chain.from_iterable(with_eos)
        _append(self._ids, np.fromiter(flat, self.dtype))
        self._write_offsets(with_eos)

    def _write_offsets(self, sequences: Sequence[Sequence[Any]]) -> None:
        lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
        offsets = self._end + np.cumsum(lengths)
        _append(self._offsets, offsets)
        self._end = offsets[-1:] if len(offsets) else self._end

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *error: object) -> None:
        with _naming(self._ids), self._ids, _naming(self._offsets), self._offsets:
            pass  # there may be no room for the last write either


def _append(file: BinaryIO, array: np.ndarray) -> None:
    """Write numbers; numpy's ``tofile`` may not report that a disk is full."""
    with _naming(file):
        file.write(array.tobytes())


@contextlib.contextmanager
def _naming(file: BinaryIO) -> Iterator[None]:
    """Say which file an error is about."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, file.name) from error


class _FrameWriter(_Writer):
    """Appends to the two files of ``Frames``."""

    end = 0

    def __init__(self, stem: pathlib.Path, tokenizer: Tokenizer):
        super().__init__(stem, tokenizer)
        self.dtype, self.also = np.dtype(_FLOAT), {"features": tokenizer.size}

    def write(self, sequences: list[Any]) -> None:
        for array in sequences:
            _append(self._ids, array.astype(self.dtype))
        self._write_offsets(sequences)
