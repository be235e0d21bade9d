"""Recurrent encoder-decoders, with and without attention."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer import config
from transformer.ids import BOS, PAD
from transformer.models.modules import Base, Linear, kernel_of
from transformer.nn import dropout, matmul, recurrent, scores
from transformer.parallel import Rules

PARTITION: Rules = {
    "(source|target)_embedding": (None, "fsdp"),  # (V, m)
    "output": (None, "fsdp"),  # (V, D)
    "kernel(_first|_second|_context|_query|_state)?": ("fsdp", None),  # (I, O)
    "bias(_first|_second|_context|_state)?": (None,),  # (O,)
    "energy": (None,),  # v (A,)
}


class Memory(NamedTuple):
    """What the decoder reads of a source."""

    annotations: jax.Array  # (B, S, 2 n)
    keys: jax.Array  # (B, S, A): their part of the scores, made once per sentence
    real: jax.Array  # (B, S) 1 or 0
    bias: Any  # of the cells, and v of the scores


class Cache(NamedTuple):
    """What a search carries from step to step."""

    memory: Memory
    state: jax.Array  # (B, J, n)


class Cell(nn.Module):
    """Holds the parameters of a gated recurrent unit, reset after its product.

    Attributes:
      units: n.
      dtype: of the operands of products.
    """

    units: int
    dtype: str

    @nn.compact
    def __call__(self, x: jax.Array) -> tuple[jax.Array, matmul.Kernel, jax.Array]:
        """Return the input's part of the gates, and what the loop needs.

        Args:
          x: inputs (..., m).

        Returns:
          ``x W + b`` (..., 3 n), U (n, 3 n) and c (n,).
        """
        n = self.units
        gates = Linear(3 * n, self.dtype, name="input")(x)
        kernel = kernel_of(self, "kernel_state", (n, 3 * n))
        return gates, kernel, self.param("bias_state", nn.initializers.zeros, (n,))


def _named(multiply: recurrent.Multiply, cell: str) -> recurrent.Multiply:
    """Let a cell multiply by a matrix of its own, whatever it calls it."""
    return lambda _, operand: multiply(cell, operand)


# ----------------------------------------------------------------------------- encoder


def _both_directions(multiply, biases, states, x):
    """Make a step of the encoder, forward and backward, each where it is."""
    new = {
        way: recurrent.gru_reset_after(
            x[way], states[way], biases[way], _named(multiply, way)
        )
        for way in ("forward", "backward")
    }
    kept = {w: recurrent.keep(x[f"real_{w}"], new[w], states[w]) for w in new}
    return kept, kept


class Encoder(nn.Module):
    """Reads a source in both directions (Bahdanau et al., section 3.2)."""

    config: config.Recurrent
    dtype: str

    @nn.compact
    def __call__(self, x: jax.Array, real: jax.Array) -> jax.Array:
        """Return annotations (B, S, 2 n) of embeddings (B, S, m)."""
        n, xs, weights, biases = self.config.units, {}, {}, {}
        for way in ("forward", "backward"):
            gates, weights[way], biases[way] = Cell(n, self.dtype, name=way)(x)
            # Reversed, a row begins with its padding, which keeps the state at 0.
            step = 1 if way == "forward" else -1
            xs[way] = gates.swapaxes(0, 1)[::step]
            xs[f"real_{way}"] = real.T[::step]
        zeros = {way: jnp.zeros((len(x), n)) for way in biases}
        _, states = recurrent.scan(
            _both_directions, weights, biases, zeros, xs, self.dtype
        )
        both = [states["forward"], states["backward"][::-1]]
        return jnp.concatenate(both, axis=-1).swapaxes(0, 1)


# ----------------------------------------------------------------------------- decoder


def _conditional_gru(multiply, memory, state, x):
    """Make a step of the conditional GRU.

    ``s' = GRU_1(y, s)``, ``e_j = tanh(s' W_a + h_j U_a + b) . v``, ``c = sum_j
    softmax(e)_j h_j``, ``s = GRU_2(c, s')``

    Args:
      multiply: by the matrices of both cells, of the query and of the context.
      memory: of the source.
      state: s (B, J, n).
      x: y's part of the gates of the first cell (B, J, 3 n).

    Returns:
      The new state, and it with the context c (B, J, 2 n) and the weights (B, J, S).

    Source: Firat and Cho, dl4mt-tutorial, docs/cgru.tex.
    """
    bias = memory.bias
    inner = recurrent.gru_reset_after(
        x, state, bias["first"], _named(multiply, "first")
    )
    energies = scores.additive_scores(multiply("query", inner), memory.keys, bias["v"])
    weights = scores.weights_of(energies, memory.real)
    context = jnp.einsum("bjs,bsd->bjd", weights, memory.annotations)
    gates = multiply("context", context) + bias["context"]
    state = recurrent.gru_reset_after(
        gates, inner, bias["second"], _named(multiply, "second")
    )
    return state, (state, context, weights)


# --------------------------------------------------------------------------- the model


class Rnn(Base):
    """A recurrent encoder-decoder with attention."""

    config: config.Recurrent

    partition: ClassVar[Rules] = PARTITION
    stacks: ClassVar[tuple[str, ...]] = ()

    def setup(self):
        c, n = self.config, self.config.units
        narrow = nn.initializers.normal(0.01)
        self.source_table = self.param(
            "source_embedding", narrow, (self.source_size, c.embedding)
        )
        self.target_table = self.source_table
        if c.tying != "three":
            self.target_table = self.param(
                "target_embedding", narrow, (self.target_size, c.embedding)
            )
        self.output_table = self.target_table
        if c.tying == "none":
            glorot = nn.initializers.glorot_uniform()
            self.output_table = self.param(
                "output", glorot, (self.target_size, c.d_model)
            )

        def bias(name, width):
            return self.param(f"bias_{name}", nn.initializers.zeros, (width,))

        def linear(width, use_bias=True):
            return Linear(width, self.operands, use_bias)

        self.encoder = Encoder(c, self.operands)
        self.first_state, self.keys = linear(n), linear(2 * n)
        self.first_input = linear(3 * n)
        shapes = {"first": (n, 3 * n), "query": (n, 2 * n)}
        shapes |= {"context": (2 * n, 3 * n), "second": (n, 3 * n)}
        self.weights = {
            name: kernel_of(self, f"kernel_{name}", shape)
            for name, shape in shapes.items()
        }
        self.biases = {
            name: bias(name, width)
            for name, width in (("first", n), ("second", n), ("context", 3 * n))
        } | {"v": self.param("energy", nn.initializers.normal(0.01), (2 * n,))}
        self.readouts = [linear(c.d_model) for _ in range(3)]

    def encode(self, source: jax.Array, key: dropout.Key | None = None) -> Memory:
        """Read source ids (B, S)."""
        real = (source != PAD).astype(jnp.float32)
        x = self._dropped(self.source_table[source], key, 0)
        states = self.encoder(x, real)
        annotations = self._dropped(states, key, 1)
        return Memory(annotations, self.keys(annotations), real, self.biases)

    def features(
        self, source: jax.Array, inputs: jax.Array, key: dropout.Key | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """Return what is read out (B, T, D) and the output matrix (V, D)."""
        memory = self.encode(source, dropout.fold_in(key, 0))
        y = self._dropped(self._embedded(inputs), dropout.fold_in(key, 1), 0)
        xs = self.first_input(y).swapaxes(0, 1)[:, :, None]
        _, (states, contexts, weights) = recurrent.scan(
            _conditional_gru,
            self.weights,
            memory,
            self._begin(memory, 1),
            xs,
            self.operands,
        )
        states, contexts, weights = (
            x[:, :, 0].swapaxes(0, 1) for x in (states, contexts, weights)
        )
        self.sow("attention", "cross", weights[:, None])
        hidden = self._read_out(states, y, contexts)
        return self._dropped(hidden, dropout.fold_in(key, 1), 1), self.output_table

    def start(self, source: jax.Array, beams: int, length: int) -> Cache:
        """Encode source ids (B, S) for a search."""
        memory = self.encode(source)
        return Cache(memory._replace(bias=None), self._begin(memory, beams))

    def step(
        self, cache: Cache, ids: jax.Array, parents: jax.Array
    ) -> tuple[jax.Array, Cache]:
        """Take one token of each hypothesis (B, J) and score the next (B, J, V)."""
        state = jnp.take_along_axis(cache.state, parents[..., None], axis=1)
        y = self._embedded(ids)

        def multiply(name, operand):
            return matmul.product(operand, self.weights[name], self.operands)

        memory = cache.memory._replace(bias=self.biases)
        state, (_, context, _) = _conditional_gru(
            multiply, memory, state, self.first_input(y)
        )
        hidden = self._read_out(state, y, context)
        table = matmul.Transposed(self.output_table)
        return matmul.product(hidden, table, self.operands), cache._replace(state=state)

    def _embedded(self, ids: jax.Array) -> jax.Array:
        """Return the embeddings of inputs; before the first word there is none."""
        return jnp.where((ids != BOS)[..., None], self.target_table[ids], 0.0)

    def _begin(self, memory: Memory, beams: int) -> jax.Array:
        """Return ``s_0 = tanh(mean_j h_j W + b)``, (B, J, n)."""
        real = memory.real[..., None]
        mean = (memory.annotations * real).sum(1) / jnp.maximum(real.sum(1), 1.0)
        state = jnp.tanh(self.first_state(mean))
        return jnp.broadcast_to(state[:, None], (len(state), beams, state.shape[-1]))

    def _read_out(self, state, y, context):
        """Return ``tanh(s W_s + y W_y + c W_c + b)``."""
        parts = zip(self.readouts, (state, y, context), strict=True)
        return jnp.tanh(sum(linear(x) for linear, x in parts))

    def _dropped(self, x, key, place):
        return dropout.dropout(x, self.config.dropout, dropout.fold_in(key, place))


Model = Rnn
