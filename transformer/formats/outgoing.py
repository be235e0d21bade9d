"""Export of a Transformer: what is the same for every format."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from transformer import config
from transformer.config import UserError
from transformer.data.tokenizers import Marian, Vocabulary
from transformer.formats.arrays import Arrays, by_name
from transformer.nn.positions import POSITIONS
from transformer.translate import Translator


@dataclasses.dataclass(frozen=True)
class Outgoing:
    """A model whose configuration is folded into its arrays.

    Attributes:
      model: its keys.
      arrays: by name, of dense projections with biases and plain scaled products;
        tables have as many rows as the vocabulary.
      positions: what is added to the embeddings of each side (positions, D); empty
        if only self-attention knows positions, by distance.
    """

    model: config.Transformer
    arrays: Arrays
    positions: dict[str, np.ndarray]


def outgoing(
    translator: Translator, positions: int, *, relative: bool = False
) -> Outgoing:
    """Return a run's model as other systems can hold it.

    An unscaled score becomes a factor ``d_k^0.5`` in the queries' matrix, an absent
    bias becomes zeros, and the constant of a target space is added to the source's
    positions.

    Args:
      translator: the run.
      positions: rows of the tables of positions that are computed.
      relative: the other system has vectors of distances, which all heads share.

    Raises:
      UserError: for what the other system does not have.
    """
    c = config.transformer(translator.settings.model)
    by_distance = relative and c.positions == "relative"
    if translator.settings.data.vectors:
        cannot("data.source", "text", "vectors")
    for key, held in (
        ("window", (0,)),
        ("score", ("scaled_dot", "dot")),
        ("positions", ("learned", "none", *POSITIONS, *["relative"] * relative)),
        ("relative_heads", ("shared",)),
    ):
        if getattr(c, key) not in held:
            cannot(f"model.{key}", " or ".join(map(str, held)), getattr(c, key))
    if by_distance and c.target_space:
        cannot("model.target_space", "False beside positions=relative", True)
    if not c.heads * c.d_k == c.heads * c.d_v == c.d_model:
        wanted = f"d_model / heads = {c.d_model / c.heads:g}"
        cannot("model.d_k and d_v", wanted, f"{c.d_k} and {c.d_v}")
    arrays = by_name(translator.params)
    _cut(arrays, translator.vocabulary)
    for name in [name for name in arrays if name.endswith("query.kernel")]:
        for kind in ("query", "key", "value", "output"):
            bias = name.replace("query.kernel", f"{kind}.bias")
            arrays.setdefault(bias, np.zeros(c.d_model, np.float32))
        if c.score == "dot":
            for part in (name, name.replace("kernel", "bias")):
                arrays[part] = arrays[part] * np.float32(c.d_k**0.5)
    tables = {} if by_distance else _tables(c, arrays, positions)
    return Outgoing(c, arrays, tables)


def _cut(arrays: Arrays, vocabulary: Vocabulary) -> None:
    """Leave out the rows that no piece has (``model.vocab_size``)."""
    source, target = vocabulary.sizes
    for name, rows in (
        ("source_embedding", source),
        ("target_embedding", target),
        ("output", target),
        ("output_bias", target),
    ):
        if name in arrays:
            arrays[name] = arrays[name][:rows]


def _tables(c: config.Transformer, arrays: Arrays, rows: int) -> dict[str, np.ndarray]:
    """Return what is added to the embeddings of each side, by position."""
    found = {}
    for side in ("source", "target"):
        if c.positions == "learned":
            table = arrays.pop(f"{side}_positions")
        elif c.positions == "none":
            table = np.zeros((rows, c.d_model), np.float32)
        else:
            table = np.asarray(POSITIONS[c.positions](rows, c.d_model))
        if side == "source" and c.target_space:
            table = table + arrays.pop("target_space")[0]
        found[side] = table
    return found


def pieces_model(translator: Translator, side: str) -> bytes | None:
    """Return the sentencepiece model of one side, None where it has none."""
    model: Any = getattr(getattr(translator.vocabulary, side), "model", None)
    return model


def numbered(tokenizer: Any) -> Sequence[str]:
    """Return the pieces of ids 4, 5, ..."""
    pieces: Sequence[str] = tokenizer.numbered
    return pieces


def one_numbering(vocabulary: Vocabulary) -> bool:
    """Return whether both sides number the same pieces."""
    source, target = vocabulary.source, vocabulary.target
    if isinstance(source, Marian) and isinstance(target, Marian):
        return source.numbered == target.numbered
    return vocabulary.joint


def cannot(name: str, expected: object, got: object) -> NoReturn:
    """Raise the ``UserError`` of a choice that a format cannot hold."""
    raise UserError(
        f"{name}: expected {expected}, as the other system requires, got {got}; "
        "export another run"
    )
