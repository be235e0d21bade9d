"""Section 3, the parts of a layer: attention, feed-forward, residual and norm."""

from __future__ import annotations

import functools
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from transformer import config
from transformer.models.caches import Blocks, KeysValues
from transformer.models.distances import THREE, Distances, Relation, biased
from transformer.models.modules import LayerNorm, Linear, kernel_of
from transformer.nn import (
    attention,
    attention_window,
    dropout,
    layers,
    relative,
    scores,
)
from transformer.nn.hardware import Hardware


class Residual(nn.Module):
    """Wraps a sub-layer in a residual connection and a norm (section 3.1).

    ``LayerNorm(x + Dropout(f(x)))`` as in the paper, or with ``norm="pre"``
    ``x + Dropout(f(LayerNorm(x)))``.
    """

    config: config.Transformer

    @nn.compact
    def __call__(self, x: jax.Array, sublayer, key: dropout.Key | None) -> jax.Array:
        norm = LayerNorm(self.config.norm_epsilon, name="norm")
        if self.config.norm == "pre":
            y = x + dropout.dropout(sublayer(norm(x)), self.config.dropout, key)
            return checkpoint_name(y, "product")
        y = x + dropout.dropout(sublayer(x), self.config.dropout, key)
        return norm(checkpoint_name(y, "product"))


class FeedForward(nn.Module):
    """Holds the parameters of ``layers.feed_forward`` (section 3.3)."""

    config: config.Transformer
    hardware: Hardware

    @nn.compact
    def __call__(self, x: jax.Array, key: dropout.Key | None) -> jax.Array:
        c = self.config
        zeros = nn.initializers.zeros
        return layers.feed_forward(
            x,
            kernel_of(self, "kernel_1", (c.d_model, c.d_ff)),
            self.param("bias_1", zeros, (c.d_ff,)),
            kernel_of(self, "kernel_2", (c.d_ff, c.d_model)),
            self.param("bias_2", zeros, (c.d_model,)),
            dropout_rate=c.relu_dropout,
            key=key,
            dtype=self.hardware.operands(c.dtype),
            inner=self.hardware.stored(c.dtype),
            activation=c.activation,
        )


class MultiHeadAttention(nn.Module):
    """Holds the four projections of section 3.2.2.

    ``MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W^O`` with
    ``head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V)``; the h matrices of a kind are side
    by side in one of (D, H * K). ``additive`` scores have a vector for each head,
    ``general`` ones a matrix for each head, drawn so that the scores are initially as
    large as scaled products.
    """

    config: config.Transformer
    hardware: Hardware
    kind: str = "cross"  # whose weights these are: "encoder", "decoder" or "cross"

    def setup(self):
        c = self.config

        def project(features, result):
            dtype = self.hardware.operands(c.dtype)
            return Linear(features, dtype, c.attention_bias, result)

        operand = self.hardware.attention_operands(c.dtype)
        self.query = project(c.heads * c.d_k, operand)
        self.key = project(c.heads * c.d_k, operand)
        self.value = project(c.heads * c.d_v, operand)
        self.output = project(c.d_model, "float32")
        if c.score == "additive":
            narrow = nn.initializers.normal(c.d_k**-0.5)
            self.score_vector = self.param("score_vector", narrow, (c.heads, c.d_k))
        if c.score == "general":
            narrow = nn.initializers.normal(1 / c.d_k)
            shape = c.heads, c.d_k, c.d_k
            self.score_matrix = self.param("score_matrix", narrow, shape)
        self.distances = Distances(c, self.hardware) if biased(c, self.kind) else None

    def keys_values(self, x: jax.Array, now: jax.Array | None = None) -> KeysValues:
        """Project what is attended to, (B, S, D), to (B, H, S, K) and (B, H, S, W).

        All of x is at position ``now``, or at 0 to S - 1 if that is None.
        """
        return self._placed(self.key(x), now), self._split(self.value(x))

    def _placed(self, x: jax.Array, now: jax.Array | None) -> jax.Array:
        """Split queries or keys into heads, rotated if positions are rotary."""
        split = self._split(x)
        if self.config.positions != "rotary" or self.kind == "cross":
            return split
        return relative.rotated(split, jnp.arange(x.shape[1]) if now is None else now)

    def _split(self, x: jax.Array) -> jax.Array:
        return attention.split_heads(checkpoint_name(x, "product"), self.config.heads)

    def __call__(
        self,
        x: jax.Array,
        keys_values: KeysValues | Blocks,
        mask: attention.Mask | jax.Array,
        key: dropout.Key | None,
        now: jax.Array | None = None,
        vectors: jax.Array | None = None,
    ) -> jax.Array:
        """Attend from each of (B, T, D), to blocks with a dense mask: (B, T, D).

        All of x is at position ``now``, or at 0 to T - 1 if that is None.
        Disentangled positions need the ``vectors`` of distances (2 T - 1, D).
        """
        c = self.config
        query, score = self._compared(self._placed(self.query(x), now))
        query, (bias, beside) = self._related(query, keys_values[0], now, vectors)
        if isinstance(keys_values, Blocks):
            assert not isinstance(mask, attention.Mask)
            keys, values, filled = keys_values
            output = attention.block_attention(
                query, keys, values, mask, filled, score, bias, beside
            )
            return self._joined(output)
        assert isinstance(mask, attention.Mask)
        lengths = query.shape[2], keys_values[0].shape[2]
        # If neither the weights nor a part of them is needed, they need not exist.
        maps = self.is_mutable_collection("attention")
        dropped = key is not None and c.attention_dropout > 0
        if not dropped and not maps:
            if kernel := attention_kernel(c, self.hardware, lengths, mask, self.kind):
                output = attention.fused_attention(
                    query, *keys_values, mask, attention.FUSED_SCALES[c.score], kernel
                )
                return self._joined(output)
        how: Any = {"score": score, "dropout_rate": c.attention_dropout, "key": key}
        if not maps and not bias and attention_window.pays(lengths[0], mask.window):
            output = attention_window.window_attention(query, *keys_values, mask, **how)
            return self._joined(output)
        output, weights = attention.attention(
            query,
            *keys_values,
            mask.dense(*lengths),
            bias=bias(lengths[1]) if bias else None,
            beside=beside,
            **how,
        )
        self.sow("attention", self.kind, weights)
        return self._joined(output)

    def _compared(self, query: jax.Array) -> tuple[jax.Array, attention.Score]:
        """Return queries (B, H, T, K) and what compares them with keys."""
        name = self.config.score
        if name == "additive":
            return query, functools.partial(
                scores.additive_head_scores, v=self.score_vector
            )
        if name == "general":
            query = scores.general_queries(query, self.score_matrix)
            return checkpoint_name(query, "product"), attention.dot_product_scores
        return query, attention.SCORES[name]

    def _related(self, query, key, now, vectors):
        """Return the queries, scaled if scores have several terms, and a relation."""
        if self.distances is None:
            return query, Relation()
        if vectors is None:
            return query, self.distances(query, now)
        relation = self.distances.disentangled(query, key, vectors)
        # As in ``dropout.dropout``, the constant is not rounded to bfloat16.
        scaled = (query.astype(jnp.float32) * THREE**-0.5).astype(query.dtype)
        return scaled, relation

    def _joined(self, output: jax.Array) -> jax.Array:
        """Join heads (B, H, T, W) and project them to (B, T, D)."""
        dtype = self.hardware.stored(self.config.dtype)
        joined = attention.merge_heads(output).astype(dtype)
        return self.output(checkpoint_name(joined, "attention"))


def attention_kernel(
    c: config.Transformer,
    hardware: Hardware,
    lengths: tuple[int, int],
    mask: attention.Mask,
    kind: str = "cross",
) -> Literal["cudnn", "pallas"] | None:
    """Return which kernel attention uses if no weights are needed, None = unfused.

    Args:
      c: sizes and choices.
      hardware: where it is computed.
      lengths: T and S.
      mask: which keys each query may attend to.
      kind: which attention it is, "encoder", "decoder" or "cross".
    """
    if biased(c, kind):
        return None
    dtype = hardware.attention_operands(c.dtype)
    return attention.fused_kernel(
        hardware, dtype, c.score, c.heads, c.d_k, c.d_v, lengths, mask
    )
