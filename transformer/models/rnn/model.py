"""The recurrent model: a source read once, a decoder that takes one word per step."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from transformer import config
from transformer.ids import BOS, PAD, marks
from transformer.models.modules import Base
from transformer.models.rnn.decoders import (
    ConditionalGru,
    FixedVector,
    Memory,
    RnnSearch,
)
from transformer.models.rnn.gnmt import RESIDUAL, Gnmt
from transformer.models.rnn.layers import Layer
from transformer.models.rnn.luong import Luong
from transformer.nn import dropout, layers, matmul, recurrent
from transformer.parallel import Rules

PARTITION: Rules = {
    "(source|target)_embedding": (None, "fsdp"),  # (V, m)
    "output": (None, "fsdp"),  # (V, D)
    "kernel(_[a-z]+)?": ("fsdp", None),  # (I, O)
    "(bias|gain)(_[a-z]+)?": (None,),  # (O,)
    "(energy|place)": (None,),  # v (A,)
}


class Member(NamedTuple):
    """What a member consists of."""

    cell: str  # of the encoder
    first: tuple[str, ...]  # directions of its first layer
    others: tuple[str, ...]  # and of the others
    decoder: Any
    residual: int | None = None  # the first layer, from 0, whose input is added


ONE, BOTH = ("forward",), ("forward", "backward")
MEMBERS = {
    "encdec": Member("gru", ONE, ONE, FixedVector),
    "rnnsearch": Member("gru", BOTH, BOTH, RnnSearch),
    "cgru": Member("gru_reset_after", BOTH, BOTH, ConditionalGru),
    "luong": Member("lstm", ONE, ONE, Luong),
    "gnmt": Member("lstm", BOTH, ONE, Gnmt, RESIDUAL),
}


class Cache(NamedTuple):
    """What a search carries from step to step."""

    memory: Memory  # (B, ...)
    state: Any  # (B, J, ...)


class Rnn(Base):
    """A recurrent encoder-decoder; ``config.member`` says which."""

    config: config.Recurrent

    partition: ClassVar[Rules] = PARTITION
    stacks: ClassVar[tuple[str, ...]] = ()

    def setup(self):
        c = self.config
        self.source_table, self.target_table, self.output_table = self.embedding_tables(
            c.embedding, c.d_model
        )
        its = MEMBERS[c.member]
        kind = "gru_normed" if c.encoder_norm else its.cell
        ways = [its.first] + [its.others] * (c.layers - 1)
        widths = [c.embedding] + [len(below) * c.units for below in ways[:-1]]
        self.encoder = [
            Layer(kind, width, c.units, self.operands, way)
            for width, way in zip(widths, ways, strict=True)
        ]
        self.decoder = its.decoder(c, self.operands)

    def encode(
        self, source: jax.Array, key: dropout.Key | None = None
    ) -> tuple[jax.Array, jax.Array, Any]:
        """Encode source ids (B, S): annotations (B, S, W), real (B, S), last states."""
        c = self.config
        real = (marks(source) != PAD).astype(jnp.float32)
        embedded = layers.source_rows(source, self.source_table, self.operands)
        residual = MEMBERS[c.member].residual or c.layers
        x, last = embedded, []
        if c.reverse_source:
            x = _reversed(x, real)
        for i, layer in enumerate(self.encoder):
            y, states = layer(_dropped(x, c.dropout, key, i), real)
            x = x + y if i >= residual else y
            last.append(states)
        if c.reverse_source:  # annotations are in the order of the source
            x = _reversed(x, real)
        return _dropped(x, c.context_dropout, key, c.layers), real, last

    def features(
        self, source: jax.Array, inputs: jax.Array, key: dropout.Key | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """Return what is read out (B, T, D) and the output matrix (V, D)."""
        memory, state = self._remember(source, dropout.fold_in(key, 0))
        key = dropout.fold_in(key, 1)
        y = _dropped(self._embedded(inputs), self.config.dropout, key, 0)
        one = jax.tree.map(lambda x: x[:, None], state)  # one hypothesis, the target
        above = dropout.fold_in(key, 2)
        xs = jax.tree.map(_by_time, self.decoder.inputs(y, inputs, above))
        _, outputs = recurrent.scan(
            self.decoder.cell, self.decoder.weights(), memory, one, xs, self.operands
        )
        outputs = jax.tree.map(_by_row, outputs)
        if outputs.weights is not None:
            self.sow("attention", "cross", outputs.weights[:, None])
        hidden = self.decoder.read_out(outputs, y)
        rate = self.config.readout_dropout
        return _dropped(hidden, rate, key, 1), self.output_table

    def start(self, source: jax.Array, beams: int, length: int) -> Cache:
        """Encode source ids (B, S) for a search."""
        memory, state = self._remember(source, None)

        def repeated(x):
            return jnp.broadcast_to(x[:, None], (len(x), beams, *x.shape[1:]))

        return Cache(memory._replace(held=None), jax.tree.map(repeated, state))

    def step(
        self, cache: Cache, ids: jax.Array, parents: jax.Array
    ) -> tuple[jax.Array, Cache]:
        """Take one token of each hypothesis (B, J) and score the next (B, J, V)."""
        weights, y = self.decoder.weights(), self._embedded(ids)

        def multiply(name, operand):
            return matmul.product(operand, weights[name], self.operands)

        def of_parents(x):
            places = parents.reshape(parents.shape + (1,) * (x.ndim - 2))
            return jnp.take_along_axis(x, places, axis=1)

        state, output = self.decoder.cell(
            multiply,
            cache.memory._replace(held=self.decoder.held()),
            jax.tree.map(of_parents, cache.state),
            self.decoder.inputs(y, ids),
        )
        hidden = self.decoder.read_out(output, y)
        table = matmul.Transposed(self.output_table)
        return matmul.product(hidden, table, self.operands), cache._replace(state=state)

    def _remember(self, source, key):
        annotations, real, last = self.encode(source, key)
        return self.decoder.remember(annotations, real, last)

    def _embedded(self, ids: jax.Array) -> jax.Array:
        """Return the embeddings of inputs, zeros before the first word."""
        return jnp.where((ids != BOS)[..., None], self.target_table[ids], 0.0)


def _dropped(x, rate, key, place):
    return dropout.dropout(x, rate, dropout.fold_in(key, place))


def _reversed(x: jax.Array, real: jax.Array) -> jax.Array:
    """Reverse rows (B, S, W), except for their padding (B, S)."""
    length = real.sum(1, keepdims=True).astype(jnp.int32)
    here = jnp.arange(real.shape[1])
    places = jnp.where(here < length, length - 1 - here, here)
    return jnp.take_along_axis(x, places[..., None], axis=1)


def _by_time(x: jax.Array) -> jax.Array:
    """Turn (B, T, ...) into (T, B, 1, ...)."""
    return x.swapaxes(0, 1)[:, :, None]


def _by_row(x: jax.Array) -> jax.Array:
    """Turn (T, B, 1, ...) into (B, T, ...)."""
    return x[:, :, 0].swapaxes(0, 1)


Model = Rnn
