"""Measure perplexity and BLEU of a trained model."""

from __future__ import annotations

from pathlib import Path

from absl import flags

from transformer.cli.files import trained
from transformer.cli.flags import HOSTS, PROCESSES, Command
from transformer.cli.start import started


def run(values: flags.FlagValues) -> int:
    """Run the command with the values of its flags; return the exit code."""
    workdir = trained(Path(values.workdir))
    with started(values.device, values):
        from transformer.evaluate import evaluate

        evaluate(workdir, split=values.split, step=values.step, average=values.average)
    return 0


COMMAND = Command(
    run,
    ("workdir",),
    ("split", "step", "average", "device", *HOSTS),
    rules=PROCESSES,
)
