"""The Transformer of "Attention Is All You Need" in JAX and Flax."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # Not imported before it is used: `transformer --help` needs no jax.
    if name == "load":
        return importlib.import_module("transformer.ensemble").load
    raise AttributeError(f"module 'transformer' has no attribute {name!r}")


def __dir__() -> list[str]:
    return ["__version__", "load"]
