"""Convolutions over time as one product each, and helpers for models built on them."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import jax
import jax.numpy as jnp


def windows(x: jax.Array, kernel: int, *, causal: bool, dilation: int = 1) -> jax.Array:
    """Concatenate the k inputs that the result at each position depends on.

    ``[x_(t - (k-1) r) ... x_(t - r) x_t]`` if causal, else ``[x_(t - c r) ... x_t ...
    x_(t + c r)]`` with ``c = (k - 1) / 2``; beyond both ends inputs are 0. The
    convolution is then one product with a matrix (k D, O), whose first D rows belong to
    the earliest input.

    Args:
      x: (B, T, D), 0 where padding must not be read.
      kernel: k; odd unless causal.
      causal: whether the last of the k inputs is the one at the position itself,
        instead of the middle one.
      dilation: r, the distance between neighbouring inputs.

    Returns:
      (B, T, k D).

    Source: Kalchbrenner et al., arXiv:1610.10099v2, sections 3.4 and 3.5.

    >>> windows(jnp.array([[[1.0], [2.0], [3.0]]]), 3, causal=False)[0].tolist()
    [[0.0, 1.0, 2.0], [1.0, 2.0, 3.0], [2.0, 3.0, 0.0]]
    >>> x = jnp.array([[[1.0], [2.0], [3.0]]])
    >>> windows(x, 2, causal=True, dilation=2)[0].tolist()
    [[0.0, 1.0], [0.0, 2.0], [1.0, 3.0]]
    """
    before = kernel - 1 if causal else (kernel - 1) // 2
    ends = before * dilation, (kernel - 1 - before) * dilation
    padded, length = jnp.pad(x, ((0, 0), ends, (0, 0))), x.shape[1]
    starts = range(0, kernel * dilation, dilation)
    return jnp.concatenate([padded[:, i : i + length] for i in starts], axis=-1)


def glu(x: jax.Array) -> jax.Array:
    """Gate one half of the features by the other, ``A * sigmoid(B)`` of ``[A; B]``.

    Args:
      x: (..., 2 D).

    Returns:
      (..., D).

    Source: Dauphin et al., arXiv:1612.08083, section 2.
    """
    linear, gate = jnp.split(x, 2, axis=-1)
    return linear * jax.nn.sigmoid(gate)


def norms(direction: jax.Array, axis: int = 0) -> jax.Array:
    """Return the Euclidean norms ``||v||`` along an axis of a matrix."""
    return jnp.sqrt(jnp.square(direction).sum(axis))


def weight_norm(direction: jax.Array, gain: jax.Array, axis: int = 0) -> jax.Array:
    """Return a matrix with given norms, ``W = g v / ||v||`` for each output unit.

    Args:
      direction: v (I, O), or (O, I) with axis 1.
      gain: g (O,).
      axis: axis of the inputs.

    Returns:
      W, like v.

    Source: Salimans and Kingma, arXiv:1602.07868, equation 2.
    """
    return direction * jnp.expand_dims(gain / norms(direction, axis), axis)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def scale_gradient(x: jax.Array, factor: float) -> jax.Array:
    """Return x unchanged, but multiply its gradient by a factor.

    Source: Gehring et al., arXiv:1705.03122, section 3.4.
    """
    return x


def _scale_forward(x, factor):
    return x, None


def _scale_backward(factor, _, gradient):
    return (factor * gradient,)


scale_gradient.defvjp(_scale_forward, _scale_backward)


def reach(kernels: Iterable[int], dilations: Iterable[int] | None = None) -> int:
    """Return how many inputs a result depends on, ``1 + sum (k - 1) r`` over layers.

    Args:
      kernels: k of each layer.
      dilations: r of each, None = 1.

    >>> reach([3] * 15), reach([3] * 5, [1, 2, 4, 8, 16])
    (31, 63)
    """
    sizes = list(kernels)
    apart = [1] * len(sizes) if dilations is None else dilations
    return 1 + sum((k - 1) * r for k, r in zip(sizes, apart, strict=True))
