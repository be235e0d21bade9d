"""Section 4, restricted self-attention, computed in blocks instead of masked.

The queries of a block of w positions are compared with the keys of the previous block,
of their own and of the next, which include every position at most w away. This takes
``O(w n d)`` in time and memory; the scores of all pairs, under a mask, ``O(n^2 d)``.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from transformer.nn import attention, dropout, matmul


def pays(length: int, window: int) -> bool:
    """Return whether blocks take less time than all scores under a mask.

    A query is compared with 3 w keys instead of n, but blocks of keys are copied, and
    their products are small. On a CPU, forward and backward, the two break even at 4 w
    positions, for small windows at about 100; blocks are used where they clearly win.

    Args:
      length: n.
      window: w, positions each way; 0 = all.
    """
    return window > 0 and length >= max(_RATIO * window, _LEAST)


_RATIO, _LEAST = 8, 128


def window_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    mask: attention.Mask,
    *,
    score: attention.Score = attention.scaled_dot_product_scores,
    dropout_rate: float = 0.0,
    key: dropout.Key | None = None,
) -> jax.Array:
    """Attend as ``attention.attention`` does under a mask that has a window.

    Args:
      q: queries (B, H, T, K).
      k: keys (B, H, T, K).
      v: values (B, H, T, W).
      mask: which keys each query may attend to; its window is w, above 0.
      score: how queries are compared with keys.
      dropout_rate: fraction of the weights that is zeroed.
      key: dropout key, None for evaluation.

    Returns:
      The output (B, H, T, W). Dropout is drawn for the 3 w keys of each query, so it
      differs from what ``attention.attention`` draws for all T.

    Source: section 4, "restricted to considering only a neighborhood of size r", here
    2 w + 1.
    """
    (batch, heads, length, _), w = q.shape, mask.window
    count = -(-length // w)
    # A causal query does not need the block after its own.
    around = (1, 0) if mask.causal else (1, 1)
    keys, values = (_blocks(x, w, count, *around) for x in (k, v))
    real = jnp.ones((batch, length), bool) if mask.keys is None else mask.keys != 0
    real = _blocks(real[:, None, :, None], w, count, *around).swapaxes(2, 3)
    distance = jnp.arange(w)[:, None] + w - jnp.arange(keys.shape[2])
    near = (distance >= 0 if mask.causal else distance >= -w) & (distance <= w)
    scores = score(_blocks(q, w, count), keys)
    weights = attention.attention_weights(scores, real & near)
    # Dropout bits are drawn by a sentence's row; here a sentence has several.
    rows = weights.reshape(batch, -1)
    kept = dropout.dropout(rows, dropout_rate, key).reshape(weights.shape)
    output = matmul.einsum("bhts,bhsw->bhtw", kept.astype(values.dtype), values)
    whole = output.reshape(batch, count, heads, w, -1).swapaxes(1, 2)
    return whole.reshape(batch, heads, count * w, -1)[:, :, :length]


def _blocks(
    x: jax.Array, size: int, count: int, before: int = 0, behind: int = 0
) -> jax.Array:
    """Cut (B, H, T, K) into blocks, each with some of those before and after it.

    Returns:
      (B * count, H, size * (before + 1 + behind), K), zeros beyond both ends.
    """
    batch, heads, length, width = x.shape
    after = (count + behind) * size - length
    x = jnp.pad(x, ((0, 0), (0, 0), (before * size, after), (0, 0)))
    blocks = x.reshape(batch, heads, -1, size, width).swapaxes(1, 2)
    each = [blocks[:, i : i + count] for i in range(before + 1 + behind)]
    return jnp.concatenate(each, axis=3).reshape(batch * count, heads, -1, width)
