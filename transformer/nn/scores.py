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
      real: whether a position is real, (B, S), or also attended to, (B, J, S).

    Returns:
      Weights (B, J, S), 0 at padding.
    """
    real = (real if real.ndim == 3 else real[:, None]).astype(bool)
    return jnp.where(real, jax.nn.softmax(jnp.where(real, scores, _NEVER)), 0.0)


def general_scores(queries: jax.Array, keys: jax.Array) -> jax.Array:
    """Score by a product, ``e_ij = h_i W_a . h_j``; without W_a it is "dot".

    Args:
      queries: h_i W_a (B, J, W).
      keys: h_j (B, S, W).

    Returns:
      e (B, J, S).

    Source: Luong et al., arXiv:1508.04025, equation 8.
    """
    return jnp.einsum("bjw,bsw->bjs", queries, keys)


def location_scores(table: jax.Array, length: int) -> jax.Array:
    """Score by the state alone, ``e_i = h_i W_a``, one number for each position.

    Args:
      table: h_i W_a (B, J, P), for the first P positions.
      length: S.

    Returns:
      e (B, J, S); positions behind the P-th are never attended to.

    Source: Luong et al., arXiv:1508.04025, section 3.1, "location".
    """
    behind = max(length - table.shape[-1], 0)
    pad = ((0, 0), (0, 0), (0, behind))
    return jnp.pad(table, pad, constant_values=_NEVER)[..., :length]


def near(centres: jax.Array, half: int, length: int) -> jax.Array:
    """Return whether a position lies within ``half`` of a centre, rounded down.

    Args:
      centres: p_t, from 0 (B, J).
      half: D.
      length: S.

    Returns:
      (B, J, S) booleans.
    """
    distance = jnp.arange(length) - jnp.floor(centres)[..., None]
    return abs(distance) <= half


def bell(centres: jax.Array, half: int, length: int) -> jax.Array:
    """Return ``exp(-(s - p_t)^2 / (2 (D / 2)^2))``, (B, J, S).

    Weights of local attention are multiplied by it after their softmax, and not
    normalised again: they sum to less than 1.

    Source: Luong et al., arXiv:1508.04025, equation 10.
    """
    distance = jnp.arange(length) - centres[..., None]
    return jnp.exp(-2 * (distance / half) ** 2)
