"""Symbols of constituency trees: a decoder writes brackets, never words."""

from __future__ import annotations

import collections
import functools
import hashlib
import itertools
import pathlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Self, get_args

from transformer import config
from transformer.config import UserError
from transformer.data.tokenizers.tokenizer import Texts, shown
from transformer.ids import SPECIAL, UNK
from transformer.trees import brackets, forms
from transformer.trees.forms import Form, Kind, Symbol

if TYPE_CHECKING:
    from transformer.decode import grammars


class TreeTokenizer:
    """Trees in brackets to symbols and back; the words come from the source.

    Args:
      symbols: of ids 4, 5, ...
    """

    form: Form
    suffix: str

    def __init__(self, symbols: Sequence[Symbol]) -> None:
        self.symbols = tuple(symbols)
        self._ids = {symbol: id_ for id_, symbol in enumerate(symbols, len(SPECIAL))}

    @classmethod
    def build(
        cls, texts: Iterable[Texts], tokenizer: config.Tokenizer, model: str
    ) -> Self:
        """Take all symbols that occur, beginnings and ends of the same labels."""
        found = forms.of_every_vocabulary(cls.form)
        for text in itertools.chain.from_iterable(texts):
            found.update(forms.linearise(cls.form, brackets.parse(text)))
        return cls(sorted(found))

    @classmethod
    def load(cls, path: pathlib.Path) -> Self:
        lines = path.read_bytes().decode().split("\n")[:-1]
        return cls([_symbol(line) for line in lines])

    @property
    def size(self) -> int:
        return len(SPECIAL) + len(self.symbols)

    @functools.cached_property
    def digest(self) -> str:
        return hashlib.sha256(f"{self.form}\n{self._text()}".encode()).hexdigest()

    def encode(self, text: str) -> list[int]:
        """Return the ids of a tree in brackets; see ``forms.linearise``."""
        symbols = forms.linearise(self.form, self.tree(text))
        return [self._ids.get(symbol, UNK) for symbol in symbols]

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def reads(self, source: str) -> str:
        return brackets.escaped(source)

    def decode(self, ids: Iterable[int], source: str | None = None) -> str:
        """Return the tree over the words of its source, on one line, in brackets.

        Without a source it is the symbols.
        """
        if source is None:
            return " ".join(self.pieces(shown(ids)))
        return brackets.write(self._built(ids, source)[0])

    def repairs(self, ids: Iterable[int], source: str) -> collections.Counter[str]:
        """Return how often ``decode`` makes each repair; see ``forms.build``."""
        return self._built(ids, source)[1]

    def _built(
        self, ids: Iterable[int], source: str
    ) -> tuple[brackets.Tree, collections.Counter[str]]:
        symbols = (
            self.symbols[i - len(SPECIAL)] if len(SPECIAL) <= i < self.size else None
            for i in shown(ids)
        )
        return forms.build(self.form, symbols, brackets.split_words(self.reads(source)))

    def constraint(self) -> grammars.Grammar:
        """Return the grammar of the trees that can be written."""
        from transformer.decode import grammars  # loads jax, which data does not need

        return grammars.of_symbols(self.form, self.symbols)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        return [self._piece(int(i)) for i in ids]

    def kind_of(self, id_: int) -> str:
        """Return that of the symbol: a tag may be written like a label."""
        of_symbol = len(SPECIAL) <= id_ < self.size
        return self.symbols[id_ - len(SPECIAL)].kind if of_symbol else ""

    def labels(self, ids: Sequence[int]) -> list[str]:
        return self.pieces(ids)

    def words(self, ids: Sequence[int], text: str | None = None) -> list[int]:
        """Return the number of each symbol: each is a word of its own."""
        return list(range(len(ids)))

    def tree(self, text: str) -> brackets.Tree:
        """Return the clean tree of a text in brackets."""
        return brackets.clean(brackets.parse(text))

    def spellings(self) -> list[str]:
        raise UserError("expected a run that writes text, got trees; forbid no words")

    def spelled(self, text: str) -> str:
        return text

    def plain(self, text: str) -> str:
        return text

    def save(self, path: pathlib.Path) -> None:
        path.write_bytes(self._text().encode())

    def _piece(self, id_: int) -> str:
        if id_ < len(SPECIAL) or id_ >= self.size:
            return SPECIAL[id_ if 0 <= id_ < self.size else UNK]
        return forms.written(self.form, self.symbols[id_ - len(SPECIAL)])

    def _text(self) -> str:
        return "".join(f"{kind} {label}\n" for kind, label in self.symbols)


def _symbol(line: str) -> Symbol:
    """Return the symbol of a line of the file."""
    for kind in get_args(Kind):
        if line.startswith(f"{kind} "):
            return Symbol(kind, line.removeprefix(f"{kind} "))
    raise ValueError(line)


class TopDown(TreeTokenizer):
    """``(S (NP XX )NP (VP XX )VP )S``."""

    form, suffix = "top_down", ".top_down"


class Tagged(TreeTokenizer):
    """``S NP NNP /NP VP VBZ /VP /S``."""

    form, suffix = "tagged", ".tagged"


class Indexed(TreeTokenizer):
    """``(S (NP 1 )NP (VP 2 )VP )S``."""

    form, suffix = "indexed", ".indexed"


class InOrder(TreeTokenizer):
    """``SH PJ-NP RE-NP PJ-S SH PJ-VP RE-VP RE-S``."""

    form, suffix = "in_order", ".in_order"


class IndexedInOrder(TreeTokenizer):
    """``1 PJ-NP RE-NP PJ-S 2 PJ-VP RE-VP RE-S``."""

    form, suffix = "indexed_in_order", ".indexed_in_order"
