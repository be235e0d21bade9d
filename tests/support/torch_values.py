"""Values computed by torch: those committed, and those of an installed torch."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from support.paths import PROGRAMS, TESTS

PYTHON = os.environ.get("PEERS_PYTHON", sys.executable)


def has_peer(name: str) -> bool:
    """Return whether the Python of the peers has a package."""
    look = f"import importlib.util as u; print(u.find_spec('{name}') is not None)"
    found = subprocess.run([PYTHON, "-c", look], capture_output=True, text=True)
    return found.stdout.strip() == "True"


# Compare with the committed values, and with torch where it is installed.
everywhere = pytest.mark.parametrize(
    "values_of", ["committed", "installed"] if has_peer("torch") else ["committed"]
)


@functools.cache
def values(values_of: str, program: str = "torch_values") -> dict[str, np.ndarray]:
    """Return what a file of programs/ computes, by name."""
    if values_of == "committed":
        name = program.removesuffix("_values")
        return _read(TESTS / "golden" / f"{name}.npz")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "values.npz"
        run_peer(program, str(path))
        return _read(path)


def run_peer(program: str, *arguments: str) -> None:
    """Run a file of programs/ with the Python of the peers."""
    subprocess.run(
        [PYTHON, str(PROGRAMS / f"{program}.py"), *arguments],
        env=os.environ | {"PYTHONPATH": str(TESTS)},
        check=True,
    )


def _read(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}
