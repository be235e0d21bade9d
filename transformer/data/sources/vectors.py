"""Arrays of numbers, as of speech or images, and a line of text for each."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import pathlib
from collections.abc import Iterable, Iterator

from transformer import config
from transformer.config import UserError
from transformer.data.sources.source import Checksums, Pair, Split, limited
from transformer.data.sources.text import existing, read_lines
from transformer.data.vectors import in_folder
from transformer.files.digests import sha256


@dataclasses.dataclass(frozen=True)
class Vectors:
    """Folders of .npy arrays, frames x features, each with a text file beside it.

    ``data.train = "train"`` reads every ``train/*.npy`` of ``data.dir``, in the order
    of their names, and ``train.txt``, whose line n is the target of the n-th array;
    ``+`` joins several. A pair is the path of the array and that line.

    All arrays have the same number of features and any number of frames. Scale them so
    that the squares of a frame's features add up to about 1; see
    ``layers.source_rows``.
    """

    data: config.Data

    def folders(self, split: Split) -> list[tuple[pathlib.Path, pathlib.Path]]:
        """Return the folders of a split, each with the file of its targets."""
        value: str = getattr(self.data, split)
        parts = value.split("+")
        if not all(pathlib.Path(part).name for part in parts):
            raise UserError(
                f"data.{split}: expected names of folders joined by '+', got "
                f"{value!r}; name the folders of the {split} split"
            )
        stems = [pathlib.Path(self.data.dir) / part for part in parts]
        return [
            (stem, existing(split, stem.with_name(f"{stem.name}.txt")))
            for stem in stems
        ]

    def pairs(self, split: Split) -> Iterator[Pair]:
        every = itertools.chain.from_iterable(
            _pairs(*both) for both in self.folders(split)
        )
        return limited(self.data, split, every)

    def checksums(self, split: Split) -> Checksums:
        sums: Checksums = {}
        for folder, text in self.folders(split):
            arrays = _arrays(folder, text)
            sums[str(folder)] = {"lines": len(arrays), "sha256": digest(arrays)}
            sums[str(text)] = {"lines": len(arrays), "sha256": sha256(text)}
        return sums


def digest(arrays: Iterable[pathlib.Path]) -> str:
    """Return the SHA-256 (hex) of the names and digests of arrays.

    Raises:
      UserError: for one that cannot be read.
    """
    whole = hashlib.sha256()
    for path in arrays:
        try:
            whole.update(f"{path.name}\n{sha256(path)}\n".encode())
        except OSError as error:
            raise UserError(
                f"{path}: expected an array written by numpy.save, got: {error}; "
                "replace it"
            ) from None
    return whole.hexdigest()


def _pairs(folder: pathlib.Path, text: pathlib.Path) -> Iterator[Pair]:
    """Stream the pairs of a folder, which must have as many arrays as lines."""
    return zip(map(str, _arrays(folder, text)), read_lines(text), strict=True)


def _arrays(folder: pathlib.Path, text: pathlib.Path) -> list[pathlib.Path]:
    """Return the arrays of a folder, which must be as many as the lines of the text."""
    arrays, lines = in_folder(folder), sum(1 for _ in read_lines(text))
    if len(arrays) != lines:
        raise UserError(
            f"expected as many lines in {text} as there are arrays in {folder}, got "
            f"{lines:,} and {len(arrays):,}; give each array one line"
        )
    return arrays
