"""Digests of files by blocks: what is read is verified first, once.

A file of gigabytes need not be read as a whole before its first row is used, and no row
is used from a block that was not verified.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer.config import UserError

BLOCK = 1 << 20  # bytes

Record = Mapping[str, Any]  # "bytes": the size, "sha256": of each block


def sha256(path: Path) -> str:
    """Return the SHA-256 (hex) of a whole file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def record_of(path: Path) -> dict[str, Any]:
    """Return the size of a file and the SHA-256 (hex) of each block of it."""
    with path.open("rb") as file:
        blocks = iter(lambda: file.read(BLOCK), b"")
        digests = [hashlib.sha256(block).hexdigest() for block in blocks]
        return {"bytes": file.tell(), "sha256": digests}


class Verified:
    """A file that is read in pieces, each block of which is verified when first read.

    Args:
      path: of the file.
      record: what ``record_of`` said of it; None for a file of an earlier version,
        which is read as it is.
      remedy: what to do where it is damaged, the end of the message.

    Raises:
      UserError: if it is absent or of another size.
    """

    def __init__(self, path: Path, record: Record | None, remedy: str) -> None:
        self._path, self._remedy = path, remedy
        try:
            self._file = open(path, "rb", buffering=0)
        except OSError as error:
            raise UserError(
                f"{path}: expected a readable file, got: {error.strerror}; {remedy}"
            ) from None
        self.bytes = os.fstat(self._file.fileno()).st_size
        self._digests: list[str] = record["sha256"] if record is not None else []
        if record is not None and self.bytes != record["bytes"]:
            raise UserError(
                f"{path}: expected {record['bytes']:,} bytes, got {self.bytes:,}: the "
                f"file was changed; {remedy}"
            )
        self._unread = set(range(len(self._digests)))  # blocks

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()

    def read(self, start: int, count: int) -> bytes:
        """Return some bytes, verified.

        Raises:
          UserError: if a block of them is not what was written.
        """
        if self._unread:
            for block in range(start // BLOCK, -(-(start + count) // BLOCK)):
                if block in self._unread:
                    self._verify(block)
        return os.pread(self._file.fileno(), count, start)

    def verify(self) -> None:
        """Verify the whole file."""
        for block in sorted(self._unread):
            self._verify(block)

    def _verify(self, block: int) -> None:
        content = os.pread(self._file.fileno(), BLOCK, block * BLOCK)
        if hashlib.sha256(content).hexdigest() != self._digests[block]:
            raise UserError(
                f"{self._path}: expected the content that was written, got other "
                f"content in block {block + 1} of {len(self._digests)}: the file was "
                f"changed; {self._remedy}"
            )
        self._unread.discard(block)
