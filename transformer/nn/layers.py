"""Sections 3.1 to 3.5: the layers around attention, as pure functions.

Everything between two matrix products is float32. The products themselves take
operands of ``dtype`` and return float32, which is the one fast form on every backend.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name

# --------------------------------------------------------------------------- products


class Turned(NamedTuple):
    """A kernel (I, O) that is stored as (O, I), like an embedding table."""

    rows: jax.Array


Kernel = jax.Array | Turned


def linear(
    x: jax.Array,
    kernel: Kernel,
    bias: jax.Array | None = None,
    dtype="float32",
    result="float32",
) -> jax.Array:
    """Apply a linear map, ``x W + b``.

    Args:
      x: (..., I), at least two axes.
      kernel: W (I, O).
      bias: b (O,), or None.
      dtype: of the operands of the product, "float32" or "bfloat16".
      result: dtype of the result, which is rounded once.

    Returns:
      (..., O).

    >>> linear(jnp.ones((1, 2)), jnp.array([[1.0], [2.0]]), jnp.array([0.5])).tolist()
    [[3.5]]
    """
    y = product(x, kernel, str(dtype))
    return (y if bias is None else y + bias).astype(result)


def product(x: jax.Array, kernel: Kernel, dtype: str) -> jax.Array:
    """Multiply (..., I) by (I, O), operands in ``dtype``, sums and result in float32.

    Args:
      x: (..., I).
      kernel: (I, O).
      dtype: "float32" or "bfloat16".

    Returns:
      (..., O) in float32.
    """
    return _product(x, kernel, dtype)


@functools.cache
def multiplies(dtype: str) -> bool:
    """Say whether this process's backend has every form of product, after one try.

    Args:
      dtype: of the operands.
    """
    try:
        _try_every_form(dtype)
    except jax.errors.JaxRuntimeError as error:
        if "UNIMPLEMENTED" not in str(error):
            raise
        return False
    return True


def _try_every_form(dtype: str) -> None:
    # Compiled by hand it runs at once, as one program, in the midst of a trace too.
    jax.block_until_ready(_every_form.lower(dtype).compile()())


@functools.partial(jax.jit, static_argnums=0)
def _every_form(dtype: str):
    """Multiply in each form that there is below, forward and backward."""
    multiply = functools.partial(_product, dtype=dtype)
    square, few, many = (
        jnp.ones((rows, 64)) for rows in (64, 16, _SMALL_RESULT // 64 + 1)
    )
    y, back = jax.vjp(multiply, few.reshape(2, 8, 64), square)
    z, turned_back = jax.vjp(multiply, few.reshape(2, 8, 64), Turned(square))
    return y, back(y), z, turned_back(z), multiply(many, Turned(square))


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _product(x, kernel, dtype):
    """Multiply in one form wherever it stands.

    The derivative is written out so that both backward products have this form too:
    left to autodiff, they would take a float32 operand and lose the fast path.
    """
    rows = x.reshape(-1, x.shape[-1]).astype(dtype)  # a third axis costs a copy of W
    count = rows.shape[0]
    if count == 1 and dtype != "float32":
        # One row alone misses the CPU's fast path by a factor of ten; two do not.
        rows = jnp.concatenate([rows, rows])
    if isinstance(kernel, Turned):
        weights = kernel.rows.astype(dtype)
        if rows.shape[0] * weights.shape[0] <= _SMALL_RESULT and dtype != "float32":
            # The CPU re-packs the second operand at each call: let it be the small one.
            # Without the barrier the compiler would turn the product round again.
            y = lax.optimization_barrier(_contract(weights, rows, (1,), (1,))).T
        else:
            y = _contract(rows, weights, (1,), (1,))
    else:
        y = _contract(rows, kernel.astype(dtype), (1,), (0,))
    return y[:count].reshape(*x.shape[:-1], -1)


def _product_forward(x, kernel, dtype):
    given = jnp.zeros(0, x.dtype)  # of a gradient's type; it is no array in memory
    x, kernel = x.astype(dtype), jax.tree.map(lambda w: w.astype(dtype), kernel)
    return _product(x, kernel, dtype), (x, kernel, given)


def _product_backward(dtype, operands, gradient):
    x, kernel, given = operands
    gradient = gradient.astype(dtype)
    last, leading = (x.ndim - 1,), tuple(range(x.ndim - 1))
    if isinstance(kernel, Turned):
        d_kernel = Turned(_contract(gradient, x, leading, leading))
        d_x = _contract(gradient, kernel.rows, last, (0,))
    else:
        d_kernel = _contract(x, gradient, leading, leading)
        d_x = _contract(gradient, kernel, last, (1,))
    return d_x.astype(given.dtype), d_kernel


_product.defvjp(_product_forward, _product_backward)

_SMALL_RESULT = 2**18  # numbers; up to here turning the result costs next to nothing


def _contract(x, y, x_axes, y_axes):
    """Sum over the given axes of x and y, in float32."""
    axes = (x_axes, y_axes), ((), ())
    return lax.dot_general(
        x, y, axes, precision=precision(x.dtype), preferred_element_type=jnp.float32
    )


def precision(dtype) -> lax.Precision:
    """Return how the products of operands are made: those of float32 are float32.

    Left to themselves, GPUs round float32 operands to TF32, and TPUs to bfloat16.
    """
    exact = dtype == jnp.float32
    return lax.Precision.HIGHEST if exact else lax.Precision.DEFAULT


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def einsum(equation: str, x: jax.Array, y: jax.Array) -> jax.Array:
    """Multiply arrays of one dtype, sums and result in float32.

    As in ``product``, the backward products take operands of the same dtype.

    Args:
      equation: of ``jnp.einsum``; each letter stands in two of its three parts.
      x: the left operand.
      y: the right operand.

    Returns:
      The result in float32.
    """
    exact = precision(x.dtype)
    return jnp.einsum(
        equation, x, y, precision=exact, preferred_element_type=jnp.float32
    )


def _einsum_forward(equation, x, y):
    return einsum(equation, x, y), (x, y)


def _einsum_backward(equation, operands, gradient):
    x, y = operands
    inputs, result = equation.split("->")
    left, right = inputs.split(",")
    gradient = gradient.astype(x.dtype)
    d_x = einsum(f"{result},{right}->{left}", gradient, y)
    d_y = einsum(f"{result},{left}->{right}", gradient, x)
    return d_x.astype(x.dtype), d_y.astype(y.dtype)


einsum.defvjp(_einsum_forward, _einsum_backward)


# -------------------------------------------------------------------------- sub-layers


def layer_norm(
    x: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float = 1e-6
) -> jax.Array:
    """Normalise the last axis, ``(x - mean) / sqrt(var + epsilon) * scale + bias``.

    Args:
      x: (..., D).
      scale: (D,).
      bias: (D,).
      epsilon: added to the variance.

    Returns:
      (..., D) in float32.

    Source: Ba et al., Layer Normalization, arXiv:1607.06450; used in section 3.1.
    """
    x = x.astype(jnp.float32)
    centred = x - checkpoint_name(x.mean(-1, keepdims=True), "mean")
    variance = jnp.square(centred).mean(-1, keepdims=True)
    variance = checkpoint_name(variance, "mean")
    return centred * lax.rsqrt(variance + epsilon) * scale + bias


def feed_forward(
    x: jax.Array,
    kernel_1: Kernel,
    bias_1: jax.Array,
    kernel_2: Kernel,
    bias_2: jax.Array,
    *,
    dropout_rate: float = 0.0,
    key: Key | None = None,
    dtype="float32",
    inner="float32",
) -> jax.Array:
    """Transform each position alone, ``max(0, x W1 + b1) W2 + b2`` (equation 2).

    Args:
      x: (B, T, D).
      kernel_1: W1 (D, F).
      bias_1: b1 (F,).
      kernel_2: W2 (F, D).
      bias_2: b2 (D,).
      dropout_rate: share of the F inner activations that is zeroed.
      key: dropout key, None for evaluation.
      dtype: of the operands of the products.
      inner: dtype in which the F inner activations are stored.

    Returns:
      (B, T, D) in float32.
    """
    y = checkpoint_name(linear(x, kernel_1, bias_1, dtype, inner), "product")
    y = dropout(jax.nn.relu(y), dropout_rate, key)
    return linear(y, kernel_2, bias_2, dtype)


# ------------------------------------------------------------ embeddings and positions


def embed(ids: jax.Array, table: jax.Array) -> jax.Array:
    """Look ids up, ``E[ids] * sqrt(d_model)`` (section 3.4).

    Args:
      ids: (...).
      table: E (V, D).

    Returns:
      (..., D).
    """
    return table[ids] * table.shape[-1] ** 0.5


def sinusoidal_positions(length: int, d_model: int) -> jax.Array:
    """Make the position encodings of section 3.5.

    ``PE(pos, 2i) = sin(pos / 10000^(2i/d))``, ``PE(pos, 2i+1) = cos(...)``.

    Args:
      length: how many positions, from 0.
      d_model: an even width D.

    Returns:
      (length, D) in float32.

    >>> sinusoidal_positions(2, 4)[1].round(3)
    Array([0.841, 0.54 , 0.01 , 1.   ], dtype=float32)
    """
    angles = np.arange(length)[:, None] / 10_000 ** (np.arange(0, d_model, 2) / d_model)
    pairs = np.stack([np.sin(angles), np.cos(angles)], axis=-1)
    return jnp.asarray(pairs.reshape(length, d_model), jnp.float32)


def sinusoidal_positions_concat(length: int, d_model: int) -> jax.Array:
    """Make the position encodings of the authors' first code: all sines, then cosines.

    ``angle(pos, i) = pos / 10000^(i / (d/2 - 1))`` for i = 0 .. d/2 - 1.

    Args:
      length: how many positions, from 0.
      d_model: an even width D of at least 4.

    Returns:
      (length, D) in float32.

    Source: tensor2tensor, commit 3d9c62f2 (2017-06-15), add_timing_signal.
    """
    half = d_model // 2
    angles = np.arange(length)[:, None] / 10_000 ** (np.arange(half) / (half - 1))
    both = np.concatenate([np.sin(angles), np.cos(angles)], axis=-1)
    return jnp.asarray(both, jnp.float32)


POSITIONS = {
    "sinusoidal": sinusoidal_positions,
    "sinusoidal_concat": sinusoidal_positions_concat,
}

# ---------------------------------------------------------------------------- dropout


class Key(NamedTuple):
    """Names a place and a moment of randomness for the counter-based hash.

    The bits of an element depend on this key and on the element's index in the global
    batch alone, so they are the same however the batch is cut over devices.
    """

    words: tuple[jax.Array, jax.Array]  # two uint32 scalars
    row: jax.Array  # index in the global batch of this part's first row, uint32


def hash_key(seed: jax.Array | int, row: jax.Array | int = 0) -> Key:
    """Start a chain of hash keys from an integer seed."""
    seed = jnp.asarray(seed, jnp.uint32)
    words = _mix(seed ^ np.uint32(0x9E3779B9)), _mix(seed + np.uint32(0x7F4A7C15))
    return Key(words, jnp.asarray(row, jnp.uint32))


def fold_in(key: Key | None, data: jax.Array | int) -> Key | None:
    """Derive the key of a step, a layer or a place from ``key``; None stays None."""
    if key is None:
        return None
    first, second = key.words
    data = jnp.asarray(data, jnp.uint32)
    first = _mix(first ^ _mix(data + np.uint32(0x9E3779B9)))
    return Key((first, _mix(second + first * np.uint32(0x85EBCA6B))), key.row)


def dropout(x: jax.Array, rate: float, key: Key | None) -> jax.Array:
    """Zero a share ``rate`` of the elements and divide the others by ``1 - rate``.

    Args:
      x: (B, ...); the first axis is the batch.
      rate: at least 0 and less than 1.
      key: of this place and moment; None returns x unchanged.

    Returns:
      An array like x.

    Source: section 5.4; Srivastava et al. 2014.
    """
    if key is None or rate == 0.0:
        return x
    keep = _hash_bits(key, x.shape) >= np.uint32(round(rate * 2**32))
    return jnp.where(keep, x * (1 / (1 - rate)), 0.0)


def _hash_bits(key: Key, shape: tuple[int, ...]) -> jax.Array:
    """Return 32 random bits an element: a keyed murmur3 finaliser of its index."""
    size = int(np.prod(shape))
    index = lax.iota(jnp.uint32, size).reshape(shape)
    index += key.row * np.uint32(size // shape[0])
    first, second = key.words
    bits = index * np.uint32(0x9E3779B9) + first
    bits = (bits ^ (bits >> 16)) * np.uint32(0x85EBCA6B) + second
    bits = (bits ^ (bits >> 13)) * np.uint32(0xC2B2AE35)
    return bits ^ (bits >> 16)


@jax.jit  # one trace for the hundreds of keys of a step
def _mix(x: jax.Array) -> jax.Array:
    """Finalise as murmur3 does: every input bit changes half of the output bits."""
    x = (x ^ (x >> 16)) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * np.uint32(0xC2B2AE35)
    return x ^ (x >> 16)
