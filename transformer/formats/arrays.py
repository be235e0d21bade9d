"""Conversion of arrays between two systems: order of d_model, rows, names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from transformer import models
from transformer.ids import BOS, EOS, PAD, SPECIAL, UNK

Arrays = dict[str, np.ndarray]

# Added to the logit of a piece that is never written: exp(-10,000) is 0 in float32.
NEVER = np.float32(-1e4)


def interleaved(array: np.ndarray, axis: int) -> np.ndarray:
    """Interleave the halves of an axis: i to 2 i, and d/2 + i to 2 i + 1.

    There, sinusoids are the sines of all angles, then their cosines; here, a sine and a
    cosine of each angle alternate (section 3.5).

    >>> interleaved(np.array([1, 2, 3, 4]), 0).tolist()
    [1, 3, 2, 4]
    """
    width = array.shape[axis]
    return np.take(array, np.arange(width).reshape(2, -1).T.ravel(), axis)


def halved(array: np.ndarray, axis: int) -> np.ndarray:
    """Undo ``interleaved``."""
    width = array.shape[axis]
    return np.take(array, np.arange(width).reshape(-1, 2).T.ravel(), axis)


def rows_of(pad: int, unknown: int, start: int, end: int, size: int) -> np.ndarray:
    """Return their row for each of our rows: the special ones, then the pieces.

    Args:
      pad: their number of the padding.
      unknown: of the unknown piece.
      start: of what the decoder starts from.
      end: of the end of a sentence.
      size: rows of their table.
    """
    rest = [row for row in range(size) if row not in (pad, unknown, end)]
    return np.array([pad, unknown, start, end, *rest])


def their_rows(size: int) -> np.ndarray:
    """Return our row for each of their rows: ``</s> <unk>``, pieces, ``<pad>``.

    The last is the row that the decoder starts from: what pads a batch is never read.

    Args:
      size: rows of our table.
    """
    return np.array([EOS, UNK, *range(len(SPECIAL), size), BOS])


def forbidding(bias: np.ndarray) -> np.ndarray:
    """Return an output bias (V,) with which neither PAD nor BOS is ever written."""
    bias = bias.copy()
    bias[[PAD, BOS]] = NEVER
    return bias


def by_name(params: Any) -> Arrays:
    """Return the arrays of a tree by their dotted names, in float32."""
    named = models.by_name(params).items()
    return {name: np.asarray(array, np.float32) for name, array in named}


def tree(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Undo ``by_name``.

    >>> tree({"a.b": 1, "a.c": 2, "d": 3})
    {'a': {'b': 1, 'c': 2}, 'd': 3}
    """
    found: dict[str, Any] = {}
    for name, array in arrays.items():
        *groups, last = name.split(".")
        place = found
        for group in groups:
            place = place.setdefault(group, {})
        place[last] = array
    return found
