"""Test a model: no leaks, cached = uncached decoding, and more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from absl import flags

from transformer import config
from transformer.cli.files import trained
from transformer.cli.flags import Command
from transformer.cli.start import start_devices
from transformer.config import UserError


def run(values: flags.FlagValues) -> int:
    """Run the command with the values of its flags; return the exit code."""
    if (values.config is None) == (values.workdir is None):
        raise UserError(
            "check: expected either --workdir or --config; give one of them"
        )
    if values.workdir is not None:
        options: dict[str, Any] = {"workdir": trained(Path(values.workdir))}
    else:
        options = {"settings": config.resolve(values.config)}
    start_devices(values.device)
    from transformer.tools.check import check

    return check(**options)


COMMAND = Command(
    run,
    (),
    ("config", "workdir", "device"),
)
