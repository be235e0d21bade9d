"""Workers that take turns, so that all of them are measured under the same noise.

Seconds from one machine and hour mean nothing on another; ratios within one arena do.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

REST = 0.3  # seconds between two turns, in which spinning OpenMP threads go to sleep
TURN = 0.5  # minimum seconds of a turn: short work is repeated
_LAST_LINES = 5  # of a dead worker's standard error


class Worker:
    """A process that works when it is told to; see ``worker.py`` for what it says.

    Attributes:
      name: in tables.
      info: what it sent with READY.
      seconds: of one piece of work, a number for each turn.
      trouble: why it takes no more turns, "" while it does.
      missing: the module that its Python lacks, "" if that is not the reason.
    """

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        self.name = name
        self.info: dict[str, Any] = {}
        self.seconds: list[float] = []
        self.trouble = self.missing = ""
        self._command, self._environment = command, environment
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start the process and wait until it has built and warmed up its work."""
        self._errors = tempfile.TemporaryFile("w+", errors="replace")
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=os.environ | self._environment,
        )
        self.info = self._answer("READY") or {}

    def work(self, times: int) -> float | None:
        """Repeat the work; return seconds per repetition, None if it has died."""
        if self.trouble:
            return None
        assert self._process is not None and self._process.stdin is not None
        try:
            print("go", times, file=self._process.stdin, flush=True)
        except BrokenPipeError:
            pass  # it is dead, as the missing answer will say
        answer = self._answer("DONE")
        return None if answer is None else answer["seconds"] / times

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None
            self._errors.close()

    def _answer(self, word: str) -> dict[str, Any] | None:
        assert self._process is not None and self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(word):
                return json.loads(line.removeprefix(word))
        self._explain(self._process.wait())
        return None

    def _explain(self, code: int) -> None:
        self._errors.seek(0)
        lines = self._errors.read().strip().splitlines()[-_LAST_LINES:]
        self.trouble = "\n".join([f"ended with exit code {code}", *lines])
        absent = re.search(r"No module named '(.+)'$", self.trouble)
        if absent and lines[-1].startswith("ModuleNotFoundError"):
            self.missing = absent[1]
            self.trouble = f"not installed: no module {self.missing}"


def take_turns(
    workers: Sequence[Worker],
    rounds: int,
    say: Callable[[str], None],
    *,
    turn: float = TURN,
    rest: float = REST,
) -> None:
    """Start workers, measure them, and append to their ``seconds``.

    They get ready one after the other, so that no start disturbs another. A first turn,
    which is not counted, shows how often each has to repeat its work. Then each worker
    has one turn per round, in alternating order, so that drift within a round favours
    nobody. A worker that dies is dropped.

    Args:
      workers: not started yet; each sleeps until it is its turn.
      rounds: counted turns of each worker.
      say: called with a line of progress or trouble.
      turn: minimum seconds of a turn.
      rest: seconds between two turns.
    """
    repeats = {}
    for worker in workers:
        start = time.perf_counter()
        worker.start()
        seconds = worker.work(1)
        if seconds is None:
            say(f"{worker.name}: {worker.trouble}")
            continue
        repeats[worker.name] = max(1, math.ceil(turn / seconds))
        say(f"{worker.name}: ready in {time.perf_counter() - start:.1f} s")
        time.sleep(rest)
    for number in range(rounds):
        for worker in workers[:: 1 if number % 2 == 0 else -1]:
            if worker.trouble:
                continue
            seconds = worker.work(repeats[worker.name])
            if seconds is None:
                say(f"{worker.name}: {worker.trouble}")
                continue
            worker.seconds.append(seconds)
            time.sleep(rest)
        say(f"round {number + 1} of {rounds}")


def one_by_one(
    workers: Sequence[Worker],
    rounds: int,
    say: Callable[[str], None],
    *,
    turn: float = TURN,
    rest: float = REST,
) -> None:
    """Measure workers that would share an accelerator: each is closed before the next.

    Nobody else works there, so there is no noise to share; and memory that one process
    holds (JAX takes three quarters of it) is not available to another. Arguments as for
    ``take_turns``.
    """
    for worker in workers:
        try:
            take_turns([worker], rounds, say, turn=turn, rest=rest)
        finally:
            worker.close()


@dataclasses.dataclass(frozen=True)
class Ratio:
    """How many times as fast one worker is as another."""

    median: float  # ratio of the medians over all rounds
    least: float  # of the ratios within one round
    most: float


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Compare the seconds that two workers took in the same rounds."""
    each = [b / a for a, b in zip(ours, theirs, strict=True)]
    middle = statistics.median(theirs) / statistics.median(ours)
    return Ratio(middle, min(each), max(each))
