"""Section 3.2, Attention: masks, scores, weights and heads as pure functions.

Arrays of several heads have the layout (B, H, length, size): batch, head, position,
width of a head. Masks are boolean and broadcast against the scores (B, H, T, S); True
means that the query of row T may attend to the key of column S.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Literal

import jax
import jax.numpy as jnp

from transformer import layers

# Finite, so that a row with no allowed key gives numbers instead of NaN.
MASKED = -1e9

Score = Callable[[jax.Array, jax.Array], jax.Array]


def padding_mask(ids: jax.Array, pad: int = 0) -> jax.Array:
    """Allow attention to every key that is not padding.

    Args:
      ids: token ids (B, S).
      pad: the id of padding.

    Returns:
      Boolean mask (B, 1, 1, S).

    >>> padding_mask(jnp.array([[5, 3, 0]]))[0, 0].tolist()
    [[True, True, False]]
    """
    return (ids != pad)[:, None, None, :]


def causal_mask(length: int) -> jax.Array:
    """Allow attention to the same and to earlier positions (section 3.2.3).

    Returns:
      Boolean mask (1, 1, T, T), ``mask[t, s] = s <= t``.

    >>> causal_mask(3)[0, 0].astype(int).tolist()
    [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    """
    return jnp.tril(jnp.ones((length, length), bool))[None, None]


def window_mask(length: int, window: int) -> jax.Array:
    """Allow attention to positions at most ``window`` away (section 4, restricted).

    Returns:
      Boolean mask (1, 1, T, T), ``mask[t, s] = |t - s| <= window``.

    >>> window_mask(4, 1)[0, 0].astype(int).tolist()
    [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]]
    """
    position = jnp.arange(length)
    return (jnp.abs(position[:, None] - position) <= window)[None, None]


def dot_product_scores(q: jax.Array, k: jax.Array) -> jax.Array:
    """Compare queries with keys, ``Q K^T`` (section 3.2.1, without the scale).

    Args:
      q: queries (B, H, T, K).
      k: keys (B, H, S, K).

    Returns:
      Scores (B, H, T, S), float32.
    """
    return jnp.einsum("bhtk,bhsk->bhts", q, k, preferred_element_type=jnp.float32)


def scaled_dot_product_scores(q: jax.Array, k: jax.Array) -> jax.Array:
    """Compare queries with keys, ``Q K^T / sqrt(d_k)`` (equation 1).

    Args:
      q: queries (B, H, T, K).
      k: keys (B, H, S, K).

    Returns:
      Scores (B, H, T, S), float32.
    """
    return dot_product_scores(q * q.shape[-1] ** -0.5, k)


SCORES: dict[str, Score] = {
    "scaled_dot": scaled_dot_product_scores,
    "dot": dot_product_scores,
}


def attention_weights(scores: jax.Array, mask: jax.Array | None) -> jax.Array:
    """Turn scores into weights, ``softmax(scores)`` over the allowed keys (equation 1).

    Args:
      scores: (B, H, T, S).
      mask: boolean, broadcastable to the scores; None allows everything.

    Returns:
      Weights (B, H, T, S) in float32. Every row sums to 1, or is all zeros where
      nothing may be attended to.

    >>> attention_weights(jnp.zeros((1, 1, 1, 4)), jnp.arange(4) < 2)
    Array([[[[0.5, 0.5, 0. , 0. ]]]], dtype=float32)
    """
    scores = scores.astype(jnp.float32)
    if mask is None:
        return jax.nn.softmax(scores, axis=-1)
    weights = jax.nn.softmax(jnp.where(mask, scores, MASKED), axis=-1)
    return jnp.where(mask, weights, 0.0)


def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    mask: jax.Array | None = None,
    *,
    score: Score = scaled_dot_product_scores,
    dropout_rate: float = 0.0,
    key: layers.Key | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Attend: ``Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V`` (equation 1).

    Args:
      q: queries (B, H, T, K).
      k: keys (B, H, S, K).
      v: values (B, H, S, W).
      mask: boolean, broadcastable to (B, H, T, S); None allows everything.
      score: how queries are compared with keys.
      dropout_rate: share of the weights that is zeroed.
      key: dropout key, None for evaluation.

    Returns:
      The output (B, H, T, W) and the weights (B, H, T, S) before dropout.
    """
    weights = attention_weights(score(q, k), mask)
    kept = layers.dropout(weights, dropout_rate, key)
    return _weigh(kept, v), weights


def block_attention(
    q: jax.Array,
    keys: Sequence[jax.Array],
    values: Sequence[jax.Array],
    mask: jax.Array,
    filled: jax.Array,
    score: Score = scaled_dot_product_scores,
) -> jax.Array:
    """Attend as ``attention`` does, to keys that fill one block after another.

    Only the filled blocks are read, so that the first tokens of an output cost little,
    however long it may become.

    Args:
      q: queries (B, H, T, K).
      keys: n blocks (B, H, K, S_i), turned: a CPU reads them so in half the time.
      values: n blocks (B, H, S_i, W), of S positions in all.
      mask: boolean, broadcastable to (B, H, T, S), False beyond the filled blocks.
      filled: () how many blocks are, at least 1.
      score: how queries are compared with keys.

    Returns:
      The output (B, H, T, W).
    """
    ends = list(itertools.accumulate(block.shape[3] for block in keys))

    def attend(count, q, keys, values, mask):
        scores = [score(q, block.swapaxes(2, 3)) for block in keys[:count]]
        weights = attention_weights(
            jnp.concatenate(scores, axis=-1), mask[..., : ends[count - 1]]
        )
        shares = jnp.split(weights, ends[: count - 1], axis=-1)
        return sum(map(_weigh, shares, values[:count]))

    # XLA would copy keys and values to join them; products of each block need no copy.
    choices = [functools.partial(attend, i + 1) for i in range(len(keys))]
    return jax.lax.switch(filled - 1, choices, q, tuple(keys), tuple(values), mask)


def _weigh(weights: jax.Array, values: jax.Array) -> jax.Array:
    return jnp.einsum(
        "bhts,bhsw->bhtw", weights, values, preferred_element_type=jnp.float32
    )


def fused_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    mask: jax.Array | None = None,
    implementation: Literal["cudnn", "xla"] = "cudnn",
) -> jax.Array:
    """Attend as ``attention`` does, in one kernel that keeps no weights (equation 1).

    Args:
      q: queries (B, H, T, K).
      k: keys (B, H, S, K).
      v: values (B, H, S, K), as wide as the keys.
      mask: boolean, four axes, broadcastable to (B, H, T, S); None allows everything.
      implementation: whose kernel, see ``jax.nn.dot_product_attention``.

    Returns:
      The output (B, H, T, K) in float32; the products are made in bfloat16.

    Source: Dao, FlashAttention-2, arXiv:2307.08691.
    """

    def turn(x):
        return x.swapaxes(1, 2).astype(jnp.bfloat16)

    output = jax.nn.dot_product_attention(
        turn(q), turn(k), turn(v), mask=mask, implementation=implementation
    )
    output = output.swapaxes(1, 2).astype(jnp.float32)
    if mask is not None:
        output = jnp.where(mask.any(-1, keepdims=True), output, 0.0)
    return output


def has_fused_kernel(
    backend: str, dtype: str, score: str, d_k: int, d_v: int, lengths: tuple[int, int]
) -> bool:
    """Say whether cuDNN has a kernel for ``fused_attention``.

    It has them on GPUs, for bfloat16, the scaled dot product, keys as wide as values,
    widths that are multiples of 8 up to 128, and, with a mask, even lengths.

    Args:
      backend: of JAX, "cpu", "gpu" or "tpu".
      dtype: of the operands of the products.
      score: a key of ``SCORES``.
      d_k: width of a key.
      d_v: width of a value.
      lengths: T and S.
    """
    fits = d_k == d_v and d_k % 8 == 0 and d_k <= 128
    even = all(length % 2 == 0 for length in lengths)
    known = backend == "gpu" and dtype == "bfloat16" and score == "scaled_dot"
    return known and fits and even


def split_heads(x: jax.Array, heads: int) -> jax.Array:
    """Split the last axis into heads, (B, T, H * K) to (B, H, T, K) (section 3.2.2).

    >>> split_heads(jnp.arange(6).reshape(1, 1, 6), 3)[0, :, 0].tolist()
    [[0, 1], [2, 3], [4, 5]]
    """
    batch, length, width = x.shape
    return x.reshape(batch, length, heads, width // heads).transpose(0, 2, 1, 3)


def merge_heads(x: jax.Array) -> jax.Array:
    """Concatenate the heads, (B, H, T, W) to (B, T, H * W) (section 3.2.2).

    >>> merge_heads(split_heads(jnp.arange(6).reshape(1, 1, 6), 3))[0, 0].tolist()
    [0, 1, 2, 3, 4, 5]
    """
    batch, heads, length, width = x.shape
    return x.transpose(0, 2, 1, 3).reshape(batch, length, heads * width)
