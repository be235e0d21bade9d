"""metrics.jsonl: one JSON object per line, verified against what record.json claims.

The claim is the size and the SHA-256 of the lines that were there when the record was
written. After that, lines are only added, so the claim stays true of the beginning;
before lines are cut off, a record that claims less is written.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer.config import UserError
from transformer.run import folder

Claim = Mapping[str, Any]  # "bytes": the size, "sha256": hexadecimal

_NAME = "metrics.jsonl"
_REMEDY = (
    "restore it, or move it and record.json away to go on without the earlier history"
)


class History:
    """The lines of a run, to which more are added."""

    def __init__(
        self,
        workdir: Path,
        step: int = 0,
        record: Callable[[Claim], None] = lambda claim: None,
    ) -> None:
        """Open the lines, and forget what was written after ``step``.

        Args:
          workdir: folder of the run; it exists.
          step: of the checkpoint that the run resumes from.
          record: writes down the claim about what is kept, before the rest is cut off.

        Raises:
          UserError: if the lines are not those that were written, or are elsewhere.
        """
        path = workdir / _NAME
        with contextlib.ExitStack() as opened:
            self._file = opened.enter_context(_opened(path))
            kept = b""
            if step:
                content = self._file.read()
                _verify(path, content, folder.read_record(workdir).get("metrics"))
                kept = content[: _end(path, content, step)]
            self._digest, self._bytes = hashlib.sha256(kept), len(kept)
            record(self.claim())
            self._file.truncate(len(kept))
            self._file.seek(len(kept))
            opened.pop_all()  # the file stays open if all went well

    def add(self, line: Mapping[str, Any]) -> None:
        """Write a line, on disk at once."""
        content = (json.dumps(line) + "\n").encode()
        self._file.write(content)
        self._file.flush()
        self._digest.update(content)
        self._bytes += len(content)

    def claim(self) -> Claim:
        """Flush the lines to disk and return the claim for record.json."""
        os.fsync(self._file.fileno())
        return {"bytes": self._bytes, "sha256": self._digest.hexdigest()}

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_metrics(workdir: Path) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl in order, without one truncated by a kill.

    Raises:
      UserError: if they are not those that were written, or a line is not metrics.
    """
    path = workdir / _NAME
    claim = folder.read_record(workdir).get("metrics")
    content = _content(path)
    try:
        _verify(path, content, claim)
    except UserError:
        now = folder.read_record(workdir).get("metrics")
        if now == claim:
            raise
        _verify(path, content := _content(path), now)  # a run resumed meanwhile
    return [_parsed(path, number, line) for number, line in _whole_lines(content)]


def validations(metrics: Sequence[Mapping[str, Any]]) -> tuple[tuple[int, float], ...]:
    """Return the step and the validation perplexity of each validation."""
    key = "validation_perplexity"
    return tuple((line["step"], line[key]) for line in metrics if line.get(key))


def _opened(path: Path) -> Any:
    # A link is not followed; nothing is emptied.
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    try:
        return open(os.open(path, flags, 0o666), "r+b")
    except OSError as error:
        raise UserError(
            f"{path}: expected a writable file, and no link, got: {error.strerror}; "
            "move it away"
        ) from None


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise UserError(
            f"{path}: expected a readable file, got: {error.strerror}; {_REMEDY}"
        ) from None


def _verify(path: Path, content: bytes, claim: Claim | None) -> None:
    if claim is None:  # of an earlier version, or no record
        return
    if len(content) < claim["bytes"]:
        raise UserError(
            f"{path}: expected at least the {claim['bytes']:,} bytes that were "
            f"written, got {len(content):,}; {_REMEDY}"
        )
    if hashlib.sha256(content[: claim["bytes"]]).hexdigest() != claim["sha256"]:
        raise UserError(
            f"{path}: expected the content that was written, got other content: the "
            f"file was changed; {_REMEDY}"
        )


def _whole_lines(content: bytes) -> list[tuple[int, bytes]]:
    """Return the lines with their numbers, except one that a kill broke off."""
    return [*enumerate(content.split(b"\n")[:-1], 1)]


def _end(path: Path, content: bytes, step: int) -> int:
    """Return where the lines of steps up to one end."""
    end = 0
    for number, line in _whole_lines(content):
        if _parsed(path, number, line)["step"] > step:
            break
        end += len(line) + 1
    return end


def _parsed(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) or not _are_metrics(value):
        raise UserError(
            f"{path}, line {number}: expected one JSON object per line, of a step and "
            f"numbers, got {line[:40].decode(errors='replace')!r}; {_REMEDY}"
        )
    return value


def _are_metrics(values: Mapping[str, Any]) -> bool:
    numbers = all(x is None or type(x) in (int, float) for x in values.values())
    return type(values.get("step")) is int and numbers
