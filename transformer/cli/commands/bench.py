"""The command ``bench``."""

from __future__ import annotations

from pathlib import Path

from absl import flags
from ml_collections.config_flags import config_flags

from transformer import config
from transformer.cli.configs import override_arguments
from transformer.cli.flags import Command
from transformer.cli.start import start_devices


def run(values: flags.FlagValues) -> int:
    """Run the command with the values of its flags; return the exit code."""
    settings = config.resolve(values.config)
    start_devices(settings.device)
    from transformer.tools.bench.table import bench

    flag = values["config"]
    bench(
        settings,
        [
            f"--config={config_flags.get_config_filename(flag)}",
            *override_arguments(flag),
        ],
        values.what,
        tokens=values.tokens,
        length=values.length,
        rounds=values.rounds,
        output=Path(values.output) if values.output else None,
        profile=Path(values.profile) if values.profile else None,
    )
    return 0


COMMAND = Command(
    run,
    "measure the speed of training, search, input or start on this machine, or the "
    "memory of training",
    ("config",),
    ("what", "tokens", "length", "rounds", "output", "profile"),
)
