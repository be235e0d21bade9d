"""What a compiled program reads from and writes to the main memory."""

from __future__ import annotations

import re
from collections.abc import Sequence

from transformer.tools.hlo.program import (
    Computations,
    Instruction,
    add_up,
    computations_of,
    names_called,
)
from transformer.tools.hlo.shapes import arrays, main_bytes, off_main, tiled_bytes

_STILL = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "iota"}
_STILL |= {"while", "conditional", "call", "async-start", "after-all", "partition-id"}
_SLICES = {"slice", "dynamic-slice", "gather"}


def moved(program: str) -> int:
    """Count the bytes that a compiled program reads from and writes to the main memory.

    Each instruction reads its operands and writes its results; nothing moves within a
    fusion. Of an operand that is only sliced, and of a result that is an operand with a
    slice updated, only the slice counts. Arrays that the compiler has put into other
    memories of a TPU (``S(1)``, the vector memory) count when they are copied there or
    back, scalars never. Bytes are those of full tiles: a TPU pads rows of 32 floats to
    128.

    Args:
      program: HLO text.

    Returns:
      Bytes; loops and branches as in ``operations``.

    Raises:
      ValueError: as ``operations``.
    """
    computations = computations_of(program)
    opened = ("while", "conditional", "call", "async-start")
    return add_up(program, lambda line: _traffic(line, computations), opened)


def _traffic(line: Instruction, computations: Computations) -> int:
    """Return the bytes that one instruction moves."""
    if line.opcode in _STILL or line.opcode.endswith(("-done", "-update")):
        return 0
    if line.opcode == "custom-call" and re.search(
        'target="(AllocateBuffer|ConcatBitcast)"', line.attributes
    ):
        return 0
    if line.opcode in ("copy-start", "slice-start"):
        # Its result names what is read and where it goes, in either order.
        (source,) = arrays(line.operands[0])
        goes = next((x for x in arrays(line.shape)[:2] if x != source), source)
        return tiled_bytes(goes) * [off_main(source), off_main(goes)].count(False)
    if line.opcode == "fusion":
        ((called, *_),) = [names_called(line, computations)]
        inside = computations[called]
        read = sum(
            min(
                _read(inside, _parameter(inside, number), computations),
                main_bytes(shape),
            )
            for number, shape in enumerate(line.operands)
            if main_bytes(shape)
        )
        return read + _written(line.shape, inside, computations)
    if line.opcode == "dynamic-update-slice":
        part = tiled_bytes(arrays(line.operands[1])[0])
        return main_bytes(line.operands[1]) + min(part, main_bytes(line.shape))
    if line.opcode in _SLICES:
        size = tiled_bytes(arrays(line.shape)[0])
        rest = sum(map(main_bytes, line.operands[1:]))
        read = min(size, main_bytes(line.operands[0]))
        return read + rest + main_bytes(line.shape)
    return sum(map(main_bytes, line.operands)) + main_bytes(line.shape)


def _parameter(inside: Sequence[Instruction], number: int) -> str:
    return next(
        line.name
        for line in inside
        if line.opcode == "parameter" and line.literal == str(number)
    )


def _read(inside: Sequence[Instruction], name: str, computations: Computations) -> int:
    """Return how many bytes of an array a fused function reads."""
    total = 0
    for line in inside:
        for place, used in enumerate(line.names):
            if used != name:
                continue
            if line.opcode == "bitcast" and not line.root:
                total += _read(inside, line.name, computations)
            elif line.opcode == "fusion":
                inner = computations[names_called(line, computations)[0]]
                total += _read(inner, _parameter(inner, place), computations)
            elif line.opcode in _SLICES and place == 0:
                total += tiled_bytes(arrays(line.shape)[0])
            elif line.opcode == "dynamic-update-slice" and place == 0:
                continue  # it stays where it is, except for the part
            else:
                total += tiled_bytes(arrays(line.operands[place])[0])
    return total


def _written(
    shape: str, inside: Sequence[Instruction], computations: Computations
) -> int:
    """Return how many bytes of its results a fused function writes."""
    lines = {line.name: line for line in inside}
    root = next(line for line in inside if line.root)
    results = root.names if root.opcode == "tuple" else [root.name]
    if len(results) != len(arrays(shape)):  # tuples within tuples
        return main_bytes(shape)
    return sum(
        min(tiled_bytes(array), _replaced(lines, name, computations))
        for array, name in zip(arrays(shape), results, strict=True)
        if array.sizes and not off_main(array)
    )


def _replaced(
    lines: dict[str, Instruction], name: str, computations: Computations
) -> int:
    """Return the bytes of a result, or of the part that is new."""
    line = lines[name]
    if line.opcode == "bitcast":
        return _replaced(lines, line.names[0], computations)
    if line.opcode == "fusion":
        return _written(
            line.shape, computations[names_called(line, computations)[0]], computations
        )
    shape = line.operands[1] if line.opcode == "dynamic-update-slice" else line.shape
    return sum(map(tiled_bytes, arrays(shape)))
