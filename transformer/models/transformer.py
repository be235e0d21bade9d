"""Section 3: the Transformer as Flax modules that only hold parameters.

Names, shapes and initial values of the parameters are here; the mathematics is in
``attention.py`` and ``layers.py``. Parameters and functions stay apart, as Linen has
it: ``params = model.init(key, source, target)``, ``y = model.apply(params, ...)``.

Dropout is on when a dropout key is given and off when it is None; there is no other
difference between training and evaluation.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.ad_checkpoint import checkpoint_name

from transformer import config
from transformer.nn import attention, dropout, hardware, layers, matmul, positions
from transformer.nn.hardware import Hardware

TARGET_SPACES = 32  # rows of tensor2tensor's target-space table, of which one is used

KeysValues = tuple[jax.Array, jax.Array]


class Blocks(NamedTuple):
    """Keys and values as decoding reads them, see ``attention.block_attention``.

    The decoder's own are filled one position after another: the key of position m of
    beam j stands in slot ``m * J + j``, counted through all blocks, and is never moved.
    Those of the source are one block of S slots.
    """

    keys: tuple[jax.Array, ...]  # (B, H, K, L_i * J) each
    values: tuple[jax.Array, ...]  # (B, H, L_i * J, W) each
    filled: jax.Array  # () how many blocks hold something


_FIRST_BLOCK = 16  # positions


def _block_sizes(length: int) -> list[int]:
    """Cut positions into blocks that reach to 16, 64, 256, ... and to the last one.

    They are few, because the program of a step, and its compilation, holds attention to
    one block, to two, and so on.
    """
    ends = [0]
    while ends[-1] < length:
        ends.append(min(4 * ends[-1] or _FIRST_BLOCK, length))
    return [b - a for a, b in itertools.pairwise(ends)]


class Cache(NamedTuple):
    """What decoding remembers between two steps, for B sentences of J beams each.

    A hypothesis finds its own past, which several may share, through ``ancestors``.
    """

    position: jax.Array  # () how many tokens were taken
    ancestors: jax.Array  # (B, J, M) the beam that took a hypothesis' token m
    own: tuple[Blocks, ...]  # N, of M positions each
    memory: tuple[Blocks, ...]  # N, of the source
    memory_mask: jax.Array  # (B, 1, 1, S)


def _kernel(module: nn.Module, name: str, shape: tuple[int, int]) -> matmul.Kernel:
    """Return a matrix of the module, as ``transposed`` has stored it if it is there."""
    kernel = module.param(name, nn.initializers.glorot_uniform(), shape)
    return module.get_variable("transposed", name, kernel)


class Linear(nn.Module):
    """Holds the kernel and bias of ``layers.linear``."""

    features: int
    dtype: str
    use_bias: bool = True
    result: str = "float32"

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        kernel = _kernel(self, "kernel", (x.shape[-1], self.features))
        bias = None
        if self.use_bias:
            bias = self.param("bias", nn.initializers.zeros, (self.features,))
        return layers.linear(x, kernel, bias, self.dtype, self.result)


class LayerNorm(nn.Module):
    """Holds the scale and bias of ``layers.layer_norm``."""

    epsilon: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],))
        bias = self.param("bias", nn.initializers.zeros, (x.shape[-1],))
        return layers.layer_norm(x, scale, bias, self.epsilon)


class Residual(nn.Module):
    """Puts a sub-layer between residual connection and norm (section 3.1).

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
            _kernel(self, "kernel_1", (c.d_model, c.d_ff)),
            self.param("bias_1", zeros, (c.d_ff,)),
            _kernel(self, "kernel_2", (c.d_ff, c.d_model)),
            self.param("bias_2", zeros, (c.d_model,)),
            dropout_rate=c.relu_dropout,
            key=key,
            dtype=self.hardware.operands(c.dtype),
            inner=self.hardware.stored(c.dtype),
        )


class MultiHeadAttention(nn.Module):
    """Holds the four projections of section 3.2.2.

    ``MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W^O`` with
    ``head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V)``; the h matrices of a kind stand
    side by side in one of (D, H * K).
    """

    config: config.Transformer
    hardware: Hardware

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

    def keys_values(self, x: jax.Array) -> KeysValues:
        """Project what is attended to, (B, S, D), to (B, H, S, K) and (B, H, S, W)."""
        return self._split(self.key(x)), self._split(self.value(x))

    def _split(self, x: jax.Array) -> jax.Array:
        return attention.split_heads(checkpoint_name(x, "product"), self.config.heads)

    def __call__(
        self,
        x: jax.Array,
        keys_values: KeysValues | Blocks,
        mask: attention.Mask | jax.Array,
        key: dropout.Key | None,
    ) -> jax.Array:
        """Attend from each of (B, T, D), to blocks by a dense mask: (B, T, D)."""
        c = self.config
        query, score = self._split(self.query(x)), attention.SCORES[c.score]
        if isinstance(keys_values, Blocks):
            assert not isinstance(mask, attention.Mask)
            keys, values, filled = keys_values
            output = attention.block_attention(query, keys, values, mask, filled, score)
            return self._joined(output)
        assert isinstance(mask, attention.Mask)
        lengths = query.shape[2], keys_values[0].shape[2]
        # Neither the weights nor a part of them is wanted: they need not exist.
        dropped = key is not None and c.attention_dropout > 0
        if not dropped and not self.is_mutable_collection("attention"):
            if kernel := attention_kernel(c, self.hardware, lengths, mask):
                output = attention.fused_attention(
                    query, *keys_values, mask, attention.FUSED_SCALES[c.score], kernel
                )
                return self._joined(output)
        output, weights = attention.attention(
            query,
            *keys_values,
            mask.dense(*lengths),
            score=score,
            dropout_rate=c.attention_dropout,
            key=key,
        )
        self.sow("attention", "weights", weights)
        return self._joined(output)

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
) -> Literal["cudnn", "pallas"] | None:
    """Return whose kernel attention is where no weights are due, None = written out.

    Args:
      c: sizes and choices.
      hardware: where it is computed.
      lengths: T and S.
      mask: which keys each query may attend to.
    """
    dtype = hardware.attention_operands(c.dtype)
    return attention.fused_kernel(
        hardware, dtype, c.score, c.heads, c.d_k, c.d_v, lengths, mask
    )


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each in a residual connection."""

    config: config.Transformer
    hardware: Hardware

    def setup(self):
        self.self_attention = MultiHeadAttention(self.config, self.hardware)
        self.feed_forward = FeedForward(self.config, self.hardware)
        self.residual_1 = Residual(self.config)
        self.residual_2 = Residual(self.config)

    def __call__(self, x, mask, key):
        k = [dropout.fold_in(key, i) for i in range(4)]

        def attend(y):
            keys_values = self.self_attention.keys_values(y)
            return self.self_attention(y, keys_values, mask, k[0])

        x = self.residual_1(x, attend, k[1])
        return self.residual_2(x, lambda y: self.feed_forward(y, k[2]), k[3])


class DecoderLayer(nn.Module):
    """Masked self-attention, attention to the source, and feed-forward.

    The same code runs over a whole target and, with a cache, over one position: then
    the beams of a sentence take the place of the positions, the memory is what the
    cache holds of it, and ``remember`` puts the new keys and values into the cache and
    returns all of them.
    """

    config: config.Transformer
    hardware: Hardware

    def setup(self):
        self.self_attention = MultiHeadAttention(self.config, self.hardware)
        self.cross_attention = MultiHeadAttention(self.config, self.hardware)
        self.feed_forward = FeedForward(self.config, self.hardware)
        self.residual_1 = Residual(self.config)
        self.residual_2 = Residual(self.config)
        self.residual_3 = Residual(self.config)

    def __call__(self, x, mask, memory, memory_mask, key, remember=lambda kv: kv):
        k = [dropout.fold_in(key, i) for i in range(6)]
        if not isinstance(memory, Blocks):
            memory = self.cross_attention.keys_values(memory)

        def attend(y):
            keys_values = remember(self.self_attention.keys_values(y))
            return self.self_attention(y, keys_values, mask, k[0])

        def attend_to_source(y):
            return self.cross_attention(y, memory, memory_mask, k[2])

        x = self.residual_1(x, attend, k[1])
        x = self.residual_2(x, attend_to_source, k[3])
        return self.residual_3(x, lambda y: self.feed_forward(y, k[4]), k[5])


STACKS = {"encoder": EncoderLayer, "decoder": DecoderLayer}


@functools.cache
def _layer_of(
    stack: str, settings: config.Transformer, hardware: Hardware
) -> Callable[..., Any]:
    """Return any layer of a stack as a function of its number, variables and inputs.

    All layers share one trace, and with it all steps that see the same shapes.
    """
    layer: Any = STACKS[stack](settings, hardware, parent=None)

    @jax.jit
    def apply(x, i, variables, arguments, key):
        return layer.apply(variables, x, *arguments, dropout.fold_in(key, i + 1))

    return apply


def _kernels(primitive: Any, *_: Any, **__: Any) -> bool:
    """Keep what cuDNN's attention hands to its backward pass."""
    return primitive.name.startswith("dot_product_attention_fwd")


_policies = jax.checkpoint_policies

# What the backward pass finds in memory of a layer, beside the layer's input.
_KEPT = {
    "layers": _policies.nothing_saveable,
    # What ends in a product with parameters, not the products inside attention, whose
    # results grow with the square of the length.
    "dots": _policies.save_only_these_names("product"),
    # All that takes long. Weights, masks and norms cost an accelerator less to make
    # again, within a product that reads them, than to write down and to read.
    "none": _policies.save_from_both_policies(
        _policies.save_only_these_names("product", "attention", "mean"), _kernels
    ),
}


class Transformer(nn.Module):
    """The encoder-decoder model of Figure 1.

    Its layers run in a row or, given parameters as ``stack_layers`` has them, in a
    loop, whose program holds one of them. This and ``remat`` change no result beyond
    rounding.

    Attributes:
      config: sizes and choices.
      source_size: V of the source vocabulary.
      target_size: V of the target vocabulary.
      remat: what the backward pass of training, that is of a call with a dropout key,
        computes again: "none", all of "layers" but their inputs, or all but these and
        the products with parameters, "dots".
      hardware: that programs are traced for; None = this process's first device.
    """

    config: config.Transformer
    source_size: int
    target_size: int
    remat: str = "none"
    hardware: Hardware | None = None

    @property
    def kind(self) -> Hardware:
        """The hardware that programs are traced for."""
        return self.hardware or hardware.here()

    @property
    def operands(self) -> str:
        """The dtype of the operands of products with parameters."""
        return self.kind.operands(self.config.dtype)

    def setup(self):
        c = self.config
        narrow = nn.initializers.normal(c.d_model**-0.5)

        def table(name, rows):
            return self.param(name, narrow, (rows, c.d_model))

        self.source_table = table("source_embedding", self.source_size)
        self.target_table = self.output_table = self.source_table
        if c.tying != "three":
            self.target_table = table("target_embedding", self.target_size)
            self.output_table = self.target_table
        if c.tying == "none":
            self.output_table = table("output", self.target_size)
        if c.positions == "learned":
            self.source_positions = table("source_positions", c.max_positions)
            self.target_positions = table("target_positions", c.max_positions)
        if c.target_space:
            self.target_space = table("target_space", TARGET_SPACES)
        self.encoder = [EncoderLayer(c, self.kind) for _ in range(c.layers)]
        self.decoder = [DecoderLayer(c, self.kind) for _ in range(c.layers)]
        if c.norm == "pre":
            self.encoder_norm = LayerNorm(c.norm_epsilon)
            self.decoder_norm = LayerNorm(c.norm_epsilon)

    def __call__(
        self, source: jax.Array, target: jax.Array, key: dropout.Key | None = None
    ) -> jax.Array:
        """Run both stacks over whole sentences.

        Args:
          source: ids (B, S).
          target: the decoder's input ids (B, T): begin, then the target shifted right.
          key: dropout key, None for evaluation.

        Returns:
          The decoder's output (B, T, D); ``logits`` turns it into scores of ids.
        """
        memory = self.encode(source, dropout.fold_in(key, 0))
        mask = attention.Mask(source)
        return self.decode(target, memory, mask, dropout.fold_in(key, 1))

    def encode(self, source: jax.Array, key: dropout.Key | None = None) -> jax.Array:
        """Run the encoder over source ids (B, S); returns (B, S, D)."""
        x = layers.embed(source, self.source_table)
        if self.config.target_space:
            x = x + self.target_space[0]
        x = self._place(x, self._positions(source.shape[1], "source"), key)
        mask = attention.Mask(source, window=self.config.window)
        x = self._run("encoder", x, (mask,), key)
        return self.encoder_norm(x) if self.config.norm == "pre" else x

    def decode(
        self,
        target: jax.Array,
        memory: jax.Array,
        memory_mask: attention.Mask,
        key: dropout.Key | None = None,
    ) -> jax.Array:
        """Run the decoder over input ids (B, T) and memory (B, S, D) to (B, T, D)."""
        x = layers.embed(target, self.target_table)
        x = self._place(x, self._positions(target.shape[1], "target"), key)
        mask = attention.Mask(causal=True, window=self.config.window)
        x = self._run("decoder", x, (mask, memory, memory_mask), key)
        return self.decoder_norm(x) if self.config.norm == "pre" else x

    def logits(self, x: jax.Array) -> jax.Array:
        """Score every id of the target vocabulary, ``x E^T``: (..., D) to (..., V)."""
        return matmul.product(x, matmul.Transposed(self.output_table), self.operands)

    def target_logits(self, source: jax.Array, target: jax.Array, bos: int):
        """Score every id at each position of targets (B, T): (B, T, V)."""
        return self.logits(self(source, shift_right(target, bos)))

    def hidden_and_table(self, source, target, key=None) -> tuple[jax.Array, jax.Array]:
        """Return ``__call__``'s output and the output matrix (V, D), for the loss."""
        return self(source, target, key), self.output_table

    def start(self, source: jax.Array, beams: int, length: int) -> Cache:
        """Encode source ids (B, S) and make the cache for up to ``length`` steps.

        The keys and values of the source are computed here, once a sentence.
        """
        c, batch = self.config, source.shape[0]
        dtype = self.kind.attention_operands(c.dtype)
        memory = self.encode(source)
        sizes = [size * beams for size in _block_sizes(length)]

        def empty(layer):
            front, none = (batch, c.heads), jnp.zeros((), jnp.int32)
            return Blocks(
                tuple(jnp.zeros((*front, c.d_k, size), dtype) for size in sizes),
                tuple(jnp.zeros((*front, size, c.d_v), dtype) for size in sizes),
                none,
            )

        def stored(layer):
            keys, values = layer.cross_attention.keys_values(memory)
            one = jnp.ones((), jnp.int32)
            return Blocks((keys.swapaxes(2, 3),), (values,), one)

        return Cache(
            position=jnp.zeros((), jnp.int32),
            ancestors=jnp.zeros((batch, beams, length), jnp.int32),
            own=tuple(map(empty, self.decoder)),
            memory=tuple(map(stored, self.decoder)),
            memory_mask=attention.padding_mask(source),
        )

    def step(
        self, cache: Cache, ids: jax.Array, parents: jax.Array
    ) -> tuple[jax.Array, Cache]:
        """Take one token a hypothesis and score the next.

        Args:
          cache: what ``start`` or the last step returned.
          ids: the last token of each hypothesis (B, J), the begin mark at first.
          parents: which of the last step's J hypotheses each one continues (B, J).

        Returns:
          Logits of the next token (B, J, V), and the cache.
        """
        now, (batch, beams, length) = cache.position, cache.ancestors.shape
        ancestors = jnp.take_along_axis(cache.ancestors, parents[..., None], axis=1)
        ancestors = ancestors.at[:, :, now].set(jnp.arange(beams))
        seen = jnp.arange(length) <= now
        if self.config.window:
            seen &= jnp.arange(length) >= now - self.config.window
        mask = (ancestors[..., None] == jnp.arange(beams)) & seen[:, None]
        mask = mask.reshape(batch, 1, beams, length * beams)
        positions = self._positions(length, "target")
        place = None if positions is None else positions[now]
        x = self._place(layers.embed(ids, self.target_table), place, None)
        own: list[Blocks] = []

        def remember(new: KeysValues) -> Blocks:
            old, slot = cache.own[len(own)], now * beams
            starts = _starts(old.keys, axis=3)
            own.append(
                Blocks(
                    _put(old.keys, new[0].swapaxes(2, 3), slot, axis=3),
                    _put(old.values, new[1], slot, axis=2),
                    sum((slot >= start).astype(jnp.int32) for start in starts),
                )
            )
            return own[-1]

        for layer, memory in zip(self.decoder, cache.memory, strict=True):
            x = layer(x, mask, memory, cache.memory_mask, None, remember)
        if self.config.norm == "pre":
            x = self.decoder_norm(x)
        return self.logits(x), Cache(
            now + 1, ancestors, tuple(own), cache.memory, cache.memory_mask
        )

    def _run(self, name, x, arguments, key):
        """Run the N layers of a stack, each on the result of the one before."""
        stack = getattr(self, name)
        stacked: Any = self.get_variable("params", name)
        weights_wanted = self.is_mutable_collection("attention")
        if self.is_initializing() or (weights_wanted and stacked is None):
            for i, layer in enumerate(stack):
                x = layer(x, *arguments, dropout.fold_in(key, i + 1))
            return x
        assert not weights_wanted, "a loop keeps no weights: unstack the layers"
        apply = _layer_of(name, self.config, self.kind)
        in_a_row = stacked is None
        # In a row the compiler itself sees what to make again, in a loop it cannot.
        chosen = self.remat != "none" or (self.kind.accelerator and not in_a_row)
        if chosen and key is not None:
            # In a loop nothing can be merged with what the forward pass has computed.
            policy = _KEPT[self.remat]
            apply = jax.checkpoint(apply, policy=policy, prevent_cse=in_a_row)
        if stacked is None:
            for i, layer in enumerate(stack):
                x = apply(x, i, layer.variables, arguments, key)
            return x

        def body(x, numbered):
            i, params = numbered
            return apply(x, i, {"params": params}, arguments, key), None

        return jax.lax.scan(body, x, (jnp.arange(len(stack)), stacked))[0]

    def _positions(self, length: int, side: str) -> jax.Array | None:
        """Return what is added to embeddings at each position, (length, D)."""
        c = self.config
        if c.positions == "none":
            return None
        if c.positions != "learned":
            return positions.POSITIONS[c.positions](length, c.d_model)
        table = self.source_positions if side == "source" else self.target_positions
        # Beyond the table, which no training pair reaches, its last row serves on.
        return table[jnp.minimum(jnp.arange(length), c.max_positions - 1)]

    def _place(self, x, positions, key):
        """Add positions and drop out (sections 3.5 and 5.4)."""
        if positions is not None:
            x = x + positions
        return dropout.dropout(x, self.config.dropout, dropout.fold_in(key, 0))


def _starts(blocks, axis):
    """Return the slot in which each block begins."""
    ends = itertools.accumulate(block.shape[axis] for block in blocks)
    return [0, *ends][:-1]


def _put(blocks, new, slot, axis):
    """Put new keys or values where they belong, from a slot on; slots are an axis."""
    count = new.shape[axis]

    def put(start, block):
        at, size = [0] * block.ndim, block.shape[axis]
        at[axis] = jnp.clip(slot - start, 0, size - count)
        old = jax.lax.dynamic_slice(block, at, new.shape)
        here = (slot >= start) & (slot < start + size)
        return jax.lax.dynamic_update_slice(block, jnp.where(here, new, old), at)

    return tuple(map(put, _starts(blocks, axis), blocks))


def search_variables(model: Transformer, params: Any) -> Any:
    """Store the layers' matrices the way that a search, with its few rows, reads them.

    Args:
      model: the Transformer.
      params: its parameters.

    Returns:
      Variables for ``model.apply``: ``params``, and beside them the collection
      "transposed", every matrix (I, O) as (O, I) in ``model.operands``. Results are the
      same with and without it, to rounding.
    """

    def turn(matrix):
        # The barrier keeps the turning out of the products, which lack that form.
        rows = jax.lax.optimization_barrier(matrix.T.astype(model.operands))
        return matmul.Transposed(rows)

    matrices = {
        path: turn(leaf)
        for path, leaf in flatten_dict(params).items()
        if path[-1].startswith("kernel")
    }
    return {"params": params, "transposed": unflatten_dict(matrices)}


def start_search(
    model: Transformer, variables: Any, source: jax.Array, beams: int, length: int
) -> tuple[Callable[..., tuple[jax.Array, Cache]], Cache]:
    """Return the step function and the first cache of a search (``decode.py``).

    Args:
      model: the Transformer.
      variables: its parameters as ``search_variables`` has them, or plain.
      source: ids (B, S).
      beams: J.
      length: most tokens of an output.
    """
    cache: Any = model.apply(variables, source, beams, length, method="start")
    step: Any = functools.partial(model.apply, variables, method="step")
    return step, cache


def shift_right(target: jax.Array, bos: int) -> jax.Array:
    """Make the decoder's input: the begin mark, then the target without its last id.

    >>> shift_right(jnp.array([[7, 8, 3, 0]]), bos=2).tolist()
    [[2, 7, 8, 3]]
    """
    return jnp.pad(target, ((0, 0), (1, 0)), constant_values=bos)[:, :-1]


def make_model(
    settings: config.Model,
    source_size: int,
    target_size: int,
    remat: str = "none",
    hardware: Hardware | None = None,
) -> Transformer:
    """Make the model for vocabularies of these sizes.

    Args:
      settings: ``vocab_size`` is the number of rows of an embedding table, 0 for as
        many as the larger vocabulary (tied) or each vocabulary has.
      source_size: ids of the source vocabulary.
      target_size: ids of the target vocabulary.
      remat: see ``Transformer``.
      hardware: see ``Transformer``.

    Returns:
      The Transformer.

    Raises:
      UserError: if a vocabulary has more ids than the tables have rows.
    """
    settings, rows = config.transformer(settings), settings.vocab_size
    if rows and max(source_size, target_size) > rows:
        raise config.UserError(
            f"model.vocab_size: expected at least the vocabulary's "
            f"{max(source_size, target_size)}, got {rows}; raise it or set it to 0"
        )
    sizes = rows or source_size, rows or target_size
    return Transformer(settings, *sizes, remat, hardware)


def init_params(model: Transformer, key: jax.Array):
    """Draw initial parameters: embeddings N(0, 1/d_model), matrices Glorot uniform."""
    ids = jnp.ones((1, 2), jnp.int32)
    return model.init(key, ids, ids, method="hidden_and_table")["params"]


def scans_layers(wanted: str, hardware: Hardware) -> bool:
    """Say whether the layers of a stack run in a loop, whose program holds one of them.

    Args:
      wanted: ``parallel.layers``, "auto" = on accelerators, where compiling a layer
        takes long.
      hardware: where they run.
    """
    return wanted == "scanned" or (wanted == "auto" and hardware.accelerator)


def stack_layers(tree: Any) -> Any:
    """Put the parameters of the layers of a stack together, for one loop over them.

    Args:
      tree: a pytree with parameters anywhere in it, like the state of an optimiser.

    Returns:
      The tree with ``encoder`` for ``encoder_0``, ``encoder_1``, ..., each array with a
      first axis of N layers, and with ``decoder`` likewise.
    """

    def stack(params):
        if not _is_apart(params):
            return params
        count = sum(f"encoder_{i}" in params for i in range(len(params)))
        names = {stack: [f"{stack}_{i}" for i in range(count)] for stack in STACKS}
        rest = {k: v for k, v in params.items() if k not in sum(names.values(), [])}
        return rest | {
            stack: jax.tree.map(lambda *x: jnp.stack(x), *(params[n] for n in numbered))
            for stack, numbered in names.items()
        }

    return jax.tree.map(stack, tree, is_leaf=_is_apart)


def unstack_layers(tree: Any) -> Any:
    """Take the layers apart again that ``stack_layers`` has put together."""

    def unstack(params):
        if not is_stacked(params):
            return params
        rest = {k: v for k, v in params.items() if k not in STACKS}
        count = len(jax.tree.leaves(params["encoder"])[0])
        return rest | {
            f"{stack}_{i}": jax.tree.map(lambda x, i=i: x[i], params[stack])
            for stack in STACKS
            for i in range(count)
        }

    return jax.tree.map(unstack, tree, is_leaf=is_stacked)


def _is_apart(tree: Any) -> bool:
    return isinstance(tree, dict) and "encoder_0" in tree


def is_stacked(tree: Any) -> bool:
    """Say whether these are parameters as ``stack_layers`` has them."""
    return isinstance(tree, dict) and "encoder" in tree


def abstract_params(model: Transformer):
    """Return the tree of parameter shapes and dtypes without making any parameter."""
    return jax.eval_shape(lambda: init_params(model, jax.random.key(0)))


def configured_vocabulary(settings: config.Config) -> int:
    """Return the rows of an embedding table, as far as the configuration tells.

    Raises:
      UserError: if the size is only known once the data are prepared.
    """
    size = settings.model.vocab_size or settings.tokenizer.vocab_size
    if size == 0:
        raise config.UserError(
            "expected model.vocab_size or tokenizer.vocab_size above 0, got 0 for "
            "both; set --config.model.vocab_size=ROWS"
        )
    return size
