"""Section 3.2, Attention: masks, scores, weights and heads as pure functions.

Multi-head arrays have the layout (B, H, length, size): batch, head, position, head
width. Masks are boolean and broadcast against the scores (B, H, T, S); True means that
the query of row T may attend to the key of column S.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Literal

import jax
import jax.numpy as jnp

from transformer.nn import dropout, matmul
from transformer.nn.hardware import Hardware

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


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["keys"],
    meta_fields=["causal", "window"],
)
@dataclasses.dataclass(frozen=True)
class Mask:
    """Which keys each query may attend to, as a description instead of a dense array.

    Attributes:
      keys: ids of the keys (B, S); padding, at the end, is masked. None if there is no
        padding, or nothing can see it.
      causal: whether later positions are masked.
      window: positions at most this far away are attended to, 0 = all.
    """

    keys: jax.Array | None = None
    causal: bool = False
    window: int = 0

    def dense(self, queries: int, keys: int) -> jax.Array:
        """Return the dense mask for T queries and S keys, T = S if positions matter.

        Returns:
          Boolean, broadcastable to (B, H, T, S).
        """
        parts = []
        if self.keys is not None:
            parts.append(padding_mask(self.keys))
        if self.causal:
            parts.append(causal_mask(queries))
        if self.window:
            parts.append(window_mask(queries, self.window))
        return functools.reduce(jnp.logical_and, parts, jnp.ones((1, 1, 1, keys), bool))


def dot_product_scores(q: jax.Array, k: jax.Array) -> jax.Array:
    """Compare queries with keys, ``Q K^T`` (section 3.2.1, without the scale).

    Args:
      q: queries (B, H, T, K).
      k: keys (B, H, S, K).

    Returns:
      Scores (B, H, T, S), float32.
    """
    return matmul.einsum("bhtk,bhsk->bhts", q, k)


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
    bias: jax.Array | None = None,
    beside: Callable[[jax.Array], jax.Array] | None = None,
    score: Score = scaled_dot_product_scores,
    dropout_rate: float = 0.0,
    key: dropout.Key | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Attend: ``Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V`` (equation 1).

    Args:
      q: queries (B, H, T, K).
      k: keys (B, H, S, K).
      v: values (B, H, S, W).
      mask: boolean, broadcastable to (B, H, T, S); None allows everything.
      bias: added to the scores, broadcastable to (B, H, T, S), for example a relative
        position bias (Raffel et al., arXiv:1910.10683, section 2.1); None = 0.
      beside: maps the weights after dropout to what is added to the output, like the
        second term of Shaw et al. (arXiv:1803.02155, equation 3); None = 0.
      score: how queries are compared with keys.
      dropout_rate: fraction of the weights that is zeroed.
      key: dropout key, None for evaluation.

    Returns:
      The output (B, H, T, W) and the weights (B, H, T, S) before dropout.
    """
    scores = score(q, k)
    if bias is not None:
        scores = scores + bias
    weights = attention_weights(scores, mask)
    kept = dropout.dropout(weights, dropout_rate, key)
    output = _weigh(kept, v)
    return output if beside is None else output + beside(kept), weights


def block_attention(
    q: jax.Array,
    keys: Sequence[jax.Array],
    values: Sequence[jax.Array],
    mask: jax.Array,
    filled: jax.Array,
    score: Score = scaled_dot_product_scores,
    bias: Callable[[int], jax.Array] | None = None,
    beside: Callable[[jax.Array], jax.Array] | None = None,
) -> jax.Array:
    """Attend as ``attention`` does, to keys that fill one block after another.

    Only the filled blocks are read, so the first tokens of an output are cheap however
    long it may become.

    Args:
      q: queries (B, H, T, K).
      keys: n blocks (B, H, K, S_i), transposed: a CPU reads them in half the time.
      values: n blocks (B, H, S_i, W), of S positions in all.
      mask: boolean, broadcastable to (B, H, T, S), False beyond the filled blocks.
      filled: () number of filled blocks, at least 1.
      score: how queries are compared with keys.
      bias: maps a number of positions to what is added to the scores of the first so
        many, broadcastable to (B, H, T, positions); None = 0.
      beside: maps their weights to what is added to the output; None = 0.

    Returns:
      The output (B, H, T, W).
    """
    ends = list(itertools.accumulate(block.shape[3] for block in keys))

    def attend(count, q, keys, values, mask):
        parts = [score(q, block.swapaxes(2, 3)) for block in keys[:count]]
        scores = jnp.concatenate(parts, axis=-1)
        if bias is not None:
            scores = scores + bias(ends[count - 1])
        weights = attention_weights(scores, mask[..., : ends[count - 1]])
        shares = jnp.split(weights, ends[: count - 1], axis=-1)
        output = sum(map(_weigh, shares, values[:count]))
        return output if beside is None else output + beside(weights)

    # XLA would copy keys and values to join them; a product per block needs no copy.
    choices = [functools.partial(attend, i + 1) for i in range(len(keys))]
    return jax.lax.switch(filled - 1, choices, q, tuple(keys), tuple(values), mask)


def _weigh(weights: jax.Array, values: jax.Array) -> jax.Array:
    return matmul.einsum("bhts,bhsw->bhtw", weights.astype(values.dtype), values)


def fused_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    mask: Mask,
    scale: float | None = None,
    kernel: Literal["cudnn", "xla", "pallas"] = "cudnn",
) -> jax.Array:
    """Attend as ``attention`` does, in one kernel that keeps no weights (equation 1).

    cuDNN is given the number of keys of each sentence instead of a mask: it would take
    a mask as a bias, and has no gradient of a bias for more than one sentence.

    Args:
      q: queries (B, H, T, K).
      k: keys (B, H, S, K).
      v: values (B, H, S, K), as wide as the keys.
      mask: which keys each query may attend to.
      scale: factor of the scores, None = ``1 / sqrt(K)``.
      kernel: which implementation; "pallas" is that of ``attention_tpu``, for the
        others see ``jax.nn.dot_product_attention``.

    Returns:
      The output (B, H, T, K) in bfloat16, like the operands of the products. It is 0
      for a sentence without keys.

    Source: Dao, FlashAttention-2, arXiv:2307.08691.
    """

    if kernel == "pallas":
        return _pallas_attention(q, k, v, mask, scale)

    def transposed(x):
        return x.swapaxes(1, 2).astype(jnp.bfloat16)

    lengths = None
    if mask.keys is not None:
        lengths = (mask.keys != 0).sum(-1, dtype=jnp.int32)
    output = jax.nn.dot_product_attention(
        *map(transposed, (q, k, v)),
        scale=scale,
        is_causal=mask.causal,
        # The softmax over no keys is undefined.
        key_value_seq_lengths=None if lengths is None else jnp.maximum(lengths, 1),
        # A window comes with a causal mask alone, see ``fused_kernel``.
        local_window_size=(mask.window, 0) if mask.window else None,
        implementation=kernel,
    )
    output = output.swapaxes(1, 2)
    if lengths is not None:
        output = jnp.where(lengths[:, None, None, None] > 0, output, 0)
    return output


def _pallas_attention(q, k, v, mask, scale):
    from transformer.nn import attention_tpu  # imports a compiler that only a TPU needs

    def joined(x):
        return merge_heads(x).astype(jnp.bfloat16)

    heads, width = q.shape[1], q.shape[3]
    scale = width**-0.5 if scale is None else scale
    output = attention_tpu.attend(
        *(joined(q), joined(k), joined(v), mask.keys),
        heads=heads,
        scale=scale,
        causal=mask.causal,
        window=mask.window,
    )
    return split_heads(output, heads)


# The scale of the scores that the fused kernels can compute; for "general" the queries
# are what ``scores.general_queries`` returns.
FUSED_SCALES = {"scaled_dot": None, "dot": 1.0, "general": 1.0}


def fused_kernel(
    hardware: Hardware,
    dtype: str,
    score: str,
    heads: int,
    d_k: int,
    d_v: int,
    lengths: tuple[int, int],
    mask: Mask,
) -> Literal["cudnn", "pallas"] | None:
    """Return which kernel ``fused_attention`` can use, if any.

    Both kernels need bfloat16, dot products, and keys as wide as values. cuDNN's needs
    CUDA with compute capability 8.0 or newer, widths that are multiples of 8 up to 128
    and even lengths, and allows a window only with a causal mask and without padding.
    The TPU's needs heads of which a whole number make up 128 numbers, that are not
    split over devices, and lengths whose scores fit on the chip.

    Args:
      hardware: where it would run.
      dtype: dtype of the operands of the products.
      score: ``config.Transformer.score``.
      heads: H.
      d_k: width of a key.
      d_v: width of a value.
      lengths: T and S.
      mask: which keys each query may attend to.
    """
    if dtype != "bfloat16" or score not in FUSED_SCALES or d_k != d_v:
        return None
    if hardware.platform == "tpu":
        whole = not hardware.cuts_heads and 128 % d_k == 0 and heads * d_k % 128 == 0
        return "pallas" if whole and math.prod(lengths) <= _MOST_SCORES else None
    there = hardware.platform == "cuda" and (hardware.capability or (0, 0)) >= (8, 0)
    fits = d_k % 8 == 0 and d_k <= 128
    even = all(length % 2 == 0 for length in lengths)
    expressible = not mask.window or (mask.causal and mask.keys is None)
    return "cudnn" if there and fits and even and expressible else None


_MOST_SCORES = 512 * 512  # of one head: a TPU's chip holds a few arrays of this size


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
