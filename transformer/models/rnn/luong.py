"""Stacked LSTMs with multiplicative attention, global or local."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer import config
from transformer.models.modules import kernel_of
from transformer.models.rnn.decoders import Memory, Output, weighted
from transformer.models.rnn.layers import (
    Cell,
    State,
    between,
    matrices_of_stack,
    named,
)
from transformer.nn import matmul, recurrent, scores


class Stack(NamedTuple):
    """The state of the decoder."""

    layers: tuple[State, ...]  # (h, c) of each
    fed: jax.Array  # h~ of the step before (B, J, D)
    position: jax.Array  # t, from 0 (B, J)


class Luong(nn.Module):
    """Attention after the recurrent layers.

    ``a = softmax(score(h_t, h_s))``, ``c_t = sum_s a_s h_s``, ``h~_t = tanh([c_t; h_t]
    W_c)``, which is read out and, with input feeding, part of the next step's input.
    Score "dot" ``h_t . h_s``, "general" ``h_t W_a . h_s``, "concat" ``tanh([h_t; h_s]
    W_a) . v``, or "location" ``h_t W_a``, one number for each position. Attention is
    global, or local about ``p_t = t`` ("local_m") or ``p_t = (S - 1) sigmoid(
    tanh(h_t W_p) . v_p)`` ("local_p"; the paper prints S, its code counts from 0).

    Source: Luong et al., arXiv:1508.04025, section 3.
    """

    config: config.Recurrent
    dtype: str

    def setup(self):
        c, n = self.config, self.config.units
        widths = [c.embedding] + [n] * (c.layers - 1)
        self.cells = [Cell("lstm", width, n, self.dtype) for width in widths]
        matrices = {"context": (n, c.d_model), "state": (n, c.d_model)}
        if c.feeding:
            matrices["feeding"] = (c.d_model, 4 * n)
        if c.score in ("general", "concat"):
            matrices["query"] = (n, n)
        if c.score == "location":
            matrices["query"] = (n, c.max_positions)
        if c.attention == "local_p":
            matrices["centre"] = (n, n)
        self.matrices = {
            name: kernel_of(self, f"kernel_{name}", shape)
            for name, shape in matrices.items()
        }
        self.vectors = {
            name: self.param(name, nn.initializers.normal(0.1), (n,))
            for name, there in (
                ("energy", c.score == "concat"),
                ("place", c.attention == "local_p"),
            )
            if there
        }
        if c.score == "concat":
            self.kernel_keys = kernel_of(self, "kernel_keys", (n, n))

    def held(self):
        return {
            "cells": [cell.bias_of_input() for cell in self.cells],
            **self.vectors,
        }

    def remember(self, annotations, real, last):
        keys = annotations
        if self.config.score == "concat":
            keys = matmul.product(annotations, self.kernel_keys, self.dtype)
        memory = Memory(annotations, keys, real, self.held())
        rows = len(annotations)
        layers = tuple(states["forward"] for states in last)
        nothing = jnp.zeros((rows, self.config.d_model))
        return memory, Stack(layers, nothing, jnp.zeros(rows))

    def inputs(self, y, ids, key=None):
        kept = between(self.cells, ids.shape, self.config.dropout, key)
        return self.cells[0].gates(y), kept

    def weights(self):
        return matrices_of_stack(self.cells) | dict(self.matrices)

    @property
    def cell(self):
        return functools.partial(_step, self.config)

    def read_out(self, output, y):
        return output.state


def _step(its: config.Recurrent, multiply: Any, memory: Memory, state: Stack, x: Any):
    """Run the layers, attend, and combine both results."""
    gates, kept = x
    if its.feeding:
        gates += multiply("feeding", state.fed)
    layers: list[State] = []
    for i, (h, c) in enumerate(state.layers):
        if i:
            below = layers[-1][0] * kept[i - 1] if kept else layers[-1][0]
            gates = multiply(f"layer_{i}.input", below) + memory.held["cells"][i]
        layers.append(recurrent.lstm(gates, h, c, named(multiply, f"layer_{i}")))
    h = layers[-1][0]
    weights = _weights(its, multiply, memory, h, state.position)
    context = weighted(weights, memory)
    found = jnp.tanh(multiply("context", context) + multiply("state", h))
    return Stack(tuple(layers), found, state.position + 1), Output(
        found, context, weights
    )


def _weights(c, multiply, memory, h, position):
    """Return the attention weights (B, J, S) of states h (B, J, n)."""
    length = memory.real.shape[1]
    energies = _energies(c, multiply, memory, h)
    if c.attention == "global":
        return scores.softmax_over(energies, memory.real)
    centres = position
    if c.attention == "local_p":
        inner = jnp.tanh(multiply("centre", h))
        place = matmul.einsum("bjn,n->bj", inner, memory.held["place"])
        last = jnp.maximum(memory.real.sum(1) - 1, 0)[:, None]
        centres = last * jax.nn.sigmoid(place)
    inside = scores.near(centres, c.window, length) & (memory.real[:, None] != 0)
    weights = scores.softmax_over(energies, inside)
    if c.attention == "local_p":
        weights *= scores.bell(centres, c.window, length)
    return weights


def _energies(c, multiply, memory, h):
    if c.score == "concat":
        return scores.additive_scores(
            multiply("query", h), memory.keys, memory.held["energy"]
        )
    if c.score == "location":
        return scores.location_scores(multiply("query", h), memory.real.shape[1])
    return scores.general_scores(
        multiply("query", h) if c.score == "general" else h, memory.keys
    )
