"""Parquet files with a column of translations, or two columns of text."""

from __future__ import annotations

import dataclasses
import glob
import itertools
import os
import pathlib
from collections.abc import Iterator
from typing import Any

from transformer import config
from transformer.config import UserError
from transformer.data.sources.names import parts
from transformer.data.sources.source import Checksums, Pair, Split, limited
from transformer.files.digests import sha256
from transformer.files.lines import joined

_ROWS = 4096  # read at a time
_WHAT = "names of Parquet files"


@dataclasses.dataclass(frozen=True)
class Parquet:
    """Files of a split, one pair per row.

    ``data.train = "train"`` reads ``train.parquet`` of ``data.dir``, or else, by name,
    all ``train-*.parquet``; a name that ends in ``.parquet`` may be a shell pattern.
    Joining, weights and tags: ``names.parts``.

    The texts are the fields ``translation.en`` and ``translation.de`` of two languages,
    or else the columns ``en`` and ``de``, or else what ``data.name`` names,
    ``"SOURCE_COLUMN,TARGET_COLUMN"``, a dot before a field of a struct. An absent text
    is empty, and a line end in a text becomes a space.
    """

    data: config.Data

    def pairs(self, split: Split) -> Iterator[Pair]:
        pairs = itertools.chain.from_iterable(
            ((part.tagged(source), target) for source, target in self._pairs(path))
            for part in parts(split, getattr(self.data, split), _WHAT)
            for path in self._files(split, part.name) * part.times
        )
        return limited(self.data, split, pairs)

    def checksums(self, split: Split) -> Checksums:
        sums: Checksums = {}
        for part in parts(split, getattr(self.data, split), _WHAT):
            for path in self._files(split, part.name):
                with _opened(path) as file:
                    self._columns(path, file)
                    rows = file.metadata.num_rows
                if not rows:
                    raise UserError(
                        f"{path}: expected sentences, got no rows; add some"
                    )
                sums[str(path)] = {"lines": rows, "sha256": sha256(path)}
        return sums

    def _files(self, split: Split, name: str) -> list[pathlib.Path]:
        patterns = [name]
        if not name.endswith(".parquet"):
            patterns = [f"{name}.parquet", f"{name}-*.parquet"]
        for pattern in patterns:
            path = os.path.join(glob.escape(self.data.dir), pattern)
            if found := sorted(filter(os.path.isfile, glob.glob(path))):
                return [*map(pathlib.Path, found)]
        raise UserError(
            f"data.{split}: expected Parquet files {' or '.join(patterns)} in "
            f"{self.data.dir}, found none; set data.dir and data.{split}"
        )

    def _pairs(self, path: pathlib.Path) -> Iterator[Pair]:
        import pyarrow

        with _opened(path) as file:
            columns = self._columns(path, file)
            try:
                for batch in file.iter_batches(_ROWS, columns=list(columns)):
                    sources, targets = (_texts(batch, column) for column in columns)
                    yield from zip(sources, targets, strict=True)
            except (OSError, pyarrow.ArrowException, UnicodeDecodeError) as error:
                raise _damaged(path, error) from None

    def _columns(self, path: pathlib.Path, file: Any) -> tuple[str, str]:
        """Return the columns of both texts, fields of structs behind a dot."""
        try:
            schema = file.schema_arrow
            _ = [field.name for field in schema]
        except UnicodeDecodeError as error:
            raise _damaged(path, error) from None
        languages = self.data.source_language, self.data.target_language
        candidates = [tuple(f"translation.{x}" for x in languages), languages]
        if self.data.name:
            candidates = [tuple(self.data.name.split(","))]
        for candidate in candidates:
            if len(candidate) == 2 and all(_is_text(schema, x) for x in candidate):
                return candidate[0], candidate[1]
        expected = " or ".join(",".join(candidate) for candidate in candidates)
        raise UserError(
            f"{path}: expected columns of text {expected}, got "
            f"{', '.join(map(_described, schema))}; set data.name to "
            "SOURCE_COLUMN,TARGET_COLUMN, or to '' for columns named by language"
        )


def _opened(path: pathlib.Path) -> Any:
    import pyarrow
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(path, page_checksum_verification=True)
    except (OSError, pyarrow.ArrowException) as error:
        raise _damaged(path, error) from None


def _damaged(path: pathlib.Path, error: Exception) -> UserError:
    told = str(error).partition("\n")[0]
    return UserError(
        f"{path}: expected a readable Parquet file, got: {told}; replace it"
    )


def _is_text(schema: Any, column: str) -> bool:
    """Return whether a column, or a field of a struct in it, holds text."""
    from pyarrow import types

    first, *rest = _path(schema, column)
    if schema.get_field_index(first) < 0:
        return False
    kind = schema.field(first).type
    for name in rest:
        if not types.is_struct(kind) or kind.get_field_index(name) < 0:
            return False
        kind = kind.field(name).type
    if types.is_dictionary(kind):  # as pandas writes categories
        kind = kind.value_type
    is_text = types.is_string, types.is_large_string, types.is_string_view
    return any(is_(kind) for is_ in is_text)


def _path(schema: Any, column: str) -> list[str]:
    """Return the names that lead to a text; a column's own name may have dots."""
    return [column] if schema.get_field_index(column) >= 0 else column.split(".")


def _described(field: Any) -> str:
    return f"{field.name} ({field.type})"


def _texts(batch: Any, column: str) -> list[str]:
    from pyarrow import compute

    first, *rest = _path(batch.schema, column)
    values = batch.column(batch.schema.get_field_index(first))
    if rest:
        values = compute.struct_field(values, rest)
    return [joined(text or "") for text in values.to_pylist()]
