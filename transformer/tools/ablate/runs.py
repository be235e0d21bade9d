"""The runs of an ablation: rows of a table with several seeds, and which are finished.

A run is the command ``transformer train`` in the workdir DIR/ROW/seed_K, so what holds
for a run typed by hand holds here: it resumes where it was stopped, and its folder is
an ordinary workdir. Its output is kept in DIR/ROW/seed_K.log.
"""

from __future__ import annotations

import dataclasses
import difflib
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from transformer import config
from transformer.config import Config, UserError
from transformer.run import folder


@dataclasses.dataclass(frozen=True)
class Run:
    """One training run of an ablation.

    Attributes:
      row: name of the row in the config file.
      seed: ``config.seed``.
      settings: the resolved configuration.
      folder: of the ablation.
      home: its ``corpus`` serves all runs of the same data and tokenizer.
      command: the process that trains it.
    """

    row: str
    seed: int
    settings: Config
    folder: Path
    home: Path
    command: tuple[str, ...]

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"{self.row} seed {self.seed}"

    @property
    def workdir(self) -> Path:
        """Folder of the training run."""
        return workdir_of(self.folder, self.row, self.seed)

    @property
    def log(self) -> Path:
        """File of all that the process prints."""
        return self.workdir.with_name(f"seed_{self.seed}.log")


def workdir_of(folder: Path, row: str, seed: int) -> Path:
    """Return the workdir of a run below the folder of an ablation."""
    return folder / row / f"seed_{seed}"


def choose(names: str, known: Sequence[str]) -> list[str]:
    """Return the rows of ``--rows``; base comes first, asked for or not.

    Args:
      names: rows, and letters of groups (A = all rows A_...), separated by commas.
      known: all rows of the config file, in its order.

    Raises:
      UserError: for a name that is no row, and a row that is asked for twice.
    """
    rows: list[str] = []
    for name in map(str.strip, names.split(",")):
        found = [row for row in known if name in (row, _group(row))]
        if not found:
            raise UserError(_unknown_row(name, known))
        twice = [row for row in found if row in rows]
        if twice:
            raise UserError(
                f"--rows: expected every row once, got {twice[0]} twice in {names}; "
                "leave one out"
            )
        rows += found
    base = [row for row in known if row == "base"]
    return base + [row for row in rows if row not in base]


def _group(row: str) -> str | None:
    """Return the letter of a row's group, "A" for A_h1."""
    return row[0] if row[:1].isupper() and row[1:2] == "_" else None


def _unknown_row(name: str, known: Sequence[str]) -> str:
    groups = sorted(filter(None, {_group(row) for row in known}))
    letters = f", or {', '.join(groups)} for all rows of a group" if groups else ""
    nearest = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {nearest[0]}?" if nearest else "change --rows"
    return (
        f"--rows: expected rows of the config file, {', '.join(known)}{letters}; got "
        f"{name!r}; {hint}"
    )


def plan(
    rows: Sequence[str],
    seeds: int,
    folder: Path,
    common: Config,
    arguments: Callable[[str, int], Sequence[str]],
    resolve: Callable[[Sequence[str]], Config],
) -> list[Run]:
    """Resolve every run before the first one starts.

    Args:
      rows: of the config file.
      seeds: of each row: 0, 1, ..., seeds - 1.
      folder: of the ablation.
      common: the config file without a row; runs of its data and tokenizer share
        ``corpus`` in the folder, the seeds of another row ``corpus`` in the row's.
      arguments: (row, seed) -> arguments of ``transformer train`` without --workdir.
      resolve: arguments of ``transformer train`` -> configuration.

    Returns:
      The runs, the first seed of all rows before the second of any: if an ablation is
      broken off, what there is can be compared.

    Raises:
      UserError: if a configuration makes no sense, two rows are the same, or a workdir
        belongs to a run of another configuration.
    """
    runs = []
    for seed in range(seeds):
        for row in rows:
            workdir = workdir_of(folder, row, seed)
            given = [*arguments(row, seed), f"--workdir={workdir}"]
            settings = resolve(given)
            shares = _data_of(settings) == _data_of(common)
            home = folder if shares else folder / row
            runs.append(Run(row, seed, settings, folder, home, command_of(given)))
    _check_distinct(runs[: len(rows)])
    for run in runs:
        _check_workdir(run)
    return runs


def command_of(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the process that trains with these arguments."""
    return (sys.executable, "-m", "transformer", "train", *arguments)


def _data_of(settings: Config) -> tuple[config.Data, config.Tokenizer]:
    return settings.data, settings.tokenizer


def _check_distinct(runs: Sequence[Run]) -> None:
    rows: dict[Config, str] = {}
    for run in runs:
        same = rows.setdefault(dataclasses.replace(run.settings, name=""), run.row)
        if same != run.row:
            raise UserError(
                f"--rows: expected rows that differ, got {same} and {run.row}, which "
                "are the same with these values of --config.KEY; leave out a row or a "
                "value"
            )


def _check_workdir(run: Run) -> None:
    """Refuse the folder of a run that was begun with another configuration."""
    saved = run.workdir.glob("checkpoints/*/digests.json")
    steps = [int(x.parent.name) for x in saved if x.parent.name.isdecimal()]
    if not steps:
        folder.check_unspoilt(run.workdir, run.settings)
    elif (run.workdir / "config.json").exists():
        old = folder.read_settings(run.workdir)
        folder.check_same_run(run.workdir, old, run.settings, max(steps))


def finished(run: Run) -> bool:
    """Return whether a run has its final results: on the test pairs, at its end."""
    return folder.is_finished(run.workdir, run.settings)


def outside(runs: Sequence[Run], folders: Sequence[Path]) -> list[Run]:
    """Return the runs whose results are not among those that are kept.

    Args:
      runs: as ``plan`` returns them.
      folders: of small files, as ``transformer report --save`` writes them.

    Raises:
      UserError: for what is no folder, and for results of the same row and seed with
        another configuration.
    """
    for kept in folders:
        if not kept.is_dir():
            raise UserError(
                f"--results: expected a folder that transformer report --save wrote, "
                f"got {kept}; leave it out"
            )
    return [run for run in runs if not any(_is_kept(run, kept) for kept in folders)]


def _is_kept(run: Run, kept: Path) -> bool:
    place = workdir_of(kept, run.row, run.seed)
    if not folder.is_finished(place, run.settings):
        return False
    lines = config.other_run(folder.read_settings(place), run.settings)
    if changes := [x for x in lines if x.split(":")[0] not in config.PATHS]:
        raise UserError(
            f"--results: expected {place} to have the configuration that is asked for, "
            f"got {'; '.join(changes)}; leave the folder out or change it back"
        )
    return True


def commands(runs: Sequence[Run]) -> Iterator[str]:
    """Yield the commands of the runs that are not finished, quoted for a shell."""
    for run in runs:
        if not finished(run):
            yield shlex.join(run.command)
