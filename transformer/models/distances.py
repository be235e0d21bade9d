"""What self-attention is told about distances, besides queries, keys and values."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from transformer import config
from transformer.models.modules import Linear
from transformer.nn import attention, layers, relative
from transformer.nn.hardware import Hardware

THREE = 3  # terms of a disentangled score, each of products of d_k numbers


class Relation(NamedTuple):
    """What distances change in one attention."""

    # For the first S keys: what is added to scores, broadcastable to (B, H, T, S).
    bias: Callable[[int], jax.Array] | None = None
    # For weights (B, H, T, S): what is added to the output (B, H, T, W).
    beside: Callable[[jax.Array], jax.Array] | None = None


def biased(c: config.Transformer, kind: str) -> bool:
    """Return whether the scores of a kind of attention have a bias."""
    if c.positions == "disentangled":
        return kind == "encoder"
    return kind != "cross" and c.positions in ("relative", "alibi")


def vectors(c: config.Transformer, table: jax.Array, length: int) -> jax.Array:
    """Return the vector of each distance, -(T - 1) to T - 1, from a table (2 k, D).

    They are learned like embeddings, and equally large: (2 T - 1, D).
    """
    rows = relative.disentangled_rows(length, c.clip, c.farthest)
    return layers.embed(jnp.asarray(rows), table)


class Distances(nn.Module):
    """Makes the ``Relation`` of a self-attention whose scores are ``biased``."""

    config: config.Transformer
    hardware: Hardware

    def setup(self):
        if self.config.positions == "disentangled":
            c = self.config
            dtype = self.hardware.operands(c.dtype)
            result = self.hardware.attention_operands(c.dtype)

            def project():
                return Linear(c.heads * c.d_k, dtype, c.attention_bias, result)

            self.key, self.query = project(), project()
        if self.config.positions == "relative":
            self.of_keys = self._table("key", self.config.d_k)
            self.of_values = self._table("value", self.config.d_v)

    def _table(self, name: str, width: int) -> jax.Array:
        """Return a vector for each label, (2 k + 1, W) or (H, 2 k + 1, W)."""
        c, labels = self.config, 2 * self.config.clip + 1
        limit = (6 / (labels + width)) ** 0.5  # Glorot's, of one head's table

        def draw(key, shape):
            return jax.random.uniform(key, shape, minval=-limit, maxval=limit)

        if c.relative_heads == "shared":
            return self.param(name, draw, (labels, width))
        table = self.param(f"{name}_per_head", draw, (labels, c.heads * width))
        return table.reshape(labels, c.heads, width).swapaxes(0, 1)

    def disentangled(self, query: jax.Array, key: jax.Array, x: jax.Array) -> Relation:
        """Relate queries and keys (B, H, T, K) by ``vectors`` x (2 T - 1, D)."""
        c = self.config

        def heads(y: jax.Array) -> jax.Array:
            named = checkpoint_name(y, "product")
            return attention.split_heads(named[None], c.heads)[0]

        scale = (THREE * c.d_k) ** -0.5
        ours = heads(self.key(x)), heads(self.query(x))
        return Relation(
            lambda keys: relative.disentangled_bias(query, key, *ours) * scale
        )

    def __call__(self, query: jax.Array, now: jax.Array | None) -> Relation:
        """Relate queries to the keys of the same sentence.

        Args:
          query: (B, H, T, K).
          now: None if the T queries are at positions 0 to T - 1, like the keys.
            Otherwise the position of all of them: T hypotheses, each with its key of
            position m in one of the slots m * T to m * T + T - 1.
        """
        c, count = self.config, query.shape[2]

        def distances(keys: int) -> jax.Array:
            places = jnp.arange(keys)
            if now is None:
                return places - jnp.arange(count)[:, None]
            return (places // count - now)[None]

        if c.positions == "alibi":
            return Relation(lambda keys: relative.alibi_bias(c.heads, distances(keys)))
        dtype = query.dtype.name
        if c.score == "scaled_dot":
            query = query * c.d_k**-0.5
        of_keys, of_values = self.of_keys, self.of_values
        if now is None:
            of_keys, of_values = (
                relative.within(x, count) for x in (of_keys, of_values)
            )
        scores = relative.shaw_scores(query, of_keys)

        def bias(keys: int) -> jax.Array:
            if now is None:
                return relative.to_pairs(scores)
            return scores[..., relative.slot_labels(distances(keys)[0], c.clip)]

        def beside(weights: jax.Array) -> jax.Array:
            if now is None:
                shares = relative.from_pairs(weights, of_values.shape[-2])
            else:
                labels = relative.slot_labels(distances(weights.shape[-1])[0], c.clip)
                shares = relative.from_slots(weights, labels, c.clip, dtype)
            return relative.shaw_values(shares, of_values, dtype)

        return Relation(bias, beside)
