"""ByteNet: dilated convolutions over a source, and over a target on top of it.

Encoder and decoder share one grid: step i of the decoder reads column i of the encoder
and what was written before. There is no attention. A grid is ``config.grid`` times as
long as its source; beyond it the decoder reads zeros.

Source: Kalchbrenner et al., arXiv:1610.10099v2, section 3.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from fractions import Fraction
from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from transformer import config
from transformer.ids import PAD, marks
from transformer.models import stacks
from transformer.models.caches import Ancestors
from transformer.models.modules import Base, LayerNorm, Linear
from transformer.nn import convolution, dropout, layers, matmul
from transformer.nn.hardware import Hardware
from transformer.parallel import Rules

PARTITION: Rules = {
    "(source|target)_embedding": (None, "fsdp"),  # (V, D)
    "output": (None, "fsdp"),  # (V, D)
    "(narrow|convolve|widen|finish)[.]kernel": ("fsdp", None),  # (I, O)
    "(narrow|convolve|widen|finish)[.]bias": (None,),  # (O,)
    "norm_[123][.](scale|bias)": (None,),  # (I,)
}
_EPSILON = 1e-6  # of layer normalisation

Taps = Callable[[jax.Array], jax.Array]  # (B, T, d) -> (B, T, k d)


class Cache(NamedTuple):
    """What decoding keeps between two steps, for B sentences of J beams each.

    A convolution's input at position m of beam j is in slot ``m mod L`` of its ring and
    is never moved; L is exactly the number of positions that one output spans.
    """

    ancestors: Ancestors
    rings: tuple[jax.Array, ...]  # (B, L, J, d) each
    columns: jax.Array  # (B, M, D) of the encoder, one for each step to come


def grid_columns(length: Any, ratio: float) -> Any:
    """Return the number of columns of a source's grid, ``|t^| = ceil(a |s|)``, exactly.

    Args:
      length: |s|, an integer or an array of integers.
      ratio: a, to three decimal places or any near fraction.

    Source: section 3.2, with b = 0.

    >>> [grid_columns(n, 1.2) for n in (0, 1, 5, 6, 35)]
    [0, 2, 6, 8, 42]
    """
    a = Fraction(ratio).limit_denominator(1000)
    return -(-length * a.numerator // a.denominator)


def dilations(settings: config.ByteNet) -> list[int]:
    """Return the dilations of the blocks of a set, 1, 2, 4 and so on."""
    return [2**i for i in range(settings.blocks)]


class Block(nn.Module):
    """A convolution of d channels in a residual connection of D = 2 d.

    ``x + W_3 ReLU(LN(conv(ReLU(LN(W_1 ReLU(LN(x)))))))``, each W with a bias, LN over
    the channels of a position.

    Source: section 3.6, the block with ReLUs.
    """

    config: config.ByteNet
    dilation: int
    causal: bool
    dtype: str

    def setup(self):
        wide = self.config.d_model
        self.norm_1, self.norm_2, self.norm_3 = (LayerNorm(_EPSILON) for _ in range(3))
        self.narrow = Linear(wide // 2, self.dtype)
        self.convolve = Linear(wide // 2, self.dtype)
        self.widen = Linear(wide, self.dtype)

    def __call__(
        self,
        x: jax.Array,
        live: jax.Array | None,
        key: dropout.Key | None,
        taps: Taps | None = None,
    ) -> jax.Array:
        """Transform (B, T, D); in a decoding step T are the beams.

        Args:
          x: (B, T, D).
          live: 1 for positions that are read, 0 for others (B, T, 1); None = all are.
          key: dropout key, None for evaluation.
          taps: taps of the convolution, None = those of a whole sequence.
        """
        inner = checkpoint_name(self.narrow(nn.relu(self.norm_1(x))), "product")
        inner = nn.relu(self.norm_2(inner))
        if live is not None:
            inner = inner * live
        inner = self.convolve((taps or self._taps)(inner))
        inner = nn.relu(self.norm_3(checkpoint_name(inner, "product")))
        y = dropout.dropout(self.widen(inner), self.config.dropout, key)
        return checkpoint_name(x + y, "product")

    def _taps(self, x: jax.Array) -> jax.Array:
        kernel, dilation = self.config.kernel, self.dilation
        return convolution.windows(x, kernel, causal=self.causal, dilation=dilation)


class Set(nn.Module):
    """Blocks whose dilation doubles from one to the next."""

    config: config.ByteNet
    causal: bool
    dtype: str

    def setup(self):
        self.blocks = [
            Block(self.config, dilation, self.causal, self.dtype)
            for dilation in dilations(self.config)
        ]

    def __call__(self, x, live, key):
        for i, block in enumerate(self.blocks):
            x = block(x, live, dropout.fold_in(key, i))
        return x


STACKS = {"encoder": False, "decoder": True}  # whether their blocks are causal


@functools.cache
def _set_of(
    stack: str, settings: config.ByteNet, hardware: Hardware
) -> Callable[..., Any]:
    """Return any set of a stack as a function."""
    dtype = hardware.operands(settings.dtype)
    return stacks.function_of(Set(settings, STACKS[stack], dtype, parent=None))


class ByteNet(Base):
    """The encoder, and the decoder on top of it; a layer of a stack is a ``Set``."""

    config: config.ByteNet

    partition: ClassVar[Rules] = PARTITION
    stacks: ClassVar[tuple[str, ...]] = tuple(STACKS)

    def setup(self):
        c = self.config
        self.source_table, self.target_table, self.output_table = self.embedding_tables(
            c.d_model, c.d_model
        )
        self.encoder = [Set(c, False, self.operands) for _ in range(c.sets)]
        self.decoder = [Set(c, True, self.operands) for _ in range(c.sets)]
        self.finish = Linear(c.d_model, self.operands)

    def encode(
        self, source: jax.Array, key: dropout.Key | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """Encode source ids (B, S) as columns (B, grid of S, D), and mark live ones.

        The length of a row's grid follows from its own source, without padding; between
        the two its embeddings are zeros. Beyond the grid there are zeros.
        """
        ratio = self.config.grid
        real = marks(source) != PAD
        count = grid_columns(source.shape[1], ratio)
        lengths = grid_columns(real.sum(1, keepdims=True), ratio)
        live = (jnp.arange(count) < lengths).astype(jnp.float32)[..., None]
        x = layers.embed_source(source, self.source_table, self.operands)
        x = x * real[..., None]
        x = dropout.dropout(x, self.config.dropout, dropout.fold_in(key, 0))
        x = self.run_stack("encoder", _set_of, _resized(x, count), (live,), key)
        return x * live, live

    def features(
        self, source: jax.Array, inputs: jax.Array, key: dropout.Key | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """Return what the last convolution reads (B, T, D), and its matrix (V, D)."""
        columns, _ = self.encode(source, dropout.fold_in(key, 0))
        key = dropout.fold_in(key, 1)
        x = layers.embed(inputs, self.target_table)
        x = dropout.dropout(x, self.config.dropout, dropout.fold_in(key, 0))
        x = x + _resized(columns, inputs.shape[1])
        x = self.run_stack("decoder", _set_of, x, (None,), key)
        return nn.relu(self.finish(x)), self.output_table

    def start(self, source: jax.Array, beams: int, length: int) -> Cache:
        """Encode source ids (B, S) and make the cache for up to ``length`` steps."""
        c, batch = self.config, source.shape[0]
        columns, _ = self.encode(source)
        slots = [convolution.reach([c.kernel], [r]) for r in dilations(c)] * c.sets
        ancestors = jnp.zeros((batch, beams, length), jnp.int32)
        return Cache(
            Ancestors(jnp.zeros((), jnp.int32), ancestors),
            tuple(
                jnp.zeros((batch, slot, beams, c.d_model // 2), self.operands)
                for slot in slots
            ),
            _resized(columns, length),
        )

    def step(
        self, cache: Cache, ids: jax.Array, parents: jax.Array
    ) -> tuple[jax.Array, Cache]:
        """Take one token of each hypothesis (B, J) and score the next (B, J, V)."""
        now, ancestors = cache.ancestors.position, cache.ancestors.follow(parents)
        column = lax.dynamic_index_in_dim(cache.columns, now, axis=1)
        x = layers.embed(ids, self.target_table) + column
        rings: list[jax.Array] = []

        def past(dilation: int) -> Taps:
            def taps(new: jax.Array) -> jax.Array:
                ring = _put(cache.rings[len(rings)], new, now)
                rings.append(ring)
                return _read(ring, now, ancestors.beams, self.config.kernel, dilation)

            return taps

        for one in self.decoder:
            for block in one.blocks:
                x = block(x, None, None, past(block.dilation))
        hidden, table = nn.relu(self.finish(x)), matmul.Transposed(self.output_table)
        logits = matmul.product(hidden, table, self.operands)
        return logits, Cache(ancestors, tuple(rings), cache.columns)


def _resized(x: jax.Array, count: int) -> jax.Array:
    """Truncate columns (B, C, D) to a number, or pad with zeros."""
    return jnp.pad(x[:, :count], ((0, 0), (0, max(count - x.shape[1], 0)), (0, 0)))


def _put(ring: jax.Array, new: jax.Array, now: jax.Array) -> jax.Array:
    """Put the input of position ``now`` (B, J, d) into a ring (B, L, J, d)."""
    new, slot = new.astype(ring.dtype)[:, None], now % ring.shape[1]
    return lax.dynamic_update_slice_in_dim(ring, new, slot, axis=1)


def _read(
    ring: jax.Array, now: jax.Array, beams: jax.Array, width: int, dilation: int
) -> jax.Array:
    """Return the taps of position ``now`` (B, J, k d), each from its own ancestor.

    A slot of a position before the first one holds zeros: nothing was put there yet.

    Args:
      ring: (B, L, J, d).
      now: ().
      beams: which beam took each position of a hypothesis (B, J, M).
      width: k.
      dilation: r.
    """
    taps = []
    for j in reversed(range(width)):
        place = now - j * dilation
        each = lax.dynamic_index_in_dim(ring, place % ring.shape[1], 1, keepdims=False)
        whose = lax.dynamic_index_in_dim(beams, jnp.maximum(place, 0), axis=2)
        taps.append(jnp.take_along_axis(each, whose, axis=1))
    return jnp.concatenate(taps, axis=-1)


Model = ByteNet
