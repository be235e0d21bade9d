"""Train rows of a table with several seeds, or resume unfinished runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from absl import flags

from transformer import config
from transformer.cli.configs import ablated_file, override_arguments, row_names
from transformer.cli.files import folders, writable
from transformer.cli.flags import Command, path_flag
from transformer.cli.parse import resolved
from transformer.config import UserError


def run(values: flags.FlagValues) -> int:
    """Run the command with the values of its flags; return the exit code."""
    from transformer.run.records import announce
    from transformer.tools.ablate import launchers, watch
    from transformer.tools.ablate.runs import commands
    from transformer.tools.ablate.slurm import Slurm

    slurm = _slurm_options(values)
    if slurm and values.launcher != "slurm":
        raise UserError(
            f"--slurm.{next(iter(slurm))}: expected --launcher=slurm with it; add that "
            "or leave it out"
        )
    workdir = Path(values.workdir)
    runs = _planned(values, workdir)
    if not runs:
        announce(f"nothing to do: --results={values.results} has all of these runs")
        return 0
    if values.dry_run:
        for line in commands(runs):
            print(line)
        return 0
    writable(workdir)
    launcher: launchers.Launcher
    if values.launcher == "slurm":
        launcher = Slurm(workdir / "slurm", slurm, values.jobs)
    else:
        launcher = launchers.Local(runs[0].settings.device, values.jobs)
    return watch.ablate(runs, launcher)


def _planned(values: flags.FlagValues, workdir: Path) -> list[Any]:
    """Return the runs of an ablation that are not in ``--results``, resolved."""
    from transformer.tools.ablate import runs

    file, options = ablated_file(values["config"])
    overrides = override_arguments(values["config"])
    for key in ("seed", "name"):  # what tells the runs apart
        if any(override.startswith(f"--config.{key}=") for override in overrides):
            raise UserError(
                f"--config.{key}: expected no value, each run has its own; leave it out"
            )

    def arguments(row: str, seed: int) -> list[str]:
        argument = ",".join([row, *options])
        return [f"--config={file}:{argument}", *overrides, f"--config.seed={seed}"]

    planned = runs.plan(
        runs.choose(values.rows, row_names(file)),
        values.seeds,
        workdir,
        config.resolve(values.config),
        arguments,
        resolved,
    )
    kept = [] if values.results is None else folders(values.results, "results")
    return runs.outside(planned, kept)


def _slurm_options(values: flags.FlagValues) -> dict[str, str]:
    given = {name: values[name].value for name in values if name[:6] == "slurm."}
    return {name[6:]: value for name, value in given.items() if value is not None}


COMMAND = Command(
    run,
    ("config", "rows", "workdir"),
    ("seeds", "results", "jobs", "launcher", "slurm.partition", "dry_run"),
    {"workdir": path_flag("folder of the ablation, with one for each run inside")},
)
