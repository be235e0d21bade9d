"""What is read from another system's model, and how its parameters become ours."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from transformer import config
from transformer.config import UserError
from transformer.data.tokenizers import Marian, Vocabulary
from transformer.files.digests import sha256
from transformer.formats.arrays import Arrays, forbidding, interleaved
from transformer.formats.names import Name, names

EPSILON = 1e-5  # of the layer norms in Transformers


@dataclasses.dataclass(frozen=True)
class Foreign:
    """A model of another system, in the names and the order of this one.

    Attributes:
      model: its keys.
      arrays: by their names here.
      vocabulary: of both sides.
      decode: keys of ``config.decode`` that it names.
      languages: keys of ``config.data`` that it names.
      longest: tokens of the longest source that it is made for.
      files: that were read, with the SHA-256 (hex) of each.
      unused: keys of its search that change what it writes, with their values, and that
        searches here do not have.
    """

    model: config.Transformer
    arrays: Arrays
    vocabulary: Vocabulary
    decode: Mapping[str, Any]
    languages: Mapping[str, str]
    longest: int
    files: Mapping[str, str]
    unused: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def post_norm(**sizes: Any) -> config.Transformer:
    """Return the keys of a model of Marian's, with those sizes and choices."""
    usual: dict[str, Any] = {
        "kind": "transformer",
        "vocab_size": 0,
        "decoder_layers": 0,
        "dropout": 0.1,
        "attention_dropout": 0.0,
        "relu_dropout": 0.0,
        "norm": "post",
        "norm_epsilon": EPSILON,
        "positions": "sinusoidal",
        "max_positions": 1024,
        "clip": -1,
        "farthest": 0,
        "relative_heads": "shared",
        "tying": "three",
        "attention_bias": True,
        "score": "scaled_dot",
        "window": 0,
        "target_space": False,
        "output_bias": True,
        "dtype": "float32",
    }
    return config.Transformer(**(usual | sizes))


def ours(
    c: config.Transformer, given: Mapping[Name, np.ndarray], rows: np.ndarray
) -> Arrays:
    """Return the parameters as this project has them.

    Args:
      c: the keys of the model.
      given: each as the other system orders rows and d_model, matrices (I, O).
      rows: which of their rows is each of ours.
    """
    found = {}
    for name, array in given.items():
        if name.rows is not None:
            array = np.take(array, rows, name.rows)
        if name.width is not None:
            array = interleaved(array, name.width)
        found[name.ours] = np.ascontiguousarray(array, np.float32)
    found["output_bias"] = forbidding(found["output_bias"])
    return found


def check_depth(
    place: object, layers: int, depth: int, stored: Mapping[str, np.ndarray]
) -> None:
    """Check that a file can have this many layers, before their names are listed.

    Raises:
      UserError: if there are fewer arrays.
    """
    if layers + depth > len(stored):
        got = f"the {len(stored):,} arrays of the file"
        refuse(place, f"arrays for {layers:,} + {depth:,} layers", got)


def number(place: object, values: Mapping[str, Any], key: str, absent: float) -> float:
    """Return a finite number, 0 or more, from a file's settings.

    Raises:
      UserError: for anything else.
    """
    value = values.get(key, absent)
    if type(value) not in (int, float) or not 0 <= value < 2**31:
        refuse(place, f"a number of 0 or more for {key}", repr(value)[:60])
    return value


def beam(place: object, values: Mapping[str, Any], key: str, absent: int) -> int:
    """Return how many hypotheses a search is to keep, from a file's settings.

    Raises:
      UserError: for anything but a whole number above 0.
    """
    value = values.get(key, absent)
    if type(value) is not int or not 0 < value < 2**31:
        refuse(place, f"a whole number above 0 for {key}", repr(value)[:60])
    return value


def exponent(place: object, values: Mapping[str, Any], key: str) -> float:
    """Return alpha, 1 where a file's settings do not name it.

    Raises:
      UserError: for one by which no length can be raised in float32.
    """
    value = values.get(key, 1.0)
    if type(value) not in (int, float) or not 0 <= value < 100:
        refuse(place, f"a number from 0 to below 100 for {key}", repr(value)[:60])
    return float(value)


def shape(name: Name, c: config.Transformer, size: int) -> tuple[int, ...]:
    """Return the shape that a parameter has to have, a matrix (I, O).

    Args:
      name: of the parameter.
      c: the keys of the model.
      size: rows of a table.
    """
    if name.rows is not None:
        return (size,) if name.width is None else (size, c.d_model)
    if name.ours.endswith("_positions"):
        return (c.max_positions, c.d_model)
    inner = c.d_ff if "feed_forward" in name.ours else c.d_model
    if name.turned:
        return (c.d_model, inner) if name.width == 0 else (inner, c.d_model)
    return (inner,) if name.width is None else (c.d_model,)


def check(
    place: object, c: config.Transformer, given: Mapping[Name, np.ndarray], size: int
) -> None:
    """Check that the arrays of a file have the shapes that its sizes ask for.

    Raises:
      UserError: for the first that is missing, has another shape, or holds something
        that is not finite.
    """
    for name in names(c):
        wanted, array = shape(name, c, size), given.get(name)
        if array is None or array.shape != wanted:
            got = "none" if array is None else str(array.shape)
            refuse(place, f"an array for {name.ours} of shape {wanted}", got)
        if not np.isfinite(array).all():
            refuse(place, f"finite numbers in {name.ours}", "others")


def marian_vocabulary(
    folder: Path, pieces: list[str]
) -> tuple[Vocabulary, dict[str, str]]:
    """Return both tokenizers of a folder with source.spm and target.spm, and digests.

    Args:
      folder: with the files.
      pieces: of ids 4, 5, ...

    Raises:
      UserError: if a file is missing.
    """
    sides, digests = [], {}
    for side in ("source", "target"):
        path = folder / f"{side}.spm"
        if not path.is_file():
            refuse(path, "the sentencepiece model of one side", "none")
        sides.append(Marian(path.read_bytes(), pieces, str(path)))
        digests[path.name] = sha256(path)
    return Vocabulary(*sides), digests


ANOTHER = "import another model"  # the end of such a message


def refuse(place: object, expected: str, got: object) -> NoReturn:
    """Raise the ``UserError`` of a file that is not what can be imported."""
    raise UserError(f"{place}: expected {expected}, got {got}; {ANOTHER}")
