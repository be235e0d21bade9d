"""Shapes as a program's text writes them: sizes, layouts, bytes."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

_WIDTHS = {"pred": 1, "bf16": 2, "f16": 2, "f32": 4, "f64": 8, "token": 0}
_WIDTHS |= {f"{sign}{8 * width}": width for sign in "su" for width in (1, 2, 4, 8)}


class Shaped(NamedTuple):
    kind: str
    sizes: tuple[int, ...]
    layout: str  # such as 1,0:T(8,128)S(1): axes from the fastest on, tiles, memory


def dimensions(shape: str) -> tuple[int, ...]:
    """Read the first shape in a text.

    >>> dimensions("(f32[2,3]{1,0}, s32[])")
    (2, 3)
    """
    return arrays(shape)[0].sizes


def arrays(shape: str) -> list[Shaped]:
    """Return each array in a text."""
    return [
        Shaped(kind, tuple(int(n) for n in sizes.split(",") if n), layout)
        for kind, sizes, layout in re.findall(
            r"(\w+)\[([\d,]*)\](?:\{([^}]*)\})?", shape
        )
    ]


def value_bytes(shape: str) -> int:
    """Return the bytes of the values in a shape's arrays."""
    return sum(_WIDTHS[x.kind] * math.prod(x.sizes) for x in arrays(shape))


def off_main(array: Shaped) -> bool:
    """Return whether an array is in another memory than the main one."""
    memory = re.search(r"S\((\d+)\)", array.layout)
    return memory is not None and memory[1] != "0"


def main_bytes(shape: str) -> int:
    """Return what a shape's arrays, scalars apart, take of the main memory."""
    stored = [x for x in arrays(shape) if x.sizes and not off_main(x)]
    return sum(map(tiled_bytes, stored))


def tiled_bytes(array: Shaped) -> int:
    """Return the bytes of an array, in full tiles if its layout has tiles.

    >>> tiled_bytes(*arrays("f32[3,20,32]{2,1,0:T(8,128)}")) == 4 * 3 * 24 * 128
    True
    """
    axes, _, rest = array.layout.partition(":")
    sizes = [array.sizes[int(axis)] for axis in axes.split(",") if axis]
    tiles = re.match(r"T\(([\d,]+)\)", rest)
    tile = [int(n) for n in reversed(tiles[1].split(","))] if tiles else []
    for place, size in enumerate(tile[: len(sizes)]):
        sizes[place] = -(-sizes[place] // size) * size
    return _WIDTHS[array.kind] * math.prod(sizes or array.sizes)
