"""Operations, counted from a traced function and by formula, and sequential steps.

One multiply-add counts as 2. Only products of matrices and convolutions count, as in
the literature: norms, softmax and dropout are below two percent at the paper's sizes.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from transformer import config, models
from transformer.models import bytenet, counts
from transformer.models.distances import biased
from transformer.nn.attention_window import pays


def traced(function: Callable[..., Any], *args: Any) -> int:
    """Count the operations of a function's products and convolutions, from its jaxpr.

    A ``scan`` counts as often as it runs; a ``while``, whose length is not in the
    trace, counts once; a ``cond`` counts as its most expensive branch; a kernel counts
    as what it reports itself.

    Args:
      function: is traced, not run.
      *args: arrays or ``jax.ShapeDtypeStruct``.

    Returns:
      Operations, 2 per multiply-add.

    >>> import jax.numpy as jnp
    >>> traced(lambda x, y: x @ y, jnp.ones((3, 4)), jnp.ones((4, 5)))
    120
    """
    return _of_jaxpr(jax.make_jaxpr(function)(*args).jaxpr)


def _of_jaxpr(jaxpr: core.Jaxpr) -> int:
    total = 0
    for equation in jaxpr.eqns:
        if is_product(equation):
            total += _of_product(equation)
        elif equation.primitive.name in _KERNELS:
            total += _of_kernel(equation)
        elif equation.primitive.name == "pallas_call":
            total += equation.params["cost_estimate"].flops
        elif equation.primitive.name == "cond":
            branches = equation.params["branches"]
            total += max(_of_jaxpr(branch.jaxpr) for branch in branches)
        else:
            inner = sum(map(_of_jaxpr, inside(equation.params)))
            total += inner * equation.params.get("length", 1)
    return total


def is_product(equation: core.JaxprEqn) -> bool:
    """Return whether an equation is a product of matrices or a convolution."""
    return equation.primitive.name in ("dot_general", "conv_general_dilated")


def inside(params: dict[str, Any]) -> list[core.Jaxpr]:
    """Return the jaxprs among an equation's parameters, each once."""
    # From JAX 0.11 on both classes are one, and a jaxpr's ``jaxpr`` is itself.
    return [
        value.jaxpr if isinstance(value, core.ClosedJaxpr) else value
        for value in params.values()
        if isinstance(value, core.ClosedJaxpr | core.Jaxpr)
    ]


def _of_product(equation: core.JaxprEqn) -> int:
    operands: list[Any] = [*equation.invars, *equation.outvars]
    left, right, result = (operand.aval.shape for operand in operands)
    numbers = equation.params["dimension_numbers"]
    if equation.primitive.name == "dot_general":
        (contracted, _), _ = numbers
        summed = math.prod(left[i] for i in contracted)
    else:  # every weight of the kernel's window, for one feature of the output
        summed = math.prod(right) // right[numbers.rhs_spec[0]]
    return 2 * math.prod(result) * summed


# cuDNN's attention, and how many products of each of its two kinds count: forward
# Q K^T and P V; backward dQ, dK and dP, dV. That the backward kernel recomputes Q K^T
# does not count: written-out attention keeps it.
_KERNELS = {
    f"dot_product_attention_{way}{wrapper}": products
    for way, products in (("fwd", 1), ("bwd", 2))
    for wrapper in ("", "_wrapper")
}


def _of_kernel(equation: core.JaxprEqn) -> int:
    """Count as if every query met every key, as the written-out products do."""
    operands: list[Any] = equation.invars[:3]
    query, key, value = (operand.aval.shape for operand in operands)
    if equation.params["layout"]:  # (B, H, T, K)
        queries, heads, keys = query[2], query[1], key[2]
    else:  # (B, T, H, K)
        queries, heads, keys = query[1], query[2], key[1]
    each = 2 * query[0] * heads * queries * keys * (query[3] + value[3])
    return _KERNELS[equation.primitive.name] * each


def forward(settings: config.Model, source: int, target: int, vocabulary: int) -> int:
    """Count the operations of one sentence pair through a model, all words given.

    A Transformer is counted by formula, ``2 * (products with parameters + 2 products an
    attention)``, each a sum over positions; see Table 1 for the terms in n^2 d and
    n d^2. An additive score, ``tanh(..) . v``, has as many products as ``q . k``; a
    general one transforms each query first. Relative positions have 2 more in each
    self-attention, of positions and 2 k + 1 labels, or, where no distance is clipped,
    of each of n positions and 2 n labels; disentangled ones have 2 in the encoder, of
    positions and 2 S - 1 distances, and 2 that project these. A window is counted as
    blocks of its size where they pay. The product that reads source vectors in place of
    ids, S F d, is left out. A ByteNet, whose grid is not a polynomial of S, is counted
    by formula too, ``2 (4 + k) d^2`` per block and column. Any other model is counted
    in the traced forward pass, loops as often as they run.

    Args:
      settings: sizes.
      source: S, positions of the source.
      target: T, positions of the target.
      vocabulary: V, rows of the output matrix.

    Returns:
      Operations, 2 per multiply-add.
    """
    output = 2 * target * settings.d_model * vocabulary
    if isinstance(settings, config.ByteNet):
        finish = 2 * target * settings.d_model**2
        return _dilated(settings, source, target) + finish + output
    if not isinstance(settings, config.Transformer):
        return _polynomial(_differences(settings), source, target) + output
    c = settings
    if c.output_bias:  # columns of ones
        output += 2 * target * vocabulary * (2 if c.dtype == "bfloat16" else 1)
    keys, values = c.heads * c.d_k, c.heads * c.d_v
    into, out = c.d_model * keys, values * c.d_model
    into += keys * c.d_k * (c.score == "general")
    keys_values = c.d_model * (keys + values)
    inner = 2 * c.d_model * c.d_ff
    encoder = source * (into + keys_values + out + inner)
    encoder += source * _labels(c, source) * (keys + values)
    encoder += _pairs(c, "encoder", source, 3) * (keys + values)
    if c.positions == "disentangled":
        encoder += 2 * (2 * source - 1) * source * keys
    decoder = (
        target * (into + keys_values + out)
        + target * _labels(c, target) * (keys + values)
        + _pairs(c, "decoder", target, 2) * (keys + values)
        + target * (into + out + source * (keys + values))
        + source * keys_values
        + target * inner
    )
    stacks = c.layers * encoder + c.depth * decoder
    return 2 * stacks + _shared(c, source) + output


def _shared(settings: config.Model, source: int) -> int:
    """Count what all sentences of a batch share: projections of distances."""
    c = settings
    if not isinstance(c, config.Transformer) or c.positions != "disentangled":
        return 0
    return 2 * c.layers * 2 * (2 * source - 1) * c.d_model * c.heads * c.d_k


def _labels(c: config.Transformer, length: int) -> int:
    """Count the vectors that each of n positions meets in self-attention, by label."""
    every = counts.labels(c)
    unclipped = length <= (every + 1) // 2
    return every + unclipped * (2 * length - every)


def _pairs(c: config.Transformer, kind: str, length: int, blocks: int) -> int:
    """Count the pairs of a query and a key of self-attention, one by one or by blocks.

    Args:
      c: sizes and choices.
      kind: whose self-attention it is, "encoder" or "decoder".
      length: n.
      blocks: how many blocks of keys a block of queries meets.
    """
    every, w = length**2, c.window
    if not w or biased(c, kind):
        return every
    near = -(-length // w) * blocks * w**2
    return every + pays(length, w) * (near - every)


def _dilated(c: config.ByteNet, source: int, target: int) -> int:
    """Count the operations of the two stacks of a ByteNet."""
    inner = c.d_model // 2
    columns = bytenet.grid_columns(source, c.grid) + target
    return 2 * c.sets * c.blocks * (4 + c.kernel) * inner**2 * columns


_LEAST = 2  # length of the shortest sentence that is traced


@functools.cache
def _differences(settings: config.Model) -> tuple[tuple[int, ...], ...]:
    """Return differences by S and T of what a pair takes up to the output matrix.

    They determine the count, a polynomial of degree 2 in S and in T, for any model with
    no more than products of all positions with all positions.
    """
    lengths = range(_LEAST, _LEAST + 3)
    counts = [[_up_to_output(settings, s, t) for t in lengths] for s in lengths]
    by_target = [_forward_differences(row) for row in counts]
    by_both = zip(*map(_forward_differences, zip(*by_target, strict=True)), strict=True)
    return tuple(by_both)


def _forward_differences(values: Sequence[int]) -> list[int]:
    """Return f(0), f(1) - f(0) and so on up to the last order.

    >>> _forward_differences([1, 4, 9])
    [1, 3, 2]
    """
    found, left = [], list(values)
    while left:
        found.append(left[0])
        left = [b - a for a, b in itertools.pairwise(left)]
    return found


def _polynomial(differences: Sequence[Sequence[int]], source: int, target: int) -> int:
    """Evaluate Newton's polynomial, exactly, also for arrays of lengths."""

    def binomials(length):
        x = length - _LEAST
        return 1, x, x * (x - 1) // 2

    return sum(
        c * s * t
        for row, s in zip(differences, binomials(source), strict=True)
        for c, t in zip(row, binomials(target), strict=True)
    )


def _up_to_output(settings: config.Model, source: int, target: int) -> int:
    """Count what a pair takes up to the output matrix, from the trace."""
    vocabulary = 8  # looking up an embedding is not a product
    model = models.MODELS[settings.kind].Model(settings, vocabulary, vocabulary)
    ids = [jax.ShapeDtypeStruct((1, n), jnp.int32) for n in (source, target)]
    return traced(
        functools.partial(models.features, model), models.abstract(model), *ids
    )


def sequential_steps(
    settings: config.Model, source: float, target: float, *, given: bool = False
) -> float:
    """Count the steps of one sentence that have to wait for one another.

    A step is one application of a layer or a cell to all that it can take at once: a
    layer of a Transformer to all positions, a cell of a recurrent model to one. They
    are counted as the programs run them, layer after layer: what two directions or two
    heads do side by side is one step; attention and readout belong to their step.

    * Transformer: N of the encoder, and N of the decoder for each token written; with
      all words given, N of the decoder in all.
    * Recurrent: one for each token read by each layer of the encoder; for each token
      written, as many as the decoder has cells one after the other: the layers of
      "luong" and "gnmt", 2 of "cgru", else 1. Words that are given save no step.
    * ConvS2S: as for a Transformer, with the layers that each side has.
    * ByteNet: as for a Transformer, with blocks in place of layers.

    Args:
      settings: of the model.
      source: S, tokens of the source with EOS, or their mean.
      target: T, tokens of the target with EOS, or their mean.
      given: the target's words are given, as in training; else each is written before
        the next, as in translation.

    Raises:
      UserError: for a kind of model for which this is not known.
    """
    if isinstance(settings, config.Transformer):
        return settings.layers + settings.depth * (1 if given else target)
    if isinstance(settings, config.ByteNet):
        return settings.sets * settings.blocks * (1 + (1 if given else target))
    if isinstance(settings, config.Recurrent):
        layers = settings.layers
        cells = {
            "encdec": 1,
            "rnnsearch": 1,
            "cgru": 2,
            "luong": layers,
            "gnmt": layers,
        }
        return layers * source + cells[settings.member] * target
    if isinstance(settings, config.Convolutional):
        encoder, decoder = map(
            config.convolutions, (settings.encoder, settings.decoder)
        )
        return len(encoder) + len(decoder) * (1 if given else target)
    expected = "transformer, rnn, convs2s or bytenet"
    return config.refuse("model.kind", expected, settings.kind)


def train_step(
    settings: config.Model, rows: int, source: int, target: int, vocabulary: int
) -> int:
    """Count the operations of an update: each product has two more backward.

    What a backward pass recomputes does not count: the energies and the sums of
    attention in recurrent models.

    Args:
      settings: sizes.
      rows: B.
      source: S, padded tokens of the source.
      target: T, padded tokens of the target.
      vocabulary: V.

    Returns:
      ``3 * B * forward``, less what sentences share.
    """
    whole = rows * forward(settings, source, target, vocabulary)
    return 3 * (whole - (rows - 1) * _shared(settings, source))


def configured_step(
    settings: config.Config, rows: int, source: int, target: int, vocabulary: int
) -> int:
    """Count the operations of an update as a run makes it.

    ``train_step`` and what ``parallel.remat`` recomputes, for each pass over the batch
    (``loss.passes``).

    Args:
      settings: of the run.
      rows: B.
      source: S, padded tokens of the source.
      target: T, padded tokens of the target.
      vocabulary: V.
    """
    model, remat = settings.model, settings.parallel.remat
    again = rows * recomputed(model, source, target, remat)
    whole = train_step(model, rows, source, target, vocabulary)
    return settings.loss.passes * (whole + again)


def recomputed(settings: config.Model, source: int, target: int, remat: str) -> int:
    """Count what the backward pass of one sentence pair recomputes.

    Args:
      settings: sizes.
      source: S.
      target: T.
      remat: ``parallel.remat``; "layers": both stacks, in ConvS2S what later products
        need of them; "dots": in each attention the products without parameters,
        ``h (d_k + d_v) n m`` of n queries and m keys, or labels of distances; a ByteNet
        has none.

    Returns:
      Operations, 2 per multiply-add.
    """
    if remat == "none":
        return 0
    if isinstance(settings, config.Convolutional):
        return _recomputed_blocks(settings, source, target, remat)
    if isinstance(settings, config.ByteNet):
        return _dilated(settings, source, target) if remat == "layers" else 0
    if remat == "layers":
        return forward(settings, source, target, vocabulary=0)
    c = config.transformer(settings)
    encoder = _pairs(c, "encoder", source, 3) + _labels(c, source) * source
    decoder = _pairs(c, "decoder", target, 2) + _labels(c, target) * target
    decoder += source * target
    products = (c.d_k + c.d_v) * (c.layers * encoder + c.depth * decoder)
    if c.positions == "disentangled":
        products += c.layers * 2 * c.d_k * source * (2 * source - 1)
    return 2 * c.heads * products


def _recomputed_blocks(
    c: config.Convolutional, source: int, target: int, remat: str
) -> int:
    """Count for ConvS2S; nothing needs the results of its residual maps and of W_o."""
    sides = [config.convolutions(text) for text in (c.encoder, c.decoder)]
    total = 2 * len(sides[1]) * source * target * c.embedding  # energies and sums
    if remat == "layers":
        for layers, length in zip(sides, (source, target), strict=True):
            inputs = layers[0].width
            for width, kernel in layers:
                total += length * kernel * inputs * 2 * width
                inputs = width
        total += target * sum(layer.width for layer in sides[1]) * c.embedding
    return 2 * total
