"""Measure the speed of training, search, input or startup, or training memory."""

from __future__ import annotations

from pathlib import Path

from absl import flags
from ml_collections.config_flags import config_flags

from transformer import config
from transformer.cli.configs import override_arguments
from transformer.cli.files import writable, write_json
from transformer.cli.flags import FLAGS, Command, given, only_for, path_flag
from transformer.cli.start import start_devices

_KINDS = FLAGS["what"].choices
_SIZES = ("tokens", "length", "rounds")


def run(values: flags.FlagValues) -> int:
    """Run the command with the values of its flags; return the exit code."""
    settings = config.resolve(values.config)
    start_devices(settings.device)
    from transformer.tools.bench.table import bench

    flag = values["config"]
    rows = bench(
        settings,
        [
            f"--config={config_flags.get_config_filename(flag)}",
            *override_arguments(flag),
        ],
        values.what,
        **given(values, _SIZES),
        profile=writable(Path(values.profile), "profile") if values.profile else None,
    )
    if values.output:
        from transformer.run.provenance import machine

        write_json(values.output, rows | {"machine": machine()})
    return 0


COMMAND = Command(
    run,
    ("config",),
    ("what", *_SIZES, "output", "profile"),
    {"output": path_flag("JSON file to write, besides the printed table")},
    rules=(
        only_for("what", ["train", "greedy", "beam", "memory"], "tokens", "length"),
        only_for("what", [x for x in _KINDS if x != "memory"], "rounds"),
        only_for("what", ["train", "greedy", "beam"], "profile"),
    ),
)
