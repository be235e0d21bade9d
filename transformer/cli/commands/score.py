"""Write the log-probability of given translations, one per line."""

from __future__ import annotations

from pathlib import Path

from absl import flags

from transformer.cli.files import reading, trained, writing
from transformer.cli.flags import Command
from transformer.cli.start import start_devices


def run(values: flags.FlagValues) -> int:
    """Run the command with the values of its flags; return the exit code."""
    workdir = trained(Path(values.workdir))
    with (
        reading(values.source) as source,
        reading(values.target) as target,
        writing(values.output) as output,
    ):
        start_devices(values.device)
        from transformer.stream import score_stream

        score_stream(workdir, source, target, output, step=values.step)
    return 0


COMMAND = Command(
    run,
    ("workdir", "source", "target"),
    ("output", "step", "device"),
)
