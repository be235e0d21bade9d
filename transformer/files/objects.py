"""JSON files that hold one object."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformer.config import UserError


def read_object(path: Path, remedy: str) -> dict[str, Any]:
    """Read a JSON object.

    Args:
      path: of the file.
      remedy: what to do where it cannot be read, the end of the message.

    Raises:
      UserError: if there is no such file, it cannot be read, or it holds something
        else.
    """
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise UserError(f"{path}: expected a file, found none; {remedy}") from None
    except OSError as error:
        raise UserError(
            f"{path}: expected a readable file, got: {error.strerror}; {remedy}"
        ) from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: expected JSON, got: {error}; {remedy}") from None
    if not isinstance(value, dict):
        kind = type(value).__name__
        raise UserError(f"{path}: expected a JSON object, got a {kind}; {remedy}")
    return value
