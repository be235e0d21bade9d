"""Predict whether a config fits on a machine not at hand, and its minimum times."""

from __future__ import annotations

import sys

from absl import flags

from transformer import config
from transformer.cli.files import write, write_json
from transformer.cli.flags import (
    Command,
    Rule,
    choice_flag,
    count_flag,
    given,
    only_with,
    only_without,
    path_flag,
)
from transformer.cli.start import start_devices
from transformer.config import Config
from transformer.pictures.tables import markdown
from transformer.tools.targets import TARGETS


def run(values: flags.FlagValues) -> int:
    """Run the command with the values of its flags; return the exit code."""
    settings = config.resolve(values.config)
    if values.target is None:
        return _plan_meshes(settings, values)
    start_devices("cpu")
    from transformer.tools.plan.table import plan

    rows = plan(
        settings,
        values.target,
        values.what or "all",
        **given(values, ("tokens", "length")),
        every=values.shapes == "all",
        progress=_progress,
    )
    write_json(values.output, rows)
    return 0


def _plan_meshes(settings: Config, values: flags.FlagValues) -> int:
    from transformer import parallel
    from transformer.tools.meshes.table import table

    count = 8 if values.simulate is None else values.simulate
    devices = parallel.simulate(count) if count else []
    tokens, length = values.tokens or settings.batch.tokens, values.length or 32
    found = table(settings, tokens, length, devices, _progress)
    write(values.output, markdown(found))
    return 0


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


COMMAND = Command(
    run,
    ("config",),
    ("target", "what", "shapes", "tokens", "length", "simulate", "output"),
    {
        "what": choice_flag(
            "with --target: programs to compile (default: all)",
            ["all", "train", "evaluate", "search"],
        ),
        "target": choice_flag(
            "machine to compile for: a Cloud TPU type, or cuda (default: none; see "
            "--simulate)",
            [*TARGETS, "cuda"],
        ),
        "length": count_flag(
            "tokens per sentence on both sides (default: the shapes of the data if "
            "prepared or generated, else 32)",
            least=2,
        ),
        "output": path_flag("file to write: JSON with --target, else the table"),
    },
    (
        only_with("target", "what", "shapes"),
        only_without("target", "simulate"),
        Rule(
            ("shapes",),
            lambda values: values.what in (None, "all", "train"),
            "with --what=all or train only; change that",
        ),
    ),
)
