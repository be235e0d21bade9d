"""Where sentence pairs come from: a file and a line of ``SOURCES`` for each source."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Iterable

from transformer import config
from transformer.config import UserError
from transformer.data.sources.number_words import Numbers
from transformer.data.sources.parquet import Parquet
from transformer.data.sources.sacrebleu_sets import with_test_sets
from transformer.data.sources.source import (
    HELD_OUT,
    SPLITS,
    Checksums,
    Pair,
    Source,
    Split,
    changed,
)
from transformer.data.sources.text import Text
from transformer.data.sources.tfds import TensorFlowDatasets
from transformer.data.sources.trees import Trees
from transformer.data.sources.vectors import Vectors, digest
from transformer.data.vectors import in_folder
from transformer.files.digests import sha256

__all__ = [
    "HELD_OUT",
    "SOURCES",
    "SPLITS",
    "Checksums",
    "changed",
    "Pair",
    "Source",
    "Split",
    "digests_of",
    "open_source",
]

SOURCES: dict[str, Callable[[config.Data], Source]] = {
    "numbers": Numbers,
    "parquet": Parquet,
    "text": Text,
    "tfds": TensorFlowDatasets,
    "trees": Trees,
    "vectors": Vectors,
}


def open_source(data: config.Data) -> Source:
    """Open the source that ``data.source`` names.

    Args:
      data: where the pairs come from.

    Returns:
      An object with ``pairs(split)`` and ``checksums(split)``.

    Raises:
      UserError: for a name that no source has, and for files, languages or datasets
        that are not there.
    """
    if data.source not in SOURCES:
        config.refuse("data.source", f"one of {', '.join(SOURCES)}", data.source)
    return with_test_sets(data, SOURCES[data.source](data))


def digests_of(names: Iterable[str]) -> Checksums:
    """Return ``{name: {"sha256": hex}}`` of the inputs that are there to be read."""
    found: Checksums = {}
    for name in names:
        path = pathlib.Path(name)
        with contextlib.suppress(OSError, UserError):
            whole = digest(in_folder(path)) if path.is_dir() else sha256(path)
            found[name] = {"sha256": whole}
    return found
