"""Trees that are valid by construction: which symbol may follow in a linearised tree.

The state of a prefix follows from sums over it. With +1 for each beginning of a
constituent and -1 for each end, the total is the number of open constituents; the
innermost of them begins at the last token from which on the sum is 1. Hypotheses
therefore carry no extra state. The rules allow exactly the prefixes of trees with one
root and n words that fit into the limit, and never leave a prefix without a
continuation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from transformer.ids import EOS, SPECIAL
from transformer.trees import forms
from transformer.trees.brackets import split_words
from transformer.trees.forms import Form, Symbol

_NONE, _OPEN, _CLOSE, _WORD, _END = range(5)
_KINDS = {"open": _OPEN, "close": _CLOSE, "word": _WORD}


class _Prefix(NamedTuple):
    """The state of a prefix, (B, J) each."""

    read: jax.Array  # words
    unread: jax.Array  # words still to come
    open: jax.Array  # constituents
    innermost: jax.Array  # number of the label of the innermost open one, -1 = none
    openers: jax.Array  # beginnings since the last word
    last: jax.Array  # kind of the last token
    complete: jax.Array  # whether it is a tree
    room: jax.Array  # whether there is room for a token that moves the end farther away


class _Legal(NamedTuple):
    """Which kinds of symbol may come next, (B, J) each."""

    open: jax.Array
    close: jax.Array  # with the label of the innermost open constituent
    word: jax.Array


@dataclasses.dataclass(frozen=True)
class Grammar:
    """A constraint (see ``constraints``) to trees with one root and n words.

    From a prefix with r words unread and d open constituents, the end is r + d + 1
    tokens away, EOS included, and 2 more if no constituent is open and there is no tree
    yet. A token that brings the end nearer is allowed whatever the limit; any other
    only if all that must follow it fits. A limit of n + 3 or more is therefore kept.
    With a smaller one, into which no tree fits, the shortest tree is begun and cut at
    the limit. For n = 0 there is only EOS.

    Attributes:
      kinds: kind of each id, from 0; see ``of_symbols``.
      labels: for each id, the number of a constituent's label, the index of a word that
        has one, -1 for others.
      most_openers: how many labels may be opened without a word between them; gold
        trees of CRAFT have at most 8, and a bad model might open them without end.
    """

    kinds: tuple[int, ...]
    labels: tuple[int, ...]
    most_openers: int = 8

    def count(self, source: str) -> int:
        """Return the number of words, separated by ASCII white space."""
        return len(split_words(source))

    def allowed(
        self, ids: jax.Array, position: jax.Array, counts: jax.Array, limits: jax.Array
    ) -> jax.Array:
        """Return which symbols may come next; see ``Constraint.allowed``."""
        prefix = self._prefix(ids, position, counts, limits)
        legal = self._legal(prefix, position)
        kinds, labels = np.array(self.kinds), np.array(self.labels)
        matches = (kinds == _CLOSE) & (labels == prefix.innermost[..., None])
        return (
            (legal.open[..., None] & (kinds == _OPEN))
            | (legal.close[..., None] & matches)
            | (legal.word[..., None] & self._words(prefix))
            | ((prefix.complete | (counts == 0)[:, None])[..., None] & (kinds == _END))
        )

    def _legal(self, prefix: _Prefix, position: jax.Array) -> _Legal:
        """Apply the rules of a form to trees and to prefixes that are not yet trees."""
        raise NotImplementedError

    def _words(self, prefix: _Prefix) -> jax.Array:
        """Return the ids (B|1, J|1, V) that may stand for the next word.

        They are all those of words without an index, or the one of the next index.
        """
        words = np.array(self.kinds) == _WORD
        indices = np.array(self.labels)
        if not (indices[words] >= 0).any():
            return jnp.array(words)[None, None]
        return words & (indices == forms.index(prefix.read)[..., None])

    def _prefix(
        self, ids: jax.Array, position: jax.Array, counts: jax.Array, limits: jax.Array
    ) -> _Prefix:
        places = jnp.arange(1, ids.shape[-1] + 1)
        kinds = jnp.where(places <= position, jnp.array(self.kinds)[ids], _NONE)
        opens, words = kinds == _OPEN, kinds == _WORD
        steps = opens.astype(jnp.int32) - (kinds == _CLOSE)
        rest = lax.cumsum(steps, axis=2, reverse=True)  # from each token to the end
        depth, read = rest[..., 0], words.sum(-1)
        unread = counts[:, None] - read
        begun = jnp.where(rest == 1, places, 0).max(-1, keepdims=True)
        id_ = jnp.take_along_axis(ids, jnp.maximum(begun - 1, 0), axis=2)
        innermost = jnp.where(begun > 0, jnp.array(self.labels)[id_], -1)[..., 0]
        last_word = jnp.where(words, places, 0).max(-1, keepdims=True)
        last = jnp.where(places == position, kinds, _NONE).sum(-1)
        complete = (unread == 0) & (depth == 0) & (last == _CLOSE)
        to_end = unread + depth + 1 + 2 * ((depth == 0) & ~complete)
        return _Prefix(
            read,
            unread,
            depth,
            innermost,
            (opens & (places > last_word)).sum(-1),
            last,
            complete,
            position + 2 + to_end <= limits[:, None],
        )


@jax.tree_util.register_static
class TopDown(Grammar):
    """Labels before their children."""

    def _legal(self, prefix: _Prefix, position: jax.Array) -> _Legal:
        more, fresh = prefix.unread > 0, prefix.openers < self.most_openers
        within = (prefix.open > 0) & prefix.room & fresh
        return _Legal(
            open=more & (within | (position == 0)),
            close=(prefix.openers == 0) & ((prefix.open > 1) | ~more),
            word=more & (prefix.open > 0),
        )


@jax.tree_util.register_static
class InOrder(Grammar):
    """The first child, then the label, then the other children.

    A label may be written over anything that stands alone, be it a word or a whole
    tree. An end that leaves no constituent open while words are unread therefore
    requires a label.
    """

    def _legal(self, prefix: _Prefix, position: jax.Array) -> _Legal:
        more, fresh = prefix.unread > 0, prefix.openers < self.most_openers
        further = prefix.room & fresh
        child = (prefix.last == _WORD) | (prefix.last == _CLOSE)
        needed = (prefix.open == 0) & ~prefix.complete
        return _Legal(
            open=child & (needed | further),
            close=(prefix.open > 1) | ~more | further,
            word=more & ((prefix.open > 0) | (position == 0)),
        )


def of_symbols(form: Form, symbols: Sequence[Symbol]) -> Grammar:
    """Return the grammar of a vocabulary.

    A beginning whose end is not a symbol, or an end without its beginning, is never
    allowed; nor are PAD, UNK and BOS.

    Args:
      form: see ``trees.forms``.
      symbols: of the ids after the special ones.

    Raises:
      ValueError: if no tree can be written with them.
    """
    ends = [{x.label for x in symbols if x.kind == kind} for kind in ("open", "close")]
    numbers = {label: number for number, label in enumerate(sorted(ends[0] & ends[1]))}
    if not numbers or not any(x.kind == "word" for x in symbols):
        raise ValueError(f"no tree can be written with {symbols}")
    kinds = [_END if id_ == EOS else _NONE for id_ in range(len(SPECIAL))]
    labels = [-1] * len(SPECIAL)
    for kind, label in symbols:
        if kind == "word":
            number = int(label) if form in forms.INDEXED else -1
        else:
            number = numbers.get(label, -1)
        kinds.append(_KINDS[kind] if kind == "word" or number >= 0 else _NONE)
        labels.append(number)
    grammar = InOrder if form in forms.IN_ORDER else TopDown
    return grammar(tuple(kinds), tuple(labels))
