"""Models that are small, drawn without compiling, and known to the reference."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from support import reference
from support.configs import base
from transformer import config, models
from transformer.models import Model
from transformer.models.transformer import Transformer

SIZE = 11  # ids of both vocabularies
SMALL: dict[str, Any] = {
    "layers": 2,
    "d_model": 16,
    "d_ff": 24,
    "heads": 2,
    "d_k": 5,
    "d_v": 3,
    "dropout": 0.5,  # no effect without a key
    "attention_dropout": 0.5,
    "relu_dropout": 0.5,
    "max_positions": 300,
    "dtype": "float32",
}
# Keys of a small recurrent model, except ``member``.
RNN: dict[str, Any] = {
    "d_model": 16,
    "embedding": 16,
    "units": 12,
    "layers": 1,
    "tying": "two",
    "context_dropout": 0.1,
    "readout_dropout": 0.1,
    "encoder_norm": False,
    "reverse_source": False,
    "score": "none",
    "attention": "none",
    "feeding": False,
    "window": 0,
    "max_positions": 0,
}
# Keys of a small convolutional model whose widths vary.
CONVS2S: dict[str, Any] = {
    "d_model": 16,
    "embedding": 12,
    "encoder": "1x12k3+1x16k3",
    "decoder": "1x16k3+1x12k1",
    "max_positions": 64,
    "tying": "none",
}
# Keys of a small ByteNet.
BYTENET: dict[str, Any] = {
    "d_model": 16,
    "sets": 1,
    "blocks": 2,
    "kernel": 3,
    "grid": 1.2,
    "tying": "two",
}


def model_config(**changes: Any) -> config.Transformer:
    """Return the model of base.py, small, with changes."""
    return dataclasses.replace(config.transformer(base().model), **(SMALL | changes))


def recurrent_config(**changes: Any) -> config.Recurrent:
    """Return a small recurrent model, with changes; ``member`` is one of them."""
    usual: dict[str, Any] = {"kind": "rnn", "dropout": 0.1, "dtype": "float32"}
    return config.Recurrent(**({"vocab_size": 0} | usual | RNN | changes))


def convolutional_config(**changes: Any) -> config.Convolutional:
    """Return a small convolutional model, with changes."""
    usual: dict[str, Any] = {"kind": "convs2s", "dropout": 0.1, "dtype": "float32"}
    return config.Convolutional(**({"vocab_size": 0} | usual | CONVS2S | changes))


def bytenet_config(**changes: Any) -> config.ByteNet:
    """Return a small ByteNet, with changes."""
    usual: dict[str, Any] = {"kind": "bytenet", "dropout": 0.1, "dtype": "float32"}
    return config.ByteNet(**({"vocab_size": 0} | usual | BYTENET | changes))


def draw_params(model: Model, seed: int = 7) -> Any:
    """Draw parameters with no bias of 0 and no scale of 1, without compiling."""
    rng = np.random.default_rng(seed)

    def draw(path, leaf):
        x = rng.normal(size=leaf.shape) / np.sqrt(model.config.d_model)
        return jnp.asarray(x + ("scale" in str(path[-1])), jnp.float32)

    return jax.tree_util.tree_map_with_path(draw, models.abstract(model))


def make(size: int = SIZE, seed: int = 7, **changes: Any) -> tuple[Transformer, Any]:
    """Return a small model and its parameters."""
    model = Transformer(model_config(**changes), size, size)
    return model, draw_params(model, seed)


# ---- for the reference ---------------------------------------------------------------

# In the model of test_model_reference.py a value is summed from end to end, one sum
# after the other: in each of the 4 layers two attentions (three maps of 8, d_k, a
# softmax over 6, 6 values, a map of 6), the feed-forward's 8 and 12, three norms of
# two means of 8; at the ends 8 more.
LAYER = 2 * (8 + 5 + 3 * 6 + 6 + 6) + 8 + 12 + 3 * 2 * 8
# A norm divides by the spread of a row, a product multiplies by sums of |weights|:
# over the stack an early error grows, by no more than test_growth_of_errors measures.
GROWTH = 20


def reference_weights(params: Any, model: config.Model) -> reference.Weights:
    """Name the parameters as support/reference.py does, in float64."""
    settings = config.transformer(model)
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)

    def norm(group):
        return group["scale"], group["bias"]

    def attention(group):
        return {
            name: (group[name]["kernel"], group[name].get("bias"))
            for name in ("query", "key", "value", "output")
        }

    def layer(group, residuals):
        inner = group["feed_forward"]
        result = {
            "self": attention(group["self_attention"]),
            "feed_forward": [
                inner[n] for n in ("kernel_1", "bias_1", "kernel_2", "bias_2")
            ],
            "norms": [
                norm(group[f"residual_{n + 1}"]["norm"]) for n in range(residuals)
            ],
        }
        if residuals == 3:
            result["cross"] = attention(group["cross_attention"])
        return result

    source_table = p["source_embedding"]
    target_table = p["target_embedding"] if settings.tying != "three" else source_table
    weights = {
        "source_table": source_table,
        "target_table": target_table,
        "output": p["output"] if settings.tying == "none" else target_table,
        "target_space": p["target_space"][0] if settings.target_space else None,
        "encoder": [layer(p[f"encoder_{n}"], 2) for n in range(settings.layers)],
        "decoder": [layer(p[f"decoder_{n}"], 3) for n in range(settings.layers)],
    }
    if settings.positions == "learned":
        weights["source_positions"] = p["source_positions"]
        weights["target_positions"] = p["target_positions"]
    if settings.norm == "pre":
        weights["encoder_norm"] = norm(p["encoder_norm"])
        weights["decoder_norm"] = norm(p["decoder_norm"])
    return weights


def options(model: config.Model) -> dict[str, Any]:
    """Return the options of the reference for a model."""
    settings = config.transformer(model)
    return {
        "heads": settings.heads,
        "order": settings.norm,
        "kind": settings.positions,
        "epsilon": settings.norm_epsilon,
        "scaled": settings.score == "scaled_dot",
        "window": settings.window,
    }
