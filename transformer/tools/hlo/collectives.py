"""What the devices of a compiled program send each other."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from transformer.tools.hlo.program import Instruction, add_up
from transformer.tools.hlo.shapes import value_bytes

_SHARES: dict[str, Callable[[int], float]] = {
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "reduce-scatter": lambda n: (n - 1) / n,
    "all-to-all": lambda n: (n - 1) / n,
    "all-gather": lambda n: n - 1,
    "collective-permute": lambda n: 1,
}
# Lists of devices, so many groups of so many, or axes of a mesh.
_GROUPS = re.compile(
    r"replica_groups=(?:\{\{([\d,]+)\}|\[\d+,(\d+)\]<=|mesh\[([^]]*)\][^{]*\{([^}]*)\})"
)


def sent(program: str) -> int:
    """Count the bytes that a device sends in a compiled program, in rings of n devices.

    ``2 (n - 1) / n`` of the bytes to all-reduce an array, ``(n - 1) / n`` to
    reduce-scatter it or to exchange slices of it, ``n - 1`` shards to all-gather it.

    Args:
      program: HLO text.

    Returns:
      Bytes; loops and branches as in ``operations``.

    Raises:
      ValueError: as ``operations``, or if it does not say which devices take part.
    """

    def of(line: Instruction) -> int:
        kind = line.opcode.removesuffix("-start")
        if kind not in _SHARES:
            return 0
        share = _SHARES[kind](_devices(line))
        return round(share * sum(map(value_bytes, line.operands)))

    return add_up(program, of)


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
