"""The kind of device that a program is traced for, and which dtypes it multiplies.

Tracing never asks which devices there are: a model knows its ``Hardware``. A program
can therefore be lowered for a GPU, or compiled for a TPU, on a machine without one.
"""

from __future__ import annotations

import dataclasses
import functools
import platform
import re
import subprocess
import sys
from pathlib import Path

import jax

from transformer.nn import matmul


@dataclasses.dataclass(frozen=True)
class Hardware:
    """A kind of device."""

    platform: str  # "cpu", "cuda", "rocm" or "tpu"
    capability: tuple[int, int] | None = None  # CUDA compute capability, (9, 0) = H100
    bfloat16: bool = True  # whether it has units that multiply bfloat16
    cuts_heads: bool = False  # whether the compiler splits heads over several devices

    @property
    def accelerator(self) -> bool:
        """Whether this is not a CPU."""
        return self.platform != "cpu"

    def operands(self, dtype: str) -> str:
        """Return the dtype of the operands of products with parameters.

        Args:
          dtype: the requested dtype, "float32" or "bfloat16" (``model.dtype``).

        Returns:
          The same, or "float32" if bfloat16 would be emulated or is not available.
        """
        if dtype == "float32" or not self.bfloat16:
            return "float32"
        if not self.accelerator and not matmul.multiplies(dtype):
            return "float32"
        return dtype

    def attention_operands(self, dtype: str) -> str:
        """Return the dtype of the operands of the products inside attention.

        These products are small and many: a CPU spends less time on them than on
        rounding their operands.

        Args:
          dtype: as for ``operands``.
        """
        return self.operands(dtype) if self.accelerator else "float32"

    def stored(self, dtype: str) -> str:
        """Return the dtype of results that only the next product reads.

        The product rounds them anyway. Rounding them before they are stored halves
        their memory and the time to move them, which is what an accelerator waits for.

        Args:
          dtype: as for ``operands``.
        """
        return self.operands(dtype) if self.accelerator else "float32"


def arranged(kind: Hardware | None, tensor: int) -> Hardware | None:
    """Return the kind of the devices that a model is spread over.

    Args:
      kind: kind of each device, None = that of this process's first.
      tensor: parts that the compiler splits heads into (``parallel.tensor``).
    """
    if tensor == 1:
        return kind
    return dataclasses.replace(kind or here(), cuts_heads=True)


def of(device: jax.Device) -> Hardware:
    """Return the kind of a device."""
    if device.platform == "cpu":
        features = cpu_features(cpu_description())
        return Hardware("cpu", bfloat16=multiplies_bfloat16(features))
    if device.platform not in ("gpu", "cuda", "rocm"):
        return Hardware(device.platform)
    if "rocm" in device.client.platform_version.lower():
        return Hardware("rocm")
    major, minor = str(device.compute_capability).split(".")
    capability = int(major), int(minor)
    return Hardware("cuda", capability, bfloat16=capability >= (8, 0))


@functools.cache
def here() -> Hardware:
    """Return the kind of this process's first device."""
    return of(jax.devices()[0])


# ------------------------------------------------------ what the system says of them

# Intel and AMD; Arm under Linux; Apple.
_MULTIPLY_BFLOAT16 = {"avx512_bf16", "amx_bf16", "bf16", "svebf16", "FEAT_BF16"}


def cpu_features(text: str) -> frozenset[str]:
    """Return the names of a CPU's features.

    Args:
      text: Linux's /proc/cpuinfo, on Intel and AMD or on Arm, or the lines of macOS's
        ``sysctl hw.optional``.

    Returns:
      Those of the first core, as the system names them; none if ``text`` lists none.

    >>> sorted(cpu_features("processor : 0\\nflags : fpu avx2"))
    ['avx2', 'fpu']
    >>> sorted(cpu_features("hw.optional.neon: 1\\nhw.optional.arm.FEAT_BF16: 0"))
    ['neon']
    """
    listed = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    if listed:
        return frozenset(listed[1].split())
    return frozenset(re.findall(r"^hw\.optional\.(?:arm\.)?(\w+): 1$", text, re.M))


def multiplies_bfloat16(features: frozenset[str]) -> bool:
    """Return whether a CPU has instructions that multiply bfloat16 numbers.

    Without AVX512-BF16, AMX-BF16 or Arm's BF16 each operand is first converted to
    float32, which costs more than it saves. An unknown CPU counts as having none.

    Args:
      features: see ``cpu_features``.
    """
    return not features.isdisjoint(_MULTIPLY_BFLOAT16)


def cpu_model(text: str) -> str | None:
    """Return a CPU's name, if the system reports it: Linux on Arm does not.

    Args:
      text: /proc/cpuinfo, or the lines of ``sysctl machdep.cpu``.
    """
    named = re.search(
        r"^(?:model name\s*|machdep\.cpu\.brand_string): *(.*)$", text, re.MULTILINE
    )
    return named[1].strip() if named else None


@functools.cache
def cpu_description() -> str:
    """Return what this system reports about its CPU, "" if nothing."""
    try:
        if sys.platform == "darwin":
            command = ["sysctl", "hw.optional", "machdep.cpu"]
            # It fails if a name does not exist, but prints the lines of the others.
            return subprocess.run(command, capture_output=True, text=True).stdout
        return Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def driver_version(text: str) -> str | None:
    """Return the version of NVIDIA's driver in /proc/driver/nvidia/version, or None.

    >>> driver_version("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue")
    '550.54.15'
    """
    found = re.search(r"^NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", text, re.MULTILINE)
    return found[1] if found else None


def nvidia_driver() -> str | None:
    """Return the version of NVIDIA's driver, None where there is none."""
    try:
        return driver_version(Path("/proc/driver/nvidia/version").read_text())
    except OSError:
        return None


def describe_cpu() -> dict[str, str | None]:
    """Return architecture, name and features of this machine's CPU, for the record."""
    text = cpu_description()
    return {
        "architecture": platform.machine(),
        "model": cpu_model(text),
        "features": " ".join(sorted(cpu_features(text))),
    }
