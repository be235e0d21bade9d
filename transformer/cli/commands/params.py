"""Show the shape and size of every parameter."""

from __future__ import annotations

from absl import flags

from transformer import config
from transformer.cli.flags import Command


def run(values: flags.FlagValues) -> int:
    """Run the command with the values of its flags; return the exit code."""
    settings = config.resolve(values.config)
    from transformer.tools.params import parameter_table

    print(parameter_table(settings))
    return 0


COMMAND = Command(run, ("config",))
