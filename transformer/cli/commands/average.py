"""Average the last checkpoints for inference."""

from __future__ import annotations

from pathlib import Path

from absl import flags

from transformer.cli.files import trained
from transformer.cli.flags import Command
from transformer.cli.start import start_devices


def run(values: flags.FlagValues) -> int:
    """Run the command with the values of its flags; return the exit code."""
    workdir = trained(Path(values.workdir))
    start_devices("cpu")
    from transformer.evaluate import average

    print(average(workdir, last=values.last))
    return 0


COMMAND = Command(run, ("workdir",), ("last",))
