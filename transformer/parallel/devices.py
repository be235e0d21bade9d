"""The available devices, and what is set before the first computation."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from pathlib import Path

import jax

from transformer import allocator
from transformer.config import UserError
from transformer.nn import hardware


def start(device: str) -> str:
    """Choose the devices and the compilation cache; call it before any computation.

    Args:
      device: "any", "cpu", "gpu" or "tpu".

    Returns:
      One line that lists the devices.

    Raises:
      UserError: if the requested accelerator is absent.
    """
    allocator.keep_memory()
    if device == "cpu":
        jax.config.update("jax_platforms", "cpu")
    try:
        found = jax.devices()
    except RuntimeError as error:  # JAX_PLATFORMS names one that is not there
        raise UserError(f"expected devices that jax can use, got: {error}") from None
    cache = _enable_cache(programs_folder(found[0].platform))
    names = Counter(f"{d.platform} ({d.device_kind})" for d in found)
    text = ", ".join(f"{count} x {name}" for name, count in names.items())
    if device not in ("any", found[0].platform):
        raise UserError(
            f"device: expected a {device}, this machine offers {text}; install jax for "
            f"the {device}, or ask for another device"
        )
    if not hardware.of(found[0]).bfloat16:
        text += ", without bfloat16 units: operands stay float32"
    return f"devices: {text}; jax {jax.__version__}; compiled programs: {cache}"


def simulate(count: int) -> list[jax.Device]:
    """Make the CPU act as ``count`` devices; call it before any computation."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", count)
    return jax.devices()


def accelerators() -> tuple[str, int]:
    """Return the platform of this machine's devices, and how many chips there are."""
    devices = jax.local_devices()
    platform = devices[0].platform
    if platform == "tpu":  # the two cores of an old chip are two devices of one process
        return platform, len({tuple(device.coords) for device in devices})
    return platform, len(devices)


def programs_folder(platform: str) -> Path:
    """Return where compiled programs are kept; JAX's own variable may name the folder.

    XLA divides the loops of a CPU's program among the cores that the process may use.
    JAX's cache key does not include them: a program that was compiled on one core, in
    one of several runs side by side, would be reused on all cores, where it takes up to
    1.3 times as long as one compiled for them. Each number of cores therefore has its
    own folder.
    """
    if named := os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        folder = Path(named)
    else:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(home) / "transformer-reference" / "xla"
    return folder / f"cores-{_cores()}" if platform == "cpu" else folder


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _enable_cache(folder: Path) -> str:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        size = _size(folder)
    except OSError as error:
        return f"not kept ({error})"
    jax.config.update("jax_compilation_cache_dir", str(folder))
    # The many small programs of a start are worth keeping too.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    return f"{folder} ({size / 1e6:,.0f} MB)"


def _size(folder: Path) -> int:
    """Return the bytes of a folder's files, while other processes may remove some."""
    total = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                total += entry.stat().st_size
    return total
