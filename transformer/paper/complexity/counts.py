"""Operations and sequential operations of a layer, counted in its trace.

* Operations are counted as in ``tools/flops.py``: products of matrices and
  convolutions, 2 per multiply-add, padding and masked places included.
* Sequential operations are the longest chain of those products in which each needs the
  result of the one before; a product is one step however many numbers it has, and
  elementwise operations between two products add none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend import core

from transformer.paper.complexity.layers import EVERY, Sizes, abstract, whole_layer
from transformer.tools import flops


def operations(row: str, sizes: Sizes) -> int:
    """Count the operations that Table 1 is about, without projections of attention."""
    function, shapes = EVERY[row].layer(sizes)
    return flops.traced(function, *abstract(shapes))


def whole_operations(row: str, sizes: Sizes) -> int:
    """Count the operations of the layer, with projections in and out of attention."""
    function, shapes = whole_layer(row, sizes)
    return flops.traced(function, *abstract(shapes))


def sequential_operations(row: str, sizes: Sizes) -> int:
    """Count the longest chain of dependent products in a layer."""
    function, shapes = EVERY[row].layer(sizes)
    return longest_chain(function, *abstract(shapes))


def longest_chain(function: Callable[..., Any], *args: Any) -> int:
    """Count the products on the longest path through a function, from its jaxpr.

    Each iteration of a ``scan`` adds to the chain what it does with the carry of the
    one before; iterations that do not depend on each other add nothing.

    Args:
      function: is traced, not run.
      *args: arrays or ``jax.ShapeDtypeStruct``.

    Returns:
      Steps.

    Raises:
      ValueError: for a loop or branch whose length is not in the trace.

    >>> one = jax.numpy.eye(2)
    >>> longest_chain(lambda x, y: (x @ x) + (y @ y) @ y, one, one)
    2
    """
    jaxpr = jax.make_jaxpr(function)(*args).jaxpr
    return max(_depths(jaxpr, [0] * len(jaxpr.invars)))


def _depths(jaxpr: core.Jaxpr, given: Sequence[int]) -> list[int]:
    """Return how many products lead to each output, given those before the inputs."""
    depth: dict[Any, int] = dict(zip(jaxpr.invars, given, strict=True))
    for equation in jaxpr.eqns:
        before = [
            0 if isinstance(v, core.Literal) else depth.get(v, 0)
            for v in equation.invars
        ]
        after = _depths_after(equation, before)
        depth.update(zip(equation.outvars, after, strict=True))
    return [
        0 if isinstance(v, core.Literal) else depth.get(v, 0) for v in jaxpr.outvars
    ]


def _depths_after(equation: core.JaxprEqn, before: list[int]) -> list[int]:
    inner = flops.inside(equation.params)
    if equation.primitive.name == "scan":
        return _depths_of_scan(equation, before)
    if len(inner) == 1 and len(inner[0].invars) == len(before):
        return _depths(inner[0], before)
    if inner or equation.primitive.name == "cond":
        raise ValueError(f"expected no {equation.primitive.name} in the function")
    step = int(flops.is_product(equation))
    return [max(before, default=0) + step] * len(equation.outvars)


def _depths_of_scan(equation: core.JaxprEqn, before: list[int]) -> list[int]:
    (body,) = flops.inside(equation.params)
    # The parameters that name the parts differ between versions of JAX; the shapes do
    # not: an array of which each iteration reads or writes a slice has one more axis.
    slices = _sliced(equation.invars, body.invars)
    carries = len(equation.outvars) - _sliced(equation.outvars, body.outvars)
    constants = len(before) - slices - carries
    read = before[constants + carries :]
    after = before[constants:][:carries] + [0] * (len(equation.outvars) - carries)
    for _ in range(equation.params["length"]):
        each = _depths(body, before[:constants] + after[:carries] + read)
        after = each[:carries] + list(map(max, each[carries:], after[carries:]))
    return after


def _sliced(outside: Sequence[Any], inside: Sequence[Any]) -> int:
    pairs = zip(outside, inside, strict=True)
    return sum(out.aval.ndim > each.aval.ndim for out, each in pairs)
