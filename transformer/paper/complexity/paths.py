"""Maximum path lengths in stacks of layers, read from the zeros of Jacobians.

They are the number of layers (of time steps for a recurrent layer) until every output
depends on every input.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer.nn import recurrent
from transformer.paper.complexity.layers import (
    BLOCKED,
    BYTENET,
    CONVS2S,
    RECURRENT,
    RESTRICTED,
    SEPARABLE,
    Layer,
    Sizes,
    bytenet_block,
    convolution,
    convolution_layer,
    draw,
    recurrent_step,
    whole_layer,
)


class Stack(NamedTuple):
    """A stack of layers: which outputs of each depend on which inputs."""

    patterns: Iterator[np.ndarray]  # (to, from), of the first layer, the second ...
    needed: np.ndarray  # (to, from) what has to depend on what in the end


def dependence(
    function: Callable[[jax.Array], jax.Array], x: jax.Array | np.ndarray
) -> np.ndarray:
    """Find which output positions depend on which input positions.

    Args:
      function: (n, d) to (m, d).
      x: (n, d), where the Jacobian is taken: random numbers, so that what is zero there
        is zero everywhere.

    Returns:
      Boolean (m, n), True where any number of the Jacobian is not zero.
    """

    @jax.jit
    def rows(x):
        y, pull = jax.vjp(function, x)
        # A random mixture of the numbers of an output depends on what any of them does.
        mixtures = jax.random.normal(jax.random.key(0), y.shape, y.dtype)
        each = jnp.eye(len(y), dtype=y.dtype)[..., None] * mixtures
        # One after the other: in a batch, as jax 0.10.2 compiles it for a CPU, the
        # Jacobian of ByteNet's block is wrong by 2 where its entries are up to 5.
        return jax.lax.map(lambda one: pull(one)[0], each)

    return (np.asarray(rows(jnp.asarray(x))) != 0).any(axis=2)


def _layer_stack(sizes: Sizes, row: str, causal: bool = False) -> Stack:
    """Stack one layer upon itself."""
    needed = np.ones((sizes.n, sizes.n), bool)
    patterns = itertools.repeat(_pattern_of(whole_layer(row, sizes)))
    return Stack(patterns, np.tril(needed) if causal else needed)


def _recurrent_stack(sizes: Sizes, kind: str) -> Stack:
    """Take as the layer one time step of all positions: (inputs, states) to the same.

    A state needs its input and the state before, so that the path from the first input
    to the last state leads through all n time steps.
    """
    n, d = sizes.n, sizes.d
    cell, shapes = recurrent_step(kind, d)
    arrays = 1 + recurrent.CELLS[kind].parts
    inputs_states, *weights = draw([(arrays * n, d), *shapes])

    def step(inputs_states):
        x, *states = jnp.split(inputs_states, arrays)
        before = tuple(jnp.pad(each[:-1], ((1, 0), (0, 0))) for each in states)
        return jnp.concatenate([x, *cell(x, before, *weights)])

    needed = np.zeros((arrays * n, arrays * n), bool)
    needed[n : 2 * n, :n] = np.tri(
        n, dtype=bool
    )  # outputs, which the states begin with
    return Stack(itertools.repeat(dependence(step, inputs_states)), needed)


def _convolution_stack(sizes: Sizes, dilated: bool) -> Stack:
    """Stack convolutions, layer i with a dilation of k^i if they are dilated."""
    x, kernel = draw(convolution_layer(sizes)[1])

    def pattern(dilation):
        return dependence(lambda x: convolution(x, kernel, dilation), x)

    patterns: Iterator[np.ndarray] = itertools.repeat(pattern(1))
    if dilated:
        patterns = (pattern(sizes.k**i) for i in itertools.count())
    return Stack(patterns, np.tri(sizes.n, dtype=bool))


def _bytenet_stack(sizes: Sizes) -> Stack:
    """Stack ByteNet's blocks, whose dilations 1, 2, ..., 16 begin anew in each set."""
    # Of a few channels, behind a ReLU, all may be zero where the Jacobian is taken.
    wide = sizes._replace(d=max(sizes.d, 32))

    @functools.cache
    def pattern(i):
        return _pattern_of(bytenet_block(wide, 2**i))

    patterns = (pattern(i % 5) for i in itertools.count())
    return Stack(patterns, np.tri(sizes.n, dtype=bool))


def _pattern_of(layer: Layer) -> np.ndarray:
    """Return which outputs of a layer depend on which of its first inputs."""
    function, shapes = layer
    x, *weights = draw(shapes)
    return dependence(lambda x: function(x, *weights), x)


class Path(NamedTuple):
    """A maximum path length of Table 1, and the stack in which it is measured."""

    powers: dict[str, float]
    stack: Callable[[Sizes], Stack]


PATHS = {
    "self-attention": Path(
        {"n": 0}, functools.partial(_layer_stack, row="self-attention")
    ),
    **{
        row: Path({"n": 1}, functools.partial(_recurrent_stack, kind=kind))
        for row, kind in RECURRENT.items()
    },
    "convolutional, contiguous": Path(
        {"n": 1, "k": -1}, functools.partial(_convolution_stack, dilated=False)
    ),
    "convolutional, dilated": Path(
        {"log_k n": 1}, functools.partial(_convolution_stack, dilated=True)
    ),
    "self-attention, restricted": Path(
        {"n": 1, "r": -1}, functools.partial(_layer_stack, row=RESTRICTED)
    ),
}

# The stacks of layers that Table 1 does not have.
MORE_PATHS: dict[str, Callable[[Sizes], Stack]] = {
    SEPARABLE: functools.partial(_layer_stack, row=SEPARABLE, causal=True),
    CONVS2S: functools.partial(_layer_stack, row=CONVS2S),
    BYTENET: _bytenet_stack,
    BLOCKED: functools.partial(_layer_stack, row=BLOCKED),
}


@functools.cache
def path_length(name: str, sizes: Sizes) -> int:
    """Count layers until every output depends on every input.

    Recurrent layers and convolutions, except ConvS2S's encoder, read from left to
    right: each of their outputs has to depend on every input up to its own position. A
    recurrent layer is taken apart into its time steps. Dependence in a layer is read
    from its Jacobian at random numbers, dependence in a stack from the Boolean product
    of its layers.

    Args:
      name: a key of ``PATHS`` or of ``MORE_PATHS``.
      sizes: n, d, and k or r, which must be greater than 1.

    Returns:
      The number of layers, or of time steps.

    Raises:
      ValueError: if no number of layers is enough.
    """
    stack = MORE_PATHS[name] if name in MORE_PATHS else PATHS[name].stack
    patterns, needed = stack(sizes)
    reached = np.eye(len(needed), dtype=np.float32)
    for layers, pattern in zip(range(1, sizes.n + 1), patterns, strict=False):
        reached = (pattern @ reached > 0).astype(np.float32)
        if reached[needed].all():
            return layers
    raise ValueError(f"expected a layer that reaches beyond a position, got {sizes}")
