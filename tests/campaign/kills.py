"""Kills: a run is killed at a random moment, and resumed to the same bits.

The moments are spread over the stages of a run, each at a random point of its stage.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from support.ends import end_of, results_of
from support.paths import ROOT

from campaign.place import Outcome, Place

SEED, KILLS = 2017, 25
# A stage begins with a line of the output, the first one with the process.
STAGES = {
    "import": "",
    "preparation": "tokenizer: building",
    "compilation": "batches:",
    "steps and checkpoints": "step 1/",
    "evaluation": "step 8: validation",
}
_SECONDS = 180  # that a run may take


class Run:
    """A training run as a process, with its lines and their times."""

    def __init__(self, arguments: list[str], environment: dict[str, str]) -> None:
        self.lines: list[tuple[float, str]] = []
        self._start = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-m", "transformer", *arguments],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.lines.append((time.monotonic() - self._start, line))

    @property
    def said(self) -> str:
        return "".join(line for _, line in self.lines)

    def has_begun(self, stage: str) -> bool:
        wanted = STAGES.get(stage, stage)
        return any(line.startswith(wanted) for _, line in [*self.lines]) or not wanted

    def wait(self, moment: Callable[[], bool]) -> bool:
        """Wait for a moment; return whether it came before the end."""
        until = time.monotonic() + _SECONDS
        while not moment() and time.monotonic() < until:
            if self.process.poll() is not None:
                return moment()
            time.sleep(0.001)
        return moment()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.end()

    def end(self) -> int:
        """Wait for the end; return the exit code."""
        code = self.process.wait(_SECONDS)
        self._reader.join(_SECONDS)
        assert self.process.stdout
        self.process.stdout.close()
        return code


def environment(cache: Path) -> dict[str, str]:
    """Return the environment of a process that compiles a program once."""
    kept = {"JAX_COMPILATION_CACHE_DIR": str(cache), "PYTHONUNBUFFERED": "1"}
    return {**os.environ, **kept}


def end(place: Place, workdir: Path, said: str) -> dict[str, Any]:
    """Return all numbers of a run that has ended, with those of its evaluation."""
    return end_of(place.settings, workdir) | {"results": results_of(said)}


def unbroken(place: Place, folder: Path, cache: Path) -> tuple[Any, dict[str, float]]:
    """Return the end of an uninterrupted run, and how long each stage takes."""
    for name in ("filling", "unbroken"):  # the first one compiles
        run = Run(place.train(str(folder / name)), environment(cache))
        assert run.end() == 0, run.said
    starts = [0.0]
    for wanted in list(STAGES.values())[1:]:
        starts.append(next(t for t, line in run.lines if line.startswith(wanted)))
    ends = [*starts[1:], run.lines[-1][0]]
    seconds = [b - a for a, b in zip(starts, ends, strict=True)]
    done = end(place, folder / "unbroken", run.said)
    return done, dict(zip(STAGES, seconds, strict=True))


def outcomes(place: Place, cache: Path, kills: int = KILLS) -> Iterator[Outcome]:
    """Kill and resume runs, two at a time."""
    draw = random.Random(SEED)
    stages = [list(STAGES)[number % len(STAGES)] for number in range(kills)]
    moments = [(stage, draw.random()) for stage in stages]
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(2) as pool:
        folder = Path(name)
        expected, seconds = unbroken(place, folder, cache)
        workdirs = [folder / f"killed_{number}" for number in range(kills)]

        def resumed(number: int) -> Run:
            stage, part = moments[number]
            arguments = place.train(str(workdirs[number]))
            return _resumed(arguments, cache, stage, part * seconds[stage])

        runs = pool.map(resumed, range(kills))
        for run, workdir, (stage, part) in zip(runs, workdirs, moments, strict=True):
            problem = _compare(place, workdir, run, expected)
            what = f"{stage}, at {part:.0%} of it"
            yield Outcome("kills", what, problem, traceback="Traceback" in run.said)


def _resumed(arguments: list[str], cache: Path, stage: str, delay: float) -> Run:
    """Kill a run in a stage; return the run that resumed it, at its end."""
    run = Run(arguments, environment(cache))
    assert run.wait(lambda: run.has_begun(stage)), f"no {stage}: {run.said}"
    time.sleep(delay)
    run.kill()
    resumed = Run(arguments, environment(cache))
    resumed.end()
    return resumed


def _compare(place: Place, workdir: Path, run: Run, expected: Any) -> str:
    """Return what differs from an uninterrupted run, "" = nothing."""
    if run.process.returncode != 0:
        return f"not resumed: {run.said[-500:]}"
    done = end(place, workdir, run.said)
    other = [name for name in expected if done[name] != expected[name]]
    return f"other bits: {', '.join(other)}" if other else ""
