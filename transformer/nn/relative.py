"""Relative positions: what attention is told about how far apart two positions are.

None of them is added to the embeddings; each changes queries and keys, scores or
outputs inside self-attention. Distances are those of keys from queries, j - i: below 0
for earlier positions.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from transformer.nn import matmul

# ---- rotated queries and keys --------------------------------------------------------


def rotated(x: jax.Array, positions: jax.Array, base: float = 10_000.0) -> jax.Array:
    """Rotate pairs of a query or key by angles that grow with its position.

    ``(x_2j + i x_2j+1) exp(i m base^(-2j/K))`` at position m, i the imaginary unit. The
    product of a rotated query and a rotated key depends on their distance alone.

    Args:
      x: queries or keys (B, H, T, K), of even width.
      positions: m (T,), or one for all, ().
      base: of the wavelengths, 2 pi to about 2 pi base.

    Returns:
      (B, H, T, K), in x's dtype.

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

    If H is not a power of two, those of the next smaller power P, then every other one
    of those of 2 P heads, as many as are missing.

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
    """Return the bias of the scores, ``-slope_h |j - i|``.

    For later positions, which the paper's decoder never sees, it falls as it does for
    earlier ones.

    Args:
      heads: H.
      distances: j - i (T, S).

    Returns:
      (1, H, T, S) in float32.

    Source: Press et al., arXiv:2108.12409, section 3.
    """
    slopes = jnp.asarray(alibi_slopes(heads), jnp.float32)
    return -slopes[None, :, None, None] * jnp.abs(distances).astype(jnp.float32)


# ---- learned vectors by clipped distance ---------------------------------------------


def within(table: jax.Array, length: int) -> jax.Array:
    """Return the vectors of the distances that occur among T positions.

    Args:
      table: a^K or a^V (..., 2 k + 1, W).
      length: T.

    Returns:
      If no distance is clipped, T <= k + 1, vectors (..., 2 T, W) of distances
      -(T - 1) to T - 1 and a last one of zeros, which gives the rows of ``to_pairs``
      their length without a copy. Otherwise the table.
    """
    clip = table.shape[-2] // 2
    if length > clip + 1:
        return table
    rows = table[..., clip + 1 - length : clip + length, :]
    return jnp.pad(rows, [(0, 0)] * (table.ndim - 2) + [(0, 1), (0, 0)])


def shaw_scores(q: jax.Array, table: jax.Array) -> jax.Array:
    """Compare queries with the vector of each label, ``q_i a^K_label``.

    Labels are 0 to 2 k, for distances of -k or less to k or more.

    Args:
      q: queries (B, H, T, K), scaled like those that are compared with the keys.
      table: a^K (2 k + 1, K), or (H, 2 k + 1, K) with one for each head; or its part
        ``within`` a length.

    Returns:
      (B, H, T, 2 k + 1) in float32; or (B, H, T, 2 T).

    Source: Shaw et al., Self-Attention with Relative Position Representations,
      arXiv:1803.02155, equations 4 and 5.
    """
    labels = "hlk" if table.ndim == 3 else "lk"
    return matmul.einsum(f"bhtk,{labels}->bhtl", q, table.astype(q.dtype))


def shaw_values(shares: jax.Array, table: jax.Array, dtype: str) -> jax.Array:
    """Return the weighted sum of labels' vectors, ``sum_label share_label a^V_label``.

    Args:
      shares: sum of the weights of each label (B, H, T, 2 k + 1), or 2 T.
      table: a^V (2 k + 1, W), or (H, 2 k + 1, W) with one for each head; or its part
        ``within`` a length.
      dtype: dtype of the operands of the product.

    Returns:
      (B, H, T, W) in float32.

    Source: Shaw et al., arXiv:1803.02155, equation 3.
    """
    labels = "hlw" if table.ndim == 3 else "lw"
    shares, table = shares.astype(dtype), table.astype(dtype)
    return matmul.einsum(f"bhtl,{labels}->bhtw", shares, table)


def to_pairs(x: jax.Array) -> jax.Array:
    """Rearrange numbers by label to keys, ``y[i, j] = x[i, clip(j - i, -k, k) + k]``.

    Each distance has a column, and rows are cut so that each begins one place before
    the previous one. Neither the forward nor the backward pass looks up an index.

    Args:
      x: (..., T, 2 k + 1); or (..., T, 2 T), for distances -(T - 1) to T - 1 and one
        more that is not read.

    Returns:
      (..., T, T).

    >>> to_pairs(jnp.array([[0, 1, 2], [3, 4, 5], [6, 7, 8]])).tolist()
    [[1, 2, 2], [3, 4, 5], [6, 6, 7]]
    """
    return _skew(_every(x))


def from_pairs(weights: jax.Array, labels: int) -> jax.Array:
    """Sum numbers by key for each label: the transpose of ``to_pairs``.

    Args:
      weights: (..., T, T).
      labels: 2 k + 1, or 2 T.

    Returns:
      (..., T, labels).

    >>> from_pairs(jnp.array([[0, 1, 2], [3, 4, 5], [6, 7, 8]]), 3).tolist()
    [[0, 0, 3], [3, 4, 5], [13, 8, 0]]
    """
    given = jax.ShapeDtypeStruct((*weights.shape[:-1], labels), weights.dtype)
    return jax.linear_transpose(_every, given)(_unskew(weights))[0]


def _every(x: jax.Array) -> jax.Array:
    """Return a column for each distance from -(T - 1) on, and one more: 2 T in all."""
    length, clip = x.shape[-2], x.shape[-1] // 2
    if x.shape[-1] == 2 * length:
        return x
    more = max(length - 1 - clip, 0)  # distances beyond the last label, each way
    shape = (*x.shape[:-1], more)
    ends = [jnp.broadcast_to(end, shape) for end in (x[..., :1], x[..., -1:])]
    inner = x[..., max(clip - length + 1, 0) :][..., : 2 * length - 1 - 2 * more]
    every = jnp.concatenate([ends[0], inner, ends[1]], axis=-1)
    return jnp.pad(every, [(0, 0)] * (x.ndim - 1) + [(0, 1)])


@jax.custom_vjp
def _skew(x: jax.Array) -> jax.Array:
    """Return ``y[i, j] = x[i, j - i + T - 1]``, of (..., T, 2 T)."""
    return _cut(x)


def _cut(x):
    length = x.shape[-2]
    flat = x.reshape(*x.shape[:-2], 2 * length * length)[..., length - 1 : -1]
    return flat.reshape(*x.shape[:-2], length, 2 * length - 1)[..., :length]


@jax.custom_vjp
def _unskew(y: jax.Array) -> jax.Array:
    """Transpose ``_skew``: zeros where it reads nothing.

    Left to autodiff this is two paddings, for which a CPU computes each index;
    concatenating the rows takes a third of the time.
    """
    if y.shape[-1] > _MANY_ROWS:
        return _padded(y)
    return jax.lax.platform_dependent(y, cpu=_joined, default=_padded)


def _padded(y):
    wide = jax.ShapeDtypeStruct((*y.shape[:-1], 2 * y.shape[-1]), y.dtype)
    return jax.linear_transpose(_cut, wide)(y)[0]


def _joined(y):
    length = y.shape[-1]
    flat = y.reshape(*y.shape[:-2], length * length)
    rows = jnp.split(flat, length, axis=-1)
    zeros = jnp.zeros((*y.shape[:-2], length), y.dtype)
    parts = [zeros[..., 1:]]
    for row in rows:
        parts += [row, zeros[..., 1:]]
    parts.append(zeros[..., :1])
    return jnp.concatenate(parts, axis=-1).reshape(*y.shape[:-1], 2 * length)


_MANY_ROWS = 64  # a program has an operation for each; batches of longer texts are few

_skew.defvjp(lambda x: (_skew(x), None), lambda _, y: (_unskew(y),))
_unskew.defvjp(lambda y: (_unskew(y), None), lambda _, x: (_skew(x),))


def slot_labels(distances: jax.Array, clip: int) -> jax.Array:
    """Return the label of each distance, ``clip(j - i, -k, k) + k``."""
    return jnp.clip(distances, -clip, clip) + clip


def from_slots(
    weights: jax.Array, labels: jax.Array, clip: int, dtype: str
) -> jax.Array:
    """Sum numbers by slot for each label, where all rows have the same slot labels.

    Args:
      weights: (B, H, T, S).
      labels: 0 to 2 k (S,).
      clip: k.
      dtype: dtype of the operands of the product.

    Returns:
      (B, H, T, 2 k + 1) in float32.
    """
    kinds = jax.nn.one_hot(labels, 2 * clip + 1, dtype=dtype)
    return matmul.einsum("bhts,sl->bhtl", weights.astype(dtype), kinds)


# ---- content to position and position to content -------------------------------------


def log_buckets(distances: np.ndarray, buckets: int, farthest: int) -> np.ndarray:
    """Group far distances, ``m + ceil(log(r/m) / log((f-1)/m) (m-1))``.

    Distances r of up to m = buckets // 2 stay as they are; negative distances are
    grouped like positive ones.

    Args:
      distances: integers.
      buckets: b, at least 2.
      farthest: f, the distance whose number is about b; above b.

    Returns:
      Integers, of the same shape.

    Source: microsoft/DeBERTa, ``make_log_bucket_position``.
    """
    middle = buckets // 2
    far = np.maximum(abs(distances), middle)
    steps = np.log(far / middle) / math.log((farthest - 1) / middle) * (middle - 1)
    together = np.sign(distances) * (middle + np.ceil(steps).astype(int))
    return np.where(abs(distances) <= middle, distances, together)


def disentangled_rows(length: int, clip: int, farthest: int) -> np.ndarray:
    """Return the table row of each distance, ``clip(i - j + k, 0, 2 k - 1)``.

    Args:
      length: T.
      clip: k, half the rows of the table.
      farthest: as for ``log_buckets``; 0 = every distance of up to k has its own row.

    Returns:
      (2 T - 1,), for distances j - i of -(T - 1) to T - 1.

    Source: He et al., DeBERTa, arXiv:2006.03654, equation 3.

    >>> disentangled_rows(3, 2, 0).tolist()
    [3, 3, 2, 1, 0]
    """
    before = -np.arange(1 - length, length)
    if farthest:
        before = log_buckets(before, clip, farthest)
    return np.clip(before + clip, 0, 2 * clip - 1)


def disentangled_bias(
    q: jax.Array, k: jax.Array, keys: jax.Array, queries: jax.Array
) -> jax.Array:
    """Compare contents with distances, ``q_i Kr_ij + k_j Qr_ij``, without the scale.

    Both terms read the row of i - j, as in the authors' code; in the paper the second
    reads that of j - i.

    Args:
      q: queries (B, H, T, K).
      k: keys (B, H, T, K).
      keys: Kr, for distances in the order of ``disentangled_rows`` (H, 2 T - 1, K).
      queries: Qr, in the same order and shape.

    Returns:
      (B, H, T, T) in float32.

    Source: He et al., DeBERTa, arXiv:2006.03654, equation 4; microsoft/DeBERTa,
      ``disentangled_attention.py``.
    """
    content_to_position = to_pairs(matmul.einsum("bhtk,hlk->bhtl", q, keys))
    # Seen from a key, its queries are at the negated distances.
    position_to_content = to_pairs(matmul.einsum("bhtk,hlk->bhtl", k, queries[:, ::-1]))
    return content_to_position + position_to_content.swapaxes(2, 3)
