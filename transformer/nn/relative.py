"""Positions by distance: what attention is told of how far apart two positions are.

None of them is added to the embeddings; each changes queries and keys, scores or
outputs inside self-attention. Distances are those of keys from queries, j - i: below 0
for what comes before.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

# ---- rotated queries and keys --------------------------------------------------------


def rotated(x: jax.Array, positions: jax.Array, base: float = 10_000.0) -> jax.Array:
    """Rotate pairs of a query or key by angles that grow with its position.

    ``(x_2i + i x_2i+1) exp(i m base^(-2i/K))`` at position m. The product of a rotated
    query and a rotated key depends on their distance alone.

    Args:
      x: queries or keys (B, H, T, K), of even width.
      positions: m (T,), or one for all, ().
      base: of the wavelengths, 2 pi to about 2 pi base.

    Returns:
      (B, H, T, K), of x's dtype.

    Source: Su et al., RoFormer, arXiv:2104.09864, equations 15 and 34.
    """
    width = x.shape[-1]
    rates = base ** (-np.arange(0, width, 2) / width)
    angles = positions[..., None].astype(jnp.float32) * rates.astype(np.float32)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    pairs = x.reshape(*x.shape[:-1], width // 2, 2).astype(jnp.float32)
    real, imaginary = pairs[..., 0], pairs[..., 1]
    turned = real * cos - imaginary * sin, real * sin + imaginary * cos
    return jnp.stack(turned, axis=-1).reshape(x.shape).astype(x.dtype)


# ---- a slope of each head ------------------------------------------------------------


def alibi_slopes(heads: int) -> np.ndarray:
    """Return the slope of each head, ``2^(-8 h / H)`` for h = 1 .. H.

    Where H is no power of two, those of the next smaller power P, and of 2 P heads
    every other one, as many as are missing.

    Returns:
      (H,).

    Source: Press et al., Train Short, Test Long, arXiv:2108.12409, section 3; for other
    H ofirpress/attention_with_linear_biases, ``get_slopes``.

    >>> alibi_slopes(3).tolist()
    [0.0625, 0.00390625, 0.25]
    """
    power = 2 ** math.floor(math.log2(heads))
    slopes = 2.0 ** (-8 * np.arange(1, power + 1) / power)
    between = 2.0 ** (-8 * np.arange(1, 2 * power + 1, 2) / (2 * power))
    return np.concatenate([slopes, between[: heads - power]])


def alibi_bias(heads: int, distances: jax.Array) -> jax.Array:
    """Return what is added to scores, ``-slope_h |j - i|``.

    Among later positions, which the paper's decoder never sees, it falls as it does
    among earlier ones.

    Args:
      heads: H.
      distances: j - i (T, S).

    Returns:
      (1, H, T, S) in float32.

    Source: Press et al., arXiv:2108.12409, section 3.
    """
    slopes = jnp.asarray(alibi_slopes(heads), jnp.float32)
    return -slopes[None, :, None, None] * jnp.abs(distances).astype(jnp.float32)
