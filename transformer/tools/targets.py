"""Accelerators that programs are compiled for on machines without one.

libtpu compiles for any TPU, on any Linux machine with an x86-64 processor; the package
is that of the extra ``tpu``. For CUDA a program is only lowered: its compiler tries
kernels on the card.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from transformer.config import UserError
from transformer.tools import datasheets


class Chip(NamedTuple):
    """A device's datasheet, where a device is what JAX counts as one."""

    name: str
    peak: float  # operations per second on bfloat16, 2 per multiply-add
    bandwidth: float  # bytes per second, to and from the main memory
    memory: float  # bytes that a program may use: what libtpu's compiler allows


def _chip(name: str, allowed: float, each: int = 1, per_chip: bool = False) -> Chip:
    """Return a chip by its name in ``datasheets``.

    Args:
      name: a short one.
      allowed: 2^30 bytes that libtpu's compiler allows a program.
      each: devices per chip.
      per_chip: whether the datasheet's rates are those of a chip, not of a device.
    """
    sheet = datasheets.find(name)
    assert sheet is not None
    parts = each if per_chip else 1
    title = f"TPU {name}" + (" core" if each > 1 else "")
    rates = sheet.operations / parts, sheet.bandwidth / parts
    return Chip(title, *rates, allowed * 2.0**30)


# The memory is what libtpu reports as left, in messages about programs too large.
CHIPS = {
    "v3": _chip("v3", 15.48, each=2),
    "v4": _chip("v4", 15.25, each=2, per_chip=True),
    "v5e": _chip("v5e", 15.75),
    "v5p": _chip("v5p", 95.74),
    "v6e": _chip("v6e", 31.25),
}


class Target(NamedTuple):
    """A machine, or a slice of several."""

    chip: str  # of CHIPS
    topology: str  # chips along the axes of the slice
    note: str = ""


_CORES = (
    "a v4 runs as one device of two cores; here libtpu compiles for each core as a "
    "separate device, so values per device are for half a chip"
)

# By the names of Cloud TPU: those of v3, v4 and v5p count cores, two per chip.
TARGETS = {
    "v3-8": Target("v3", "2x2"),
    "v4-8": Target("v4", "2x2x1", _CORES),
    "v4-16": Target("v4", "2x2x2", _CORES),
    "v5e-1": Target("v5e", "1x1"),
    "v5e-4": Target("v5e", "2x2"),
    "v5e-8": Target("v5e", "2x4"),
    "v5e-16": Target("v5e", "4x4"),
    "v5e-32": Target("v5e", "4x8"),
    "v5p-8": Target("v5p", "2x2x1"),
    "v5p-16": Target("v5p", "2x2x2"),
    "v5p-32": Target("v5p", "2x2x4"),
    "v6e-1": Target("v6e", "1x1"),
    "v6e-4": Target("v6e", "2x2"),
    "v6e-8": Target("v6e", "2x4"),
    "v6e-16": Target("v6e", "4x4"),
    "v6e-32": Target("v6e", "4x8"),
}


def has_compiler() -> bool:
    """Return whether libtpu is here."""
    given = os.environ.get("TPU_LIBRARY_PATH")
    return bool(given) or importlib.util.find_spec("libtpu") is not None


def devices(name: str) -> Sequence[Any]:
    """Return the devices of a TPU target, to compile for; nothing can run on them.

    Args:
      name: of TARGETS.

    Raises:
      UserError: if libtpu is not here, or is of another version than jax wants.
    """
    if not has_compiler():
        raise UserError(
            f"--target={name}: expected libtpu, the compiler for TPUs, which is not "
            "installed; on Linux with an x86-64 processor it comes with pip install -e "
            '".[tpu]"'
        )
    # Without these, libtpu looks for the machine's TPU, complains of its absence on
    # standard error, writes logs to /tmp, and lets one process at a time load it.
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-4")
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    os.environ.setdefault("TPU_LOG_DIR", "disabled")
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    import jax
    from jax.experimental import topologies

    target = TARGETS[name]
    alone = {"chips_per_host_bounds": (1, 1, 1)} if target.topology == "1x1" else {}
    try:
        described = topologies.get_topology_desc(
            f"{target.chip}:{target.topology}", "tpu", **alone
        )
    except jax.errors.JaxRuntimeError as error:
        line = str(error).splitlines()[0]
        raise UserError(
            f"--target={name}: expected a libtpu that jax {jax.__version__} can use, "
            f'got: {line}; pip install -e ".[tpu]" installs the right one'
        ) from None
    return described.devices
