"""Recurrent cells, and a loop over time with one product per weight gradient.

What does not depend on the state is computed outside the loop: a cell is given ``x``,
the products of its input with the weights, biases included, of all gates side by side.
It multiplies by calling ``multiply(name, operand)``. Whether it is a GRU or a decoder
with attention, the gradient of its weights is one product over all steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from transformer.nn import layers, matmul
from transformer.nn.matmul import Transposed

Multiply = Callable[[str, jax.Array], jax.Array]
# cell(multiply, constants, state, x) -> (state, output)
Cell = Callable[[Multiply, Any, Any, Any], tuple[Any, Any]]


# ------------------------------------------------------------------------------- cells


def gru(x: jax.Array, h: jax.Array, multiply: Multiply) -> jax.Array:
    """Make a step of the gated recurrent unit, reset before its product.

    ``z = sigmoid(x_z + h U_z)``, ``r = sigmoid(x_r + h U_r)``,
    ``h~ = tanh(x_h + (r h) U)``, ``h' = (1 - z) h + z h~``

    Args:
      x: x_z, x_r and x_h side by side (B, 3 n).
      h: the state (B, n).
      multiply: by [U_z U_r], "gates", (n, 2 n), and by U, "candidate", (n, n).

    Returns:
      h' (B, n).

    Source: Bahdanau et al., arXiv:1409.0473, A.1.1; Cho et al., arXiv:1406.1078,
    equations 5 to 8, where z is the weight of the old state.
    """
    x_z, x_r, x_h = jnp.split(x, 3, axis=-1)
    h_z, h_r = jnp.split(multiply("gates", h), 2, axis=-1)
    z, r = jax.nn.sigmoid(x_z + h_z), jax.nn.sigmoid(x_r + h_r)
    candidate = jnp.tanh(x_h + multiply("candidate", r * h))
    return (1 - z) * h + z * candidate


def gru_reset_after(
    x: jax.Array, h: jax.Array, bias: jax.Array, multiply: Multiply
) -> jax.Array:
    """Make a step of the unit that resets after its single product.

    ``z = sigmoid(x_z + h U_z)``, ``r = sigmoid(x_r + h U_r)``,
    ``h~ = tanh(x_h + r (h U + c))``, ``h' = z h + (1 - z) h~``

    Here z is the weight of the old state, as in cuDNN, PyTorch and dl4mt.

    Args:
      x: x_z, x_r and x_h side by side (B, 3 n).
      h: the state (B, n).
      bias: c (n,).
      multiply: by [U_z U_r U], "state", (n, 3 n).

    Returns:
      h' (B, n).
    """
    h_z, h_r, h_h = jnp.split(multiply("state", h), 3, axis=-1)
    return _reset(x, h, h_z, h_r, h_h + bias)


def _reset(x, h, h_z, h_r, h_h):
    """Make a step of a unit that resets h_h."""
    x_z, x_r, x_h = jnp.split(x, 3, axis=-1)
    z, r = jax.nn.sigmoid(x_z + h_z), jax.nn.sigmoid(x_r + h_r)
    return z * h + (1 - z) * jnp.tanh(x_h + r * h_h)


def gru_normed(
    x: jax.Array, h: jax.Array, gain: jax.Array, bias: jax.Array, multiply: Multiply
) -> jax.Array:
    """Make a step of the unit that resets after its product, with normalised products.

    ``gru_reset_after`` with ``norm_gates(h [U_z U_r U])`` as its product.

    Args:
      x: x_z, x_r and x_h side by side (B, 3 n), from ``norm_gates``.
      h: the state (B, n).
      gain: (3 n,).
      bias: (3 n,).
      multiply: by [U_z U_r U], "state", (n, 3 n).

    Returns:
      h' (B, n).

    Source: Ba et al., arXiv:1607.06450, supplementary material, equations 26 to 28,
    with z and 1 - z exchanged.
    """
    normed = norm_gates(multiply("state", h), gain, bias)
    return _reset(x, h, *jnp.split(normed, 3, axis=-1))


def norm_gates(x: jax.Array, gain: jax.Array, bias: jax.Array) -> jax.Array:
    """Normalise the columns of both gates together, those of the candidate separately.

    Args:
      x: a product with [W_z W_r W] (..., 3 n).
      gain: (3 n,).
      bias: (3 n,).

    Returns:
      ``[LN([x_z x_r]) LN(x_h)] gain + bias``, (..., 3 n).
    """
    parts = jnp.split(x, [2 * (x.shape[-1] // 3)], axis=-1)
    normed = [layers.layer_norm(p, jnp.ones(()), jnp.zeros(()), 1e-5) for p in parts]
    return jnp.concatenate(normed, axis=-1) * gain + bias


def lstm(
    x: jax.Array, h: jax.Array, c: jax.Array, multiply: Multiply
) -> tuple[jax.Array, jax.Array]:
    """Make a step of the long short-term memory.

    ``c' = sigmoid(f) c + sigmoid(i) tanh(g)``, ``h' = sigmoid(o) tanh(c')``, where
    ``[i f g o] = x + h U``

    Args:
      x: the parts of i, f, g and o side by side (B, 4 n).
      h: the state (B, n).
      c: the cell (B, n).
      multiply: by U, "state", (n, 4 n).

    Returns:
      h' and c' (B, n).

    Source: Hochreiter and Schmidhuber, 1997; with the forget gate of Gers et al., 2000.
    """
    i, f, g, o = jnp.split(x + multiply("state", h), 4, axis=-1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


class Held(NamedTuple):
    """Vectors that a step of a cell reads: constants of the loop."""

    bias: jax.Array | None = None
    gain: jax.Array | None = None


class Kind(NamedTuple):
    """What layers need to know of a cell.

    Attributes:
      gates: columns of its input's part, in multiples of n.
      products: columns of each matrix that multiplies the state, in multiples of n.
      parts: number of arrays (B, n) of its state, the first of which is its output.
      step: ``step(x, state, held, multiply) -> state``.
      bias: numbers in the bias of the state's product, in multiples of n.
    """

    gates: int
    products: Mapping[str, int]
    parts: int
    step: Callable[..., tuple[jax.Array, ...]]
    bias: int = 0


def _gru(x, state, held, multiply):
    (h,) = state
    return (gru(x, h, multiply),)


def _gru_reset_after(x, state, held, multiply):
    (h,) = state
    return (gru_reset_after(x, h, held.bias, multiply),)


def _gru_normed(x, state, held, multiply):
    (h,) = state
    return (gru_normed(x, h, held.gain, held.bias, multiply),)


def _lstm(x, state, held, multiply):
    h, c = state
    return lstm(x, h, c, multiply)


CELLS = {
    "gru": Kind(3, {"gates": 2, "candidate": 1}, 1, _gru),
    "gru_reset_after": Kind(3, {"state": 3}, 1, _gru_reset_after, 1),
    "gru_normed": Kind(3, {"state": 3}, 1, _gru_normed, 3),
    "lstm": Kind(4, {"state": 4}, 2, _lstm),
}


def keep(real: jax.Array, new: Any, old: Any) -> Any:
    """Return the new state where a token is real, else the old one.

    Args:
      real: 1 or 0 for each row (B,), or for each hypothesis (B, J).
      new: arrays (B, ...) or (B, J, ...).
      old: the same.
    """

    def choose(a, b):
        shape = real.shape + (1,) * (a.ndim - real.ndim)
        return jnp.where(real.reshape(shape) != 0, a, b)

    return jax.tree.map(choose, new, old)


# ---------------------------------------------------------------------------- the loop


def scan(
    cell: Cell,
    weights: Mapping[str, jax.Array],
    constants: Any,
    state: Any,
    xs: Any,
    dtype: str,
) -> tuple[Any, Any]:
    """Run a cell over time.

    The same as ``lax.scan`` of the cell, except for the backward pass. It takes each
    product from the forward pass instead of recomputing it, and computes the gradient
    of a matrix as ``operands^T gradients`` of all steps at once: one large product
    instead of T small ones that add up in memory.

    Args:
      cell: ``cell(multiply, constants, state, x) -> (state, output)``.
      weights: matrices (I, O), for ``multiply(name, operand)``.
      constants: arrays that all steps read, whose gradients add up over the steps.
      state: initial state.
      xs: arrays (T, ...); x of step t is ``xs[t]``.
      dtype: dtype of the operands of products.

    Returns:
      The last state, and the outputs (T, ...).
    """
    return _scan(cell, dtype, dict(weights), constants, state, xs)


def _forward(cell, dtype, weights, constants, state, xs):
    def step(state, x):
        products = []

        def multiply(name, operand):
            products.append(matmul.product(operand, weights[name], dtype))
            return products[-1]

        new, output = cell(multiply, constants, state, x)
        return new, (output, state, products)

    return lax.scan(step, state, xs)


def _scan_forward(cell, dtype, weights, constants, state, xs):
    last, (outputs, states, products) = _forward(
        cell, dtype, weights, constants, state, xs
    )
    return (last, outputs), (weights, constants, xs, states, products)


def _scan_backward(cell, dtype, kept, gradients):
    weights, constants, xs, states, products = kept
    d_last, d_outputs = gradients
    names: list[str] = []

    def step(carry, now):
        d_state, d_constants = carry
        x, state, made, d_output = now
        names.clear()

        def replayed(constants, state, x, zeros):
            operands: list[jax.Array] = []

            def multiply(name, operand):
                i = len(operands)
                names.append(name)
                operands.append(operand.astype(dtype))
                return _remembered(dtype, operand, weights[name], made[i]) + zeros[i]

            return cell(multiply, constants, state, x), operands

        zeros = jax.tree.map(jnp.zeros_like, made)
        _, back, operands = jax.vjp(replayed, constants, state, x, zeros, has_aux=True)
        d_here, d_state, d_x, d_products = back((d_state, d_output))
        d_constants = jax.tree.map(jnp.add, d_constants, d_here)
        return (d_state, d_constants), (d_x, operands, d_products)

    start = d_last, jax.tree.map(jnp.zeros_like, constants)
    (d_state, d_constants), (d_xs, operands, d_products) = lax.scan(
        step, start, (xs, states, products, d_outputs), reverse=True
    )
    d_weights = {name: jnp.zeros_like(matrix) for name, matrix in weights.items()}
    for name, operand, gradient in zip(names, operands, d_products, strict=True):
        rows = operand.reshape(-1, operand.shape[-1])
        columns = gradient.astype(dtype).reshape(-1, gradient.shape[-1])
        d_weights[name] += matmul.einsum("ri,ro->io", rows, columns)
    return d_weights, d_constants, d_state, d_xs


def _value(cell, dtype, weights, constants, state, xs):
    last, (outputs, _, _) = _forward(cell, dtype, weights, constants, state, xs)
    return last, outputs


_scan = jax.custom_vjp(_value, nondiff_argnums=(0, 1))
_scan.defvjp(_scan_forward, _scan_backward)


def _remembered_value(dtype, operand, matrix, product):
    """Return the product of an operand and a matrix, which was computed before."""
    return product


def _remembered_forward(dtype, operand, matrix, product):
    return product, matrix


def _remembered_backward(dtype, matrix, gradient):
    # The matrix's gradient is computed for all steps at once, see ``_scan_backward``.
    d_operand = matmul.product(gradient, Transposed(matrix), dtype)
    return d_operand, jnp.zeros_like(matrix), jnp.zeros_like(gradient)


_remembered = jax.custom_vjp(_remembered_value, nondiff_argnums=(0,))
_remembered.defvjp(_remembered_forward, _remembered_backward)
