"""Configurations of runs that an earlier version wrote."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from transformer.config.checks import UserError
from transformer.config.keys import MODELS, Config, Model
from transformer.config.values import resolve

# Keys that are newer than some runs, with what those runs did.
NEWER = {
    "data.digits": 9,
    "data.test_digits": 0,
    "data.measure": "bleu",
    "tokenizer.target_kind": "same",
    "tokenizer.symbols": "",
    "tokenizer.dropout": 0.0,
    "tokenizer.samples": 1,
    "batch.length_multiple": 1,
    "batch.lengths": 1,
    "model.kind": "transformer",
    "model.clip": -1,
    "model.farthest": 0,
    "model.relative_heads": "shared",
    "model.decoder_layers": 0,
    "model.activation": "relu",
    "model.output_bias": False,
    "init.only": "",
    "loss.r_drop": 0.0,
    "init.skip": "",
    "init.vocabulary": "new",
    "optimizer.options": "",
    "optimizer.schedule": "inverse_sqrt",
    "optimizer.rate": 0.0,
    "optimizer.decay": 1.0,
    "optimizer.decay_patience": 0,
    "optimizer.decay_after": 0.0,
    "optimizer.decay_every": 0.0,
    "optimizer.least_rate": 0.0,
    "optimizer.l2": 0.0,
    "optimizer.frozen": "",
    "train.watch": "perplexity",
    "train.watch_pairs": 0,
    "train.show": 0,
    "train.patience": 0,
    "decode.checkpoint": "last",
    "decode.constrained": True,
    "parallel.data": -1,
    "parallel.fsdp": 1,
    "parallel.tensor": 1,
    "parallel.how": "jit",
    "parallel.remat": "none",
    "parallel.layers": "unrolled",
}
# Removed keys, with the one value whose behaviour is still there.
GONE = {"tokenizer.algorithm": "bpe", "model.dropout_bits": "hash"}
# Renamed keys, with what their values are called now.
RENAMED = {"parallel.scan": ("parallel.layers", {False: "unrolled", True: "scanned"})}


def resolve_saved(values: Mapping[str, Any]) -> Config:
    """Make a ``Config`` from the values of config.json, which may be of an old run."""
    if not isinstance(values, Mapping) or any("." in group for group in values):
        return resolve(values)  # which says what is wrong with it
    flat: dict[str, Any] = {}
    for group, keys in values.items():
        if isinstance(keys, Mapping):
            flat |= {f"{group}.{name}": value for name, value in keys.items()}
        else:
            flat[group] = keys
    nested: dict[str, Any] = {}
    for key, value in upgraded(flat).items():
        group, _, name = key.rpartition(".")
        if isinstance(values.get(group, {}), Mapping):
            (nested.setdefault(group, {}) if group else nested)[name] = value
    return resolve(nested)


def upgraded(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return flat values of an earlier version, or some of them, under today's keys.

    Raises:
      UserError: if a key was removed, and the behaviour of its value too.
    """
    now = {key: value for key, value in flat.items() if key not in RENAMED}
    for old, (key, values) in RENAMED.items():
        if old in flat:
            same = [new for value, new in values.items() if value is flat[old]]
            now.setdefault(key, *(same or [flat[old]]))
    for key, value in GONE.items():
        if (got := now.pop(key, value)) != value:
            raise UserError(
                f"config: {key}: expected {value!r}, the only value in this version, "
                f"got {got!r}; use the version that trained the run"
            )
    name = now.get("model.kind", NEWER["model.kind"])  # which may be anything
    kind = MODELS.get(name, Model) if isinstance(name, str) else Model
    known = {f"model.{field.name}" for field in dataclasses.fields(kind)}
    newer = {
        key: value
        for key, value in NEWER.items()
        if key in known or not key.startswith("model.")
    }
    return newer | now
