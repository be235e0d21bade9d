"""Members of the recurrent models, one step each, by their equations in NumPy.

PyTorch has none of these; the conditional GRU and Luong's global attention are compared
with it in ``test_rnn_against_torch.py``.
"""

import math
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from support.models import recurrent_config
from support.reference import assert_close, sigmoid

from transformer.models.rnn import decoders, gnmt, layers, luong
from transformer.models.rnn.decoders import Memory
from transformer.nn import recurrent

N, S = 3, 5
ROUNDINGS = 60  # six operations in sequence, each a sum of at most 2 N + 4 terms


def softmax(e: np.ndarray) -> np.ndarray:
    e = np.exp(e - e.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def lstm(gates: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    i, f, g, o = np.split(gates, 4, -1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def gru(gates: np.ndarray, h: np.ndarray, w: dict[str, np.ndarray]) -> np.ndarray:
    both = sigmoid(gates[..., : 2 * N] + h @ w["update.gates"])
    z, r = both[..., :N], both[..., N:]
    candidate = np.tanh(gates[..., 2 * N :] + (r * h) @ w["update.candidate"])
    return (1 - z) * h + z * candidate


def additive(h: np.ndarray, keys: np.ndarray, w: np.ndarray, v: np.ndarray) -> Any:
    return softmax(np.tanh((h @ w)[:, :, None] + keys[:, None]) @ v)


def drawing() -> Callable[..., np.ndarray]:
    """Return a function that draws arrays in float64 whose values float32 has too."""
    generator = np.random.default_rng(0)

    def draw(*shape: int) -> np.ndarray:
        return generator.normal(size=shape).astype(np.float32).astype(np.float64)

    return draw


def product(w: dict[str, np.ndarray]) -> Any:
    return lambda name, x: x @ jnp.float32(w[name])


def memory_of(annotations: Any, keys: Any, held: Any) -> Memory:
    """Return what a step reads of a source without padding, in float32."""
    real = jnp.ones((1, S))
    return Memory(single(annotations), single(keys), real, single(held))


def single(tree: Any) -> Any:
    return jax.tree.map(jnp.float32, tree)


def test_a_step_of_rnnsearch():
    """Equations of appendix A.2.2, in the order of ``RnnSearch``."""
    draw = drawing()
    w = {"update.gates": draw(N, 2 * N), "update.candidate": draw(N, N)}
    w |= {"query": draw(N, N), "context": draw(2 * N, 3 * N)}
    v, annotations, keys = draw(N), draw(1, S, 2 * N), draw(1, S, N)
    old, before, gates = draw(1, 1, N), draw(1, 1, 2 * N), draw(1, 1, 3 * N)
    memory = memory_of(annotations, keys, v)
    for known in (1.0, 0.0):  # whether there is a previous word
        (state, context), _ = decoders.RnnSearch.cell(
            *(product(w), memory, single((old, before))),
            (jnp.float32(gates), jnp.full((1, 1), known)),
        )
        new = gru(gates + before @ w["context"], old, w) if known else old
        assert_close(state, new, ROUNDINGS, magnitude=4)
        expected = additive(new, keys, w["query"], v) @ annotations
        assert_close(context, expected, ROUNDINGS, magnitude=4)


def test_every_step_without_attention_reads_the_vector():
    draw = drawing()
    w = {"update.gates": draw(N, 2 * N), "update.candidate": draw(N, N)}
    old, gates, vector = draw(1, 1, N), draw(1, 1, 3 * N), draw(1, 1, 3 * N)
    memory = memory_of(np.zeros((1, 1, N)), vector, None)
    new, _ = decoders.FixedVector.cell(
        product(w), memory, jnp.float32(old), (jnp.float32(gates), jnp.ones((1, 1)))
    )
    assert_close(new, gru(gates + vector, old, w), ROUNDINGS, magnitude=4)


def test_a_step_of_gnmt():
    """Residual connections from the third layer on; every layer reads the context."""
    draw, depth = drawing(), 4
    w = {"query": draw(N, N), "context": draw(N, 4 * N)}
    w |= {f"layer_{i}.state": draw(N, 4 * N) for i in range(depth)}
    w |= {f"layer_{i}.input": draw(2 * N, 4 * N) for i in range(1, depth)}
    biases, v = [draw(4 * N) for _ in range(depth)], draw(N)
    annotations, keys = draw(1, S, N), draw(1, S, N)
    states = [(draw(1, 1, N), draw(1, 1, N)) for _ in range(depth)]
    before, gates = draw(1, 1, N), draw(1, 1, 4 * N)
    memory = memory_of(annotations, keys, {"cells": biases, "energy": v})
    stack = gnmt.Stack(*single((tuple(states), before)))
    _, output = gnmt.Gnmt.cell(product(w), memory, stack, (jnp.float32(gates), ()))
    first = gates + before @ w["context"] + states[0][0] @ w["layer_0.state"]
    x, _ = lstm(first, states[0][1])
    context = additive(x, keys, w["query"], v) @ annotations
    for i in range(1, depth):
        both = np.concatenate([x, context], -1)
        gates = both @ w[f"layer_{i}.input"] + biases[i]
        h, _ = lstm(gates + states[i][0] @ w[f"layer_{i}.state"], states[i][1])
        x = h + x if i >= 2 else h
    assert_close(output.context, context, ROUNDINGS, magnitude=4)
    assert_close(output.state, x, depth * ROUNDINGS, magnitude=4)


def test_gnmt_begins_with_the_backward_state_of_its_first_layer():
    def states(**values: float) -> dict[str, Any]:
        return {name: (jnp.full((1, N), x),) * 2 for name, x in values.items()}

    last = [states(forward=1.0, backward=2.0), states(forward=3.0)]
    its: Any = types.SimpleNamespace(keys=lambda x: x, held=lambda: None)
    _, stack = gnmt.Gnmt.remember(its, jnp.zeros((1, S, N)), jnp.ones((1, S)), last)
    assert [float(h[0, 0]) for h, _ in stack.layers] == [2.0, 3.0]


def local_weights(attention: str, position: int) -> np.ndarray:
    """Return the weights on six places, four of them real, where all score alike."""
    c = recurrent_config(member="luong", score="dot", attention=attention, window=2)
    real = jnp.array([[1.0, 1, 1, 1, 0, 0]])
    zeros = jnp.zeros((1, 6, N))
    held = {"place": jnp.zeros(N)}  # sigmoid(0): in the middle
    memory = Memory(zeros, zeros, real, held)
    h, positions = zeros[:, :1], jnp.full((1, 1), position)
    return np.asarray(luong._weights(c, lambda name, x: x, memory, h, positions))[0, 0]


def test_predicted_windows_lie_in_the_sentence_under_a_bell():
    """Equations 9 and 10 of Luong et al.: p = (4 - 1) / 2, deviation D / 2 = 1."""
    bell = [math.exp(-((s - 1.5) ** 2) / 2) / 4 for s in range(4)]
    assert_close(local_weights("local_p", 0), [*bell, 0, 0], roundings=20)


def test_monotonic_windows_lie_around_the_own_position():
    third = 1 / 3
    assert_close(local_weights("local_m", 0), [third] * 3 + [0] * 3, roundings=20)
    three = [0, third, third, third, 0, 0]
    assert_close(local_weights("local_m", 3), three, roundings=20)


def test_a_new_lstm_keeps_half_of_its_cell_and_more():
    """Forget gates start at sigmoid(1) (Jozefowicz et al. 2015)."""
    gates = layers._remembering(jax.random.key(0), (4 * N,))[None]
    zeros, twos = jnp.zeros((1, N)), jnp.full((1, N), 2.0)
    _, c = recurrent.lstm(gates, zeros, twos, lambda name, h: jnp.zeros((1, 4 * N)))
    assert_close(c, np.full((1, N), 2 * sigmoid(1.0)), roundings=10)
