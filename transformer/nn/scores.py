"""Scores of attention between a decoder's state and the annotations of a source."""

from __future__ import annotations

import jax
import jax.numpy as jnp

_NEVER = -1e30  # finite, so that a row without any source has finite weights


def additive_scores(queries: jax.Array, keys: jax.Array, v: jax.Array) -> jax.Array:
    """Score by a layer of tanh, ``e_ij = tanh(s_i W_a + h_j U_a) . v_a``.

    Args:
      queries: s_i W_a (B, J, A).
      keys: h_j U_a (B, S, A), made once per sentence.
      v: v_a (A,).

    Returns:
      e (B, J, S).

    Source: Bahdanau et al., arXiv:1409.0473, A.1.2.
    """
    return jnp.tanh(queries[:, :, None] + keys[:, None]) @ v


def softmax_over(scores: jax.Array, real: jax.Array) -> jax.Array:
    """Return the softmax over real source positions.

    Args:
      scores: (B, J, S).
      real: whether a position is real (B, S).

    Returns:
      Weights (B, J, S), 0 at padding.
    """
    real = real[:, None].astype(bool)
    return jnp.where(real, jax.nn.softmax(jnp.where(real, scores, _NEVER)), 0.0)
