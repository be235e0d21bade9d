"""Laws such as ``c n^2 d``, fitted to the counts."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from transformer.paper.complexity.counts import operations, sequential_operations
from transformer.paper.complexity.layers import ROWS, Sizes
from transformer.paper.complexity.paths import PATHS, path_length


class Law(NamedTuple):
    """A product of powers, ``constant * n^a d^b ...``."""

    constant: float
    powers: dict[str, float]

    def __str__(self) -> str:
        text = f"{self.constant:.2f}"
        for name, power in self.powers.items():
            text += f" ({name})^{power:.2f}" if " " in name else f" {name}^{power:.2f}"
        return text


def fit(names: Sequence[str], points: Sequence[Sizes], values: Sequence[float]) -> Law:
    """Fit ``c * n^a d^b ...`` by least squares over the logarithms.

    Args:
      names: which sizes the law is in, e.g. ("n", "d"); also "log_k n".
      points: where it was measured.
      values: what was measured there.

    Returns:
      c and the exponents.

    >>> print(fit(["n", "d"], [Sizes(1, 1), Sizes(2, 1), Sizes(1, 2)], [3, 12, 6]))
    3.00 n^2.00 d^1.00
    """
    rows = [[1.0, *(math.log(_size(point, x)) for x in names)] for point in points]
    solution = np.linalg.lstsq(np.array(rows), np.log(values), rcond=None)[0]
    constant, *powers = solution.tolist()
    # Rounded, or zeros would be printed with the sign of their rounding error.
    powers = [round(power, 9) + 0.0 for power in powers]
    return Law(math.exp(constant), dict(zip(names, powers, strict=True)))


def _size(point: Sizes, name: str) -> float:
    if name == "log_k n":
        return math.log(point.n) / math.log(point.k)
    return getattr(point, name)


# Where the laws are measured. Lengths less 1 are multiples of the reach of a layer, or
# powers of k where log_k n counts, so that no part of a layer's reach is lost.
_GRID = [
    Sizes(n, d, k, r)
    for n in (16, 32, 64)
    for d in (8, 16, 32)
    for k, r in ((3, 9), (5, 5), (9, 3))
]
_PATH_GRID = [Sizes(n, 1, k, k) for n in (33, 65, 129) for k in (9, 33)]
_POWERS = [Sizes(k**i, 1, k) for k in (2, 5) for i in (1, 2, 3)]


def operations_law(row: str) -> Law:
    """Fit the operations of a layer, see ``operations``."""
    return _measured_law(
        functools.partial(operations, row), ROWS[row].operations, _GRID
    )


def sequential_law(row: str) -> Law:
    """Fit the sequential operations of a layer, see ``sequential_operations``."""
    measure = functools.partial(sequential_operations, row)
    return _measured_law(measure, ROWS[row].sequential, _GRID)


def path_law(name: str) -> Law:
    """Fit the maximum path length in a stack of layers, see ``path_length``."""
    powers = PATHS[name].powers
    grid = _POWERS if "log_k n" in powers else _PATH_GRID
    return _measured_law(functools.partial(path_length, name), powers, grid)


def _measured_law(
    measure: Callable[[Sizes], float], names: Iterable[str], grid: Sequence[Sizes]
) -> Law:
    """Fit what is measured at one point for each combination of the law's sizes."""
    names = list(names)
    by_size = {tuple(_size(sizes, x) for x in names): sizes for sizes in grid}
    points = list(by_size.values())
    return fit(names, points, [measure(sizes) for sizes in points])
