"""The processes of a run, one or several per host: how they join, agree and gather.

All of them run the same program on the same arrays, each of which is spread over the
devices of all; only the primary one writes what people read. With one process, the
usual case, nothing here does anything.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from transformer.config import UserError
from transformer.files import lock

STOPPED = 128 + signal.SIGTERM  # exit code of a run that it stopped, as in shells

_SILENCE = 30  # seconds after which the others stop, if a process does not answer


def join(
    coordinator: str | None, num_processes: int | None, process_id: int | None
) -> None:
    """Make this process one of several of a run; call it before any computation.

    Args:
      coordinator: HOST:PORT of process 0, or "auto" where jax can detect all of them
        (Slurm, Open MPI, Kubernetes, TPU pods); None = one process.
      num_processes: how many there are.
      process_id: which one this is, counted from 0.

    Raises:
      UserError: if they are not found, or contradict each other.
    """
    if coordinator is None:
        if (num_processes, process_id) != (None, None):
            raise UserError(
                "expected --coordinator with --num_processes and --process_id; add "
                "--coordinator=HOST:PORT of process 0"
            )
        return
    if coordinator != "auto" and not _is_address(coordinator):
        raise UserError(
            f"--coordinator: expected HOST:PORT of process 0, or auto, got "
            f"{coordinator!r}; change it"
        )
    # The programs handle SIGTERM themselves.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            None if coordinator == "auto" else coordinator,
            num_processes,
            process_id,
            heartbeat_timeout_seconds=_SILENCE,
            shutdown_timeout_seconds=_SILENCE,
        )
    except (ValueError, RuntimeError) as error:
        raise UserError(
            f"--coordinator={coordinator}: expected the processes of a run, got: "
            f"{str(error).rstrip('.')}; give all of --coordinator=HOST:PORT, "
            "--num_processes and --process_id"
        ) from None


def _is_address(text: str) -> bool:
    """Return whether a text is HOST:PORT; with others gRPC may end the process."""
    host, _, port = text.rpartition(":")
    named = re.fullmatch(r"[^\s:/\[\]]+|\[[0-9A-Fa-f:.%\w]+\]", host)
    return bool(named and re.fullmatch(r"[0-9]{1,5}", port) and 0 < int(port) < 2**16)


def several() -> bool:
    """Return whether a run has more than one process."""
    return jax.process_count() > 1


def primary() -> bool:
    """Return whether this process is the primary one, the only one that writes."""
    return jax.process_index() == 0


def once(log: Callable[[str], None]) -> Callable[[str], None]:
    """Let only the primary process log."""
    return log if primary() else lambda line: None


def barrier(name: str) -> None:
    """Wait until all processes are here."""
    if several():
        multihost_utils.sync_global_devices(name)


def holding(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Let the processes of one run be the only ones that write in a folder.

    Raises:
      UserError: if another run holds it.
    """
    return lock.holding(folder) if primary() else contextlib.nullcontext()


def least(number: int) -> int:
    """Return the least of the numbers, below 2^31, that the processes pass."""
    if several():
        return int(multihost_utils.process_allgather(np.int32(number)).min())
    return number


def fetch(tree: Any) -> Any:
    """Return arrays that are sharded over all processes, as numpy arrays.

    Args:
      tree: of arrays; all processes ask for the same.
    """
    if several():
        return multihost_utils.process_allgather(tree, tiled=True)
    return jax.device_get(tree)


class Votes:
    """Lets processes agree on what one of them requests; none waits for another.

    The devices add up the votes, along with their other work; the outcome is known at
    the next vote. With one process it is known at once.
    """

    def __init__(self, mesh: Mesh) -> None:
        """Prepare votes on one question, of all processes with devices in a mesh."""
        self._each = NamedSharding(mesh, P(mesh.axis_names))
        # Not mesh.local_mesh: a host's devices need not lie together in the mesh.
        self._own_devices = len(self._each.addressable_devices)
        replicated = NamedSharding(mesh, P())
        self._add = jax.jit(lambda votes: votes.sum(0), out_shardings=replicated)
        self.discard()

    def discard(self) -> None:
        """Forget the vote whose outcome is not known yet."""
        self._unread: jax.Array | None = None

    def cast(self, request: bool) -> bool:
        """Vote; return whether any process requested it at the last vote."""
        if not several():
            return request
        mine = np.full(self._own_devices, request, np.int32)
        votes = jax.make_array_from_process_local_data(self._each, mine)
        unread, self._unread = self._unread, self._add(votes)
        return unread is not None and bool(unread)


@contextlib.contextmanager
def dependent() -> Iterator[None]:
    """Report in one line that a computation failed because a process was lost.

    Raises:
      UserError: instead of what jax raises.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if not several() or "RESOURCE_EXHAUSTED" in str(error):
            raise
        reason = str(error).splitlines()[0]
        raise UserError(
            f"process {jax.process_index()}: expected {jax.process_count()} processes, "
            f"lost one ({reason}); start all of them again, the run resumes from its "
            "last checkpoint"
        ) from error


def leave(code: int) -> None:
    """Leave the other processes before this one ends with an exit code.

    After a failure it ends at once: they would be waited for. Those of a run that
    SIGTERM stopped end together.
    """
    if code == 0 or not jax.distributed.is_initialized():
        return
    if code == STOPPED:
        jax.distributed.shutdown()
    else:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
