"""The layer types of Table 1, as pure functions of n positions of width d.

The recurrent ones are those of ``models/rnn``: Bahdanau's GRU and the LSTM. ConvS2S and
ByteNet are here as whole blocks, besides the convolution alone.

Attention's operations are counted without the four projections of section 3.2.2, as the
table counts leading terms only: they cost another 8 n d^2, more than attention itself
as long as n < 2 d. ``whole_layer`` has them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer import config
from transformer.models import bytenet, convs2s
from transformer.models.rnn.layers import Cell
from transformer.models.rnn.layers import Layer as RecurrentLayer
from transformer.nn import attention, attention_window, matmul, recurrent
from transformer.nn.convolution import windows
from transformer.nn.hardware import Hardware

_DTYPE = "float32"


class Sizes(NamedTuple):
    """The letters of Table 1."""

    n: int  # positions
    d: int  # width
    k: int = 3  # kernel of a convolution
    r: int = 3  # neighbourhood of restricted self-attention, odd


# Functions of weights (positions first), and the shapes that they take.
Layer = tuple[Callable[..., jax.Array], list[tuple[int, ...]]]


def self_attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Attend from each position to all, with one head (equation 1).

    Args:
      q: queries (n, d).
      k: keys (n, d).
      v: values (n, d).

    Returns:
      (n, d).
    """
    output, _ = attention.attention(q[None, None], k[None, None], v[None, None])
    return output[0, 0]


def restricted_self_attention(
    q: jax.Array, k: jax.Array, v: jax.Array, neighbourhood: int
) -> jax.Array:
    """Attend from each position to the r around it, at the cost of those r only.

    It equals attention under ``attention.window_mask(n, r // 2)``, but gathers the keys
    and values of each neighbourhood instead of comparing all with all.

    Args:
      q: queries (n, d).
      k: keys (n, d).
      v: values (n, d).
      neighbourhood: r, odd; positions beyond the ends are masked.

    Returns:
      (n, d).
    """
    n = len(q)
    around = np.arange(neighbourhood) - neighbourhood // 2
    place = np.arange(n)[:, None] + around
    exists = jnp.asarray((place >= 0) & (place < n))
    place = np.clip(place, 0, n - 1)
    output, _ = attention.attention(  # each position is a sentence of one query
        q[:, None, None], k[place][:, None], v[place][:, None], exists[:, None, None]
    )
    return output[:, 0, 0]


def recurrent_step(
    kind: str, width: int
) -> tuple[Callable[..., tuple[jax.Array, ...]], list[tuple[int, ...]]]:
    """Return a time step of a cell of ``models/rnn``, and the shapes of its weights.

    Args:
      kind: a name of ``nn.recurrent.CELLS``.
      width: d, of its input and of its state.

    Returns:
      ``step(x, state, *weights)``, inputs (n, d) and states of as many arrays (n, d)
      as the cell has to the next states.
    """
    module = Cell(kind, width, width, _DTYPE)
    shapes, tree = _weights(functools.partial(module.init, method="gates"), width)

    def step(x, state, *weights):
        def made(cell):
            def multiply(name, operand):
                return matmul.product(operand, cell.matrices()[name], _DTYPE)

            gates, held = cell.gates(x), cell.held()
            return recurrent.CELLS[kind].step(gates, state, held, multiply)

        return module.apply(tree.unflatten(weights), method=made)

    return step, shapes


def _weights(init: Callable[..., Any], width: int, *more: Any) -> tuple[list, Any]:
    """Return the shapes of a module's parameters, and the tree that they make."""
    x = jax.ShapeDtypeStruct((1, 1, width), jnp.float32)
    parameters = jax.eval_shape(init, jax.random.key(0), x, *more)
    leaves, tree = jax.tree.flatten(parameters)
    return [leaf.shape for leaf in leaves], tree


def convolution(x: jax.Array, kernel: jax.Array, dilation: int = 1) -> jax.Array:
    """Combine positions with earlier ones, ``y_t = sum_i x_(t - i l) W_(k - 1 - i)``.

    Args:
      x: (n, d); positions before the first are zeros.
      kernel: W (k, d, d).
      dilation: l, the distance between the positions that are combined.

    Returns:
      (n, d).
    """
    size, width, out = kernel.shape
    read = windows(x[None], size, causal=True, dilation=dilation)[0]
    return read @ kernel.reshape(size * width, out)


def separable_convolution(
    x: jax.Array, depthwise: jax.Array, pointwise: jax.Array
) -> jax.Array:
    """Combine positions feature by feature, then features position by position.

    Args:
      x: (n, d); positions before the first are zeros.
      depthwise: (k, d).
      pointwise: (d, d).

    Returns:
      (n, d).

    Source: section 4, "Separable convolutions".
    """
    read = windows(x[None], len(depthwise), causal=True)[0]
    read = read.reshape(len(x), *depthwise.shape)
    return jnp.einsum("nkd,kd->nd", read, depthwise) @ pointwise


def blocked_self_attention(
    q: jax.Array, k: jax.Array, v: jax.Array, neighbourhood: int
) -> jax.Array:
    """Attend as ``restricted_self_attention`` does, in blocks as the models do.

    Args:
      q: queries (n, d).
      k: keys (n, d).
      v: values (n, d).
      neighbourhood: r, odd and above 1.

    Returns:
      (n, d).
    """
    mask = attention.Mask(window=neighbourhood // 2)
    q, k, v = (x[None, None] for x in (q, k, v))
    return attention_window.window_attention(q, k, v, mask)[0, 0]


def convs2s_block(sizes: Sizes) -> Layer:
    """Return a block of ConvS2S's encoder, with its gate and its residual connection.

    Args:
      sizes: n, d and k, odd.
    """
    one = config.Convolution(sizes.d, sizes.k)
    settings = config.Convolutional(
        kind="convs2s",
        **_usual(sizes),
        embedding=sizes.d,
        encoder=f"1x{sizes.d}k{sizes.k}",
        decoder=f"1x{sizes.d}k{sizes.k}",
        max_positions=sizes.n,
    )
    module = convs2s.EncoderBlock(settings, Hardware("cpu"), sizes.d, one)
    shapes, tree = _weights(module.init, sizes.d, jnp.ones((1, 1)), None)

    def read(x, *weights):
        real = jnp.ones((1, len(x)))
        return module.apply(tree.unflatten(weights), x[None], real, None)[0]

    return read, [(sizes.n, sizes.d), *shapes]


def bytenet_block(sizes: Sizes, dilation: int = 1) -> Layer:
    """Return a block of ByteNet's decoder: d features narrowed, convolved, widened.

    Args:
      sizes: n, d, even, and k.
      dilation: the distance between the positions that are combined.
    """
    settings = config.ByteNet(
        kind="bytenet", **_usual(sizes), sets=1, blocks=1, kernel=sizes.k, grid=1.0
    )
    module = bytenet.Block(settings, dilation, bytenet.STACKS["decoder"], _DTYPE)
    shapes, tree = _weights(module.init, sizes.d, None, None)

    def read(x, *weights):
        return module.apply(tree.unflatten(weights), x[None], None, None)[0]

    return read, [(sizes.n, sizes.d), *shapes]


def _usual(sizes: Sizes) -> dict[str, Any]:
    """Return what every model has."""
    return {
        "vocab_size": 0,
        "d_model": sizes.d,
        "dropout": 0.0,
        "tying": "none",
        "dtype": _DTYPE,
    }


def _attention_layer(sizes: Sizes) -> Layer:
    return self_attention, [(sizes.n, sizes.d)] * 3


def _recurrent_layer(sizes: Sizes, kind: str) -> Layer:
    """Return a layer of the encoder of ``models/rnn``, in one direction."""
    module = RecurrentLayer(kind, sizes.d, sizes.d, _DTYPE)
    real = jax.ShapeDtypeStruct((1, 1), jnp.float32)
    shapes, tree = _weights(module.init, sizes.d, real)

    def read(x, *weights):
        outputs, _ = module.apply(
            tree.unflatten(weights), x[None], jnp.ones((1, len(x)))
        )
        return outputs[0]

    return read, [(sizes.n, sizes.d), *shapes]


def convolution_layer(sizes: Sizes) -> Layer:
    """Return the convolutional layer with the shapes of its input and its kernel."""
    return convolution, [(sizes.n, sizes.d), (sizes.k, sizes.d, sizes.d)]


def _restricted_layer(sizes: Sizes) -> Layer:
    attend = functools.partial(restricted_self_attention, neighbourhood=sizes.r)
    return attend, [(sizes.n, sizes.d)] * 3


class Row(NamedTuple):
    """A row of Table 1: exponents as printed, and the layer that is measured."""

    operations: dict[str, float]
    sequential: dict[str, float]
    layer: Callable[[Sizes], Layer]


# The rows of recurrent layers, with the names of their cells.
RECURRENT = {"recurrent, GRU": "gru", "recurrent, LSTM": "lstm"}
ROWS = {
    "self-attention": Row({"n": 2, "d": 1}, {"n": 0}, _attention_layer),
    **{
        row: Row(
            {"n": 1, "d": 2},
            {"n": 1},
            functools.partial(_recurrent_layer, kind=kind),
        )
        for row, kind in RECURRENT.items()
    },
    "convolutional": Row({"k": 1, "n": 1, "d": 2}, {"n": 0}, convolution_layer),
    "self-attention, restricted": Row(
        {"r": 1, "n": 1, "d": 1}, {"n": 0}, _restricted_layer
    ),
}
RESTRICTED = "self-attention, restricted"


def _separable_layer(sizes: Sizes) -> Layer:
    n, d, k, _ = sizes
    return separable_convolution, [(n, d), (k, d), (d, d)]


def _blocked_layer(sizes: Sizes) -> Layer:
    attend = functools.partial(blocked_self_attention, neighbourhood=sizes.r)
    return attend, [(sizes.n, sizes.d)] * 3


class More(NamedTuple):
    """A layer that is no row of Table 1; its operations may be a sum."""

    formula: str
    operations: Callable[[Sizes], int]  # by the formula
    layer: Callable[[Sizes], Layer]


SEPARABLE = "convolutional, separable"
CONVS2S = "convolutional, block of ConvS2S"
BYTENET = "convolutional, block of ByteNet"
BLOCKED = "self-attention, in blocks"
MORE = {
    SEPARABLE: More(
        "2 k n d + 2 n d^2",
        lambda s: 2 * s.k * s.n * s.d + 2 * s.n * s.d**2,
        _separable_layer,
    ),
    CONVS2S: More("4 k n d^2", lambda s: 4 * s.k * s.n * s.d**2, convs2s_block),
    BYTENET: More(
        "2 n d^2 + k n d^2 / 2",
        lambda s: 2 * s.n * s.d**2 + s.k * s.n * s.d**2 // 2,
        bytenet_block,
    ),
    # Blocks of w = (r - 1) / 2 positions: the last one is filled up.
    BLOCKED: More(
        "6 (r - 1) n d",
        lambda s: 6 * (s.r - 1) * -(-s.n // (s.r // 2)) * (s.r // 2) * s.d,
        _blocked_layer,
    ),
}
EVERY: dict[str, Row | More] = {**ROWS, **MORE}


def whole_layer(row: str, sizes: Sizes) -> Layer:
    """Return the layer of a row with projections in and out of attention."""
    function, shapes = EVERY[row].layer(sizes)
    if row not in ("self-attention", RESTRICTED, BLOCKED):
        return function, shapes

    def projected(x, query, key, value, output):
        return function(x @ query, x @ key, x @ value) @ output

    return projected, [shapes[0], *4 * [(sizes.d, sizes.d)]]


def abstract(shapes: Sequence[tuple[int, ...]]) -> list[jax.ShapeDtypeStruct]:
    """Return float32 arrays of these shapes without their numbers."""
    return [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]


def draw(shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    """Return random float32 arrays of these shapes."""
    generator = np.random.default_rng(0)
    return [generator.standard_normal(shape, np.float32) for shape in shapes]
