"""Sections 3.1, 3.3 and 3.4: the layers around attention, as pure functions.

Between two matrix products everything is float32, except results that only the next
product reads (``Hardware.stored``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from transformer.nn.dropout import Key, dropout
from transformer.nn.matmul import Kernel, product

# The functions between the two products of ``feed_forward``, by name.
ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": jax.nn.relu,
    "swish": jax.nn.silu,  # x sigmoid(x)
    "gelu": functools.partial(jax.nn.gelu, approximate=False),  # x Phi(x)
}


def linear(
    x: jax.Array,
    kernel: Kernel,
    bias: jax.Array | None = None,
    dtype="float32",
    result="float32",
) -> jax.Array:
    """Apply a linear map, ``x W + b``.

    Args:
      x: (..., I), at least two axes.
      kernel: W (I, O).
      bias: b (O,), or None.
      dtype: dtype of the operands of the product, "float32" or "bfloat16".
      result: dtype of the result, which is rounded once.

    Returns:
      (..., O).

    >>> linear(jnp.ones((1, 2)), jnp.array([[1.0], [2.0]]), jnp.array([0.5])).tolist()
    [[3.5]]
    """
    y = product(x, kernel, str(dtype))
    return (y if bias is None else y + bias).astype(result)


def layer_norm(
    x: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float = 1e-6
) -> jax.Array:
    """Normalise the last axis, ``(x - mean) / sqrt(var + epsilon) * scale + bias``.

    Args:
      x: (..., D).
      scale: (D,).
      bias: (D,).
      epsilon: added to the variance.

    Returns:
      (..., D) in float32.

    Source: Ba et al., Layer Normalization, arXiv:1607.06450; used in section 3.1.
    """
    x = x.astype(jnp.float32)
    centred = x - checkpoint_name(x.mean(-1, keepdims=True), "mean")
    variance = jnp.square(centred).mean(-1, keepdims=True)
    variance = checkpoint_name(variance, "mean")
    return centred * lax.rsqrt(variance + epsilon) * scale + bias


def feed_forward(
    x: jax.Array,
    kernel_1: Kernel,
    bias_1: jax.Array,
    kernel_2: Kernel,
    bias_2: jax.Array,
    *,
    dropout_rate: float = 0.0,
    key: Key | None = None,
    dtype="float32",
    inner="float32",
    activation: str = "relu",
) -> jax.Array:
    """Transform each position separately, ``max(0, x W1 + b1) W2 + b2`` (equation 2).

    Args:
      x: (B, T, D).
      kernel_1: W1 (D, F).
      bias_1: b1 (F,).
      kernel_2: W2 (F, D).
      bias_2: b2 (D,).
      dropout_rate: fraction of the F inner activations that is zeroed.
      key: dropout key, None for evaluation.
      dtype: dtype of the operands of the products.
      inner: dtype in which the F inner activations are stored.
      activation: a name in ``ACTIVATIONS``, instead of max(0, .).

    Returns:
      (B, T, D) in float32.
    """
    y = checkpoint_name(linear(x, kernel_1, bias_1, dtype, inner), "product")
    if activation != "relu":  # ReLU rounds nothing
        y = y.astype(jnp.float32)
    y = dropout(ACTIVATIONS[activation](y), dropout_rate, key)
    return linear(y, kernel_2, bias_2, dtype)


def embed(ids: jax.Array, table: jax.Array) -> jax.Array:
    """Look up ids, ``E[ids] * sqrt(d_model)`` (section 3.4).

    Args:
      ids: (...).
      table: E (V, D).

    Returns:
      (..., D).
    """
    return table[ids] * table.shape[-1] ** 0.5


def source_rows(source: jax.Array, table: jax.Array, dtype: str) -> jax.Array:
    """Look up a source's ids, ``E[ids]``, or map its vectors linearly, ``x E``.

    Section 3.4 has a row of E for each id. For vectors, each feature has a row, and a
    frame becomes the sum of these rows, weighted by its features; for a one-hot vector
    this is the embedding of that id. If the squares of a frame's features add up to
    about 1, as for a one-hot vector, the result is as large relative to the positions
    as an embedding.

    Args:
      source: ids (B, S); or vectors (B, S, 1 + F), see ``ids.marks``.
      table: E (V, D); or (F, D).
      dtype: dtype of the operands of the product.

    Returns:
      (B, S, D), without the factor ``sqrt(d_model)`` that ``embed`` has.
    """
    if source.ndim == 2:
        return table[source]
    return product(source[..., 1:], table, dtype)


def embed_source(source: jax.Array, table: jax.Array, dtype: str) -> jax.Array:
    """Return ``source_rows`` times ``sqrt(d_model)``, as in ``embed``."""
    return source_rows(source, table, dtype) * table.shape[-1] ** 0.5
