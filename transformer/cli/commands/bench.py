"""Measure the speed of training, search, input or start, or the memory of training."""

from __future__ import annotations

from pathlib import Path

from absl import flags
from ml_collections.config_flags import config_flags

from transformer import config
from transformer.cli.configs import override_arguments
from transformer.cli.flags import Command, given
from transformer.cli.start import start_devices

_SIZES = ("tokens", "length", "rounds")


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
        **given(values, _SIZES),
        output=Path(values.output) if values.output else None,
        profile=Path(values.profile) if values.profile else None,
    )
    return 0


COMMAND = Command(
    run,
    ("config",),
    ("what", *_SIZES, "output", "profile"),
)
