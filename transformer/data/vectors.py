"""Vectors in place of ids: arrays of frames x features, read and made into batches."""

from __future__ import annotations

import pathlib
import tokenize
from collections.abc import Sequence
from typing import NoReturn

import numpy as np

from transformer.config import UserError

_NUMBERS = "biuf"  # kinds of dtypes


def in_folder(folder: pathlib.Path) -> list[pathlib.Path]:
    """Return the arrays of a folder, every file ``*.npy``, in the order of their names.

    Raises:
      UserError: if there is none, or one has a name that is not a line of text.
    """
    try:
        found = sorted(path for path in folder.iterdir() if path.suffix == ".npy")
    except OSError as error:
        raise UserError(
            f"expected a folder of .npy arrays, got {folder}: {error.strerror}; give "
            "the path of one"
        ) from None
    if not found:
        raise UserError(f"{folder}: expected .npy arrays, found none; add some")
    for path in found:
        if not path.name.isprintable():
            raise UserError(
                f"{folder}: expected arrays with printable names, got {path.name!r}; "
                "rename it"
            )
    return found


# What numpy raises for the header of a damaged file, and for the size it claims.
_NO_ARRAY = (
    ArithmeticError,
    EOFError,
    IndexError,
    MemoryError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
    tokenize.TokenError,
)


def read(path: pathlib.Path, features: int = 0) -> np.ndarray:
    """Read an array of frames x features.

    Args:
      path: a file as ``numpy.save`` writes it; pickled objects are not read.
      features: how many each frame has, 0 = any number.

    Returns:
      (S, F) float32, S and F at least 1.

    Raises:
      UserError: for anything else.
    """
    try:
        with open(path, "rb") as file:
            array = np.lib.format.read_array(file, allow_pickle=False)
    except OSError as error:
        _refuse(path, str(error.strerror or error))
    except _NO_ARRAY as error:
        _refuse(path, (str(error).splitlines() or ["something else"])[0])
    return checked(array, path, features)


def checked(array: np.ndarray, name: object, features: int = 0) -> np.ndarray:
    """Return an array as ``read`` does, or refuse it by its name."""
    if array.dtype.kind not in _NUMBERS:
        _refuse(name, f"values of type {array.dtype}")
    if array.ndim != 2 or 0 in array.shape:
        _refuse(name, f"the shape {array.shape}")
    if features and array.shape[1] != features:
        raise UserError(
            f"{name}: expected {features} features per frame, as in the first array "
            f"of training, got {array.shape[1]}; give arrays of one kind"
        )
    with np.errstate(over="ignore"):  # too large numbers become infinite
        array = array.astype(np.float32)
    if not np.isfinite(array).all():
        frame = int(np.argmin(np.isfinite(array).all(1)))
        raise UserError(
            f"{name}: expected finite float32 values, got others in frame {frame}, "
            "counted from 0; fix it"
        )
    return array


def _refuse(name: object, got: str) -> NoReturn:
    raise UserError(
        f"{name}: expected a .npy array of numbers, frames x features, at least 1 of "
        f"each, got: {got}; write one by numpy.save"
    )


def padded(
    arrays: Sequence[np.ndarray], shape: tuple[int, int], features: int
) -> np.ndarray:
    """Return arrays (S_i, F) as one batch.

    Args:
      arrays: n of them.
      shape: (R, S), R >= n and S >= S_i.
      features: F.

    Returns:
      (R, S, 1 + F) float32: a 1 before the features of each frame, zeros elsewhere.
    """
    out = np.zeros((*shape, 1 + features), np.float32)
    for row, array in zip(out, arrays, strict=False):
        row[: len(array), 0] = 1
        row[: len(array), 1:] = array
    return out
