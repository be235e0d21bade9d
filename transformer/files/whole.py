"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file that takes the place of another when the block ends.

    It is written beside its place under a name that nobody can guess, then renamed:
    after an error or a kill the old file is unchanged, and a link in its place is
    replaced, not followed.

    Args:
      path: of the file.

    Yields:
      The file, open to write.

    Raises:
      OSError: if the folder cannot be written.
    """
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    number = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with open(number, "wb") as file:
            yield file
            file.flush()
            os.fsync(number)  # a rename may reach the disk before what it renames
        os.replace(scratch, path)
    except BaseException:
        with contextlib.suppress(OSError):
            scratch.unlink()
        raise


def write_whole(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    with replacing(path) as file:
        file.write(content)


def json_text(value: Any) -> str:
    """Return indented JSON, for people to read."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON whole or not at all, for others: without a seal."""
    write_whole(path, json_text(value).encode())
