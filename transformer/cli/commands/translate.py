"""Translate text, one sentence per line."""

from __future__ import annotations

import os
from pathlib import Path

from absl import flags

from transformer.cli.files import reading, trained, writing
from transformer.cli.flags import (
    HOSTS,
    PROCESSES,
    SEARCH,
    Command,
    Rule,
    given,
    only_with,
    only_without,
)
from transformer.cli.start import started
from transformer.config import UserError
from transformer.search import OF_SAMPLING

_LINES = (
    "step",
    "scores",
    "alignments",
    "layer",
    "tags",
)  # how lines are written, and of what


def run(values: flags.FlagValues) -> int:
    """Run the command with the values of its flags; return the exit code."""
    workdir = trained(Path(values.workdir))
    if values.coordinator is not None and values.input is None:
        raise UserError(
            "--coordinator: expected --input with it, a file that every process can "
            "read; add it"
        )
    with (
        reading(values.input) as source,
        started(values.device, values),
        writing(_path(values.output)) as output,
    ):
        from transformer.stream import translate_stream

        translate_stream(workdir, source, output, **given(values, _LINES + SEARCH))
    return 0


def _path(output: str | None) -> str | None:
    """Return the file to write; of several processes the primary one alone has it."""
    from transformer.parallel import hosts

    return output if output is None or hosts.primary() else os.devnull


COMMAND = Command(
    run,
    ("workdir",),
    ("input", "output", "device") + _LINES + SEARCH + HOSTS,
    rules=(
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
