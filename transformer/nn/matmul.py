"""Matrix products: operands of one dtype, sums in float32, forward and backward.

Operands of ``dtype`` and a float32 result are the one form that is fast on every
backend.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax


class Transposed(NamedTuple):
    """A kernel (I, O) that is stored as (O, I), like an embedding table."""

    rows: jax.Array


Kernel = jax.Array | Transposed
Product = Callable[[jax.Array, jax.Array], jax.Array]


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
    """Return whether this process's backend has every form of product, by trying once.

    Args:
      dtype: dtype of the operands.
    """
    try:
        _try_every_form(dtype)
    except jax.errors.JaxRuntimeError as error:
        if "UNIMPLEMENTED" not in str(error):
            raise
        return False
    return True


def _try_every_form(dtype: str) -> None:
    # Compiled explicitly, it runs at once, as one program, even during a trace.
    jax.block_until_ready(_every_form.lower(dtype).compile()())


@functools.partial(jax.jit, static_argnums=0)
def _every_form(dtype: str):
    """Multiply in each form that is used below, forward and backward."""
    multiply = functools.partial(_product, dtype=dtype)
    square, few, many = (
        jnp.ones((rows, 64)) for rows in (64, 16, _SMALL_RESULT // 64 + 1)
    )
    y, back = jax.vjp(multiply, few.reshape(2, 8, 64), square)
    z, transposed_back = jax.vjp(multiply, few.reshape(2, 8, 64), Transposed(square))
    return y, back(y), z, transposed_back(z), multiply(many, Transposed(square))


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _product(x, kernel, dtype):
    """Multiply in the same form everywhere.

    The derivative is explicit so that both backward products have this form too: left
    to autodiff, they would take a float32 operand and lose the fast path.
    """
    rows = x.reshape(-1, x.shape[-1]).astype(dtype)  # a third axis costs a copy of W
    count = rows.shape[0]
    if count == 1 and dtype != "float32":
        # One row alone misses the CPU's fast path by a factor of ten; two do not.
        rows = jnp.concatenate([rows, rows])
    if isinstance(kernel, Transposed):
        y = _transposed_product(rows, kernel.rows.astype(dtype))
    else:
        y = _contract(rows, kernel.astype(dtype), (1,), (0,))
    return y[:count].reshape(*x.shape[:-1], -1)


def _transposed_product(rows, weights):
    """Multiply (R, I) by weights that are stored as (O, I)."""

    def plain(rows, weights):
        return _contract(rows, weights, (1,), (1,))

    def turned(rows, weights):
        # Without the barrier the compiler would swap the operands back.
        return lax.optimization_barrier(_contract(weights, rows, (1,), (1,))).T

    # A CPU re-packs the second operand at each call: make it the small one.
    count, (outer, inner) = rows.shape[0], weights.shape
    if rows.dtype == jnp.float32:
        few = count <= _FEW_ROWS and inner >= _LONG_SUM
    else:
        few = count * outer <= _SMALL_RESULT
    if not few:
        return plain(rows, weights)
    return lax.platform_dependent(rows, weights, cpu=turned, default=plain)


def _product_forward(x, kernel, dtype):
    given = jnp.zeros(0, x.dtype)  # holds a gradient's dtype; takes no memory
    x, kernel = x.astype(dtype), jax.tree.map(lambda w: w.astype(dtype), kernel)
    return _product(x, kernel, dtype), (x, kernel, given)


def _product_backward(dtype, operands, gradient):
    x, kernel, given = operands
    gradient = gradient.astype(dtype)
    last, leading = (x.ndim - 1,), tuple(range(x.ndim - 1))
    if isinstance(kernel, Transposed):
        d_kernel = Transposed(_contract(gradient, x, leading, leading))
        d_x = _contract(gradient, kernel.rows, last, (0,))
    else:
        d_kernel = _contract(x, gradient, leading, leading)
        d_x = _contract(gradient, kernel, last, (1,))
    return d_x.astype(given.dtype), d_kernel


_product.defvjp(_product_forward, _product_backward)

_SMALL_RESULT = 2**18  # numbers; up to here transposing the result costs almost nothing
# Of float32 on a CPU with AVX2: from 64 rows on nothing is gained, and sums over 128
# numbers gain less than it takes to transpose the result.
_FEW_ROWS = 32
_LONG_SUM = 256


def _contract(x, y, x_axes, y_axes):
    """Sum over the given axes of x and y, in float32."""
    axes = (x_axes, y_axes), ((), ())
    return lax.dot_general(
        x, y, axes, precision=precision(x.dtype), preferred_element_type=jnp.float32
    )


def precision(dtype) -> lax.Precision:
    """Return the precision of products: float32 operands are multiplied in float32.

    By default, GPUs round float32 operands to TF32, and TPUs to bfloat16.
    """
    exact = dtype == jnp.float32
    return lax.Precision.HIGHEST if exact else lax.Precision.DEFAULT


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def einsum(equation: str, x: jax.Array, y: jax.Array) -> jax.Array:
    """Multiply arrays of one dtype, sums and result in float32.

    As in ``product``, the backward products take operands of the same dtype.

    Args:
      equation: as for ``jnp.einsum``; each letter occurs in two of its three parts.
      x: the left operand.
      y: the right operand.

    Returns:
      The result in float32.
    """
    plain = functools.partial(_einsum, equation)
    on_cpu = _sum_of_rows(equation, x, y)
    if on_cpu is None:
        return plain(x, y)
    return lax.platform_dependent(x, y, cpu=on_cpu, default=plain)


def _einsum(equation, x, y):
    exact = precision(x.dtype)
    return jnp.einsum(
        equation, x, y, precision=exact, preferred_element_type=jnp.float32
    )


def _sum_of_rows(equation: str, x: jax.Array, y: jax.Array) -> Product | None:
    """Return how a CPU multiplies ``X^T Y``, sums over rows; None = like any other.

    For many small matrices, whose products are gradients of keys and values, its
    compiler has no kernel for this. With X transposed first it has one, four times as
    fast for 10 positions; from 48 positions on there is nothing to gain. If all leading
    axes are rows, as for the gradient of a table of distances, the compiler transposes
    X itself, column by column of the whole; in blocks that fit into the caches this
    takes a third of the time.
    """
    inputs, result = equation.split("->")
    left, right = inputs.split(",")
    if left[:-1] != right[:-1]:
        return None
    swapped = result[-2:] == right[-1] + left[-1]
    if swapped:
        x, y = y, x
    if result[:-2] and result[:-2] == left[:-2]:
        small, product = math.prod(x.shape[-2:]) <= _SMALL_MATRIX, _turned_product
    elif not result[:-2] and x.ndim > 2:
        small, product = x.shape[-1] * y.shape[-1] <= _SMALL_SUM, _blocked_product
    else:
        return None
    if not small:
        return None
    return (lambda x, y: product(y, x)) if swapped else product


def _turned_product(x, y):
    """Multiply (..., R, I) by (..., R, O) to (..., I, O)."""
    # Without the barrier the compiler would merge both into one product again.
    turned = lax.optimization_barrier(x.swapaxes(-1, -2))
    return jnp.matmul(
        turned, y, precision=precision(x.dtype), preferred_element_type=jnp.float32
    )


def _blocked_product(x, y):
    """Multiply (B, ..., I) by (B, ..., O) to (I, O)."""
    each = math.prod(x.shape[1:-1])
    together = 1 << max(_ROWS // each, 1).bit_length() - 1
    blocks = x.shape[0] // math.gcd(x.shape[0], together)
    x, y = (z.reshape(blocks, -1, z.shape[-1]) for z in (x, y))
    return _turned_product(x, y).sum(0)


_SMALL_MATRIX = 2**11  # numbers: 45 x 45
_SMALL_SUM = 2**13  # numbers: their sum over blocks costs almost nothing
_ROWS = 2**10  # of a block, about


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
