"""Translate text, one sentence per line."""

from __future__ import annotations

from pathlib import Path

from absl import flags

from transformer.cli.files import reading, trained, writing
from transformer.cli.flags import HOSTS, SEARCH, Command, given
from transformer.cli.start import started
from transformer.config import UserError

_LINES = ("step", "scores", "alignments", "layer")  # how lines are written, and of what


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
        writing(values.output) as output,
        started(values.device, values),
    ):
        from transformer.stream import translate_stream

        translate_stream(workdir, source, output, **given(values, _LINES + SEARCH))
    return 0


COMMAND = Command(
    run,
    ("workdir",),
    ("input", "output", "device") + _LINES + SEARCH + HOSTS,
)
