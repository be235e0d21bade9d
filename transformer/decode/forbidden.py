"""Words that no output may contain, however they are split into pieces.

An automaton reads a text letter by letter. It is between two words, inside a word that
is not forbidden, or at a node of the trie of forbidden words. A forbidden word may
begin a longer one ("Hund", "Hunde"): it only counts if a non-letter or the end follows.
A table says where a piece leads from each state; pieces that lead to the same states
share a column.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import unicodedata
from collections.abc import Hashable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from transformer.ids import EOS

_BETWEEN, _INSIDE, _DEAD = range(3)  # states; then the nodes of the trie
_NODES = 3


def is_word(text: str) -> bool:
    """Return whether a text is one word: letters, marks and digits of any script.

    >>> [is_word(text) for text in ("Hund", "4b", "a b", "e-mail", "")]
    [True, True, False, False, False]
    """
    return bool(text) and all(map(_is_letter, text))


@functools.cache
def _is_letter(letter: str) -> bool:
    return letter.isalnum() or unicodedata.category(letter)[0] == "M"


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Forbidden:
    """A constraint: outputs without some words. See ``constraints.Constraint``.

    Its arrays are arguments of a compiled program: as constants, a thousand words would
    add tens of megabytes to each.

    Attributes:
      columns: (V,) column of each id.
      table: (N, C) the state after a piece, for N states and C columns.
      ends: (N,) whether a state is a whole forbidden word.
      longest: letters of the longest forbidden word.
    """

    columns: np.ndarray
    table: np.ndarray
    ends: np.ndarray
    longest: int = dataclasses.field(metadata={"static": True})

    def count(self, source: str) -> int:
        """Return 0: the source does not matter."""
        return 0

    def accepts(self, ids: Sequence[int]) -> bool:
        """Return whether an output may begin with these ids."""
        state = _BETWEEN
        for id_ in ids:
            state = int(self.table[state, self.columns[id_]])
        return state != _DEAD

    def allowed(
        self, ids: jax.Array, position: jax.Array, counts: jax.Array, limits: jax.Array
    ) -> jax.Array:
        """Return which tokens may come next; see ``Constraint.allowed``.

        The end may not follow a forbidden word, and the last token of a truncated
        output may not complete one.
        """
        columns, table, ends = map(jnp.asarray, (self.columns, self.table, self.ends))
        reach = self.longest + 1  # a word of more tokens has more letters than any

        # A loop: unrolled, the compiler would fuse the look-ups, each in the next one.
        def read(step: jax.Array, state: jax.Array) -> jax.Array:
            place = position - reach + step
            token = jnp.take(ids, jnp.maximum(place, 0), axis=2)
            return jnp.where(place < 0, _BETWEEN, table[state, columns[token]])

        inside = jnp.full(ids.shape[:2], _INSIDE, jnp.int32)
        state = lax.fori_loop(0, reach, read, inside)
        after = table[state]  # (B, J, C)
        cut = (position + 1 >= limits)[:, None, None]
        return jnp.take((after != _DEAD) & ~(cut & ends[after]), columns, axis=2)


def forbid(spellings: Sequence[str], words: Sequence[str]) -> Forbidden:
    """Make the constraint that no output contains any of some words.

    Args:
      spellings: what each id adds to a text, "" for special ones; of these only EOS
        may be written.
      words: each of letters only, see ``is_word``.
    """
    trie: list[dict[str, int]] = [{} for _ in range(_NODES)]
    ends: set[int] = set()
    for word in words:
        node = _BETWEEN  # the root
        for letter in word:
            if letter not in trie[node]:
                trie[node][letter] = len(trie)
                trie.append({})
            node = trie[node][letter]
        ends.add(node)

    def run(state: int, text: str) -> int:
        for letter in text:
            if not _is_letter(letter):
                state = _DEAD if state in ends or state == _DEAD else _BETWEEN
            elif state != _DEAD:
                state = trie[state].get(letter, _INSIDE)
        return state

    # Where a first letter leads, by node; without one, only whole words count.
    first: dict[str, dict[int, int]] = {"": {node: node for node in ends}}
    for node in range(_NODES, len(trie)):
        for letter, child in trie[node].items():
            first.setdefault(letter, {})[node] = child

    def exceptions(text: str) -> dict[int, int]:
        """Return where those nodes lead that do not lead where _INSIDE does."""
        letters = "".join(itertools.takewhile(_is_letter, text))
        found = first.get(letters[:1], {})
        for letter in letters[1:]:
            found = {
                node: trie[at][letter]
                for node, at in found.items()
                if letter in trie[at]
            }
        if len(letters) == len(text):
            return found
        return {node: _DEAD for node, at in found.items() if at in ends}

    def leads(id_: int, text: str) -> tuple[int, dict[int, int]]:
        """Return where a piece leads from most states, and from the others."""
        if id_ == EOS:
            return _INSIDE, dict.fromkeys(ends, _DEAD)
        if not text:  # would take a place and write nothing
            return _DEAD, {}
        return run(_INSIDE, text), {_BETWEEN: run(_BETWEEN, text), **exceptions(text)}

    made: list[np.ndarray] = []
    known: dict[Hashable, int] = {}
    columns = np.zeros(len(spellings), np.int32)
    for id_, text in enumerate(spellings):
        most, others = leads(id_, text)
        key = most, tuple(others.items())
        if key not in known:
            known[key] = len(made)
            column = np.full(len(trie), most)
            column[[*others]] = [*others.values()]
            column[_DEAD] = _DEAD
            made.append(column)
        columns[id_] = known[key]
    is_end = np.isin(np.arange(len(trie)), [*ends])
    longest = max(map(len, words))
    return Forbidden(columns, np.stack(made, 1).astype(np.int32), is_end, longest)
