"""Memory: how much there is on a device, and how much a program takes of it."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from transformer.config import UserError

_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


def here() -> int:
    """Return the bytes of the least of this process's devices, 0 = not known."""
    devices = jax.local_devices()
    return min(of(device, len(devices)) for device in devices)


def of(device: jax.Device, beside: int = 1) -> int:
    """Return the bytes that this process may have of a device's memory.

    An accelerator tells what JAX may use of it. A CPU has what the operating system
    says is available and what this process holds already.

    Args:
      device: one of this process's.
      beside: how many simulated devices share the memory of a CPU.

    Returns:
      Its bytes, those that are in use included; 0 where it is not known.
    """
    if device.platform == "cpu":
        return host() // beside
    try:
        told = device.memory_stats() or {}
    except jax.errors.JaxRuntimeError:  # not implemented by its plugin
        told = {}
    return told.get("bytes_limit", 0)


def host(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """Return the bytes of memory that this process may have, 0 = not known.

    Args:
      proc: folder of Linux's tables.
      cgroups: folder of its control groups.
    """
    try:
        there = _available(proc) + _own(proc)
    except OSError:  # not Linux
        return _physical()
    return min([there, *_limits(proc, cgroups)])


def _available(proc: Path) -> int:
    for line in (proc / "meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return _physical()  # a kernel before 3.14


def _own(proc: Path) -> int:
    """Return the bytes that this process holds and shares with no file."""
    _, resident, shared, *_ = map(int, (proc / "self/statm").read_text().split())
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


def _physical() -> int:
    if not {"SC_PHYS_PAGES", "SC_PAGE_SIZE"} <= set(getattr(os, "sysconf_names", ())):
        return 0
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _limits(proc: Path, cgroups: Path) -> Iterator[int]:
    """Yield the limits of this process's control groups, of version 1 or 2."""
    try:
        groups = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return
    for _, controllers, path in (line.split(":", 2) for line in groups):
        if controllers and "memory" not in controllers.split(","):
            continue
        root = cgroups / "memory" if controllers else cgroups
        name = "memory.limit_in_bytes" if controllers else "memory.max"
        inner = root / path.lstrip("/")
        for folder in (inner, *inner.parents):  # in a container some are not to be seen
            with contextlib.suppress(OSError, ValueError):  # "max" is no limit
                yield int((folder / name).read_text())
            if folder == root:
                break


def held(tree: Any) -> int:
    """Return the bytes of arrays on one device.

    Args:
      tree: arrays or their shapes; of one with a sharding a device has its shard.
    """
    return sum(map(_shard_bytes, jax.tree.leaves(tree)))


def _shard_bytes(x: Any) -> int:
    sharding = getattr(x, "sharding", None)
    shape = x.shape if sharding is None else sharding.shard_shape(x.shape)
    return math.prod(shape) * x.dtype.itemsize


def needed(program: jax.stages.Compiled) -> int:
    """Return the bytes of a device that a program takes, 0 where it does not tell.

    Arguments that are donated become results, so only the larger of both counts: what a
    compilation cache gives back may not tell which are.
    """
    told: Any = program.memory_analysis()
    if told is None:
        return 0
    beside = max(told.argument_size_in_bytes, told.output_size_in_bytes)
    return told.temp_size_in_bytes + beside


@contextlib.contextmanager
def enough(what: str, remedy: str) -> Iterator[None]:
    """Say in one line what to do where a device has run out of memory.

    Args:
      what: takes the memory, "batch.tokens: ... a step".
      remedy: for the user.

    Raises:
      UserError: in place of XLA's RESOURCE_EXHAUSTED.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        said = str(error).splitlines()[0]
        raise UserError(
            f"{what} that fits into memory, got: {said}; {remedy}"
        ) from error


def text(count: float) -> str:
    """Write bytes as GB.

    >>> text(113e9), text(8.2e6)
    ('113 GB', '0.0082 GB')
    """
    return f"{count / 1e9:,.3g} GB" if count < 1e12 else f"{count / 1e9:,.0f} GB"
