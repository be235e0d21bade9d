"""Decoders: what they remember of a source, a step, and what is read out of it.

Each is a Flax module with the same methods, see ``Decoder``. All arrays of a step have
the sentences and their hypotheses on their first two axes, (B, J, ...): training has
one hypothesis, the target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer import config
from transformer.ids import BOS
from transformer.models.modules import Linear, kernel_of
from transformer.models.rnn.layers import Cell, State, all_named, named
from transformer.nn import dropout, matmul, recurrent, scores


class Memory(NamedTuple):
    """What a decoder reads of a source."""

    annotations: jax.Array  # h (B, S, W)
    keys: Any  # their part of the scores, computed once per sentence
    real: jax.Array  # (B, S) 1 or 0
    held: Any  # parameters of the decoder's cell that are not matrices


class Output(NamedTuple):
    """What a step leaves for the readout."""

    state: jax.Array  # (B, J, n)
    context: jax.Array  # (B, J, W)
    weights: jax.Array | None  # (B, J, S)


class Decoder(Protocol):
    """What the model asks of a decoder."""

    def remember(
        self,
        annotations: jax.Array,
        real: jax.Array,
        last: Sequence[Mapping[str, State]],
    ) -> tuple[Memory, Any]:
        """Return what is read of a source (B, ...), and the first state (B, ...)."""

    def held(self) -> Any:
        """Return the parameters of ``cell`` that are not matrices."""

    def inputs(
        self, y: jax.Array, ids: jax.Array, key: dropout.Key | None = None
    ) -> Any:
        """Return the input of a step, from embeddings (B, J, m) of ids (B, J).

        With a key, dropout between the layers of ``cell`` is drawn here, for all steps.
        """

    def weights(self) -> Mapping[str, matmul.Kernel]:
        """Return the matrices of ``cell``."""

    def cell(self, multiply: Any, memory: Memory, state: Any, x: Any) -> Any:
        """Make a step: the new state and its ``Output``."""

    def read_out(self, output: Output, y: jax.Array) -> jax.Array:
        """Return what the output matrix is multiplied by, (B, J, D)."""


def mean(annotations: jax.Array, real: jax.Array) -> jax.Array:
    """Return the mean annotation of each sentence (B, W)."""
    total = (annotations * real[..., None]).sum(1)
    return total / jnp.maximum(real.sum(1), 1.0)[:, None]


def attend(energies: jax.Array, memory: Memory) -> tuple[jax.Array, jax.Array]:
    """Return ``c_i = sum_j softmax(e_i)_j h_j`` (B, J, W) and the weights (B, J, S)."""
    weights = scores.softmax_over(energies, memory.real)
    return weighted(weights, memory), weights


def weighted(weights: jax.Array, memory: Memory) -> jax.Array:
    """Return the sum of annotations (B, J, W) by weights (B, J, S)."""
    return matmul.einsum("bjs,bsw->bjw", weights, memory.annotations)


class ConditionalGru(nn.Module):
    """Two cells per step, and attention between them.

    ``s' = GRU_1(y, s)``, ``e_j = tanh(s' W_a + h_j U_a + b) . v``, ``c = sum_j
    softmax(e)_j h_j``, ``s = GRU_2(c, s')``; read out: ``tanh(s W_s + y W_y + c W_c)``.

    Source: Firat and Cho, dl4mt-tutorial, docs/cgru.tex.
    """

    config: config.Recurrent
    dtype: str

    def setup(self):
        c, n = self.config, self.config.units
        self.begin = Linear(n, self.dtype)
        self.keys = Linear(2 * n, self.dtype)
        self.first = Cell("gru_reset_after", c.embedding, n, self.dtype)
        self.second = Cell("gru_reset_after", 2 * n, n, self.dtype)
        self.kernel_query = kernel_of(self, "kernel_query", (n, 2 * n))
        self.energy = self.param("energy", nn.initializers.normal(0.01), (2 * n,))
        self.readouts = [Linear(c.d_model, self.dtype) for _ in range(3)]

    def held(self):
        return {
            "first": self.first.held().bias,
            "second": self.second.held().bias,
            "second.input": self.second.bias_of_input(),
            "energy": self.energy,
        }

    def remember(self, annotations, real, last):
        state = jnp.tanh(self.begin(mean(annotations, real)))
        keys = self.keys(annotations)
        return Memory(annotations, keys, real, self.held()), state

    def inputs(self, y, ids, key=None):
        return self.first.gates(y)

    def weights(self):
        cells = {
            "first": self.first.matrices(),
            "second": self.second.matrices(with_input=True),
        }
        return all_named(cells) | {"query": self.kernel_query}

    @staticmethod
    def cell(multiply, memory, state, x):
        held, step = memory.held, recurrent.gru_reset_after
        inner = step(x, state, held["first"], named(multiply, "first"))
        energies = scores.additive_scores(
            multiply("query", inner), memory.keys, held["energy"]
        )
        context, weights = attend(energies, memory)
        gates = multiply("second.input", context) + held["second.input"]
        new = step(gates, inner, held["second"], named(multiply, "second"))
        return new, Output(new, context, weights)

    def read_out(self, output, y):
        parts = zip(self.readouts, (output.state, y, output.context), strict=True)
        return jnp.tanh(sum(linear(x) for linear, x in parts))


class Maxout(nn.Module):
    """Reads out ``t~ = s U_o + y V_o + c C_o``, the larger of each pair of numbers.

    Source: Bahdanau et al., arXiv:1409.0473, A.2.2; the one bias is GroundHog's.
    """

    features: int
    dtype: str

    @nn.compact
    def __call__(self, s: jax.Array, y: jax.Array, c: jax.Array) -> jax.Array:
        def linear(name, x):
            its_bias = name == "state"
            return Linear(2 * self.features, self.dtype, its_bias, name=name)(x)

        both = linear("state", s) + linear("word", y) + linear("context", c)
        return both.reshape(*both.shape[:-1], -1, 2).max(-1)


class RnnSearch(nn.Module):
    """Look, generate, update: attention with a state that knows the last word.

    ``e_j = tanh(s W_a + h_j U_a) . v``, ``c = sum_j softmax(e)_j h_j``, read out:
    ``t~ = s U_o + y V_o + c C_o``, the larger of each pair of numbers; then ``s`` is
    updated with the generated word and with c. Attention and readout therefore both
    know y. The paper prints two other orders: in section 3.1 attention does not know y
    yet, in appendix A.2.2 neither attention nor the state that is read out does. This
    is the order of GroundHog, which produced the paper's figures.

    Source: Bahdanau et al., arXiv:1409.0473, appendix A.
    """

    config: config.Recurrent
    dtype: str

    def setup(self):
        c, n = self.config, self.config.units
        width = 2 * n
        self.begin = Linear(n, self.dtype, use_bias=False)
        self.keys = Linear(n, self.dtype, use_bias=False)
        self.update = Cell("gru", c.embedding, n, self.dtype)
        self.kernel_query = kernel_of(self, "kernel_query", (n, n))
        self.kernel_context = kernel_of(self, "kernel_context", (width, 3 * n))
        self.energy = self.param("energy", nn.initializers.normal(0.001), (n,))
        self.readout = Maxout(c.d_model, self.dtype)

    def held(self):
        return self.energy

    def remember(self, annotations, real, last):
        state = jnp.tanh(self.begin(last[-1]["backward"][0]))
        context = jnp.zeros((len(state), annotations.shape[-1]))
        keys = self.keys(annotations)
        return Memory(annotations, keys, real, self.held()), (state, context)

    def inputs(self, y, ids, key=None):
        return self.update.gates(y), (ids != BOS).astype(jnp.float32)

    def weights(self):
        matrices = {"query": self.kernel_query, "context": self.kernel_context}
        return all_named({"update": self.update.matrices()}) | matrices

    @staticmethod
    def cell(multiply, memory, state, x):
        (old, context), (gates, known) = state, x
        gates = gates + multiply("context", context)
        new = recurrent.gru(gates, old, named(multiply, "update"))
        new = recurrent.keep(known, new, old)  # before the first word there is none
        energies = scores.additive_scores(
            multiply("query", new), memory.keys, memory.held
        )
        context, weights = attend(energies, memory)
        return (new, context), Output(new, context, weights)

    def read_out(self, output, y):
        return self.readout(output.state, y, output.context)


class FixedVector(nn.Module):
    """No attention: every step reads the last state of the encoder.

    ``RnnSearch`` with ``c = h_S`` at each step.

    Source: Cho et al., arXiv:1406.1078; Bahdanau et al., section 5.1, "RNNencdec".
    """

    config: config.Recurrent
    dtype: str

    def setup(self):
        c, n = self.config, self.config.units
        self.begin = Linear(n, self.dtype, use_bias=False)
        self.update = Cell("gru", c.embedding, n, self.dtype)
        self.context = Linear(3 * n, self.dtype, use_bias=False)
        self.readout = Maxout(c.d_model, self.dtype)

    def held(self):
        return None

    def remember(self, annotations, real, last):
        # The state after the token that is read last; padding keeps it.
        vector = annotations[:, 0 if self.config.reverse_source else -1]
        memory = Memory(vector[:, None], self.context(vector)[:, None], real, None)
        return memory, jnp.tanh(self.begin(vector))

    def inputs(self, y, ids, key=None):
        return self.update.gates(y), (ids != BOS).astype(jnp.float32)

    def weights(self):
        return all_named({"update": self.update.matrices()})

    @staticmethod
    def cell(multiply, memory, state, x):
        gates, known = x
        new = recurrent.gru(gates + memory.keys, state, named(multiply, "update"))
        new = recurrent.keep(known, new, state)
        shape = (*new.shape[:2], memory.annotations.shape[-1])
        context = jnp.broadcast_to(memory.annotations, shape)
        return new, Output(new, context, None)

    def read_out(self, output, y):
        return self.readout(output.state, y, output.context)
