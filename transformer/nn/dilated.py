"""Dilated convolutions: the inputs of one side by side, so that it is one product."""

from __future__ import annotations

from collections.abc import Iterable

import jax
import jax.numpy as jnp


def taps(x: jax.Array, width: int, dilation: int, *, causal: bool) -> jax.Array:
    """Put what each output of a convolution reads side by side.

    ``[x_(t - (k-1) r) ... x_(t - r) x_t]`` if causal, else ``[x_(t - c r) ... x_t ...
    x_(t + c r)]`` with ``c = (k - 1) / 2``; zeros beyond both ends. Their product with
    a matrix (k d, d'), whose rows j d to (j + 1) d are those of tap j, is the
    convolution with kernel k and dilation r.

    Args:
      x: (B, T, d), 0 where padding must not be read.
      width: k, odd unless causal.
      dilation: r, how far neighbouring taps are apart.
      causal: reads the position itself and earlier ones only.

    Returns:
      (B, T, k d).

    Source: Kalchbrenner et al., arXiv:1610.10099v2, sections 3.4 and 3.5.

    >>> taps(jnp.array([[[1.0], [2.0], [3.0]]]), 2, 2, causal=True)[0].tolist()
    [[0.0, 1.0], [0.0, 2.0], [1.0, 3.0]]
    """
    last = 0 if causal else (width - 1) // 2
    distances = [(last - (width - 1) + j) * dilation for j in range(width)]
    return jnp.concatenate([_from(x, distance) for distance in distances], axis=-1)


def _from(x: jax.Array, distance: int) -> jax.Array:
    """Return ``y_t = x_(t + distance)``, zeros beyond the ends, of x (B, T, d)."""
    length = x.shape[1]
    before = min(max(-distance, 0), length)
    behind = min(max(distance, 0), length)
    return jnp.pad(x[:, behind : length - before], ((0, 0), (before, behind), (0, 0)))


def reach(width: int, dilations: Iterable[int]) -> int:
    """Return how many inputs an output of a stack depends on, ``1 + (k-1) sum r``.

    Args:
      width: k of each layer.
      dilations: r of each.

    >>> reach(3, [1, 2, 4, 8, 16])
    63
    """
    return 1 + (width - 1) * sum(dilations)
