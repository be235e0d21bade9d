"""What a tokenizer is, and what the tokenizers of words in pieces share."""

from __future__ import annotations

import bisect
import collections
import pathlib
import re
import typing
from collections.abc import Iterable, Iterator, Sequence

from transformer import config
from transformer.config import UserError
from transformer.ids import BOS, EOS, PAD
from transformer.trees.brackets import Tree

if typing.TYPE_CHECKING:
    from transformer.decode import Constraint

Pairs = Iterable[tuple[str, str]]
Texts = tuple[str, ...]  # of one pair


class Tokenizer(typing.Protocol):
    """One language's text to ids and back.

    Attributes:
      size: number of ids, the four special ones included.
      digest: SHA-256 (hex) of everything that decides what the ids mean.
      suffix: of the file that ``save`` writes.
    """

    suffix: str

    @classmethod
    def build(
        cls, texts: Iterable[Texts], tokenizer: config.Tokenizer, model: str
    ) -> Tokenizer:
        """Train a tokenizer, or read a given one.

        Args:
          texts: of each training pair, the side or the two sides to cover.
          tokenizer: what to build.
          model: the given model, "" = none.

        Raises:
          UserError: if the text cannot fill, or does not fit,
            ``tokenizer.vocab_size``.
        """

    @classmethod
    def load(cls, path: pathlib.Path) -> Tokenizer:
        """Read the file that ``save`` wrote."""

    def __hash__(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def digest(self) -> str: ...

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, none of them special except UNK."""

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """Return ``encode`` of each text, on all cores where that is faster."""

    def decode(self, ids: Iterable[int], source: str | None = None) -> str:
        """Return the text of ids; PAD, BOS and EOS are left out.

        Args:
          ids: of the text.
          source: what it was made from, for texts that take their words from there;
            None for their symbols alone.
        """

    def reads(self, source: str) -> str:
        """Return a source line in the form of the training sources."""

    def repairs(self, ids: Iterable[int], source: str) -> collections.Counter[str]:
        """Return how often ``decode`` repairs what is not a valid text, by kind."""

    def constraint(self) -> Constraint | None:
        """Return which ids may follow each other in a search, None for any."""

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Return the written form of each id."""

    def kind_of(self, id_: int) -> str:
        """Return the kind of an id; no two ids of one kind are written alike."""

    def labels(self, ids: Sequence[int]) -> list[str]:
        """Return the pieces for people to read, an ellipsis where a word continues."""

    def words(self, ids: Sequence[int], text: str | None = None) -> list[int]:
        """Return for each id the number of its word, from 0.

        Args:
          ids: of the words.
          text: that the ids encode; None for what ``decode`` writes for them, in which
            an unknown piece may be a different word than in the text.
        """

    def tree(self, text: str) -> Tree | None:
        """Return the constituency tree that a text is, None if texts are not trees."""

    def spellings(self) -> list[str]:
        """Return what each id adds to a text, "" for PAD, BOS and EOS.

        Raises:
          UserError: if what a single id adds cannot be told.
        """

    def spelled(self, text: str) -> str:
        """Return a text as ``spellings`` would compose it."""

    def plain(self, text: str) -> str:
        """Return a line of the corpus as ``decode`` would write it: joins undone."""

    def save(self, path: pathlib.Path) -> None:
        """Write the file that ``load_vocabulary`` reads."""


class OfText:
    """What tokenizers of plain text share."""

    def tree(self, text: str) -> Tree | None:
        """Return None: a text is not a tree."""
        return None

    def reads(self, source: str) -> str:
        """Return a source line as it is."""
        return source

    def repairs(self, ids: Iterable[int], source: str) -> collections.Counter[str]:
        """Return nothing: any sequence of pieces is a text."""
        return collections.Counter()

    def constraint(self) -> Constraint | None:
        """Return none: any sequence of pieces is a text."""
        return None

    def kind_of(self, id_: int) -> str:
        """Return "": all pieces are of one kind."""
        return ""

    def encode_many(self: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
        """Encode one text after the other."""
        return [self.encode(text) for text in texts]

    def spelled(self, text: str) -> str:
        """Return a text as it is."""
        return text

    def plain(self, text: str) -> str:
        """Return a text as it is."""
        return text


def shown(ids: Iterable[int]) -> Iterator[int]:
    """Yield the ids that stand for something in a text: no padding, begin or end."""
    return (i for i in ids if i not in (PAD, BOS, EOS))


def bytes_spell_any_word() -> UserError:
    """Return the error for forbidden words where pieces are single bytes."""
    return UserError(
        "expected a vocabulary of text pieces, got one with byte pieces, which can "
        "spell any word; forbid no words"
    )


def word_numbers(spelled: Sequence[str]) -> list[int]:
    """Return for each part of a text the number of its word, from 0.

    White space alone belongs to the word after it; at the very end, to the last word.

    >>> word_numbers([" a", "bc", "  ", "d", " "])
    [0, 0, 1, 1, 1]
    """
    text, place, found = "".join(spelled), 0, []
    ends = [word.end() for word in re.finditer(r"\S+", text)]
    for part in spelled:
        bare = part.rstrip()
        last = place + (len(bare) - 1 if bare else len(part))
        found.append(min(bisect.bisect_right(ends, last), max(len(ends) - 1, 0)))
        place += len(part)
    return found


def with_ellipses(
    pieces: list[str], ids: Sequence[int], words: Sequence[int]
) -> list[str]:
    """Put an ellipsis where two pieces of a word meet; special ones stand alone.

    Args:
      pieces: the text of each id.
      ids: of a sentence.
      words: the number of each id's word.
    """
    alone = [i in (PAD, BOS, EOS) for i in ids]
    meet = [
        words[i] == words[i + 1] and not alone[i] and not alone[i + 1]
        for i in range(len(ids) - 1)
    ]
    before, after = [False, *meet], [*meet, False]
    return [
        "\u2026" * b + piece + "\u2026" * a
        for b, piece, a in zip(before, pieces, after, strict=False)
    ]
