"""Folders and files of the user: lines in, lines out."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import stat
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from absl import flags
from ml_collections.config_flags import config_flags

from transformer.cli.flags import Command
from transformer.config import UserError
from transformer.files.lines import decoded
from transformer.files.whole import json_text, replacing
from transformer.run import folder


def writable(workdir: Path, flag: str = "workdir") -> Path:
    """Check that a flag's folder can be written, creating it if absent; return it."""
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=workdir).close()
    except OSError as error:
        raise UserError(
            f"--{flag}: expected a writable folder, got {workdir}: {error.strerror}; "
            "choose another"
        ) from None
    return workdir


def folders(text: str, flag: str) -> list[Path]:
    """Return the folders of a flag that takes several, separated by commas.

    A single one may have a comma in its name.
    """
    # Path.is_dir fails for text that is too long to be one name.
    parts = [text] if os.path.isdir(text) else text.split(",")
    if not all(parts):
        # Path("") is the working folder: all runs below it would be included.
        raise UserError(
            f"--{flag}: expected folders separated by commas, got {text!r}, which has "
            "an empty one; leave out the comma"
        )
    return [*map(Path, parts)]


def trained(workdir: Path) -> Path:
    """Check that the configuration of a run can be read; return its folder."""
    folder.read_settings(workdir)
    return workdir


@contextlib.contextmanager
def reading(path: str | None) -> Iterator[Iterator[str]]:
    """Open a text file, or standard input if there is no path, as lines."""
    if path is None:
        if sys.stdin is None:
            raise UserError(
                "standard input: expected lines of text, found it closed; open it or "
                "name a file"
            )
        yield decoded(_typed(sys.stdin.buffer), "standard input")
        return
    try:
        file = open(path, "rb")
    except OSError as error:
        raise UserError(
            f"expected a text file, got {path}: {error.strerror}; give the path of one"
        ) from None
    with file:
        yield decoded(file, path)


def is_typed() -> bool:
    """Return whether standard input may pause: a terminal or a pipe, not a file."""
    try:
        return not stat.S_ISREG(os.fstat(sys.stdin.fileno()).st_mode)
    except (AttributeError, OSError, ValueError):
        return False


def _typed(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of standard input as they come.

    This bypasses its buffer: Python closes that at exit, and would wait for a thread
    that waits for a line.
    """
    if not is_typed():
        yield from stream
        return
    parts: list[bytes] = []
    while block := os.read(stream.fileno(), 1 << 16):
        *lines, rest = block.split(b"\n")
        for line in lines:
            yield b"".join([*parts, line, b"\n"])
            parts.clear()
        if rest:
            parts.append(rest)
    if parts:
        yield b"".join(parts)


# ---- written whole or not at all -----------------------------------------------------


@contextlib.contextmanager
def writing(path: str | None) -> Iterator[TextIO]:
    """Open a text file to write, or standard output if there is no path.

    The file replaces an older one when the block ends; after an error the older one is
    unchanged.
    """
    if path is None:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8", newline="\n")
        yield sys.stdout
        return
    with _output(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="\n")
        yield text
        text.flush()


def write(path: str | None, content: str | bytes) -> None:
    """Write to standard output (a text) or to a file: all of it or nothing."""
    if path is None:
        assert isinstance(content, str)
        with writing(None) as output:
            output.write(content)
        return
    with _output(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def write_json(path: str | None, value: Any) -> None:
    """Write indented JSON to a file, if there is a path."""
    if path is not None:
        write(path, json_text(value))


@contextlib.contextmanager
def _output(path: str) -> Iterator[BinaryIO]:
    """Open a stream at a path, or a file that is moved there when the block ends."""
    with contextlib.ExitStack() as stack:
        try:
            if _is_stream(path):
                number = os.open(path, os.O_WRONLY | os.O_APPEND)
                file: BinaryIO = stack.enter_context(open(number, "wb"))
            else:
                file = stack.enter_context(_replacing(Path(os.path.realpath(path))))
        except OSError as error:
            raise _unwritable(path, error.strerror) from None
        yield file


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """Replace a file, if it may be written, with one that has its permissions."""
    mode = path.stat().st_mode if path.exists() else None
    if mode is not None and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    with replacing(path) as file:
        if mode is not None:
            os.fchmod(file.fileno(), stat.S_IMODE(mode))
        yield file


# Opened by the shell: never replaced, even if it is a file.
_DESCRIPTOR = re.compile(r"/dev/(stdout|stderr|fd/\d+)|/proc/(self|\d+)/fd/\d+")


def _is_stream(path: str) -> bool:
    """Return whether a path is a terminal, a pipe or another device."""
    if _DESCRIPTOR.fullmatch(path):
        return True
    return os.path.exists(path) and not os.path.isfile(path)


def _unwritable(path: str, why: str | None, what: str = "writable file") -> UserError:
    return UserError(f"--output: expected a {what}, got {path}: {why}; choose another")


# ---- before anything is read ---------------------------------------------------------

# What later work reads from the folder of a run.
_OF_A_RUN = {*folder.FILES, *folder.FOLDERS, "corpus", "lock"}


def check_output(command: Command, values: flags.FlagValues) -> None:
    """Check ``--output`` before any work is done for it.

    Raises:
      UserError: if it cannot be written, or is something that is read: an input, the
        config file, or a file of a run.
    """
    path = values["output"].value if "output" in values else None
    if path is None:
        return
    flag = command.flags()["output"]
    if flag.folder:
        _refuse_files_of_a_run(path)
        writable(Path(path), "output")
        return
    what = "new folder" if flag.creates else "writable file"
    if flag.creates and os.path.lexists(path):
        raise _unwritable(path, os.strerror(errno.EEXIST), what)
    if os.path.isdir(path):
        raise _unwritable(path, os.strerror(errno.EISDIR))
    if _is_stream(path):
        return
    parent = os.path.dirname(os.path.realpath(path))
    if not os.path.isdir(parent):
        raise _unwritable(path, f"there is no folder {parent}", what)
    if not os.access(parent, os.W_OK | os.X_OK):
        raise _unwritable(path, f"the folder {parent} is write-protected", what)
    for name, read in _read_files(command, values):
        if _is_same(path, read):
            raise UserError(
                f"--output: expected a file other than {name}, got {path} for both; "
                "choose another"
            )
    _refuse_files_of_a_run(path)


def _read_files(
    command: Command, values: flags.FlagValues
) -> Iterator[tuple[str, str]]:
    for name, flag in command.flags().items():
        file = values[name].value
        if flag.reads and file is not None:
            yield f"--{name}", str(file)
    for name, argument in command.positional.items():
        given = values[name.removesuffix("...")].value
        if argument.reads:
            for file in given if isinstance(given, list) else [given]:
                yield name.removesuffix("...").upper(), str(file)
    if "config" in values and values["config"].value is not None:
        given = config_flags.get_config_filename(values["config"])
        yield "--config", given.partition(":")[0]


def _is_same(path: str, other: str) -> bool:
    if os.path.exists(path) and os.path.exists(other):
        return os.path.samefile(path, other)
    return os.path.realpath(path) == os.path.realpath(other)


def _refuse_files_of_a_run(path: str) -> None:
    below = Path(os.path.realpath(path))
    for above in below.parents:
        first = below.relative_to(above).parts[0]
        if first in _OF_A_RUN and (above / "config.json").is_file():
            raise UserError(
                f"--output: expected a path that is not part of the run in {above}, "
                f"got {path}; choose another"
            )


def picture_form(path: str | None, forms: Sequence[str]) -> str:
    """Return the format of a file, by its extension."""
    form = (path or "").rpartition(".")[2]
    if path is None or form not in forms:
        raise UserError(
            f"--output: expected a file name that ends in .{', .'.join(forms)}; got "
            f"{path or 'none'}; give one"
        )
    return form
