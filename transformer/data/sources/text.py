"""Text files, a line for a sentence, plain or compressed by gzip."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import itertools
import pathlib
import zlib
from collections.abc import Iterator
from typing import Any

from transformer import config
from transformer.config import UserError
from transformer.data.sources.names import Part, parts
from transformer.data.sources.source import Checksums, Pair, Split, limited
from transformer.files.digests import sha256
from transformer.files.lines import decoded


@dataclasses.dataclass(frozen=True)
class Text:
    """Two files per split; line n of one belongs to line n of the other.

    ``data.train = "news+web"`` reads ``news.en`` and ``news.de`` of ``data.dir`` (or
    ``news.en.gz``, where there is no ``news.en``), then ``web.en`` and ``web.de``.
    ``"SOURCE_FILE,TARGET_FILE"`` in place of a stem names two files outright. Weights
    and tags, ``"news*2#<news>+web"``: see ``names.parts``.

    ``files.lines`` says what ends a line and what is not part of its text.
    """

    data: config.Data

    def files(self, split: Split) -> list[tuple[Part, pathlib.Path, pathlib.Path]]:
        """Return the corpora of a split, each with its source and its target file."""
        found = parts(split, getattr(self.data, split), "file stems")
        return [(part, *self._two_files(split, part.name)) for part in found]

    def _two_files(self, split: Split, part: str) -> tuple[pathlib.Path, pathlib.Path]:
        if "," in part:
            names = [pathlib.Path(name.strip()) for name in part.split(",")]
            if len(names) != 2:
                raise UserError(
                    f"data.{split}: expected SOURCE_FILE,TARGET_FILE, got {part!r}; "
                    "name exactly two files"
                )
            remedy = "give the paths of two files from the current folder"
            source, target = (existing(split, name, remedy=remedy) for name in names)
            return source, target
        stem = pathlib.Path(self.data.dir) / part
        if not stem.name:
            raise UserError(
                f"data.{split}: expected file stems such as {split}, got {part!r}, "
                "which names none; change it"
            )
        languages = self.data.source_language, self.data.target_language
        hint = None
        if stem.suffix[1:] in languages:
            hint = f"set data.{split} to a name without extension, {stem.stem}"
        source, target = (
            existing(split, plain, plain.with_name(plain.name + ".gz"), remedy=hint)
            for plain in (stem.with_name(f"{stem.name}.{x}") for x in languages)
        )
        return source, target

    def pairs(self, split: Split) -> Iterator[Pair]:
        pairs = itertools.chain.from_iterable(
            ((part.tagged(left), right) for left, right in parallel_lines(*files))
            for part, *files in self.files(split)
            for _ in range(part.times)
        )
        return limited(self.data, split, pairs)

    def checksums(self, split: Split) -> Checksums:
        sums: Checksums = {}
        for _, source, target in self.files(split):
            sums |= checksums_of(source, target)
        return sums


def existing(
    split: Split, *candidates: pathlib.Path, remedy: str | None = None
) -> pathlib.Path:
    """Return the first of some files that exists.

    Args:
      split: that they are for.
      *candidates: their paths.
      remedy: what to do if there is none, None = set the keys of the split.

    Raises:
      UserError: if none does.
    """
    for path in candidates:
        if path.is_file():
            return path
    raise UserError(
        f"data.{split}: expected a file {' or '.join(map(str, candidates))}, found "
        f"none; {remedy or f'set data.dir and data.{split}'}"
    )


def _open(path: pathlib.Path) -> io.BufferedIOBase:
    if path.suffix == ".gz":
        return gzip.open(path, "rb")
    return open(path, "rb")


def _raw_lines(path: pathlib.Path) -> Iterator[bytes]:
    try:
        with _open(path) as file:
            yield from file
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(
            f"{path}: expected a readable file, got: {error}; replace it"
        ) from None


def read_lines(path: pathlib.Path) -> Iterator[str]:
    r"""Stream the lines of a UTF-8 file, plain or .gz, without their ends.

    Args:
      path: the file; a name that ends in ``.gz`` is decompressed.

    Returns:
      The text between two ``"\n"``, see ``files.lines``.

    Raises:
      UserError: for invalid UTF-8, naming the line, and for files that cannot be read.
    """
    return decoded(_raw_lines(path), path)


def checksum(path: pathlib.Path) -> dict[str, Any]:
    """Return lines and digests of a file, plain or .gz.

    ``sha256`` is that of the file as it is, ``text_sha256`` that of what a .gz holds:
    the ``sha256`` of the same text unpacked.
    """
    lines, text = 0, hashlib.sha256()
    for line in _raw_lines(path):
        lines += 1
        text.update(line)
    if path.suffix == ".gz":
        digests = {"sha256": sha256(path), "text_sha256": text.hexdigest()}
    else:
        digests = {"sha256": text.hexdigest()}
    return {"lines": lines} | digests


def checksums_of(source: pathlib.Path, target: pathlib.Path) -> Checksums:
    """Return the checksums of two files, which must be parallel."""
    sums = {str(path): checksum(path) for path in (source, target)}
    _check_counts(
        source, sums[str(source)]["lines"], target, sums[str(target)]["lines"]
    )
    return sums


def parallel_lines(source: pathlib.Path, target: pathlib.Path) -> Iterator[Pair]:
    """Stream line n of both files, which must have the same number of lines."""
    both = itertools.zip_longest(read_lines(source), read_lines(target))
    for left, right in both:
        if left is None or right is None:
            _check_counts(source, _count(source), target, _count(target))
        yield left, right


def _check_counts(
    source: pathlib.Path, lines: int, target: pathlib.Path, target_lines: int
) -> None:
    if lines != target_lines:
        raise UserError(
            f"expected as many lines in {target} as in {source}, got {target_lines} "
            f"and {lines}: line {min(lines, target_lines) + 1} has no partner; align "
            "the files"
        )
    if not lines:
        raise UserError(f"{source}: expected sentences, got an empty file; add some")


def _count(path: pathlib.Path) -> int:
    return sum(1 for _ in _raw_lines(path))
