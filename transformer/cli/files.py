"""Folders and files of the user: lines in, lines out."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from transformer.config import UserError
from transformer.run import folder


def writable(workdir: Path) -> Path:
    """Return a folder that can be written, made if absent."""
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=workdir).close()
    except OSError as error:
        raise UserError(
            f"--workdir: expected a folder that can be written, got {workdir}: "
            f"{error.strerror}; choose another"
        ) from None
    return workdir


def trained(workdir: Path) -> Path:
    """Return the folder of a run, whose configuration can be read."""
    folder.read_settings(workdir)
    return workdir


@contextlib.contextmanager
def reading(path: str | None) -> Iterator[Iterator[str]]:
    """Open a text file, or standard input where there is no path, as lines."""
    if path is None:
        yield _lines(sys.stdin.buffer, "standard input")
        return
    try:
        file = open(path, "rb")
    except OSError as error:
        raise UserError(
            f"expected a text file, got {path}: {error.strerror}; give the path of one"
        ) from None
    with file:
        yield _lines(file, path)


def _lines(stream: Any, name: str) -> Iterator[str]:
    """Yield lines without their end; only "\\n" ends a line."""
    for number, line in enumerate(stream, start=1):
        try:
            yield line.decode("utf-8").removesuffix("\n")
        except UnicodeDecodeError as error:
            raise UserError(
                f"{name}, line {number}: expected UTF-8, got {error.reason} at byte "
                f"{error.start}; convert the file"
            ) from None


@contextlib.contextmanager
def writing(path: str | None) -> Iterator[TextIO]:
    """Open a text file to write, or standard output where there is no path."""
    if path is None:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8", newline="\n")
        yield sys.stdout
        return
    try:
        file = open(path, "w", encoding="utf-8", newline="\n")
    except OSError as error:
        raise UserError(
            f"expected a file that can be written, got {path}: {error.strerror}; "
            "choose another"
        ) from None
    with file:
        yield file


def write(path: str | None, content: str | bytes) -> None:
    """Write to standard output (a text) or to a file: all of it or nothing."""
    if path is None:
        assert isinstance(content, str)
        with writing(None) as output:
            output.write(content)
        return
    scratch = Path(f"{path}.partial")
    try:
        scratch.write_bytes(content.encode() if isinstance(content, str) else content)
        os.replace(scratch, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            scratch.unlink()
        raise UserError(
            f"--output: expected a file that can be written, got {path}: "
            f"{error.strerror}; choose another"
        ) from None


def picture_form(path: str | None, forms: Sequence[str]) -> str:
    """Return the form of a file by the end of its name."""
    form = (path or "").rpartition(".")[2]
    if path is None or form not in forms:
        raise UserError(
            f"--output: expected a file name that ends in .{', .'.join(forms)}; got "
            f"{path or 'none'}; give one"
        )
    return form
