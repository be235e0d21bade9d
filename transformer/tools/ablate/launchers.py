"""Where runs run: the launcher protocol, and this machine in shares for processes."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import itertools
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from transformer.config import UserError

_JAX_TAKES = 0.75  # of a GPU's memory, unless told otherwise
_ON_DEMAND = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


class Job(Protocol):
    """A process that was started."""

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""

    def stop(self) -> None:
        """Ask it to save and to end."""

    def kill(self) -> None:
        """End it at once."""


class Launcher(Protocol):
    """Starts processes somewhere.

    Attributes:
      slots: processes at a time, None = any number.
      pause: seconds between two polls.
    """

    slots: int | None
    pause: float

    def start(self, command: Sequence[str], log: Path, name: str, slot: int) -> Job:
        """Start a process in a slot that is free.

        Args:
          command: with its arguments.
          log: file that all it prints is appended to.
          name: what others see it called.
          slot: 0, 1, ..., slots - 1.

        Raises:
          UserError: if a process that was started with this log still runs.
        """


@dataclasses.dataclass(frozen=True)
class Share:
    """A process's share of this machine: environment variables and cores."""

    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    cores: frozenset[int] | None = None  # None = all


class Local:
    """Starts processes on this machine, each with its share of it."""

    pause = 0.5

    def __init__(self, device: str, jobs: int | None) -> None:
        """Divide the machine.

        Args:
          device: "any", "cpu", "gpu" or "tpu".
          jobs: processes at a time, None = one per accelerator, and one on a CPU.
        """
        self._shares = shares(device, jobs)
        self.slots: int | None = len(self._shares)

    def start(self, command: Sequence[str], log: Path, name: str, slot: int) -> Job:
        """Start a process; its name is not used."""
        share = self._shares[slot]
        process = start_process(command, log, share.environment)
        if share.cores is not None:
            # It has only just begun: it counts its cores later, when it imports jax.
            os.sched_setaffinity(process.pid, share.cores)
        return _Process(process)


class _Process:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.poll = process.poll
        self.stop = process.terminate
        self.kill = process.kill


def shares(device: str, jobs: int | None) -> list[Share]:
    """Divide this machine: accelerators, or cores, among processes.

    Several processes may share one GPU, each with a part of its memory.

    Args:
      device: "any", "cpu", "gpu" or "tpu".
      jobs: processes at a time, None = one per accelerator, and one on a CPU.

    Returns:
      One share for each process at a time; a single one has the whole machine.

    Raises:
      UserError: if there are fewer TPU chips or cores than jobs, or no device that was
        asked for.
    """
    if jobs == 1:
        return [Share()]
    platform, count = ("cpu", 0) if device == "cpu" else _count_accelerators()
    if device not in ("any", platform):
        raise UserError(
            f"device: expected a {device}, this machine offers a {platform}; install "
            f"jax for the {device}, or ask for another device"
        )
    jobs = jobs or max(count, 1)
    if jobs == 1:
        return [Share()]
    if platform == "cpu" and not hasattr(os, "sched_setaffinity"):
        return [Share()] * jobs  # macOS, where no process can be bound to cores
    if platform == "cpu":
        return [Share(cores=cores) for cores in _divided_cores(jobs)]
    if platform != "gpu":
        _check_enough(jobs, count, "accelerators")
    memory = _part_of_memory(-(-jobs // count))
    return [Share(_only(platform, i % count) | memory) for i in range(jobs)]


def _divided_cores(parts: int) -> list[frozenset[int]]:
    cores = sorted(os.sched_getaffinity(0))
    _check_enough(parts, len(cores), "cores")
    bounds = [i * len(cores) // parts for i in range(parts + 1)]
    return [frozenset(cores[a:b]) for a, b in itertools.pairwise(bounds)]


def _check_enough(jobs: int, there: int, what: str) -> None:
    if jobs > there:
        raise UserError(
            f"--jobs: expected at most {there}, the {what} of this machine, got "
            f"{jobs}; ask for fewer"
        )


def _count_accelerators() -> tuple[str, int]:
    """Ask another process, which releases the devices when it ends."""
    code = "from transformer.parallel import accelerators; print(*accelerators())"
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | _ON_DEMAND,
    )
    if run.returncode:
        last = (run.stderr.splitlines() or ["nothing"])[-1]
        raise UserError(f"expected devices that jax can use, got: {last}")
    platform, count = run.stdout.split()[-2:]
    return platform, 0 if platform == "cpu" else int(count)


def _only(platform: str, index: int) -> dict[str, str]:
    """Return the variables that show a process one accelerator only."""
    if platform == "tpu":
        # As jax's own tests of several processes on a host; here each is alone.
        return {
            "TPU_VISIBLE_CHIPS": str(index),
            "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
            "TPU_PROCESS_BOUNDS": "1,1,1",
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        }
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    name = visible.split(",")[index].strip() if visible else str(index)
    return {"CUDA_VISIBLE_DEVICES": name}


def _part_of_memory(processes: int) -> dict[str, str]:
    """Return the variables that let this many processes share one accelerator."""
    if processes == 1:
        return {}
    names = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
    if any(name in os.environ for name in names):  # jax takes one of them only
        return _ON_DEMAND
    return _ON_DEMAND | {names[0]: f"{_JAX_TAKES / processes:.4f}"}


def start_process(
    command: Sequence[str], log: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a process that appends what it prints to a file.

    Raises:
      UserError: if another that was started with this file still runs.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        # The process inherits the lock with the file and holds it as long as it lives,
        # also when this one is killed: no second one can work in the same workdir.
        _lock(file.fileno(), fcntl.LOCK_EX, log)
        file.write(f"$ {shlex.join(command)}\n".encode())
        file.flush()
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
            start_new_session=True,  # Ctrl-C is for this process; it passes it on
        )


def _lock(file: int, kind: int, log: Path) -> None:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(
            f"{log.with_suffix('')}: expected no running process, found one that "
            f"writes to {log}; wait until it ends, or stop it"
        ) from None
    except OSError:  # a file system without locks
        pass


def check_idle(log: Path) -> None:
    """Raise a UserError if a process that was started with this log still runs."""
    with contextlib.suppress(FileNotFoundError), log.open("rb") as file:
        _lock(file.fileno(), fcntl.LOCK_SH, log)
