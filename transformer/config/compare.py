"""What tells two configurations apart: their values by key, and digests of them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

from transformer.config.keys import Config


def flatten(config: Any, prefix: str = "") -> dict[str, Any]:
    """Return ``{"model.heads": 8, ...}`` for a configuration or a part of one."""
    flat: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            flat |= flatten(value, f"{prefix}{field.name}.")
        else:
            flat[prefix + field.name] = value
    return flat


def digest(config: Any) -> str:
    """Return the first 12 hexadecimal digits of SHA-256 over the resolved values."""
    text = json.dumps(dataclasses.asdict(config), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def difference(old: Config, new: Config) -> list[str]:
    """Return one line per key whose value differs, ``"model.heads: 8 -> 4"``.

    For models of two kinds, only the keys that both have are compared.
    """
    a, b = flatten(old), flatten(new)
    return [f"{k}: {a[k]!r} -> {b[k]!r}" for k in a if k in b and a[k] != b[k]]


# Paths of data; their content is compared by digest.
PATHS = (
    "data.dir",
    "data.prepared",
    "tokenizer.source_model",
    "tokenizer.target_model",
)
# Keys, or groups of them, for where a run is computed: they change at most rounding.
_PLACE = ("device", "parallel.", "loss.block", "decode.tokens")
# Those that change no number of a step: what a run is called, how long it is, what it
# writes on the way, when it gives up, and how it is evaluated at its end.
_COURSE = (
    "name:",
    "train.",
    "decode.",
    "optimizer.nonfinite_limit",
    "optimizer.least_rate",
    "data.measure",
)


def other_run(old: Config, new: Config) -> list[str]:
    """Return ``difference`` except for where a run is computed, which may change.

    With it, sizes that only affect rounding may change too, see ``sizes.py``.
    """
    return [line for line in difference(old, new) if not line.startswith(_PLACE)]


def other_steps(old: Config, new: Config) -> list[str]:
    """Return those lines of ``other_run`` that make another run of the same steps.

    The others may change when a run is resumed.
    """
    fixed: tuple[str, ...] = ("train.watch",)  # what decides the best checkpoint
    if new.optimizer.schedule == "plateau":
        fixed += ("train.evaluate_every", "train.checkpoint_every")  # when it validates
        if new.train.watch != "perplexity":
            fixed += ("decode.", "data.measure")
    lines = other_run(old, new)
    return [x for x in lines if x.startswith(fixed) or not x.startswith(_COURSE)]
