"""The four layer types of Table 1, as pure functions of n positions of width d.

Attention's operations are counted without the four projections of section 3.2.2, as the
table counts leading terms only: they cost another 8 n d^2, more than attention itself
as long as n < 2 d. ``whole_layer`` has them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer.nn import attention


class Sizes(NamedTuple):
    """The letters of Table 1."""

    n: int  # positions
    d: int  # width
    k: int = 3  # kernel of a convolution
    r: int = 3  # neighbourhood of restricted self-attention, odd


# Functions of weights (positions first), and the shapes that they take.
Layer = tuple[Callable[..., jax.Array], list[tuple[int, ...]]]


def self_attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Attend from each position to all, with one head (equation 1).

    Args:
      q: queries (n, d).
      k: keys (n, d).
      v: values (n, d).

    Returns:
      (n, d).
    """
    output, _ = attention.attention(q[None, None], k[None, None], v[None, None])
    return output[0, 0]


def restricted_self_attention(
    q: jax.Array, k: jax.Array, v: jax.Array, neighbourhood: int
) -> jax.Array:
    """Attend from each position to the r around it, at the cost of these r only.

    It equals attention under ``attention.window_mask(n, r // 2)``, but gathers the keys
    and values of each neighbourhood instead of comparing all with all.

    Args:
      q: queries (n, d).
      k: keys (n, d).
      v: values (n, d).
      neighbourhood: r, odd; what of it is beyond the ends is masked.

    Returns:
      (n, d).
    """
    n = len(q)
    around = np.arange(neighbourhood) - neighbourhood // 2
    place = np.arange(n)[:, None] + around
    exists = jnp.asarray((place >= 0) & (place < n))
    place = np.clip(place, 0, n - 1)
    output, _ = attention.attention(  # each position is a sentence of one query
        q[:, None, None], k[place][:, None], v[place][:, None], exists[:, None, None]
    )
    return output[:, 0, 0]


def recurrent(x: jax.Array, w: jax.Array, u: jax.Array) -> jax.Array:
    """Read from left to right, ``h_t = tanh(x_t W + h_(t-1) U)``, ``h_0 = 0``.

    Args:
      x: (n, d).
      w: W (d, d).
      u: U (d, d).

    Returns:
      The states h_1 to h_n, (n, d).
    """

    def step(before, projected):
        state = cell(before, projected, u)
        return state, state

    return jax.lax.scan(step, jnp.zeros_like(x[0]), x @ w)[1]


def cell(before: jax.Array, projected: jax.Array, u: jax.Array) -> jax.Array:
    """Return the states (..., d) after those before (..., d) and ``x W`` (..., d)."""
    return jnp.tanh(projected + before @ u)


def convolution(x: jax.Array, kernel: jax.Array, dilation: int = 1) -> jax.Array:
    """Combine positions with earlier ones, ``y_t = sum_i x_(t - i l) W_(k - 1 - i)``.

    Args:
      x: (n, d); positions before the first are zeros.
      kernel: W (k, d, d).
      dilation: l, the distance between the positions that are combined.

    Returns:
      (n, d).
    """
    before = (len(kernel) - 1) * dilation
    return jax.lax.conv_general_dilated(
        x[None],
        kernel,
        window_strides=(1,),
        padding=[(before, 0)],
        rhs_dilation=(dilation,),
        dimension_numbers=("NWC", "WIO", "NWC"),
    )[0]


def _attention_layer(sizes: Sizes) -> Layer:
    return self_attention, [(sizes.n, sizes.d)] * 3


def _recurrent_layer(sizes: Sizes) -> Layer:
    n, d = sizes.n, sizes.d
    return recurrent, [(n, d), (d, d), (d, d)]


def convolution_layer(sizes: Sizes) -> Layer:
    """Return the convolutional layer with the shapes of its input and its kernel."""
    return convolution, [(sizes.n, sizes.d), (sizes.k, sizes.d, sizes.d)]


def _restricted_layer(sizes: Sizes) -> Layer:
    attend = functools.partial(restricted_self_attention, neighbourhood=sizes.r)
    return attend, [(sizes.n, sizes.d)] * 3


class Row(NamedTuple):
    """A row of Table 1: exponents as printed, and the layer that is measured."""

    operations: dict[str, float]
    sequential: dict[str, float]
    layer: Callable[[Sizes], Layer]


ROWS = {
    "self-attention": Row({"n": 2, "d": 1}, {"n": 0}, _attention_layer),
    "recurrent": Row({"n": 1, "d": 2}, {"n": 1}, _recurrent_layer),
    "convolutional": Row({"k": 1, "n": 1, "d": 2}, {"n": 0}, convolution_layer),
    "self-attention, restricted": Row(
        {"r": 1, "n": 1, "d": 1}, {"n": 0}, _restricted_layer
    ),
}
RESTRICTED = "self-attention, restricted"


def whole_layer(row: str, sizes: Sizes) -> Layer:
    """Return the layer of a row with projections in and out of attention."""
    function, shapes = ROWS[row].layer(sizes)
    if row not in ("self-attention", RESTRICTED):
        return function, shapes

    def projected(x, query, key, value, output):
        return function(x @ query, x @ key, x @ value) @ output

    return projected, [shapes[0], *4 * [(sizes.d, sizes.d)]]


def abstract(shapes: Sequence[tuple[int, ...]]) -> list[jax.ShapeDtypeStruct]:
    """Return float32 arrays of these shapes without their numbers."""
    return [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]


def draw(shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    """Return random float32 arrays of these shapes."""
    generator = np.random.default_rng(0)
    return [generator.standard_normal(shape, np.float32) for shape in shapes]
