"""Train a model, or resume a stopped run."""

from __future__ import annotations

from pathlib import Path

from absl import flags

from transformer import config
from transformer.cli.files import writable
from transformer.cli.flags import HOSTS, PROCESSES, Command
from transformer.cli.start import started


def run(values: flags.FlagValues) -> int:
    """Run the command with the values of its flags; return the exit code."""
    settings = config.resolve(values.config)
    workdir = writable(Path(values.workdir))
    with started(settings.device, values):
        from transformer.parallel import hosts
        from transformer.train import train

        finished = train(settings, workdir, init_from=values.init_from)
    return 0 if finished else hosts.STOPPED


COMMAND = Command(
    run,
    ("config", "workdir"),
    ("init_from", *HOSTS),
    rules=PROCESSES,
)
