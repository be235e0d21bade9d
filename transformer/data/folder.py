"""A prepared folder and its manifest: each file is verified before it is used."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

from transformer.config import UserError
from transformer.files import digests, sealed

MANIFEST = "manifest.json"

# What the manifest holds; "files" came later than the others.
_KEYS = {
    "format": int,
    "config": dict,
    "inputs": dict,
    "vocabulary": str,
    "pairs": dict,
}
_FILES = "files"


class Folder:
    """What a preparation wrote, or parts of it.

    Args:
      path: where it is.

    Attributes:
      manifest: the content of manifest.json; None where there is none.
      remedy: what to do where a file is damaged, the end of a message.

    Raises:
      UserError: if the manifest is damaged.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.remedy = (
            f"remove the folder {self.path} and prepare the data again with "
            "transformer train"
        )
        self.manifest = self._read_manifest()
        self._records = (self.manifest or {}).get(_FILES)

    @property
    def recorded(self) -> bool:
        """Whether there are digests: earlier versions made none."""
        return self._records is not None

    @property
    def names(self) -> Iterable[str]:
        """The names of the files that have digests."""
        return self._records or ()

    def _read_manifest(self) -> dict[str, Any] | None:
        path = self.path / MANIFEST
        if not os.path.lexists(path):
            return None
        manifest = sealed.read_json(path, self.remedy)
        for key, kind in _KEYS.items():
            if not isinstance(manifest.get(key), kind):
                self.refuse(MANIFEST, f"{key!r} of type {kind.__name__}")
        records = manifest.get(_FILES, {})
        if not isinstance(records, dict):
            self.refuse(MANIFEST, f"{_FILES!r} of type dict")
        for name, record in records.items():
            if not _is_record(record):
                self.refuse(MANIFEST, f"size and digests of {name}")
        return manifest

    def file(self, name: str) -> digests.Verified:
        """Open a file, to be verified where it is read."""
        if self._records is not None and name not in self._records:
            self.refuse(MANIFEST, f"size and digests of {name}")
        return digests.Verified(
            self.path / name, (self._records or {}).get(name), self.remedy
        )

    def verify(self, name: str) -> Path:
        """Verify a whole file, and return its path."""
        if self.recorded:
            self.file(name).verify()
        return self.path / name

    def lines(self, name: str) -> list[str]:
        r"""Return the lines of a text, each of which ends at "\n"."""
        file = self.file(name)
        try:
            return file.read(0, file.bytes).decode().split("\n")[:-1]
        except UnicodeDecodeError as error:
            self.refuse(name, "UTF-8", f"{error.reason} at byte {error.start}")

    def json(self, name: str, parse: Callable[[dict[str, Any]], Any]) -> Any:
        """Read a JSON object.

        Args:
          name: of the file.
          parse: makes what is returned of it.
        """
        values = sealed.read_json(self.verify(name), self.remedy)
        try:
            return parse(values)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            what = f"{type(error).__name__}: {error}"
            self.refuse(name, "the content that was written", what)

    def refuse(self, name: str, expected: str, got: str = "none") -> NoReturn:
        """Raise an error about a damaged file, with the remedy."""
        raise UserError(
            f"{self.path / name}: expected {expected}, got {got}; {self.remedy}"
        )


def opened(folder: Path | Folder) -> Folder:
    """Return a prepared folder that may be opened already."""
    return folder if isinstance(folder, Folder) else Folder(folder)


def _is_record(record: Any) -> bool:
    if not isinstance(record, dict) or not isinstance(record.get("bytes"), int):
        return False
    blocks = -(-record["bytes"] // digests.BLOCK)
    return isinstance(record.get("sha256"), list) and len(record["sha256"]) == blocks


def records_of(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the sizes and digests of all files of a folder, by name."""
    paths = sorted(folder.iterdir())
    return {path.name: digests.record_of(path) for path in paths}
