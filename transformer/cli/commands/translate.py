"""Translate text, one sentence per line."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from absl import flags

from transformer.cli.files import folders, is_typed, reading, trained, writing
from transformer.cli.flags import (
    HOSTS,
    PROCESSES,
    SEARCH,
    Command,
    Rule,
    file_flag,
    given,
    only_with,
    only_without,
    path_flag,
)
from transformer.cli.start import started
from transformer.config import UserError
from transformer.run.folder import read_settings
from transformer.search import OF_SAMPLING

_LINES = (
    "step",
    "scores",
    "alignments",
    "layer",
    "tags",
)  # what is written, and from what


def run(values: flags.FlagValues) -> int:
    """Run the command with the values of its flags; return the exit code."""
    workdirs = [trained(path) for path in _workdirs(values)]
    if values.coordinator is not None and values.input is None:
        raise UserError(
            "--coordinator: expected --input with it, a file that every process can "
            "read; add it"
        )
    demanded = _demanded(values)
    with (
        _reading(values) as source,
        started(values.device, values),
        writing(_path(values.output)) as output,
    ):
        from transformer.stream import translate_stream

        workdir = workdirs if len(workdirs) > 1 else workdirs[0]
        options = given(values, _LINES + SEARCH)
        translate_stream(workdir, source, output, **options, **demanded)
    return 0


def _workdirs(values: Any) -> list[Path]:
    return folders(values.workdir, "workdir")


def _demanded(values: Any) -> dict[str, Any]:
    """Return what is read before anything is translated, as arguments."""
    found: dict[str, Any] = {}
    if values.input is None and is_typed():
        found["answering"] = True
    if values.prefix is not None:
        found["prefixes"] = _lines_of(values.prefix)
        if values.input is not None and _is_kept(values.input):
            with _reading(values) as sources:
                lines, there = sum(1 for _ in sources), len(found["prefixes"])
            if lines != there:
                raise UserError(
                    f"--prefix: expected as many lines as {values.input} has, got "
                    f"{there:,} and {lines:,}; give one per line, possibly empty"
                )
    if values.forbid is not None:
        words = [word.strip() for word in _lines_of(values.forbid) if word.strip()]
        if not words:
            raise UserError(
                f"--forbid: expected a file of words, got none in {values.forbid}; "
                "leave it out"
            )
        found["forbid"] = words
    return found


def _is_kept(path: str) -> bool:
    """Return whether a path can be read twice; a pipe cannot."""
    return os.path.isfile(path) or os.path.isdir(path)


@contextlib.contextmanager
def _reading(values: Any) -> Iterator[Iterator[str]]:
    """Open the input: lines, or the paths of a folder's arrays or of a single one."""
    path = values.input
    if path is not None and (path.endswith(".npy") or os.path.isdir(path)):
        from transformer.data.vectors import in_folder

        if read_settings(_workdirs(values)[0]).data.vectors:
            arrays = in_folder(Path(path)) if os.path.isdir(path) else [path]
            yield map(str, arrays)
            return
    with reading(path) as lines:
        yield lines


def _lines_of(path: str) -> list[str]:
    with reading(path) as lines:
        return [*lines]


def _path(output: str | None) -> str | None:
    """Return the file to write; of several processes only the primary one has it."""
    from transformer.parallel import hosts

    return output if output is None or hosts.primary() else os.devnull


COMMAND = Command(
    run,
    ("workdir",),
    ("input", "output", "device", "prefix", "forbid") + _LINES + SEARCH + HOSTS,
    {
        "input": file_flag(
            "file, one sentence per line (default: standard input); for vectors a .npy "
            "file, a folder of them, or a file of their paths"
        ),
        "prefix": file_flag(
            "file with the beginnings of the translations, one per input line, empty "
            "for none"
        ),
        "forbid": file_flag(
            "file of words that no translation may contain, one per line"
        ),
        "workdir": path_flag(
            "folder of the run, or several separated by commas to translate as an "
            "ensemble"
        ),
    },
    (
        Rule(
            ("alignments",),
            lambda values: len(_workdirs(values)) == 1,
            "with one --workdir only; choose one",
        ),
        only_with("sample", *OF_SAMPLING),
        only_without("sample", "beam"),
        Rule(
            ("alpha", "length_penalty"),
            lambda values: not values.sample or values.scores or values.n_best > 1,
            "without --sample, or with --scores or --n_best; change that",
        ),
        only_with("alignments", "layer"),
        *PROCESSES,
    ),
)
