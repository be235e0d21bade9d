"""Words separated by white space, of a text that is already segmented."""

from __future__ import annotations

import collections
import functools
import hashlib
import itertools
import pathlib
import re
from collections.abc import Iterable, Sequence

from transformer import config
from transformer.config import UserError
from transformer.data.tokenizers.tokenizer import OfText, Texts, shown, with_ellipses
from transformer.ids import BOS, EOS, PAD, SPECIAL, UNK


class Whitespace(OfText):
    """Words of a text that is already segmented; ``"@@ "`` joins two of them.

    Args:
      words: the words of ids 4, 5, ...
    """

    suffix = ".vocab"

    def __init__(self, words: Sequence[str]):
        self._pieces = [*SPECIAL, *words]
        self._ids = {word: id_ for id_, word in enumerate(words, len(SPECIAL))}

    @classmethod
    def build(
        cls, texts: Iterable[Texts], tokenizer: config.Tokenizer, model: str
    ) -> Whitespace:
        """Take all words that occur, by frequency, then by code point."""
        counts: collections.Counter[str] = collections.Counter()
        for text in itertools.chain.from_iterable(texts):
            counts.update(text.split())
        for special in SPECIAL:  # written in a text they are words like unknown ones
            del counts[special]
        size, limit = len(counts) + len(SPECIAL), tokenizer.vocab_size
        if limit and size > limit:
            raise UserError(
                f"tokenizer.vocab_size: expected at least {size}, {len(counts)} words "
                f"and {len(SPECIAL)} special ones, got {limit}; set it to 0, or "
                "segment the text into fewer pieces"
            )
        return cls(sorted(counts, key=lambda word: (-counts[word], word)))

    @classmethod
    def load(cls, path: pathlib.Path) -> Whitespace:
        return cls(path.read_bytes().decode().split("\n")[len(SPECIAL) : -1])

    @property
    def size(self) -> int:
        return len(self._pieces)

    @functools.cached_property
    def digest(self) -> str:
        return hashlib.sha256(f"whitespace\n{self._text()}".encode()).hexdigest()

    def encode(self, text: str) -> list[int]:
        return [self._ids.get(word, UNK) for word in text.split()]

    def decode(self, ids: Iterable[int], source: str | None = None) -> str:
        words = self.pieces(shown(ids))
        return self.plain(" ".join(words))

    def pieces(self, ids: Iterable[int]) -> list[str]:
        return [self._pieces[i if 0 <= i < self.size else UNK] for i in ids]

    def labels(self, ids: Sequence[int]) -> list[str]:
        bare = [piece.removesuffix("@@") for piece in self.pieces(ids)]
        return with_ellipses(bare, ids, self.words(ids))

    def words(self, ids: Sequence[int], text: str | None = None) -> list[int]:
        pieces = self.pieces(ids) if text is None else text.split()
        ends = [not piece.endswith("@@") for piece in pieces]
        return list(itertools.accumulate(ends[:-1], initial=0)) if ends else []

    def spellings(self) -> list[str]:
        bare = [piece.removesuffix("@@") for piece in self._pieces]
        pairs = zip(bare, self._pieces, strict=True)
        spaced = [x if x != piece else f"{piece} " for x, piece in pairs]
        return ["" if i in (PAD, BOS, EOS) else x for i, x in enumerate(spaced)]

    def plain(self, text: str) -> str:
        return re.sub(r"@@( |$)", "", " ".join(text.split()))

    def _text(self) -> str:
        return "".join(f"{piece}\n" for piece in self._pieces)

    def save(self, path: pathlib.Path) -> None:
        path.write_bytes(self._text().encode())
