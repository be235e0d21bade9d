"""The text of a compiled program: its computations, added up over its loops."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

_HEAD = re.compile(r"(?:ENTRY )?%?([\w.-]+) .*\{$")
_LINE = re.compile(r"\s+(ROOT )?%?([\w.-]+) = (\(.*?\)|\S+) ([a-z][\w-]*)\((.*)")
_CALLED = re.compile(
    r"(?:calls|to_apply|body|condition|\w+_computations?)=(\{[^}]*\}|%?[\w.-]+)"
)
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')


class Instruction(NamedTuple):
    """One line of a program."""

    name: str
    shape: str  # of the result
    opcode: str
    names: tuple[str, ...]  # of the operands
    operands: tuple[str, ...]  # their shapes
    literal: str  # what is in their place: the value of a constant
    attributes: str
    root: bool  # whether it is the result of its function


Computations = dict[str, list[Instruction]]  # of a program, by name


@functools.lru_cache(maxsize=2)  # three counts of one program
def computations_of(program: str) -> Computations:
    """Split a program into its computations; operands get the shapes that they have."""
    computations: Computations = {}
    shapes: dict[str, str] = {}
    for text in program.splitlines():
        head, line = _HEAD.match(text), _LINE.match(text)
        if head:
            lines = computations[head[1]] = []
            shapes = {}
        elif line:
            root, name, shape, opcode, rest = line.groups()
            shapes[name] = shape
            inside, _, attributes = rest.partition(")")
            names = tuple(re.findall(r"%([\w.-]+)", inside))
            known = tuple(shapes[x] for x in names)
            lines.append(
                Instruction(
                    name, shape, opcode, names, known, inside, attributes, bool(root)
                )
            )
    return computations


def names_called(line: Instruction, computations: Computations) -> list[str]:
    """Return the names of the functions that an instruction calls."""
    texts = " ".join(_CALLED.findall(line.attributes))
    return [name for name in re.findall(r"[\w.-]+", texts) if name in computations]


def _entry(program: str) -> str:
    found = re.search(r"^ENTRY %?([\w.-]+)", program, re.MULTILINE)
    assert found, program[:80]
    return found[1]


def add_up(
    program: str,
    of: Callable[[Instruction], int],
    opened: Collection[str] | None = None,
) -> int:
    """Add up something over all that a program runs, from its entry on.

    Args:
      program: HLO text.
      of: what one instruction counts, without what it calls.
      opened: which instructions are looked into, None = all.

    Raises:
      ValueError: if the text does not say how often a loop runs.
    """
    computations = computations_of(program)

    @functools.cache
    def function_total(name: str) -> int:
        return sum(line_total(line, computations[name]) for line in computations[name])

    def line_total(line: Instruction, beside: Sequence[Instruction]) -> int:
        if opened is not None and line.opcode not in opened:
            return of(line)
        called = [function_total(name) for name in names_called(line, computations)]
        if line.opcode == "conditional":
            return max(called)
        inside = sum(called)
        return of(line) + (inside and _trips(line, beside, computations) * inside)

    return function_total(_entry(program))


def _trips(
    line: Instruction, beside: Sequence[Instruction], computations: Computations
) -> int:
    """Return how often a loop runs: as its line says, or as it counts.

    Args:
      line: the loop, or anything else, which runs once.
      beside: the function that it is in.
      computations: the program.
    """
    if line.opcode != "while":
        return 1
    found = _TRIPS.search(line.attributes)
    trips = int(found[1]) if found else _counted(line, beside, computations)
    if trips is None:
        raise ValueError(f"expected a loop of known length, got {line.attributes}")
    return trips


def _counted(
    line: Instruction, beside: Sequence[Instruction], computations: Computations
) -> int | None:
    """Return the trips of ``while (i < n) i += 1``, None for any other loop."""
    names = {
        key: re.search(rf"{key}=%?([\w.-]+)", line.attributes)
        for key in ("condition", "body")
    }
    condition, body = (computations[found[1]] for found in names.values() if found)
    test = next(x for x in condition if x.root)
    if test.opcode != "compare" or "direction=LT" not in test.attributes:
        return None
    index = _element(condition, test.names[0])
    end = _constant(condition, test.names[1])
    start = next((x for x in beside if x.name == line.names[0]), None)
    if index is None or end is None or start is None or start.opcode != "tuple":
        return None
    first = _constant(beside, start.names[index])
    step = _defined(body, next(x for x in body if x.root).names[index])
    if first is None or step is None or step.opcode != "add":
        return None
    steps = [_constant(body, name) for name in step.names]
    return end - first if steps.count(1) == 1 else None


_SAME = {"copy", "bitcast", "copy-start", "copy-done"}


def _defined(lines: Sequence[Instruction], name: str) -> Instruction | None:
    """Return the instruction that gives a value, copies skipped."""
    line = next((x for x in lines if x.name == name), None)
    if line is not None and line.opcode in _SAME:
        return _defined(lines, line.names[0])
    return line


def _element(lines: Sequence[Instruction], name: str) -> int | None:
    """Return which element of a loop's state a value is."""
    line = _defined(lines, name)
    found = line and re.search(r"index=(\d+)", line.attributes)
    return int(found[1]) if found else None


def _constant(lines: Sequence[Instruction], name: str) -> int | None:
    line = _defined(lines, name)
    known = line is not None and line.opcode == "constant" and line.literal.isdigit()
    return int(line.literal) if line is not None and known else None
