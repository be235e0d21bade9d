"""The configuration of an imported model: defaults for what its files leave open."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

from transformer import config
from transformer.config import Config
from transformer.formats.foreign import Foreign

# Careful fine-tuning: the constant rate is a tenth of what such models begin with.
_USUAL: dict[str, Any] = {
    "name": "imported",
    "seed": 0,
    "device": "any",
    "data": {
        "source": "text",
        "dir": "data",
        "name": "",
        "source_language": "source",
        "target_language": "target",
        "train": "train",
        "validation": "validation",
        "test": "test",
        "train_pairs": 0,
        "digits": 9,
        "test_digits": 0,
        "max_length": 512,
        "prepared": "",
        "measure": "bleu",
    },
    "batch": {
        "tokens": 8192,
        "shapes": 12,
        "multiple": 8,
        "length_multiple": 8,
        "lengths": 1,
    },
    "loss": {"smoothing": 0.1, "smoothing_over": "all", "r_drop": 0.0, "block": 0},
    "optimizer": {
        "name": "adam",
        "options": "",
        "schedule": "constant",
        "scale": 1.0,
        "rate": 3e-5,
        "warmup": 500,
        "step_offset": 0,
        "b1": 0.9,
        "b2": 0.98,
        "epsilon": 1e-9,
        "decay": 1.0,
        "decay_patience": 0,
        "decay_after": 0.0,
        "decay_every": 0.0,
        "least_rate": 0.0,
        "l2": 0.0,
        "clip_norm": 5.0,
        "accumulation": 1,
        "nonfinite_limit": 10,
        "frozen": "",
    },
    "init": {"only": "", "skip": "", "vocabulary": "new"},
    "train": {
        "steps": 5000,
        "log_every": 100,
        "evaluate_every": 1000,
        "watch": "perplexity",
        "watch_pairs": 0,
        "patience": 0,
        "show": 0,
        "checkpoint_every": 1000,
        "checkpoint_minutes": 0.0,
        "keep": 5,
    },
    "decode": {
        "checkpoint": "last",
        "beam": 4,
        "alpha": 1.0,
        "length_penalty": "power",
        "extra_tokens": 50,
        "tokens": 0,
        "average": 1,
        "constrained": True,
    },
    "parallel": {
        "data": -1,
        "fsdp": 1,
        "tensor": 1,
        "how": "jit",
        "remat": "none",
        "layers": "auto",
    },
}
# Keys of the model that are the user's, not those of its parameters.
_TRAINED_BY = ("dropout", "attention_dropout", "relu_dropout", "dtype")


def settings_of(
    it: Foreign, name: str, models: Mapping[str, str], given: Config | None
) -> Config:
    """Return the configuration of a run that begins with an imported model.

    Args:
      it: the model.
      name: of the run.
      models: paths of both tokenizers, by "source" and "target".
      given: says how it is trained and on which data; None = the usual.

    Raises:
      UserError: if the two do not fit.
    """
    if given is None:
        values = copy.deepcopy(_USUAL)
        values |= {"name": name, "model": dataclasses.asdict(it.model)}
        values["data"] |= {"max_length": it.longest, **it.languages}
        # Room for one batch of the longest pairs.
        rows = values["batch"]["multiple"]
        values["batch"]["tokens"] = max(values["batch"]["tokens"], rows * it.longest)
    elif given.data.source in ("trees", "vectors"):
        raise config.UserError(
            "--config: expected pairs of texts to train an imported model on, got "
            f"data.source = {given.data.source}; choose another configuration"
        )
    else:
        values = dataclasses.asdict(given)
        values["model"] = dataclasses.asdict(it.model)
        for key in _TRAINED_BY:
            if (value := getattr(given.model, key, None)) is not None:
                values["model"][key] = value
    values["decode"] |= {"length_penalty": "power", **it.decode}
    values["tokenizer"] = {
        "kind": "marian",
        "target_kind": "same",
        "vocab_size": 0,
        "joint": True,
        "source_model": models["source"],
        "target_model": models["target"],
        "symbols": "",
        "dropout": 0.0,
        "samples": 1,
    }
    return config.resolve(values)
