"""Memory: how much a device has, and how much of it a program takes."""

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
    """Return the bytes of this process's smallest device, 0 = unknown."""
    devices = jax.local_devices()
    return min(of(device, len(devices)) for device in devices)


def of(device: jax.Device, beside: int = 1) -> int:
    """Return how many bytes of a device's memory this process may use.

    An accelerator reports what JAX may use of it. For a CPU it is what the operating
    system reports as available plus what this process already holds.

    Args:
      device: one of this process's.
      beside: how many simulated devices share the memory of a CPU.

    Returns:
      Its bytes, including those in use; 0 if unknown.
    """
    if device.platform == "cpu":
        return host() // beside
    try:
        told = device.memory_stats() or {}
    except jax.errors.JaxRuntimeError:  # not implemented by its plugin
        told = {}
    return told.get("bytes_limit", 0)


def host(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """Return the bytes of memory that this process may use, 0 = unknown.

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
        for folder in (inner, *inner.parents):  # in a container some are not visible
            with contextlib.suppress(OSError, ValueError):  # "max" is no limit
                yield int((folder / name).read_text())
            if folder == root:
                break


def held(tree: Any) -> int:
    """Return the bytes of arrays on one device.

    Args:
      tree: arrays or their shapes; an array with a sharding counts with its shard.
    """
    return sum(map(_shard_bytes, jax.tree.leaves(tree)))


def _shard_bytes(x: Any) -> int:
    sharding = getattr(x, "sharding", None)
    shape = x.shape if sharding is None else sharding.shard_shape(x.shape)
    return math.prod(shape) * x.dtype.itemsize


def needed(program: jax.stages.Compiled) -> int:
    """Return the bytes that a program takes of a device, 0 if it does not say.

    Donated arguments become results, so only the larger of both counts: a program from
    a compilation cache may not say which are donated.
    """
    told: Any = program.memory_analysis()
    if told is None:
        return 0
    beside = max(told.argument_size_in_bytes, told.output_size_in_bytes)
    return told.temp_size_in_bytes + beside


@contextlib.contextmanager
def enough(what: str, remedy: str) -> Iterator[None]:
    """Say in one line what to do if a device runs out of memory.

    Args:
      what: what takes the memory, "batch.tokens: ... a step".
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
    """Format bytes as GB.

    >>> text(113e9), text(8.2e6), text(999.7e9)
    ('113 GB', '0.0082 GB', '1,000 GB')
    """
    # From 999.5 on, three digits would be written as 1e+03.
    return f"{count / 1e9:,.3g} GB" if count < 999.5e9 else f"{count / 1e9:,.0f} GB"
