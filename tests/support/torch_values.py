"""What torch gives: the committed values, and those of the torch that is installed."""

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

_PYTHON = os.environ.get("PEERS_PYTHON", sys.executable)
_COMMITTED = TESTS / "golden" / "torch.npz"


def _has_torch() -> bool:
    look = "import importlib.util as u; print(u.find_spec('torch') is not None)"
    found = subprocess.run([_PYTHON, "-c", look], capture_output=True, text=True)
    return found.stdout.strip() == "True"


# A test of these compares with every torch there is.
everywhere = pytest.mark.parametrize(
    "values_of", ["committed", "installed"] if _has_torch() else ["committed"]
)


@functools.cache
def values(values_of: str) -> dict[str, np.ndarray]:
    """Return what ``programs/torch_values.py`` computes, by its names."""
    if values_of == "committed":
        return _read(_COMMITTED)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "values.npz"
        subprocess.run(
            [_PYTHON, str(PROGRAMS / "torch_values.py"), str(path)],
            env=os.environ | {"PYTHONPATH": str(TESTS)},
            check=True,
        )
        return _read(path)


def _read(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}
