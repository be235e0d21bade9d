"""What a source of sentence pairs is: pairs and checksums of three splits."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, Literal, Protocol

from transformer.config import Data

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
HELD_OUT: tuple[Split, ...] = SPLITS[1:]
Pair = tuple[str, str]
Checksums = dict[str, dict[str, Any]]


class Source(Protocol):
    """Sentence pairs of the three splits, streamed: none is held in memory.

    A pair is ``(source text, target text)``. A text is one line: it never contains
    ``"\\n"``.
    """

    def pairs(self, split: Split) -> Iterator[Pair]:
        """Stream the pairs of a split, always the same ones in the same order."""

    def checksums(self, split: Split) -> Checksums:
        """Return ``{name of an input: {"lines": n, "sha256": hex}}``."""


def changed(known: Checksums, now: Checksums) -> list[str]:
    """Return the inputs of ``now`` whose content is not the one that is known.

    The content of one that is new may be that of one that is gone, as sacreBLEU's cache
    may be elsewhere.
    """
    gone = {known[name].get("sha256") for name in known.keys() - now.keys()} - {None}

    def is_known(name: str, record: dict[str, Any]) -> bool:
        if name in known:
            return _same(known[name], record)
        return record.get("sha256") in gone

    return [name for name, record in now.items() if not is_known(name, record)]


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether two records are of the same content.

    For a .gz an older record has no text_sha256: what both have is compared.
    """
    both = one.keys() & other.keys()
    return bool(both) and all(one[key] == other[key] for key in both)


def limited(data: Data, split: Split, items: Iterable[Any]) -> Iterator[Any]:
    """Stream items of a split, of the training split at most ``data.train_pairs``."""
    limit = data.train_pairs if split == "train" else 0
    return itertools.islice(items, limit or None)
