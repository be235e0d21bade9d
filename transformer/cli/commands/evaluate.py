"""Measure perplexity and BLEU of a trained model."""

from __future__ import annotations

from pathlib import Path

from absl import flags

from transformer.cli.files import trained
from transformer.cli.flags import HOSTS, PROCESSES, Command, folder_flag
from transformer.cli.start import started


def run(values: flags.FlagValues) -> int:
    """Run the command with the values of its flags; return the exit code."""
    workdir = trained(Path(values.workdir))
    with started(values.device, values):
        from transformer.evaluate import evaluate

        output = None if values.output is None else Path(values.output)
        evaluate(
            workdir,
            split=values.split,
            step=values.step,
            average=values.average,
            output=output,
        )
    return 0


COMMAND = Command(
    run,
    ("workdir",),
    ("split", "step", "average", "output", "device", *HOSTS),
    {"output": folder_flag("folder for sources, references and hypotheses as text")},
    rules=PROCESSES,
)
