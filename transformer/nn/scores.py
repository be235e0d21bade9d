"""Attention scores that are more than a product, for one head and for several."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from transformer.nn import matmul

_NEVER = -1e30  # finite, so that a row without any source has finite weights


def additive_scores(queries: jax.Array, keys: jax.Array, v: jax.Array) -> jax.Array:
    """Score with a tanh layer, ``e_ij = tanh(s_i W_a + h_j U_a) . v_a``.

    Args:
      queries: s_i W_a (B, J, A).
      keys: h_j U_a (B, S, A), computed once per sentence.
      v: v_a (A,).

    Returns:
      e (B, J, S).

    Source: Bahdanau et al., arXiv:1409.0473, A.1.2.
    """
    inner = jnp.tanh(queries[:, :, None] + keys[:, None])
    return matmul.einsum("bjsa,a->bjs", inner, v)


def additive_head_scores(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Score as ``additive_scores`` does, with a separate vector for each head.

    ``tanh(q_t + k_s) . v`` has K numbers per pair. They are computed for a few queries
    at a time, and again in the backward pass: none is kept, and a cache holds some of
    them.

    Args:
      q: x W of each head (B, H, T, K).
      k: y U of each head (B, H, S, K).
      v: (H, K).

    Returns:
      Scores (B, H, T, S), float32.

    Source: Bahdanau et al., arXiv:1409.0473, A.1.2.
    """
    (batch, heads, length, width), keys = q.shape, k.shape[2]
    most = min(max(_AT_A_TIME // (batch * heads * keys * width), 1), length)
    count = next(n for n in range(most, 0, -1) if length % n == 0)

    @jax.checkpoint
    def compare(q: jax.Array) -> jax.Array:
        sums = q[:, :, :, None].astype(jnp.float32) + k[:, :, None]
        inner = jnp.tanh(sums).astype(q.dtype)
        return matmul.einsum("bhtsk,hk->bhts", inner, v.astype(q.dtype))

    if count == length:
        return compare(q)
    parts = q.reshape(batch, heads, -1, count, width).transpose(2, 0, 1, 3, 4)
    scores = jax.lax.map(compare, parts).transpose(1, 2, 0, 3, 4)
    return scores.reshape(batch, heads, length, keys)


_AT_A_TIME = 2**20  # numbers: 4 MB, which the caches of a CPU's core hold most of


def general_queries(q: jax.Array, matrices: jax.Array) -> jax.Array:
    """Transform queries so that a product scores them, ``q W . k`` (one W per head).

    Args:
      q: (B, H, T, K).
      matrices: W (H, K, K).

    Returns:
      q W (B, H, T, K), in the dtype of q.

    Source: Luong et al., arXiv:1508.04025, section 3.1, "general".
    """
    product = matmul.einsum("bhtk,hkl->bhtl", q, matrices.astype(q.dtype))
    return product.astype(q.dtype)


def softmax_over(scores: jax.Array, real: jax.Array) -> jax.Array:
    """Return the softmax over real source positions.

    Args:
      scores: (B, J, S).
      real: whether a position is real, (B, S), or real and attended to, (B, J, S).

    Returns:
      Weights (B, J, S), 0 at padding and where ``location_scores`` has no score; all
      of them may be 0.
    """
    real = (real if real.ndim == 3 else real[:, None]).astype(bool) & (scores > _NEVER)
    return jnp.where(real, jax.nn.softmax(jnp.where(real, scores, _NEVER)), 0.0)


def general_scores(queries: jax.Array, keys: jax.Array) -> jax.Array:
    """Score by a product, ``e_ij = h_i W_a . h_j``; without W_a it is "dot".

    Args:
      queries: h_i W_a (B, J, W).
      keys: h_j (B, S, W).

    Returns:
      e (B, J, S).

    Source: Luong et al., arXiv:1508.04025, section 3.1, "general" and "dot".
    """
    return matmul.einsum("bjw,bsw->bjs", queries, keys)


def location_scores(table: jax.Array, length: int) -> jax.Array:
    """Score by the state alone, ``e_i = h_i W_a``, one number for each position.

    Args:
      table: h_i W_a (B, J, P), for the first P positions.
      length: S.

    Returns:
      e (B, J, S); positions after the P-th are never attended to.

    Source: Luong et al., arXiv:1508.04025, equation 8.
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

    Weights of local attention are multiplied by it after their softmax and not
    renormalised: they sum to less than 1.

    Source: Luong et al., arXiv:1508.04025, equation 10.
    """
    distance = jnp.arange(length) - centres[..., None]
    return jnp.exp(-2 * (distance / half) ** 2)
