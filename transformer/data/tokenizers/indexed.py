"""Words in sentencepiece pieces, each after the index by which trees refer to it."""

from __future__ import annotations

import functools
import hashlib
import pathlib
from collections.abc import Iterable, Sequence

from transformer import config
from transformer.data.tokenizers.sentence_piece import SentencePiece
from transformer.data.tokenizers.tokenizer import OfText, Texts
from transformer.ids import SPECIAL
from transformer.trees.brackets import split_words
from transformer.trees.forms import INDICES, index

_FIRST = len(SPECIAL)  # index 1
_PIECES = _FIRST + INDICES  # the first piece of a word


class IndexedWords(OfText):
    """Sentences whose words have an index before them: ``1 John 2 slee p s``.

    It is the source of trees in the forms "indexed" and "indexed_in_order". ASCII white
    space separates words, as in a treebank, whatever sentencepiece takes for a space.

    Args:
      pieces: of the words. Its ids from 4 on follow those of the indices.
    """

    suffix = ".indexed_model"

    def __init__(self, pieces: SentencePiece) -> None:
        self._pieces = pieces

    @classmethod
    def build(
        cls, texts: Iterable[Texts], tokenizer: config.Tokenizer, model: str
    ) -> IndexedWords:
        """Train sentencepiece, or read a model of it."""
        return cls(SentencePiece.build(texts, tokenizer, model))

    @classmethod
    def load(cls, path: pathlib.Path) -> IndexedWords:
        return cls(SentencePiece.load(path))

    @property
    def size(self) -> int:
        return self._pieces.size + INDICES

    @functools.cached_property
    def digest(self) -> str:
        text = f"indexed {INDICES}\n{self._pieces.digest}"
        return hashlib.sha256(text.encode()).hexdigest()

    def encode(self, text: str) -> list[int]:
        return self.encode_many([text])[0]

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        sentences = [split_words(text) for text in texts]
        flat = [word for sentence in sentences for word in sentence]
        pieces = iter(self._pieces.encode_many(flat))
        found: list[list[int]] = []
        for sentence in sentences:
            found.append([])
            for number in range(len(sentence)):
                shifted = (i if i < _FIRST else i + INDICES for i in next(pieces))
                found[-1] += [_FIRST - 1 + index(number), *shifted]
        return found

    def decode(self, ids: Iterable[int], source: str | None = None) -> str:
        return self._pieces.decode(_without_indices(ids))

    def pieces(self, ids: Iterable[int]) -> list[str]:
        ids = [*ids]
        return _merged(ids, self._pieces.pieces(_without_indices(ids)))

    def kind_of(self, id_: int) -> str:
        """Return "index" or "": a piece may be a number, too."""
        return "index" if _is_index(id_) else ""

    def labels(self, ids: Sequence[int]) -> list[str]:
        return _merged(ids, self._pieces.labels(_without_indices(ids)))

    def words(self, ids: Sequence[int], text: str | None = None) -> list[int]:
        number, found = -1, []
        for i in ids:
            number += _is_index(i)
            found.append(max(number, 0))
        return found

    def spellings(self) -> list[str]:
        own = self._pieces.spellings()
        return own[:_FIRST] + [""] * INDICES + own[_FIRST:]

    def spelled(self, text: str) -> str:
        return self._pieces.spelled(text)

    def save(self, path: pathlib.Path) -> None:
        self._pieces.save(path)


def _is_index(id_: int) -> bool:
    return _FIRST <= id_ < _PIECES


def _without_indices(ids: Iterable[int]) -> list[int]:
    """Return sentencepiece's ids of the pieces, and the special ones as they are."""
    return [i if i < _FIRST else i - INDICES for i in ids if not _is_index(i)]


def _merged(ids: Sequence[int], texts: Sequence[str]) -> list[str]:
    """Return the indices among ids as texts, and in their order those of the others."""
    others = iter(texts)
    return [str(i - _FIRST + 1) if _is_index(i) else next(others) for i in ids]
