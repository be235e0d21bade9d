"""Ablations: rows of a table with several seeds, each run a process of its own.

A run is the command ``transformer train`` in the workdir DIR/ROW/seed_K, so what holds
for a run typed by hand holds here: it goes on where it was stopped, and its folder is
an ordinary workdir. Its output is kept in DIR/ROW/seed_K.log.
"""

from __future__ import annotations

import dataclasses
import datetime
import difflib
import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer import config
from transformer.config import Config, UserError
from transformer.run.records import Board, announce
from transformer.run.stop import handled
from transformer.tools.launchers import Job, Launcher, check_idle


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


# ---- what is to be run ---------------------------------------------------------------


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
        found = [row for row in known if row == name or row[:2] == f"{name}_"]
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


def _unknown_row(name: str, known: Sequence[str]) -> str:
    groups = sorted({row[0] for row in known if row[1:2] == "_"})
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
      The runs, the first seed of all rows before the second of any: what there is when
      an ablation is broken off can be compared.

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
    path = run.workdir / "config.json"
    begun = [*run.workdir.glob("results.json")]
    begun += run.workdir.glob("checkpoints/*/digests.json")
    if not (begun and path.exists()):
        return
    old = config.resolve_saved(json.loads(path.read_bytes()))
    changes = config.other_run(old, run.settings)
    if changes:
        raise UserError(
            f"{run.workdir} belongs to another configuration; expected the same, got "
            f"{'; '.join(changes)}; choose another workdir or change it back"
        )


def finished(run: Run) -> bool:
    """Return whether a run has its final results: on the test pairs, at its end."""
    try:
        results = json.loads((run.workdir / "results.json").read_bytes())
    except (OSError, ValueError):
        return False
    measured = results.get("split"), results.get("step")
    return measured == ("test", run.settings.train.steps)


# ---- the data, once for all runs -----------------------------------------------------


def _prepare(runs: Sequence[Run], say: Callable[[str], None]) -> None:
    """Prepare the data of runs, and let every workdir find them.

    A link and not ``data.prepared``, so that the configuration is that of the row
    alone, and so that the folder can be moved.
    """
    from transformer.prepare import prepare

    for home, settings in {run.home: run.settings for run in runs}.items():
        prepare(settings, home, say)
    for run in runs:
        corpus = run.workdir / "corpus"
        if run.settings.data.prepared or corpus.is_symlink() or corpus.exists():
            continue
        run.workdir.mkdir(parents=True, exist_ok=True)
        corpus.symlink_to(os.path.relpath(run.home / "corpus", run.workdir))


# ---- how far the runs are ------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Progress:
    """What the metrics of a run say; None where they say nothing yet."""

    step: int = 0
    loss: float | None = None
    perplexity: float | None = None  # of the validation pairs
    seconds_left: float | None = None


def progress_of(run: Run) -> Progress:
    """Read how far a run has come from its metrics.jsonl, also while it is written."""
    try:
        text = (run.workdir / "metrics.jsonl").read_text(encoding="utf-8")
    except FileNotFoundError:
        return Progress()
    last: dict[str, Any] = {"step": 0}
    for line in text.split("\n")[:-1]:  # a line without its end is being written
        last |= json.loads(line)
    left = None
    if last.get("seconds") is not None:
        wishes = run.settings.train
        left = last["seconds"] / wishes.log_every * (wishes.steps - last["step"])
    return Progress(
        last["step"], last.get("loss"), last.get("validation_perplexity"), left
    )


@dataclasses.dataclass
class _State:
    """A run and what has become of it."""

    run: Run
    status: str = "waiting"  # or "running", "finished", "failed", "stopped"
    progress: Progress = Progress()
    reason: str = ""  # of a failure

    def cells(self) -> list[str]:
        """Return what the table shows of it."""
        now = self.progress
        return [
            self.run.row,
            str(self.run.seed),
            "evaluating" if self._at_its_end() else self.status,
            f"{now.step:,}/{self.run.settings.train.steps:,}",
            "" if now.loss is None else f"{now.loss:.3f}",
            "" if now.perplexity is None else f"{now.perplexity:.3f}",
            self._time_left(),
        ]

    def _at_its_end(self) -> bool:
        now, total = self.progress.step, self.run.settings.train.steps
        return self.status == "running" and now >= total

    def _time_left(self) -> str:
        left = self.progress.seconds_left
        if self.status != "running" or left is None:
            return ""
        return str(datetime.timedelta(seconds=round(left)))


_COLUMNS = ["row", "seed", "status", "step", "loss", "perplexity", "time left"]
_FIRST_SHOWN = ["running", "failed", "stopped", "waiting", "finished"]


class _Display:
    """The live table, or lines about what changed where there is no terminal."""

    def __init__(self, states: Sequence[_State], board: Board, say: Callable) -> None:
        self._states, self._board, self._say = states, board, say
        self._said: dict[Run, tuple[str, float | None]] = {}
        for state in states:
            self._said[state.run] = "waiting", None
            if state.status == "finished":
                self._said[state.run] = state.status, state.progress.perplexity

    def show(self) -> None:
        """Draw the table, or say what changed since the last call."""
        states = list(self._states)
        if self._board.room:
            done = sum(state.status == "finished" for state in states)
            if len(states) > self._board.room:
                states.sort(key=lambda state: _FIRST_SHOWN.index(state.status))
            shown = [state.cells() for state in states[: self._board.room]]
            self._board.show(f"{done} of {len(states)} runs finished", shown)
            return
        for state in states:
            now = state.status, state.progress.perplexity
            if now != self._said[state.run]:
                self._said[state.run] = now
                self._say(_line(state))


def _line(state: _State) -> str:
    _, _, status, step, loss, perplexity, left = state.cells()
    parts = [
        f"{state.run.name}: {status}",
        state.progress.step and f"step {step}",
        loss and f"loss {loss}",
        perplexity and f"perplexity {perplexity}",
        left and f"{left} left",
        state.reason,
    ]
    return "  ".join(part for part in parts if part)


# ---- the programme -------------------------------------------------------------------


def commands(runs: Sequence[Run]) -> Iterator[str]:
    """Yield the commands of the runs that are not finished, quoted for a shell."""
    for run in runs:
        if not finished(run):
            yield shlex.join(run.command)


def ablate(
    runs: Sequence[Run],
    launcher: Launcher,
    say: Callable[[str], None] = announce,
) -> int:
    """Run all that is not finished, several at a time.

    Args:
      runs: as ``plan`` returns them.
      launcher: where they run.
      say: is told what happens, one line at a time.

    Returns:
      The exit code: 0 if all runs are finished, 1 if some failed, 130 if it was stopped
      by Ctrl-C or SIGTERM. The same call goes on from there.

    Raises:
      UserError: if the data cannot be used, a run is being trained by another process,
        or Slurm accepts no job; all before a run starts.
    """
    states = [
        _State(run, "finished" if finished(run) else "waiting", progress_of(run))
        for run in runs
    ]
    to_do = [state.run for state in states if state.status == "waiting"]
    for run in to_do:
        check_idle(run.log)
    slots = min(launcher.slots or len(to_do), len(to_do))
    with _Signals() as signals:
        try:
            if to_do:
                _prepare(to_do, say)
        except KeyboardInterrupt:
            say("stopped while preparing the data; the same command starts there again")
            return 130
        signals.at_once = False
        say(
            f"{len(runs)} runs: {len(runs) - len(to_do)} finished before, {len(to_do)} "
            f"to do, {slots} at a time"
        )
        with Board(_COLUMNS) as board:
            show = _Display(states, board, say).show
            _run_all(states, launcher, slots, signals, show, board.log_line)
    return _conclude(states, bool(signals.received), say)


def _run_all(
    states: Sequence[_State],
    launcher: Launcher,
    slots: int,
    signals: _Signals,
    show: Callable[[], None],
    say: Callable[[str], None],
) -> None:
    """Start, watch and end runs until none is left, or a signal stops them."""
    waiting = [state for state in states if state.status == "waiting"]
    free = list(range(slots))
    jobs: dict[int, tuple[Job, _State]] = {}
    told = 0
    try:
        while jobs or (waiting and not signals.received):
            while waiting and free and not signals.received:
                slot, state = free.pop(0), waiting.pop(0)
                run = state.run
                job = launcher.start(run.command, run.log, run.name, slot)
                jobs[slot] = job, state
                state.status = "running"
            if signals.received > told:
                told = signals.received
                _end(jobs, told, say)
            show()
            time.sleep(launcher.pause)
            for slot, (job, state) in list(jobs.items()):
                code = job.poll()
                state.progress = progress_of(state.run)
                if code is not None:
                    del jobs[slot]
                    free.append(slot)
                    _settle(state, code, bool(signals.received))
        show()
    finally:  # only after an error there still are some
        for job, _ in jobs.values():
            job.stop()


def _end(
    jobs: Mapping[int, tuple[Job, _State]], asked: int, say: Callable[[str], None]
) -> None:
    if asked == 1:
        say(f"stopping; {len(jobs)} running are saved first (Ctrl-C: at once)")
    for job, _ in jobs.values():
        if asked == 1:
            job.stop()
        else:
            job.kill()


def _settle(state: _State, code: int, stopped: bool) -> None:
    if finished(state.run):
        state.status = "finished"
    elif stopped:
        state.status = "stopped"
    else:
        state.status, state.reason = "failed", _reason(state.run.log, code)


def _reason(log: Path, code: int) -> str:
    """Return why a process failed: the last line that it printed."""
    with log.open("rb") as file:
        file.seek(max(os.path.getsize(log) - 2**16, 0))
        lines = file.read().decode(errors="replace").split("\n")
    last = [line for line in lines if line.strip()][-1][:500]
    if last.startswith("$ "):  # the command itself
        last = "it printed nothing"
    if code < 0:
        return f"killed by signal {-code}: {last}"
    if code == 0:
        return f"ended before its results: {last}"
    return last.removeprefix("transformer: error: ")


def _conclude(
    states: Sequence[_State], stopped: bool, say: Callable[[str], None]
) -> int:
    failed = [state for state in states if state.status == "failed"]
    for state in failed:
        say(f"failed: {state.run.name}: {state.reason} (log: {state.run.log})")
    done = sum(state.status == "finished" for state in states)
    text = f"{done} of {len(states)} runs are finished"
    if stopped:
        say(f"stopped: {text}; the same command goes on from there")
        return 130
    if failed:
        say(f"{text}, {len(failed)} failed; the same command tries these again")
        return 1
    say(f"{text}; compare them by transformer report --workdir={states[0].run.folder}")
    return 0


class _Signals:
    """Turns Ctrl-C, SIGTERM and SIGHUP into a wish that the loop reads.

    Attributes:
      at_once: raise KeyboardInterrupt instead, as long as no run is started.
      received: 0 = none, 1 = end well, 2 = Ctrl-C was pressed twice: kill.
    """

    def __init__(self) -> None:
        self.at_once = True
        self.received = 0
        self._last: int | None = None
        every = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
        ignored = signal.SIG_IGN  # as nohup does
        numbers = [one for one in every if signal.getsignal(one) is not ignored]
        self._handled = handled(numbers, self._receive)

    def __enter__(self) -> _Signals:
        self._handled.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._handled.__exit__(*error)

    def _receive(self, number: int, frame: Any) -> None:
        if self.at_once:
            raise KeyboardInterrupt
        again = number == self._last == signal.SIGINT
        self._last = number
        self.received = 2 if again else max(self.received, 1)
