"""Cells by hand and by loops in NumPy; the loop's backward pass against autodiff."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import jaxprs_in_params
from support.reference import sigmoid

from transformer.nn import matmul, recurrent

B, T, N = 3, 5, 4


def draw(*shape, seed=0):
    rng = np.random.default_rng([seed, *shape])
    return rng.normal(size=shape).astype(np.float32)


def products(**matrices):
    return lambda name, operand: matmul.product(operand, matrices[name], "float32")


# ------------------------------------------------------------------------------- cells

X, H = jnp.array([[1.0, -1.0]]), jnp.array([[0.5, 0.25]])
SWAP = np.array([[0.0, 1.0], [1.0, 0.0]], np.float32)
U_R = np.diag([1.0, -1.0]).astype(np.float32)
ZERO = np.zeros((2, 2), np.float32)
GATES = jnp.concatenate([X, X, X], axis=-1)  # all input weights are the identity


def test_gru_resets_before_the_product_and_z_is_the_share_of_the_new():
    multiply = products(gates=np.hstack([ZERO, U_R]), candidate=SWAP)
    h = recurrent.gru(GATES, H, multiply)
    np.testing.assert_allclose(h, [[0.7076228, 0.0400193]], atol=1e-6)


def test_gru_reset_after_and_z_is_the_share_of_the_old():
    multiply = products(state=np.hstack([ZERO, U_R, SWAP]))
    h = recurrent.gru_reset_after(GATES, H, jnp.zeros(2), multiply)
    # z of the hand case has the other role: z = sigmoid(1), sigmoid(-1).
    np.testing.assert_allclose(h, [[0.5900926, -0.4523472]], atol=1e-6)
    turned = jnp.concatenate([-X, X, X], axis=-1)
    h = recurrent.gru_reset_after(turned, H, jnp.zeros(2), multiply)
    np.testing.assert_allclose(h, [[0.7448972, -0.0083791]], atol=1e-6)


def test_the_bias_of_the_reset_product_is_reset_too():
    multiply = products(state=np.hstack([ZERO, ZERO, SWAP]))
    bias = jnp.array([0.3, -0.2])
    closed = jnp.concatenate([X, X - 100, X], axis=-1)  # r = 0
    np.testing.assert_allclose(
        recurrent.gru_reset_after(closed, H, bias, multiply),
        recurrent.gru_reset_after(closed, H, 0 * bias, multiply),
        atol=1e-7,
    )


def test_lstm_equals_a_loop():
    x, h, c, u = draw(B, 4 * N), draw(B, N), draw(B, N, seed=1), draw(N, 4 * N)

    gates = x + h.astype(np.float64) @ u
    i, f, g, o = (gates[:, k * N : (k + 1) * N] for k in range(4))
    cell = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    new_h, new_c = recurrent.lstm(x, h, c, products(state=u))
    np.testing.assert_allclose(new_c, cell, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(new_h, sigmoid(o) * np.tanh(cell), rtol=1e-5, atol=1e-6)


def test_the_normed_gru_equals_a_loop():
    x, h, u = draw(B, 3 * N), draw(B, N), draw(N, 3 * N)
    gain, bias = draw(3 * N), draw(3 * N, seed=1)

    def normed(rows):
        out = []
        for row in rows.astype(np.float64):
            for part in (row[: 2 * N], row[2 * N :]):
                deviation = (part.var() + 1e-5) ** 0.5
                out.append((part - part.mean()) / deviation)
        return np.concatenate(out).reshape(rows.shape) * gain + bias

    a, b = normed(x), normed(h.astype(np.float64) @ u)
    z, r = (sigmoid(a[:, s] + b[:, s]) for s in (slice(N), slice(N, 2 * N)))
    expected = z * h + (1 - z) * np.tanh(a[:, 2 * N :] + r * b[:, 2 * N :])
    gates = recurrent.norm_gates(x, gain, bias)
    new = recurrent.gru_normed(gates, h, gain, bias, products(state=u))
    np.testing.assert_allclose(new, expected, rtol=1e-4, atol=1e-5)


def test_padding_keeps_the_state_and_passes_no_gradient():
    new, old, real = draw(B, N), draw(B, N, seed=1), jnp.array([1.0, 0.0, 1.0])
    kept = recurrent.keep(real, {"h": new}, {"h": old})["h"]
    np.testing.assert_array_equal(kept, np.where([[1], [0], [1]], new, old))
    slope = jax.grad(lambda new: recurrent.keep(real, new, old).sum())(new)
    np.testing.assert_array_equal(slope[1], 0)


# ---------------------------------------------------------------------------- the loop


def attentive(multiply, constants, state, x):
    """A cell with two products by one matrix, a constant, and padding."""
    h, c = state
    memory, bias = constants
    inside = jnp.tanh(multiply("state", h) + x["x"])
    weights = jax.nn.softmax((multiply("query", inside)[:, None] * memory).sum(-1))
    context = (weights[..., None] * memory).sum(1)
    new = jnp.tanh(multiply("state", context) + bias), c + inside
    new = recurrent.keep(x["real"], new, state)
    return new, (new[0], weights)


def case():
    weights = {"state": draw(N, N), "query": draw(N, N, seed=1)}
    constants = draw(B, 6, N), draw(N)
    state = draw(B, N), draw(B, N, seed=2)
    real = (np.arange(T)[:, None] < np.array([5, 3, 1])).astype(np.float32)
    return weights, constants, state, {"x": draw(T, B, N), "real": real}


def plain(cell, weights, constants, state, xs, dtype):
    def multiply(name, operand):
        return matmul.product(operand, weights[name], dtype)

    return lax.scan(functools.partial(cell, multiply, constants), state, xs)


def loss(scan, dtype, weights, constants, state, x, real):
    xs = {"x": x, "real": real}
    last, outputs = scan(attentive, weights, constants, state, xs, dtype)
    return sum((jnp.sin(a) * (1 + i)).sum() for i, a in enumerate([*last, *outputs]))


@pytest.mark.parametrize("dtype, rtol", [("float32", 1e-5), ("bfloat16", 1e-5)])
def test_gradients_are_those_of_autodiff(dtype, rtol):
    weights, constants, state, xs = case()
    arguments = weights, constants, state, xs["x"], xs["real"]
    ours, theirs = (
        jax.jit(jax.value_and_grad(functools.partial(loss, one, dtype), range(4)))
        for one in (recurrent.scan, plain)
    )
    (value, slopes), (expected, wanted) = ours(*arguments), theirs(*arguments)
    assert value == expected
    for got, want in zip(jax.tree.leaves(slopes), jax.tree.leaves(wanted), strict=True):
        scale = abs(want).max()
        np.testing.assert_allclose(got, want, rtol=0, atol=rtol * scale)


@pytest.mark.parametrize("kind", recurrent.CELLS)
def test_gradients_of_every_cell_are_those_of_autodiff(kind):
    its = recurrent.CELLS[kind]
    weights = {name: draw(N, k * N, seed=k) for name, k in its.products.items()}
    held = recurrent.Held(draw((its.bias or 1) * N), draw(3 * N))
    state = tuple(draw(B, N, seed=i) for i in range(its.parts))

    def cell(multiply, held, state, x):
        new = its.step(x, state, held, multiply)
        return new, new[0]

    def loss(scan, weights, held, state, xs):
        (last, *_), outputs = scan(cell, weights, held, state, xs, "float32")
        return jnp.sin(outputs).sum() + (last**2).sum()

    arguments = weights, held, state, draw(T, B, its.gates * N)
    ours, theirs = (
        jax.grad(functools.partial(loss, one), range(4))(*arguments)
        for one in (recurrent.scan, plain)
    )
    for got, want in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * (1 + abs(want).max()))
    assert abs(ours[1].gain).max() > 0 or kind != "gru_normed"


def products_of_shape(jaxpr, shape, inside=False):
    """Yield for each such product whether it stands inside a loop."""
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if name == "dot_general" and equation.outvars[0].aval.shape == shape:
            yield inside
        for inner in jaxprs_in_params(equation.params):
            yield from products_of_shape(inner, shape, inside or name == "scan")


@pytest.mark.parametrize("scan, loops", [(recurrent.scan, 0), (plain, 3)])
def test_gradients_of_matrices_are_made_after_the_loop(scan, loops):
    weights, constants, state, xs = case()
    slope = jax.grad(functools.partial(loss, scan, "float32"))
    traced = jax.make_jaxpr(slope)(weights, constants, state, xs["x"], xs["real"])
    # "state" is multiplied by twice in a step, "query" once.
    found = [*products_of_shape(traced.jaxpr, (N, N))]
    assert sum(found) == loops
    assert len(found) == 3
