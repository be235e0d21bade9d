"""What made a run, as record.json keeps it: data, versions, devices, source tree."""

from __future__ import annotations

import datetime
import functools
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import transformer
from transformer import config
from transformer.files import sealed

_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
_LIBRARIES = re.compile(r"nvidia-|jax-cuda|jax-rocm|libtpu", re.IGNORECASE)


def now() -> str:
    """Return the time in UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def write_run_record(
    workdir: Path,
    settings: config.Config,
    vocabulary_digest: str,
    checksums: Mapping[str, Any],
    tokens: int,
    *,
    sizes: Mapping[str, int],
    metrics: Mapping[str, Any],
    changes: Sequence[Mapping[str, Any]] = (),
    init: Mapping[str, Any] | None = None,
    started: str,
    end: Mapping[str, Any] | None = None,
) -> None:
    """Write record.json: what a reader needs to make the run again.

    Args:
      workdir: folder of the run.
      settings: the resolved configuration, as the user wrote it.
      vocabulary_digest: of the tokenizers.
      checksums: by split, of the data.
      tokens: target tokens, padding not counted, that training has seen so far.
      sizes: those chosen where the configuration leaves them to the device.
      metrics: size and digest of metrics.jsonl, see ``history.py``.
      changes: of the configuration, each with the step after which it holds.
      init: of the run that parameters were taken from, None where all were drawn.
      started: when the run began, see ``now``.
      end: how the validations of a complete run went; None where it is not complete,
        and "ended" and "course" are null.
    """
    here = machine()
    sealed.write_json(
        workdir / "record.json",
        {
            "name": settings.name,
            "seed": settings.seed,
            "config_digest": config.digest(settings),
            "vocabulary_digest": vocabulary_digest,
            "data": checksums,
            "tokens": tokens,
            "started": started,
            "ended": None if end is None else now(),
            "course": end,
            "sizes": dict(sizes),
            "metrics": dict(metrics),
            "changes": list(changes),
            "init": init,
            "versions": here.pop("versions"),
            "devices": _devices(),
            "machine": {"operands": _operands(settings.model.dtype), **here},
            "git_revision": _git_revision(),
        },
    )


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of Python, of this package and of the packages that compute.

    For an accelerator they include its libraries: CUDA, cuDNN, libtpu.
    """
    found = {
        "python": platform.python_version(),
        "transformer": transformer.__version__,
        **{name: importlib.metadata.version(name) for name in _PACKAGES},
    }
    for folder in _metadata_folders():
        # Their names are read first: a package's metadata takes 1 ms to parse.
        if _LIBRARIES.match(folder.name.replace("_", "-")):
            one = importlib.metadata.Distribution.at(folder)
            found[one.name] = one.version
    return found


def _metadata_folders() -> list[Path]:
    """Return where installed packages keep their metadata, by the path of imports."""
    places = [Path(place) for place in sys.path if Path(place).is_dir()]
    return [folder for place in places for folder in place.glob("*.dist-info")]


def _devices() -> list[str]:
    import jax

    return [f"{device.platform}: {device.device_kind}" for device in jax.devices()]


def machine() -> dict[str, Any]:
    """Return what besides the program decides its speed and the last digits of numbers.

    Returns:
      By name: all devices, the versions of what computes, the driver of a GPU (None
      without one), the flags that XLA and libtpu were given, the CPU.
    """
    import jax

    from transformer.nn import hardware

    device = jax.local_devices()[0]
    return {
        "devices": [one.device_kind for one in jax.devices()],
        "platform": device.client.platform_version,
        "compute_capability": getattr(device, "compute_capability", None),
        "driver": hardware.nvidia_driver(),
        "cpu": hardware.describe_cpu(),
        "versions": versions(),
        "flags": {
            name: value
            for name, value in os.environ.items()
            if name.startswith(("XLA_", "LIBTPU_"))
        },
    }


def _operands(dtype: str) -> str:
    """Return which dtype product operands have for a model dtype on this device."""
    import jax

    from transformer.nn import hardware

    return hardware.of(jax.local_devices()[0]).operands(dtype)


@functools.cache  # of the code that runs, whatever is committed meanwhile
def _git_revision() -> str | None:
    """Return the commit of this source tree, see ``_revision_of``."""
    return _revision_of(Path(__file__).resolve())


def _revision_of(here: Path) -> str | None:
    """Return the commit of a file's source tree, ``-dirty`` if changed, or None."""

    def git(*arguments: str) -> str | None:
        try:
            run = subprocess.run(
                ["git", "-C", str(here.parent), *arguments],
                capture_output=True,
                text=True,
            )
        except OSError:  # no git here
            return None
        return run.stdout.strip() if run.returncode == 0 else None

    # Installed packages may lie inside a repository that does not hold them.
    if git("ls-files", "--error-unmatch", here.name) is None:
        return None
    return git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
