"""What a compiled program multiplies and sends, read from its text.

The text is HLO, as ``compiled.as_text()`` gives it: of a program for several devices it
is what each of them does.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from typing import NamedTuple

_WIDTHS = {"pred": 1, "bf16": 2, "f16": 2, "f32": 4, "s32": 4, "u32": 4, "s64": 8}
_HEAD = re.compile(r"(?:ENTRY )?%?([\w.-]+) .*\{$")
_LINE = re.compile(r"\s+(?:ROOT )?%?([\w.-]+) = (\(.*?\)|\S+) ([a-z][\w-]*)\((.*)")
_CALLED = re.compile(
    r"(?:calls|to_apply|body|condition|\w+_computations?)=(\{[^}]*\}|%?[\w.-]+)"
)
_TURNS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
# Lists of devices, so many groups of so many, or axes of a mesh.
_GROUPS = re.compile(
    r"replica_groups=(?:\{\{([\d,]+)\}|\[\d+,(\d+)\]<=|mesh\[([^]]*)\][^{]*\{([^}]*)\})"
)


class Instruction(NamedTuple):
    """One line of a program."""

    shape: str  # of the result
    opcode: str
    operands: tuple[str, ...]  # shapes
    attributes: str


def operations(program: str) -> int:
    """Count the operations of a program's matrix products, 2 a multiply-add.

    Args:
      program: HLO text.

    Returns:
      Operations; what a loop holds counts as often as it runs, and of branches the most
      expensive one.

    Raises:
      ValueError: if the text does not tell how often a loop runs.
    """

    def of(line: Instruction) -> int:
        if line.opcode != "dot":
            return 0
        axes = re.search(r"lhs_contracting_dims=\{([\d,]+)\}", line.attributes)
        assert axes, line
        left = dimensions(line.operands[0])
        terms = math.prod(left[int(axis)] for axis in axes[1].split(","))
        return 2 * terms * math.prod(dimensions(line.shape))

    return _total(program, of)


def sent(program: str) -> int:
    """Count the bytes that a device sends in a program, by rings of n devices.

    ``2 (n - 1) / n`` of the bytes to reduce an array for all, ``(n - 1) / n`` to reduce
    and scatter it or to exchange parts of it, ``n - 1`` times a device's own to gather.

    Args:
      program: HLO text.

    Returns:
      Bytes; loops and branches as in ``operations``.

    Raises:
      ValueError: as ``operations``, or if it does not tell which devices take part.
    """

    def of(line: Instruction) -> int:
        kind = line.opcode.removesuffix("-start")
        if kind not in _SHARES:
            return 0
        share = _SHARES[kind](_devices(line))
        return round(share * sum(map(_bytes, line.operands)))

    return _total(program, of)


_SHARES: dict[str, Callable[[int], float]] = {
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "reduce-scatter": lambda n: (n - 1) / n,
    "all-to-all": lambda n: (n - 1) / n,
    "all-gather": lambda n: n - 1,
    "collective-permute": lambda n: 1,
}


def _devices(line: Instruction) -> int:
    """Return how many devices take part in a collective."""
    if line.opcode.startswith("collective-permute"):
        return 2
    found = _GROUPS.search(line.attributes)
    if not found:
        raise ValueError(f"expected groups of devices, got {line.attributes}")
    listed, count, mesh, axes = found.groups()
    if listed:
        return listed.count(",") + 1
    if count:
        return int(count)
    sizes = dict(part.split("=") for part in mesh.split(","))
    return math.prod(int(sizes[axis]) for axis in axes.split(","))


def dimensions(shape: str) -> tuple[int, ...]:
    """Read the first shape in a text.

    >>> dimensions("(f32[2,3]{1,0}, s32[])")
    (2, 3)
    """
    return _arrays(shape)[0][1]


def _arrays(shape: str) -> list[tuple[str, tuple[int, ...]]]:
    """Return the type and the sizes of each array in a text."""
    return [
        (kind, tuple(int(n) for n in sizes.split(",") if n))
        for kind, sizes in re.findall(r"(\w+)\[([\d,]*)\]", shape)
    ]


def _bytes(shape: str) -> int:
    return sum(_WIDTHS[kind] * math.prod(sizes) for kind, sizes in _arrays(shape))


def _total(program: str, of: Callable[[Instruction], int]) -> int:
    """Add up something over all that a program runs, from its entry on."""
    parts = _computations(program)

    @functools.cache
    def total(name: str) -> int:
        return sum(map(line_total, parts[name]))

    def line_total(line: Instruction) -> int:
        called = [total(name) for name in _names_called(line, parts)]
        if line.opcode == "conditional":
            return max(called)
        return of(line) + _turns(line) * sum(called)

    return total(_entry(program))


def _computations(program: str) -> dict[str, list[Instruction]]:
    """Cut a program into its functions; operands get the shapes that they have."""
    parts: dict[str, list[Instruction]] = {}
    shapes: dict[str, str] = {}
    for text in program.splitlines():
        head, line = _HEAD.match(text), _LINE.match(text)
        if head:
            lines = parts[head[1]] = []
            shapes = {}
        elif line:
            name, shape, opcode, rest = line.groups()
            shapes[name] = shape
            inside, _, attributes = rest.partition(")")
            operands = re.findall(r"%([\w.-]+)", inside)
            known = tuple(shapes[x] for x in operands)
            lines.append(Instruction(shape, opcode, known, attributes))
    return parts


def _entry(program: str) -> str:
    found = re.search(r"^ENTRY %?([\w.-]+)", program, re.MULTILINE)
    assert found, program[:80]
    return found[1]


def _names_called(line: Instruction, parts: dict[str, list[Instruction]]) -> list[str]:
    texts = " ".join(_CALLED.findall(line.attributes))
    return [name for name in re.findall(r"[\w.-]+", texts) if name in parts]


def _turns(line: Instruction) -> int:
    if line.opcode != "while":
        return 1
    found = _TURNS.search(line.attributes)
    if not found:
        raise ValueError(f"expected a loop of known length, got {line.attributes}")
    return int(found[1])
