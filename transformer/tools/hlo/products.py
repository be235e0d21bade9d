"""What a compiled program multiplies."""

from __future__ import annotations

import functools
import math
import re

from transformer.tools.hlo.program import Instruction, add_up
from transformer.tools.hlo.shapes import dimensions


def operations(program: str) -> int:
    """Count the operations of a compiled program's matrix products, 2 per multiply-add.

    Args:
      program: HLO text.

    Returns:
      Operations; the body of a loop counts as often as it runs, and of branches only
      the most expensive one counts.

    Raises:
      ValueError: if the text does not say how often a loop runs.
    """

    return add_up(program, _products)


def _products(line: Instruction) -> int:
    if line.opcode == "dot":
        axes = re.search(r"lhs_contracting_dims=\{([\d,]+)\}", line.attributes)
        assert axes, line
        left = dimensions(line.operands[0])
        terms = math.prod(left[int(axis)] for axis in axes[1].split(","))
        return 2 * terms * math.prod(dimensions(line.shape))
    if line.opcode == "custom-call":  # a Pallas kernel reports it itself
        cost = re.search(r'"cost_estimate":\{"flops":"(\d+)"', line.attributes)
        return int(cost[1]) if cost else 0
    return _convolution(line) if line.opcode == "convolution" else 0


def _convolution(line: Instruction) -> int:
    """Count ``2 N O I`` times the pairs of an output's place and a window's place.

    A TPU multiplies batches of matrices by a window over them. All but one of its
    places fall between the values of a dilated operand: only places with a value count.
    """
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", line.attributes)
    assert labels, line
    sides = [*line.operands, line.shape]
    left, right, out = (
        dict(zip(names, dimensions(shape), strict=True))
        for names, shape in zip(labels.groups(), sides, strict=True)
    )
    total = 2 * out["b"] * out["f"] * right["i"]
    window = _window(line.attributes, sum(name.isdigit() for name in out))
    for axis, each in enumerate(window):
        total *= _pairs(left[str(axis)], out[str(axis)], *each)
    return total


def _window(attributes: str, axes: int) -> list[tuple[int, ...]]:
    """Return size, stride, padding and both operands' dilations, of each axis."""
    found = re.search(r"window=\{([^}]*)\}", attributes)
    given = dict(part.split("=") for part in found[1].split()) if found else {}

    def numbers(name: str, default: int) -> list[int]:
        parts = given[name].split("x") if name in given else [str(default)] * axes
        return [int(part.split("_")[0]) for part in parts]

    names = {"size": 1, "stride": 1, "pad": 0, "lhs_dilate": 1, "rhs_dilate": 1}
    every = [numbers(name, default) for name, default in names.items()]
    return list(zip(*every, strict=True))


@functools.cache
def _pairs(
    values: int, places: int, size: int, stride: int, pad: int, left: int, right: int
) -> int:
    """Count the pairs of a place and a window's place where there is a value."""
    spread = range(0, left * values, left)
    return sum(
        stride * place + right * offset - pad in spread
        for place in range(places)
        for offset in range(size)
    )
