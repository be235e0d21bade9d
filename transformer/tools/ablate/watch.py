"""The loop that starts the runs of an ablation, each a process, and watches them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer.config import UserError
from transformer.run.records import Board, announce
from transformer.run.signals import handled
from transformer.tools.ablate.launchers import Job, Launcher, check_idle
from transformer.tools.ablate.progress import COLUMNS, Display, RunState, progress_of
from transformer.tools.ablate.runs import Run, finished


def ablate(
    runs: Sequence[Run],
    launcher: Launcher,
    log: Callable[[str], None] = announce,
) -> int:
    """Run every unfinished run, several at a time.

    Args:
      runs: as ``runs.plan`` returns them.
      launcher: where they run.
      log: takes what happens, one line at a time.

    Returns:
      The exit code: 0 if all runs are finished, 1 if some failed, 130 if it was stopped
      by Ctrl-C or SIGTERM. The same call resumes there.

    Raises:
      UserError: if the data cannot be used, a run is being trained by another process,
        or Slurm accepts no job; all before a run starts. Later, such a run fails alone.
    """
    states = [
        RunState(run, "finished" if finished(run) else "waiting", progress_of(run))
        for run in runs
    ]
    to_do = [state.run for state in states if state.status == "waiting"]
    for run in to_do:
        check_idle(run.log)
    slots = min(launcher.slots or len(to_do), len(to_do))
    with _Signals() as signals:
        try:
            if to_do:
                _prepare(to_do, log)
        except KeyboardInterrupt:
            log("stopped while preparing the data; the same command starts there again")
            return 130
        signals.at_once = False
        log(
            f"{len(runs)} runs: {len(runs) - len(to_do)} finished before, {len(to_do)} "
            f"to do, {slots} at a time"
        )
        with Board(COLUMNS) as board:
            show = Display(states, board, log).show
            _run_all(states, launcher, slots, signals, show, board.log_line)
    return _conclude(states, bool(signals.received), log)


def _prepare(runs: Sequence[Run], log: Callable[[str], None]) -> None:
    """Prepare the data of runs, and let every workdir find them.

    A link and not ``data.prepared``, so that the configuration is that of the row
    alone, and so that the folder can be moved.
    """
    from transformer.prepare import prepare

    for home, settings in {run.home: run.settings for run in runs}.items():
        prepare(settings, home, log)
    for run in runs:
        corpus = run.workdir / "corpus"
        if run.settings.data.prepared or corpus.is_symlink() or corpus.exists():
            continue
        run.workdir.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):  # another ablation made it meanwhile
            corpus.symlink_to(os.path.relpath(run.home / "corpus", run.workdir))


def _run_all(
    states: Sequence[RunState],
    launcher: Launcher,
    slots: int,
    signals: _Signals,
    show: Callable[[], None],
    log: Callable[[str], None],
) -> None:
    """Start, watch and end runs until none is left, or a signal stops them."""
    waiting = [state for state in states if state.status == "waiting"]
    free = list(range(slots))
    jobs: dict[int, tuple[Job, RunState]] = {}
    passed_on, begun = 0, False
    try:
        while jobs or (waiting and not signals.received):
            while waiting and free and not signals.received:
                state = waiting.pop(0)
                run = state.run
                try:
                    job = launcher.start(run.command, run.log, run.name, free[0])
                except UserError as error:
                    if not begun:  # the others would fail in the same way
                        raise
                    state.status, state.reason = "failed", str(error)
                    continue
                jobs[free.pop(0)] = job, state
                state.status, begun = "running", True
            if signals.received > passed_on:
                passed_on = signals.received
                _end(jobs, passed_on, log)
            show()
            time.sleep(launcher.pause)
            for slot, (job, state) in list(jobs.items()):
                code = job.poll()
                with contextlib.suppress(UserError):  # a damaged file ends no run
                    state.progress = progress_of(state.run)
                if code is not None:
                    del jobs[slot]
                    free.append(slot)
                    _settle(state, code, bool(signals.received))
        show()
    finally:  # only after an error are there still some
        for job, _ in jobs.values():
            job.stop()


def _end(
    jobs: Mapping[int, tuple[Job, RunState]], asked: int, log: Callable[[str], None]
) -> None:
    if asked == 1:
        log(f"stopping; {len(jobs)} running are saved first (Ctrl-C: stop at once)")
    for job, _ in jobs.values():
        if asked == 1:
            job.stop()
        else:
            job.kill()


def _settle(state: RunState, code: int, stopped: bool) -> None:
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
        return f"ended without results: {last}"
    return last.removeprefix("transformer: error: ")


def _conclude(
    states: Sequence[RunState], stopped: bool, log: Callable[[str], None]
) -> int:
    failed = [state for state in states if state.status == "failed"]
    for state in failed:
        log(f"failed: {state.run.name}: {state.reason} (log: {state.run.log})")
    done = sum(state.status == "finished" for state in states)
    text = f"{done} of {len(states)} runs are finished"
    if stopped:
        log(f"stopped: {text}; the same command resumes from there")
        return 130
    if failed:
        log(f"{text}, {len(failed)} failed; the same command tries these again")
        return 1
    log(f"{text}; compare them by transformer report --workdir={states[0].run.folder}")
    return 0


class _Signals:
    """Turns Ctrl-C, SIGTERM and SIGHUP into a number that the loop reads.

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
