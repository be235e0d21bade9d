"""Section 3, Figure 1: the Transformer as Flax modules that only hold parameters.

Names, shapes and initial values of the parameters are here; the mathematics is in
``attention.py`` and ``layers.py``. ``variables = model.init(key, source, target)``
draws the parameters, ``y = model.apply(variables, source, target)`` computes; elsewhere
``params`` is ``variables["params"]``.

Dropout is on when a dropout key is given and off when it is None; there is no other
difference between training and evaluation.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer import config
from transformer.ids import marks
from transformer.models import distances, stacks
from transformer.models.caches import (
    Ancestors,
    Blocks,
    KeysValues,
    block_sizes,
    empty_blocks,
    extended,
    one_block,
)
from transformer.models.modules import Base, LayerNorm, with_bias
from transformer.models.sublayers import FeedForward, MultiHeadAttention, Residual
from transformer.nn import attention, dropout, layers, matmul, positions
from transformer.nn.hardware import Hardware
from transformer.parallel import Rules

TARGET_SPACES = 32  # rows of tensor2tensor's target-space table, of which one is used


class Memory(NamedTuple):
    """What the decoder reads of the source."""

    states: jax.Array  # (B, S, D)
    mask: attention.Mask


class Cache(NamedTuple):
    """What decoding keeps between two steps, for B sentences of J beams each."""

    ancestors: Ancestors
    own: tuple[Blocks, ...]  # N, of M positions each or, with a window, the last
    memory: tuple[Blocks, ...]  # N, of the source
    memory_mask: jax.Array  # (B, 1, 1, S)


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each in a residual connection."""

    config: config.Transformer
    hardware: Hardware

    def setup(self):
        self.self_attention = MultiHeadAttention(self.config, self.hardware, "encoder")
        self.feed_forward = FeedForward(self.config, self.hardware)
        self.residual_1 = Residual(self.config)
        self.residual_2 = Residual(self.config)

    def __call__(self, x, mask, vectors, key):
        k = [dropout.fold_in(key, i) for i in range(4)]

        def attend(y):
            keys_values = self.self_attention.keys_values(y)
            return self.self_attention(y, keys_values, mask, k[0], vectors=vectors)

        x = self.residual_1(x, attend, k[1])
        return self.residual_2(x, lambda y: self.feed_forward(y, k[2]), k[3])


class DecoderLayer(nn.Module):
    """Masked self-attention, attention to the source, and feed-forward.

    The same code runs over a whole target and, with a cache, over one position. In that
    case the beams of a sentence take the place of the positions, the memory is what the
    cache holds of it, ``remember`` puts the new keys and values into the cache and
    returns all of them, and ``now`` is the one position.
    """

    config: config.Transformer
    hardware: Hardware

    def setup(self):
        self.self_attention = MultiHeadAttention(self.config, self.hardware, "decoder")
        self.cross_attention = MultiHeadAttention(self.config, self.hardware)
        self.feed_forward = FeedForward(self.config, self.hardware)
        self.residual_1 = Residual(self.config)
        self.residual_2 = Residual(self.config)
        self.residual_3 = Residual(self.config)

    def __call__(
        self, x, mask, memory, memory_mask, key, remember=lambda kv: kv, now=None
    ):
        k = [dropout.fold_in(key, i) for i in range(6)]
        if not isinstance(memory, Blocks):
            memory = self.cross_attention.keys_values(memory)

        def attend(y):
            keys_values = remember(self.self_attention.keys_values(y, now))
            return self.self_attention(y, keys_values, mask, k[0], now)

        def attend_to_source(y):
            return self.cross_attention(y, memory, memory_mask, k[2])

        x = self.residual_1(x, attend, k[1])
        x = self.residual_2(x, attend_to_source, k[3])
        return self.residual_3(x, lambda y: self.feed_forward(y, k[4]), k[5])


STACKS = {"encoder": EncoderLayer, "decoder": DecoderLayer}

# How parameters are sharded: "tensor" first into heads or columns of d_ff, then back to
# d_model.
PARTITION: Rules = {
    "(source|target)_embedding": ("tensor", "fsdp"),  # (V, D)
    "output": ("tensor", "fsdp"),  # (V, D)
    "output_bias": ("tensor",),  # (V,)
    "(source|target)_positions": (None, "fsdp"),  # (positions, D)
    "target_space": (None, "fsdp"),  # (spaces, D)
    "source_distances": (None, "fsdp"),  # (labels, D)
    "distances[.](key|value)": (None, None),  # (labels, K)
    "distances[.](key|value)_per_head": (None, "tensor"),  # (labels, H * K)
    "(query|key|value)[.]kernel": ("fsdp", "tensor"),  # (D, H * K)
    "(query|key|value)[.]bias": ("tensor",),  # (H * K,)
    "score_vector": ("tensor", None),  # (H, K)
    "score_matrix": ("tensor", None, None),  # (H, K, K)
    "output[.]kernel": ("tensor", "fsdp"),  # (H * W, D)
    "output[.]bias": (None,),  # (D,)
    "kernel_1": ("fsdp", "tensor"),  # (D, F)
    "bias_1": ("tensor",),  # (F,)
    "kernel_2": ("tensor", "fsdp"),  # (F, D)
    "bias_2": (None,),  # (D,)
    "norm[.](scale|bias)": (None,),  # (D,)
}


@functools.cache
def _layer_of(
    stack: str, settings: config.Transformer, hardware: Hardware
) -> Callable[..., Any]:
    """Return any layer of a stack as a function."""
    return stacks.function_of(STACKS[stack](settings, hardware, parent=None))


class Transformer(Base):
    """The encoder-decoder model of Figure 1.

    Its layers are unrolled or, given parameters as ``stacks.stack`` returns them,
    scanned: the compiled program then holds only one of them. Neither this nor
    ``remat`` changes any result beyond rounding.
    """

    config: config.Transformer

    partition: ClassVar[Rules] = PARTITION
    stacks: ClassVar[tuple[str, ...]] = tuple(STACKS)

    def setup(self):
        c = self.config
        self.source_table, self.target_table, self.output_table = self.embedding_tables(
            c.d_model, c.d_model
        )
        narrow = nn.initializers.normal(c.d_model**-0.5)

        def table(name, rows):
            return self.param(name, narrow, (rows, c.d_model))

        if c.positions == "learned":
            self.source_positions = table("source_positions", c.max_positions)
            self.target_positions = table("target_positions", c.max_positions)
        if c.positions == "disentangled":
            self.source_distances = table("source_distances", 2 * c.clip)
        if c.target_space:
            self.target_space = table("target_space", TARGET_SPACES)
        self.encoder = [EncoderLayer(c, self.kind) for _ in range(c.layers)]
        self.decoder = [DecoderLayer(c, self.kind) for _ in range(c.depth)]
        if c.output_bias:
            zeros, rows = nn.initializers.zeros, (self.target_size,)
            self.output_bias = self.param("output_bias", zeros, rows)
        if c.norm == "pre":
            self.encoder_norm = LayerNorm(c.norm_epsilon)
            self.decoder_norm = LayerNorm(c.norm_epsilon)

    def with_one_layer(self) -> tuple[Any, dict[str, int]]:
        c = self.config
        one = dataclasses.replace(c, layers=1, decoder_layers=0)
        return self.clone(config=one), {"encoder": c.layers, "decoder": c.depth}

    def __call__(
        self, source: jax.Array, target: jax.Array, key: dropout.Key | None = None
    ) -> jax.Array:
        """Run both stacks over whole sentences.

        Args:
          source: ids (B, S).
          target: the decoder's input ids (B, T): BOS, then the target shifted right.
          key: dropout key, None for evaluation.

        Returns:
          The decoder's output (B, T, D); ``logits`` turns it into scores of ids.
        """
        memory = self.encode(source, dropout.fold_in(key, 0))
        return self.decode(target, memory, dropout.fold_in(key, 1))

    def encode(self, source: jax.Array, key: dropout.Key | None = None) -> Memory:
        """Run the encoder over source ids (B, S), or vectors (B, S, 1 + F)."""
        x = layers.embed_source(source, self.source_table, self.operands)
        if self.config.target_space:
            x = x + self.target_space[0]
        x = self._place(x, self._positions(source.shape[1], "source"), key)
        mask = attention.Mask(marks(source), window=self.config.window)
        vectors = None
        if self.config.positions == "disentangled":
            vectors = distances.vectors(
                self.config, self.source_distances, source.shape[1]
            )
        x = self.run_stack("encoder", _layer_of, x, (mask, vectors), key)
        if self.config.norm == "pre":
            x = self.encoder_norm(x)
        return Memory(x, attention.Mask(marks(source)))

    def decode(
        self,
        target: jax.Array,
        memory: Memory,
        key: dropout.Key | None = None,
    ) -> jax.Array:
        """Run the decoder over input ids (B, T) to (B, T, D)."""
        x = layers.embed(target, self.target_table)
        x = self._place(x, self._positions(target.shape[1], "target"), key)
        mask = attention.Mask(causal=True, window=self.config.window)
        x = self.run_stack("decoder", _layer_of, x, (mask, *memory), key)
        return self.decoder_norm(x) if self.config.norm == "pre" else x

    def logits(self, x: jax.Array) -> jax.Array:
        """Score every id of the target vocabulary: (..., D) to (..., V).

        ``x E^T``, and with ``output_bias`` ``x E^T + b``.
        """
        table = matmul.Transposed(self.output_table)
        scores = matmul.product(x, table, self.operands)
        return scores + self.output_bias if self.config.output_bias else scores

    def features(
        self, source: jax.Array, inputs: jax.Array, key: dropout.Key | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """Return ``__call__``'s output (B, T, D) and the output matrix (V, D).

        Logits are their product; a loss need not hold all of them at a time. An output
        bias is more columns of both, see ``with_bias``.
        """
        hidden, table = self(source, inputs, key), self.output_table
        if not self.config.output_bias:
            return hidden, table
        return with_bias(hidden, table, self.output_bias, self.config.dtype)

    def start(self, source: jax.Array, beams: int, length: int) -> Cache:
        """Encode source ids (B, S) and make the cache for up to ``length`` steps.

        The keys and values of the source are computed here, once per sentence.
        """
        c, batch = self.config, source.shape[0]
        dtype = self.kind.attention_operands(c.dtype)
        memory = self.encode(source)
        slots = [size * beams for size in block_sizes(self._held(length))]
        ancestors = jnp.zeros((batch, beams, length), jnp.int32)
        return Cache(
            ancestors=Ancestors(jnp.zeros((), jnp.int32), ancestors),
            own=tuple(
                empty_blocks(batch, c.heads, c.d_k, c.d_v, slots, dtype)
                for _ in self.decoder
            ),
            memory=tuple(
                one_block(*layer.cross_attention.keys_values(memory.states))
                for layer in self.decoder
            ),
            memory_mask=attention.padding_mask(marks(source)),
        )

    def step(
        self, cache: Cache, ids: jax.Array, parents: jax.Array
    ) -> tuple[jax.Array, Cache]:
        """Take one token per hypothesis and score the next.

        Args:
          cache: what ``start`` or the last step returned.
          ids: the last token of each hypothesis (B, J), BOS at first.
          parents: which of the last step's J hypotheses each one continues (B, J).

        Returns:
          Logits of the next token (B, J, V), and the cache.
        """
        now, (_, beams, length) = cache.ancestors.position, cache.ancestors.beams.shape
        ancestors = cache.ancestors.follow(parents)
        held = self._held(length)
        mask = ancestors.mask(self.config.window, held)
        positions = self._positions(length, "target")
        place = None if positions is None else positions[now]
        x = self._place(layers.embed(ids, self.target_table), place, None)
        own: list[Blocks] = []

        def remember(new: KeysValues) -> Blocks:
            own.append(extended(cache.own[len(own)], new, now % held * beams))
            return own[-1]

        for layer, memory in zip(self.decoder, cache.memory, strict=True):
            x = layer(x, mask, memory, cache.memory_mask, None, remember, now)
        if self.config.norm == "pre":
            x = self.decoder_norm(x)
        return self.logits(x), cache._replace(ancestors=ancestors, own=tuple(own))

    def _held(self, length: int) -> int:
        """Return for how many of M positions the cache holds keys and values."""
        c = self.config
        # Positions added to embeddings are in the keys, which may be in any order.
        added = c.positions in ("none", "learned", *positions.POSITIONS)
        return min(length, c.window + 1) if c.window and added else length

    def _positions(self, length: int, side: str) -> jax.Array | None:
        """Return what is added to embeddings at each position, (length, D)."""
        c = self.config
        if c.positions == "disentangled" and side == "target":
            return positions.sinusoidal_positions(length, c.d_model)
        if c.positions in positions.POSITIONS:
            return positions.POSITIONS[c.positions](length, c.d_model)
        if c.positions != "learned":
            return None  # there are none, or only attention uses them
        table = self.source_positions if side == "source" else self.target_positions
        return positions.learned_positions(table, jnp.arange(length))

    def _place(self, x, positions, key):
        """Add positions and apply dropout (sections 3.5 and 5.4)."""
        if positions is not None:
            x = x + positions
        return dropout.dropout(x, self.config.dropout, dropout.fold_in(key, 0))


Model = Transformer
