"""Constituency trees in brackets: from words to their tree."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
from collections.abc import Iterator

from transformer import config
from transformer.config import UserError
from transformer.data.sources.source import Checksums, Pair, Split, limited
from transformer.data.sources.text import checksum, existing, read_lines
from transformer.trees import brackets


@dataclasses.dataclass(frozen=True)
class Trees:
    """Files of trees as the Penn treebank has them, plain or compressed by gzip.

    ``data.train = "train.clean"`` reads ``train.clean.trees`` of ``data.dir`` (or
    ``train.clean.trees.gz``), a path with a suffix that file; ``+`` joins several. A
    pair is the words, a space between two, and the clean tree on one line; see
    ``brackets.clean``. Trees without words, which some treebanks hold, are left out.
    """

    data: config.Data

    def files(self, split: Split) -> list[pathlib.Path]:
        """Return the files of a split."""
        value: str = getattr(self.data, split)
        if not all(value.split("+")):
            raise UserError(
                f"data.{split}: expected names of tree files joined by '+', got "
                f"{value!r}; name the files of the {split} split"
            )
        folder = pathlib.Path(self.data.dir)
        return [
            existing(
                split,
                *(folder / f"{part}{suffix}" for suffix in (".trees", ".trees.gz", "")),
            )
            for part in value.split("+")
        ]

    def pairs(self, split: Split) -> Iterator[Pair]:
        trees = itertools.chain.from_iterable(map(_trees, self.files(split)))
        for tree in limited(self.data, split, trees):
            sentence = " ".join(word.form for word in brackets.words(tree))
            yield sentence, brackets.write(tree)

    def checksums(self, split: Split) -> Checksums:
        return {str(path): checksum(path) for path in self.files(split)}


def _trees(path: pathlib.Path) -> Iterator[brackets.Tree]:
    """Stream the clean trees of a file.

    Raises:
      UserError: for a file that has none, and for what is no tree, naming the line.
    """
    found = False
    for _, tree in brackets.read(read_lines(path), path):
        if clean := brackets.clean(tree):
            found = True
            yield clean
    if not found:
        raise UserError(
            f"{path}: expected trees in brackets, found none; name a treebank's file"
        )
