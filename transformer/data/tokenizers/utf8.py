"""The bytes of UTF-8: any text, 256 ids."""

from __future__ import annotations

import hashlib
import itertools
import pathlib
from collections.abc import Iterable, Sequence
from typing import Self

from transformer import config
from transformer.data.tokenizers.tokenizer import (
    OfText,
    Texts,
    bytes_spell_any_word,
    shown,
)
from transformer.ids import SPECIAL, UNK

_SPACES = {byte + len(SPECIAL) for byte in b" \t\n\v\f\r"}


class Bytes(OfText):
    """The bytes of UTF-8: byte b has id 4 + b."""

    suffix = ".bytes"
    size = len(SPECIAL) + 256
    digest = hashlib.sha256(b"bytes").hexdigest()

    @classmethod
    def build(
        cls, texts: Iterable[Texts], tokenizer: config.Tokenizer, model: str
    ) -> Self:
        return cls()

    @classmethod
    def load(cls, path: pathlib.Path) -> Self:
        return cls()

    def encode(self, text: str) -> list[int]:
        return [byte + len(SPECIAL) for byte in text.encode()]

    def decode(self, ids: Iterable[int], source: str | None = None) -> str:
        """Return the text; what is not UTF-8, UNK included, becomes U+FFFD."""
        # 0xff never occurs in UTF-8.
        least = len(SPECIAL)
        raw = bytes(i - least if least <= i < self.size else 0xFF for i in shown(ids))
        return raw.decode(errors="replace")

    def pieces(self, ids: Iterable[int]) -> list[str]:
        return [self._piece(int(i)) for i in ids]

    def labels(self, ids: Sequence[int]) -> list[str]:
        space = self.encode(" ")
        return ["\u2423" if [i] == space else self._piece(int(i)) for i in ids]

    def words(self, ids: Sequence[int], text: str | None = None) -> list[int]:
        """Return the number of each id's word; a space belongs to the one before."""
        inside = [i not in _SPACES for i in ids]
        before = [False, *inside]
        begins = [now and not last for last, now in zip(before, inside, strict=False)]
        return [max(count - 1, 0) for count in itertools.accumulate(begins)]

    def _piece(self, id_: int) -> str:
        if id_ < len(SPECIAL) or id_ >= self.size:
            return SPECIAL[id_ if 0 <= id_ < self.size else UNK]
        byte = id_ - len(SPECIAL)
        return chr(byte) if 0x20 < byte < 0x7F else f"<0x{byte:02X}>"

    def spellings(self) -> list[str]:
        raise bytes_spell_any_word()

    def save(self, path: pathlib.Path) -> None:
        path.write_bytes(b"")
