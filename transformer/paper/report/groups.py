"""Runs in given folders: those that are finished, and which differ in the seed only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from transformer import config
from transformer.config import UserError
from transformer.paper.runs import workdirs
from transformer.paper.statistics import summary
from transformer.run import folder as run_folder
from transformer.run import measured
from transformer.run.measured import Measured


def read(folders: Sequence[Path], flag: str) -> tuple[list[Measured], list[Path]]:
    """Return the finished runs and the workdirs of the others, each once.

    Args:
      folders: workdirs or what ``kept`` saved of them, or folders with such below.
      flag: that names them, for messages.

    Raises:
      UserError: if a folder has no run, or none is finished.
    """
    found: dict[Path, Path] = {}
    for folder in folders:
        below = list(workdirs(folder))
        if not below:
            raise UserError(
                f"--{flag}: expected folders with runs, got {folder}, which has none; "
                "leave it out"
            )
        found |= {path.resolve(): path for path in below}
    paths = list(found.values())
    unfinished = [path for path in paths if not _has_ended(path)]
    finished = [measured.read_scores(path) for path in paths if path not in unfinished]
    if not finished:
        raise UserError(
            f"--{flag}: expected a finished run, found {len(unfinished)} without "
            "final results; let it finish"
        )
    return finished, unfinished


def _has_ended(workdir: Path) -> bool:
    settings = run_folder.read_settings(workdir)
    return bool(run_folder.results_of_the_end(workdir, settings))


def systems(runs: Sequence[Measured], flag: str) -> list[list[Measured]]:
    """Return the runs of each system: they differ in the seed only.

    Raises:
      UserError: for two runs of a system that have the same seed.
    """
    found: list[list[Measured]] = []
    for run in runs:
        for system in found:
            if _is_another_seed(system[0], run):
                _check_seed(system, run, flag)
                system.append(run)
                break
        else:
            found.append([run])
    return found


def _is_another_seed(first: Measured, run: Measured) -> bool:
    lines = config.other_run(first.settings, run.settings)
    return {line.split(":")[0] for line in lines} <= {"seed", *config.PATHS}


def _check_seed(system: Sequence[Measured], run: Measured, flag: str) -> None:
    for other in system:
        if other.settings.seed == run.settings.seed:
            raise UserError(
                f"--{flag}: expected one run of a system with seed "
                f"{run.settings.seed}, got {other.folder} and {run.folder}; leave one "
                "of them out"
            )


def names(systems: Sequence[Sequence[Measured]]) -> list[str]:
    """Return the names of systems, with the folder where two have the same."""
    found = [runs[0].settings.name for runs in systems]
    folders = run_folder.names([runs[0].folder for runs in systems])
    return [
        f"{name} ({folder})" if found.count(name) > 1 else name
        for name, folder in zip(found, folders, strict=True)
    ]


def mean(values: Sequence[float], decimals: int) -> str:
    """Write the mean over seeds, with the standard deviation where there is one."""
    found = summary(values)
    text = f"{found.mean:.{decimals}f}"
    return text + (f" ± {found.deviation:.{decimals}f}" if found.count > 1 else "")
