"""A minimal model: the mean of the source, and of the output so far.

For tests of everything around a model: it compiles in a fifth of the time.
"""

import dataclasses
import sys
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import pytest

from support.runs import tiny_run
from transformer import config, models
from transformer.ids import marks
from transformer.models.modules import Base, Linear
from transformer.nn import dropout, layers, matmul


class Cache(NamedTuple):
    source: jax.Array  # (B, 1, D)
    sums: jax.Array  # (B, J, D) of the embeddings of each hypothesis
    taken: jax.Array  # () tokens


class Model(Base):
    partition: ClassVar[Any] = {
        "table": (None, "fsdp"),
        "mix[.]kernel": ("fsdp", None),
        "mix[.]bias": (None,),
    }
    stacks: ClassVar[tuple[str, ...]] = ()

    def setup(self):
        rows = max(self.source_size, self.target_size), self.config.d_model
        self.table = self.param("table", jax.nn.initializers.normal(0.1), rows)
        self.mix = Linear(self.config.d_model, self.operands)

    def encode(self, source, key=None):
        real = (marks(source) != 0)[..., None]
        embedded = layers.embed_source(source, self.table, self.operands)
        total = (embedded * real).sum(1, keepdims=True)
        return total / jnp.maximum(real.sum(1, keepdims=True), 1), real

    def hidden(self, source, past):
        both = [jnp.broadcast_to(source, past.shape), past]
        return jnp.tanh(self.mix(jnp.concatenate(both, axis=-1)))

    def features(self, source, inputs, key=None):
        past = jnp.cumsum(layers.embed(inputs, self.table), axis=1)
        past = past / jnp.arange(1, inputs.shape[1] + 1)[:, None]
        past = dropout.dropout(past, self.config.dropout, key)
        return self.hidden(self.encode(source)[0], past), self.table

    def start(self, source, beams, length):
        sums = jnp.zeros((len(source), beams, self.config.d_model))
        return Cache(self.encode(source)[0], sums, jnp.zeros(()))

    def step(self, cache, ids, parents):
        sums = jnp.take_along_axis(cache.sums, parents[..., None], axis=1)
        sums, taken = sums + layers.embed(ids, self.table), cache.taken + 1
        hidden = self.hidden(cache.source, sums / taken)
        logits = matmul.product(hidden, matmul.Transposed(self.table), self.operands)
        return logits, Cache(cache.source, sums, taken)


class Settings(config.Model):
    """No keys of its own."""


def register(patch: pytest.MonkeyPatch) -> None:
    """Register the toy as a kind of model: its keys and its file."""
    patch.setitem(config.MODELS, "toy", Settings)
    patch.setitem(models.MODELS, "toy", sys.modules[__name__])


def toy_run(folder: Path, **changes: object) -> config.Config:
    """Resolve ``tiny_run`` with the toy, which has to be registered, as its model."""
    values = dataclasses.asdict(tiny_run(folder, **changes))
    known = {field.name for field in dataclasses.fields(Settings)} - {"kind"}
    kept = {name: value for name, value in values["model"].items() if name in known}
    return config.resolve(values | {"model": kept | {"kind": "toy"}})
