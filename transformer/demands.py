"""User demands on outputs: how they begin, and which words they must not contain."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np

from transformer import decode
from transformer.config import UserError
from transformer.data.tokenizers import Tokenizer
from transformer.decode import Constraint, Forbidden
from transformer.ids import PAD, UNK

_LEAST = 8  # tokens of the shortest padded prefixes


@functools.lru_cache(maxsize=8)
def forbidding(target: Tokenizer, words: tuple[str, ...]) -> Constraint | None:
    """Return the constraint that excludes some words, None if any output is allowed.

    Args:
      target: tokenizer whose pieces outputs are made of.
      words: each of letters and digits; case matters.

    Raises:
      UserError: for what is not a word, and if pieces are not text.
    """
    for word in words:
        if not decode.is_word(word):
            raise UserError(
                f"forbid: expected words of letters and digits, got {word!r}; give one "
                "word per line"
            )
    spellings, spelled = target.spellings(), map(target.spelled, words)
    # No output contains what the vocabulary cannot spell.
    found = [word for word in spelled if decode.is_word(word)]
    return decode.forbid(spellings, found) if found else None


def beginnings(
    target: Tokenizer,
    lines: int,
    prefixes: Sequence[str] | None,
    first: int,
    constraint: Constraint | None,
    warn: Callable[[str], None],
) -> list[list[int]]:
    """Return the ids that each output begins with.

    Args:
      target: tokenizer whose pieces outputs are made of.
      lines: how many there are.
      prefixes: beginning of each line's output, "" = any; None = any for all.
      first: number of the first line, in messages.
      constraint: on the outputs.
      warn: called for text that the vocabulary lacks.

    Raises:
      UserError: for a wrong number of prefixes, a run that writes trees, and a
        forbidden word in a prefix.
    """
    if prefixes is None:
        return [[]] * lines
    if len(prefixes) != lines:
        raise UserError(
            f"prefix: expected as many lines as there are sentences, got "
            f"{len(prefixes):,} and {lines:,}; give one per line, possibly empty"
        )
    if target.constraint() is not None:
        raise UserError(
            "prefix: expected a run that writes text, got trees; leave it out"
        )
    ids = target.encode_many(prefixes)
    for number, (text, found) in enumerate(zip(prefixes, ids, strict=True), first):
        if UNK in found:
            warn(f"prefix, line {number}: the vocabulary lacks a part of {text!r}")
        if isinstance(constraint, Forbidden) and not constraint.accepts(found):
            raise UserError(
                f"prefix, line {number}: expected no forbidden word, got {text!r}; "
                "change it, or allow the word"
            )
    return ids


def padded(prefixes: Sequence[list[int]], height: int) -> np.ndarray | None:
    """Return ids (height, P), None if none is given.

    P is a power of two, so that few programs are compiled.
    """
    longest = max(map(len, prefixes), default=0)
    if not longest:
        return None
    length = max(_LEAST, 1 << (longest - 1).bit_length())
    ids = np.full((height, length), PAD, np.int32)
    for row, prefix in enumerate(prefixes):
        ids[row, : len(prefix)] = prefix
    return ids
