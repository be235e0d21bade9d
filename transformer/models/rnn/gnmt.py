"""Deep LSTMs whose bottom decoder layer computes the attention for all layers."""

from __future__ import annotations

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer import config
from transformer.models.modules import Linear, kernel_of
from transformer.models.rnn.decoders import Memory, Output, attend
from transformer.models.rnn.layers import (
    Cell,
    State,
    between,
    matrices_of_stack,
    named,
)
from transformer.nn import recurrent, scores

RESIDUAL = 2  # the first layer, from 0, whose input is added to its output


class Stack(NamedTuple):
    """The state of the decoder."""

    layers: tuple[State, ...]  # (h, c) of each
    context: jax.Array  # c of the step before (B, J, W)


class Gnmt(nn.Module):
    """Attention between the first layer and the others.

    ``h_1 = LSTM_1([y; c_{t-1}])``, ``e_j = tanh(h_1 W_a + h_j U_a) . v``, ``c_t = sum_j
    softmax(e)_j h_j``, ``x_2 = h_1``, ``h_i = LSTM_i([x_i; c_t])``, ``x_3 = h_2``, and
    ``x_{i+1} = h_i + x_i`` from the third layer on; the last is read out. The paper
    attends with the bottom layer's output of the previous step; here, as in gnmt_v2 of
    tensorflow/nmt, with this step's. Layers start from the encoder's last states, the
    first from that of the backward direction.

    Source: Wu et al., arXiv:1609.08144, sections 3 to 3.2; tensorflow/nmt,
    gnmt_model.py.
    """

    config: config.Recurrent
    dtype: str

    def setup(self):
        c, n = self.config, self.config.units
        widths = [c.embedding] + [2 * n] * (c.layers - 1)
        self.cells = [Cell("lstm", width, n, self.dtype) for width in widths]
        self.keys = Linear(n, self.dtype, use_bias=False)
        self.kernel_query = kernel_of(self, "kernel_query", (n, n))
        self.kernel_context = kernel_of(self, "kernel_context", (n, 4 * n))
        self.energy = self.param("energy", nn.initializers.normal(0.1), (n,))

    def held(self):
        biases = [cell.bias_of_input() for cell in self.cells]
        return {"cells": biases, "energy": self.energy}

    def remember(self, annotations, real, last):
        memory = Memory(annotations, self.keys(annotations), real, self.held())
        first, *others = last
        layers = first["backward"], *(states["forward"] for states in others)
        return memory, Stack(layers, jnp.zeros_like(annotations[:, 0]))

    def inputs(self, y, ids, key=None):
        kept = between(self.cells, ids.shape, self.config.dropout, key)
        return self.cells[0].gates(y), kept

    def weights(self):
        its = {"query": self.kernel_query, "context": self.kernel_context}
        return matrices_of_stack(self.cells) | its

    @staticmethod
    def cell(multiply: Any, memory: Memory, state: Stack, x: Any):
        gates, kept = x
        gates += multiply("context", state.context)
        bottom = _lstm(multiply, 0, gates, state)
        energies = scores.additive_scores(
            multiply("query", bottom[0]), memory.keys, memory.held["energy"]
        )
        context, weights = attend(energies, memory)
        layers, out = [bottom], bottom[0]
        for i in range(1, len(state.layers)):
            both = jnp.concatenate([out, context], axis=-1)
            both = both * kept[i - 1] if kept else both
            gates = multiply(f"layer_{i}.input", both) + memory.held["cells"][i]
            layers.append(_lstm(multiply, i, gates, state))
            out = layers[-1][0] + (out if i >= RESIDUAL else 0.0)
        return Stack(tuple(layers), context), Output(out, context, weights)

    def read_out(self, output, y):
        return output.state


def _lstm(multiply: Any, layer: int, gates: jax.Array, state: Stack) -> State:
    h, c = state.layers[layer]
    return recurrent.lstm(gates, h, c, named(multiply, f"layer_{layer}"))
