"""What is computed both here and by torch; this file needs only numpy.

No number is drawn, so the values that torch once computed from them stay valid.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

LENGTHS = (3, 5, 1)  # of rows that are padded to the longest
WIDTH, UNITS = 3, 4  # m and n
GATES = {"gru": 3, "lstm": 4}
# The options of each optimizer by torch's names; optax names them differently.
OPTIMIZERS = {
    "Adadelta": {"rho": 0.95, "eps": 1e-6},
    "SGD": {"momentum": 0.99, "nesterov": True},
}
RATES = (1.0, 1.0, 1.0, 0.25, 0.25, 0.25)  # of the updates, one after another


def wave(*shape: int, seed: int = 0) -> np.ndarray:
    """Return numbers from -1 to 1, as irregular as drawn ones, float32."""
    places = np.arange(np.prod(shape, dtype=int)) + 1.0
    return np.sin(0.7 * places**2 + seed).reshape(shape).astype(np.float32)


def layer(kind: str) -> dict[str, np.ndarray]:
    """Return the parameters of a layer in both directions, by torch's names.

    Args:
      kind: "gru" or "lstm".
    """
    rows = GATES[kind] * UNITS
    shapes = {
        "weight_ih_l0": (rows, WIDTH),
        "weight_hh_l0": (rows, UNITS),
        "bias_ih_l0": (rows,),
        "bias_hh_l0": (rows,),
    }
    names = [(name + way, name) for way in ("", "_reverse") for name in shapes]
    return {
        name: wave(*shapes[of], seed=i) for i, (name, of) in enumerate(names, start=1)
    }


def source() -> np.ndarray:
    """Return the input of a layer (B, S, m)."""
    return wave(len(LENGTHS), max(LENGTHS), WIDTH)


def slopes(kind: str) -> dict[str, np.ndarray]:
    """Return the slope of a loss in each result of a layer, in torch's shapes."""
    rows, longest, both = len(LENGTHS), max(LENGTHS), 2
    real = np.arange(longest) < np.array(LENGTHS)[:, None]
    outputs = wave(rows, longest, both * UNITS, seed=20) * real[..., None]
    last = {"h": wave(both, rows, UNITS, seed=21)}
    if kind == "lstm":
        last["c"] = wave(both, rows, UNITS, seed=22)
    return {"outputs": outputs} | last


def gradients() -> list[np.ndarray]:
    """Return the gradient of every update."""
    return [wave(5, seed=30 + n) for n in range(len(RATES))]


# Whole models, as ``sizes.Recurrent`` of experiments/bench/: m, n, layers, D, V and V',
# no dropout, and whether the encoder is normed.
MODELS = {
    "cgru": ("cgru", 5, 4, 1, 6, 13, 11, (0.0,) * 3, False),
    "cgru normed": ("cgru", 5, 4, 1, 6, 13, 11, (0.0,) * 3, True),
    "luong": ("luong", 5, 4, 2, 6, 13, 11, (0.0,) * 3, False),
}
SOURCES = [[7, 4, 9, 3], [5, 6, 12, 8, 10, 3], [11, 3]]
TARGET = np.array([[8, 5, 9, 3], [6, 6, 3, 0], [7, 10, 4, 5]])
BEAM, ALPHA, EXTRA = 3, 0.6, 5


def parameters(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Return parameters with these names and shapes, none of them 0."""
    return {
        name: wave(*shape, seed=i) for i, (name, shape) in enumerate(shapes.items())
    }


def as_rows(outputs: list[list[int]]) -> np.ndarray:
    """Return outputs of a search as one array, -1 after the end of each."""
    longest = max(map(len, outputs))
    return np.array([ids + [-1] * (longest - len(ids)) for ids in outputs])
