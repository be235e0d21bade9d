"""JSON files of a run, each with the digest of its own content.

``sha256`` is the last key of such a file: the digest of all the others. So a file and
its digest change at the same moment, whatever interrupts the run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer.config import UserError
from transformer.files.objects import read_object
from transformer.files.whole import write_json as write_plain

_SEAL = "sha256"


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write indented JSON, sealed, whole or not at all."""
    write_plain(path, {**value, _SEAL: _digest(value)})


def read_json(path: Path, remedy: str) -> dict[str, Any]:
    """Read what ``write_json`` wrote, without its seal.

    A file of an earlier version has no seal and is taken as it is.

    Args:
      path: of the file.
      remedy: what to do where it is damaged, the end of the message.

    Raises:
      UserError: if there is no such file, it cannot be read, or its content is not what
        was written.
    """
    value = read_object(path, remedy)
    if _is_sealed(value):
        seal = value.pop(_SEAL, None)
        if seal != _digest(value):
            raise UserError(
                f"{path}: expected the content that was written, got other content: "
                f"the file was changed; {remedy}"
            )
    return value


def _is_sealed(value: Mapping[str, Any]) -> bool:
    # Damage may have hit the key: then the last value still looks like a digest.
    *_, last = [None, *value.values()]
    return _SEAL in value or (isinstance(last, str) and len(last) == 64)


def _digest(value: Mapping[str, Any]) -> str:
    text = json.dumps(value, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
