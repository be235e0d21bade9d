"""The pieces of Marian's models: sentencepiece cuts a text, a list numbers them."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence

from transformer import config
from transformer.config import UserError
from transformer.config.checks import UTF8
from transformer.data.tokenizers.sentence_piece import (
    check_no_bytes,
    labels_of,
    open_model,
    spaced,
    written,
)
from transformer.data.tokenizers.tokenizer import OfText, Texts, shown, word_numbers
from transformer.files.objects import read_object
from transformer.ids import SPECIAL, UNK

_NUMBERS = "vocab.json"  # beside a .spm file: the number of each piece


class Marian(OfText):
    """One side of a Marian model, its ids renumbered so that ours are the special ones.

    The other side may have another sentencepiece model and the same list of pieces. A
    piece that is not in the list is UNK, whatever its number in the model. A language
    tag in front of a text, ``>>fra<<``, is one piece of the list.

    Args:
      model: the bytes of a ``.spm`` file.
      pieces: of ids 4, 5, ...
      name: what an error calls it.
    """

    suffix = ".marian"

    def __init__(self, model: bytes, pieces: Sequence[str], name: str = "the model"):
        self._model = open_model(model, name)
        self._bytes = model
        self._pieces = [*SPECIAL, *pieces]
        self._ids = {piece: id_ for id_, piece in enumerate(pieces, len(SPECIAL))}

    @classmethod
    def build(
        cls, texts: Iterable[Texts], tokenizer: config.Tokenizer, model: str
    ) -> Marian:
        """Read a ``.marian`` file, or a ``.spm`` file that has vocab.json beside it."""
        path = pathlib.Path(model)
        if path.suffix not in (cls.suffix, ".spm"):
            raise UserError(
                "tokenizer.source_model: expected a .marian or .spm file for kind "
                f"marian, which is never trained, got {model!r}; name one"
            )
        given = cls.load(path) if path.suffix == cls.suffix else _beside(path)
        if tokenizer.vocab_size and given.size > tokenizer.vocab_size:
            raise UserError(
                f"tokenizer.vocab_size: expected at least {given.size}, the pieces of "
                f"{path}, got {tokenizer.vocab_size}; set it to 0 or {given.size}"
            )
        return given

    @classmethod
    def load(cls, path: pathlib.Path) -> Marian:
        values = read_object(path, "give the file of the model")
        try:
            model, pieces = base64.b64decode(values["model"]), values["pieces"]
            if not all(isinstance(piece, str) for piece in pieces):
                raise TypeError("pieces")
        except (KeyError, TypeError, ValueError):
            raise UserError(
                f"{path}: expected a model and its pieces, got something else; import "
                "the model again"
            ) from None
        return cls(model, pieces, str(path))

    @property
    def size(self) -> int:
        return len(self._pieces)

    @functools.cached_property
    def digest(self) -> str:
        return hashlib.sha256(b"marian\n" + self._text()).hexdigest()

    @property
    def model(self) -> bytes:
        """The bytes of the sentencepiece model."""
        return self._bytes

    @property
    def numbered(self) -> Sequence[str]:
        """The pieces of ids 4, 5, ..."""
        return self._pieces[len(SPECIAL) :]

    def encode(self, text: str) -> list[int]:
        return self.encode_many([text])[0]

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        return [
            [self._ids.get(piece, UNK) for piece in pieces]
            for pieces in self._cut(texts)
        ]

    def _cut(self, texts: Sequence[str]) -> list[list[str]]:
        """Return the pieces of each text, including those that have no id."""
        parts = [_without_tag(text) for text in texts]
        cut = self._model.encode([text for _, text in parts], out_type=str)
        return [[*tag, *own] for (tag, _), own in zip(parts, cut, strict=True)]

    def decode(self, ids: Iterable[int], source: str | None = None) -> str:
        pieces = self.pieces(shown(ids))
        return self._model.decode(pieces) if pieces else ""

    def pieces(self, ids: Iterable[int]) -> list[str]:
        return [self._pieces[i if 0 <= i < self.size else UNK] for i in ids]

    def labels(self, ids: Sequence[int]) -> list[str]:
        return labels_of(self.pieces(ids), ids)

    def words(self, ids: Sequence[int], text: str | None = None) -> list[int]:
        if text is None:
            pieces = written(ids, self.pieces(ids))
        else:
            pieces = self._cut([text])[0]
        return word_numbers(spaced(pieces))

    def spellings(self) -> list[str]:
        check_no_bytes(self._model)
        return spaced(written(range(self.size), self._pieces))

    def spelled(self, text: str) -> str:
        return self.decode(self.encode(text))

    def save(self, path: pathlib.Path) -> None:
        path.write_bytes(self._text())

    def _text(self) -> bytes:
        values = {
            "pieces": self.numbered,
            "model": base64.b64encode(self._bytes).decode(),
        }
        return json.dumps(values, ensure_ascii=False, indent=0).encode()


def _without_tag(text: str) -> tuple[list[str], str]:
    """Return the language tag in front of a text, if it has one, and the rest.

    >>> _without_tag(">>fra<< a house")
    (['>>fra<<'], ' a house')
    """
    end = text.find("<<")
    if not text.startswith(">>") or end < 0:
        return [], text
    return [text[: end + 2]], text[end + 2 :]


def rest_of(numbers: Mapping[str, int], name: str) -> list[str]:
    """Return the pieces of a list in the order of their numbers, without special ones.

    Args:
      numbers: of each piece, ``</s>`` and ``<unk>`` among them.
      name: of the list, for an error.

    Raises:
      UserError: if the numbers are not 0, 1, 2, ..., or a special piece is missing.
    """
    own = {"<pad>", "<unk>", "</s>"}
    if not {"<unk>", "</s>"} <= numbers.keys():
        raise UserError(
            f"{name}: expected </s> and <unk> among the pieces, found at most one; "
            "give the list that belongs to the model"
        )
    if sorted(numbers.values()) != list(range(len(numbers))):
        raise UserError(
            f"{name}: expected the numbers 0 to {len(numbers) - 1} for "
            f"{len(numbers):,} pieces, each once, got others; give the list that "
            "belongs to the model"
        )
    if half := next((piece for piece in numbers if not UTF8.passes(piece)), ""):
        raise UserError(  # JSON can write one
            f"{name}: expected pieces of text, got {half!r}, half of a character; give "
            "the list that belongs to the model"
        )
    ordered = sorted(numbers, key=lambda piece: numbers[piece])
    return [piece for piece in ordered if piece not in own]


def read_numbers(path: pathlib.Path) -> dict[str, int]:
    """Return the number of each piece from a file such as vocab.json.

    Raises:
      UserError: if it is something else.
    """
    values = read_object(path, "give the vocab.json of the model")
    if not values or not all(type(number) is int for number in values.values()):
        raise UserError(
            f"{path}: expected a number for each piece, got something else; give the "
            "vocab.json of the model"
        )
    return values


def _beside(path: pathlib.Path) -> Marian:
    names = path.parent / _NUMBERS
    pieces = rest_of(read_numbers(names), str(names))
    return Marian(_read(path), pieces, str(path))


def _read(path: pathlib.Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(
            f"{path}: expected a readable file, got: {error.strerror}; put it there"
        ) from None
