"""ConvS2S: gated convolutions on both sides, attention in every decoder layer.

Gehring et al., arXiv:1705.03122, as in its authors' programs (fairseq): all maps but
the embedding tables have normalised weights, and factors of sqrt(.5) keep the variance
of activations where two of them are added.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.ad_checkpoint import checkpoint_name

from transformer import config
from transformer.config import Convolution
from transformer.ids import PAD, marks
from transformer.models import stacks
from transformer.models.modules import Base, transposed, with_bias
from transformer.nn import convolution, dropout, layers, matmul, positions, scores
from transformer.nn.hardware import Hardware
from transformer.parallel import Rules

HALF = 0.5**0.5  # scales a sum of two, so that its variance is that of each
TABLE_STDDEV = 0.1  # of embeddings and positions when drawn

PARTITION: Rules = {
    "(source|target)_(embedding|positions)": (None, "fsdp"),  # (V, f), (positions, f)
    "output": (None, "fsdp"),  # (V, o)
    "direction": ("fsdp", None),  # (I, O)
    "(output_)?(gain|bias)": (None,),  # (O,)
}


class Memory(NamedTuple):
    """What the decoder reads of the source."""

    keys: jax.Array  # z (B, S, f)
    values: jax.Array  # (z + w) sqrt(.5), w the embeddings (B, S, f)
    real: jax.Array  # 1 or 0 of each token (B, S)
    root: jax.Array  # sqrt(m), m the number of real tokens (B,)


class Cache(NamedTuple):
    """What a search carries from step to step."""

    memory: Memory  # (B, ...)
    position: jax.Array  # () of the token that is taken next
    inputs: tuple[jax.Array, ...]  # of each layer, the last k - 1 (B, J, k - 1, d)


class Normed(nn.Module):
    """Holds a linear map with normalised weights, ``x W + b``, ``W = g v / ||v||``.

    Attributes:
      features: O.
      dtype: dtype of the operands of products.
      stddev: standard deviation of the I weights of a unit when drawn, times sqrt(I).
    """

    features: int
    dtype: str
    stddev: float = 1.0

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        draw = nn.initializers.normal(self.stddev * x.shape[-1] ** -0.5)
        direction = self.param("direction", draw, (x.shape[-1], self.features))
        gain = self.param("gain", lambda _: convolution.norms(direction))
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        kernel: Any = self.get_variable("transposed", "direction")
        if kernel is None:
            kernel = convolution.weight_norm(direction, gain)
        y = layers.linear(x, kernel, bias, self.dtype)
        return checkpoint_name(y, "product")


class Block(nn.Module):
    """A convolution with a gate, ``(glu(conv(dropout(x))) + x) sqrt(.5)``.

    If the widths differ, a linear map of x takes its place in the sum.

    Attributes:
      config: configuration of the model.
      hardware: what it is traced for.
      inputs: width of x.
      sizes: width of the result, and k.
    """

    config: config.Convolutional
    hardware: Hardware
    inputs: int
    sizes: Convolution

    def setup(self):
        c, width = self.config, self.sizes.width
        dtype = self.hardware.operands(c.dtype)
        # Gates halve activations: 4 p / n is the variance that makes up for it.
        self.convolution = Normed(2 * width, dtype, 2 * (1 - c.dropout) ** 0.5)
        self.residual = None
        if self.inputs != width:
            self.residual = Normed(width, dtype)

    def added(self, y: jax.Array, x: jax.Array) -> jax.Array:
        """Add the input of the block to its result."""
        return HALF * (y + (x if self.residual is None else self.residual(x)))


class EncoderBlock(Block):
    """A block whose convolution reaches equally far to both sides."""

    def __call__(self, x, real, key):
        # Results at padding are not 0, and would reach its neighbours.
        y = dropout.dropout(x * real[..., None], self.config.dropout, key)
        y = convolution.windows(y, self.sizes.kernel, causal=False)
        return self.added(convolution.glu(self.convolution(y)), x)


class DecoderBlock(Block):
    """A block whose convolution reaches back, and that attends to the source.

    ``q = (h W_d + b + g) sqrt(.5)``, ``a = softmax_j(q . z_j)``, ``c = sqrt(m) sum_j
    a_j value_j``, ``h = (c W_o + b + h) sqrt(.5)``, where h is what the gate lets
    through and g the embeddings of the decoder's input. This follows the authors'
    programs; the paper has these two sums, and the values z + w, without the factor.

    Source: Gehring et al., arXiv:1705.03122, equations 1 and 2, section 3.4.
    """

    def setup(self):
        super().setup()
        dtype = self.hardware.operands(self.config.dtype)
        self.query = Normed(self.config.embedding, dtype)
        self.context = Normed(self.sizes.width, dtype)

    def __call__(self, x, embedded, memory, key, seen=None):
        """Run over all positions, or over the next one of each hypothesis.

        Args:
          x: (B, T, inputs), or with J hypotheses in place of positions.
          embedded: g (B, T, f).
          memory: of the source.
          key: dropout key, None for evaluation.
          seen: makes windows (B, T, k inputs) of x; None: from its own positions.

        Returns:
          The result (B, T, width) and the weights of attention (B, T, S).
        """
        y = dropout.dropout(x, self.config.dropout, key)
        if seen is None:
            seen = functools.partial(
                convolution.windows, kernel=self.sizes.kernel, causal=True
            )
        h = convolution.glu(self.convolution(seen(y)))
        query = HALF * (self.query(h) + embedded)
        dtype = self.hardware.attention_operands(self.config.dtype)
        found, weights = attend(query, memory, dtype)
        return self.added(HALF * (self.context(found) + h), x), weights


def attend(query: jax.Array, memory: Memory, dtype: str) -> tuple[jax.Array, jax.Array]:
    """Sum the values of a source, weighted by products of queries and keys.

    ``sqrt(m) sum_j softmax_j(q . z_j) value_j``; there is no 1 / sqrt(d).

    Args:
      query: q (B, T, f).
      memory: of the source.
      dtype: dtype of the operands of the products.

    Returns:
      The sums (B, T, f) and the weights (B, T, S).
    """
    query, keys, values = (x.astype(dtype) for x in (query, *memory[:2]))
    energies = matmul.einsum("btf,bsf->bts", query, keys)
    weights = scores.softmax_over(energies, memory.real)
    found = matmul.einsum("bts,bsf->btf", weights.astype(dtype), values)
    return memory.root[:, None, None] * found, weights


@functools.cache
def _block_of(kind: Any, *fields: Any) -> Callable[..., Any]:
    """Return a block as a function of its variables and inputs.

    Blocks of the same sizes share one trace.
    """
    block = kind(*fields, parent=None)

    @jax.jit
    def apply(variables, *arguments):
        return block.apply(variables, *arguments)

    return apply


class ConvS2S(Base):
    """The convolutional encoder-decoder."""

    config: config.Convolutional

    partition: ClassVar[Rules] = PARTITION
    stacks: ClassVar[tuple[str, ...]] = ()

    def setup(self):
        c, keep = self.config, 1 - self.config.dropout
        narrow = nn.initializers.normal(TABLE_STDDEV)

        def table(name, rows):
            return self.param(name, narrow, (rows, c.embedding))

        self.source_table = table("source_embedding", self.source_size)
        self.target_table = self.source_table
        if c.tying != "three":
            self.target_table = table("target_embedding", self.target_size)
        self.source_positions = table("source_positions", c.max_positions)
        self.target_positions = table("target_positions", c.max_positions)
        self.encoder, of_encoder = self._blocks(EncoderBlock, c.encoder)
        self.decoder, of_decoder = self._blocks(DecoderBlock, c.decoder)
        dropped = keep**0.5
        self.encoder_input = Normed(of_encoder[0], self.operands, dropped)
        self.encoder_output = Normed(c.embedding, self.operands)
        self.decoder_input = Normed(of_decoder[0], self.operands, dropped)
        self.decoder_output = Normed(c.d_model, self.operands)
        self.output_table = self._output_table(dropped)
        zeros = nn.initializers.zeros
        self.output_bias = self.param("output_bias", zeros, (self.target_size,))

    def _blocks(self, kind, text):
        """Return the blocks of a side and the widths before and after each."""
        sizes = config.convolutions(text)
        widths = [sizes[0].width, *(each.width for each in sizes)]
        blocks = [
            kind(self.config, self.kind, width, each)
            for width, each in zip(widths[:-1], sizes, strict=True)
        ]
        return blocks, widths

    def _output_table(self, dropped):
        """Return the output matrix (V, o), normalised row by row if it is not tied."""
        if self.config.tying != "none":
            return self.target_table
        width = self.config.d_model
        draw = nn.initializers.normal(dropped * width**-0.5)
        direction = self.param("output", draw, (self.target_size, width))
        gain = self.param("output_gain", lambda _: convolution.norms(direction, 1))
        stored: Any = self.get_variable("transposed", "output")
        if stored is not None:
            return stored.rows
        return convolution.weight_norm(direction, gain, axis=1)

    def encode(self, source: jax.Array, key: dropout.Key | None = None) -> Memory:
        """Read source ids (B, S)."""
        c = self.config
        real = (marks(source) != PAD).astype(jnp.float32)
        looked_up = layers.source_rows(source, self.source_table, self.operands)
        embedded = looked_up + positions.learned_positions(
            self.source_positions, jnp.arange(source.shape[1])
        )
        embedded = dropout.dropout(embedded, c.dropout, dropout.fold_in(key, 0))
        x = self.encoder_input(embedded)
        for i, block in enumerate(self.encoder):
            x = self._run(block, x, real, dropout.fold_in(key, i + 1))
        # The attention of all decoder layers adds up in the encoder's gradient.
        factor = 1 / (2 * len(self.decoder))
        z = convolution.scale_gradient(self.encoder_output(x) * real[..., None], factor)
        return Memory(z, HALF * (z + embedded), real, jnp.sqrt(real.sum(1)))

    def features(
        self, source: jax.Array, inputs: jax.Array, key: dropout.Key | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """Return the decoder's output and the output matrix, its bias as a column.

        Args:
          source: ids (B, S).
          inputs: ids of the decoder's input (B, T).
          key: dropout key, None for evaluation.

        Returns:
          (B, T, o + 1), the last feature 1, and (V, o + 1).
        """
        memory = self.encode(source, dropout.fold_in(key, 0))
        key, rate = dropout.fold_in(key, 1), self.config.dropout
        embedded = self.target_table[inputs] + positions.learned_positions(
            self.target_positions, jnp.arange(inputs.shape[1])
        )
        embedded = dropout.dropout(embedded, rate, dropout.fold_in(key, 0))
        x = self.decoder_input(embedded)
        for i, block in enumerate(self.decoder):
            here = dropout.fold_in(key, i + 1)
            x, weights = self._run(block, x, embedded, memory, here)
            block.sow("attention", "cross", weights[:, None])
        last = dropout.fold_in(key, len(self.decoder) + 1)
        hidden = dropout.dropout(self.decoder_output(x), rate, last)
        return with_bias(hidden, self.output_table, self.output_bias, self.config.dtype)

    def start(self, source: jax.Array, beams: int, length: int) -> Cache:
        """Encode source ids (B, S) for a search."""
        inputs = tuple(
            jnp.zeros((len(source), beams, block.sizes.kernel - 1, block.inputs))
            for block in self.decoder
        )
        return Cache(self.encode(source), jnp.zeros((), jnp.int32), inputs)

    def step(
        self, cache: Cache, ids: jax.Array, parents: jax.Array
    ) -> tuple[jax.Array, Cache]:
        """Take one token of each hypothesis (B, J) and score the next (B, J, V)."""
        place = positions.learned_positions(self.target_positions, cache.position)
        embedded = self.target_table[ids] + place
        x, inputs = self.decoder_input(embedded), []
        for block, kept in zip(self.decoder, cache.inputs, strict=True):
            kept = jnp.take_along_axis(kept, parents[..., None, None], axis=1)

            def seen(y, kept=kept):
                window = jnp.concatenate([kept, y[:, :, None]], axis=2)
                inputs.append(window[:, :, 1:])
                return window.reshape(*y.shape[:2], -1)

            x, _ = block(x, embedded, cache.memory, None, seen)
        table = matmul.Transposed(self.output_table)
        hidden = self.decoder_output(x)
        logits = matmul.product(hidden, table, self.operands) + self.output_bias
        return logits, Cache(cache.memory, cache.position + 1, tuple(inputs))

    def search_variables(self, params: Any) -> Any:
        """Return variables with every normalised matrix computed and stored (O, I)."""
        flat, matrices = flatten_dict(params), {}
        for path, direction in flat.items():
            if path[-1] == "direction":
                gain = flat[*path[:-1], "gain"]
                made = convolution.weight_norm(direction, gain)
                matrices[path] = transposed(made, self.operands)
        if self.config.tying == "none":
            gain = params["output_gain"]
            made = convolution.weight_norm(params["output"], gain, axis=1)
            matrices["output",] = transposed(made.T, self.operands)
        return {"params": params, "transposed": unflatten_dict(matrices)}

    def _run(self, block, x, *arguments):
        """Run a block over whole sentences; the last argument is its dropout key."""
        if self.is_initializing():
            return block(x, *arguments)
        kind: Any = type(block)
        fields = block.config, block.hardware, block.inputs, block.sizes
        apply = _block_of(kind, *fields)
        if self.remat != "none" and arguments[-1] is not None:
            apply = stacks.recomputing(apply, self.remat, apart=True)
        return apply(block.variables, x, *arguments)


Model = ConvS2S
