"""Pieces of words, learnt or given, by sentencepiece."""

from __future__ import annotations

import functools
import hashlib
import io
import itertools
import pathlib
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from transformer import config
from transformer.config import UserError
from transformer.data.tokenizers.tokenizer import (
    OfText,
    Texts,
    bytes_spell_any_word,
    shown,
    with_ellipses,
    word_numbers,
)
from transformer.ids import BOS, EOS, PAD, SPECIAL, UNK

# sentencepiece holds its training text in memory: this many pairs take 1.2 GB.
TRAINING_PAIRS = 500_000
_LONGEST = 4192  # bytes: its max_sentence_length
_SPACE = "\u2581"  # how sentencepiece marks one
SPELLED = {PAD: "", UNK: " \u2047 ", BOS: "", EOS: ""}  # what special ids spell


class SentencePiece(OfText):
    """A sentencepiece model, its ids renumbered so that ours are the special ones.

    Models that this project trains have PAD, UNK, BOS, EOS = 0, 1, 2, 3 already. In
    others the special pieces move to the front (one they lack is never produced) and
    the rest follow in their own order.

    Args:
      model: the bytes of a ``.model`` file.
      name: what an error calls it.
    """

    suffix = ".model"

    def __init__(self, model: bytes, name: str = "the model"):
        self._model = open_model(model, name)
        self._bytes = model
        m = self._model
        special = [m.pad_id(), m.unk_id(), m.bos_id(), m.eos_id()]
        rest = [i for i in range(m.get_piece_size()) if i not in special]
        self._theirs = special + rest  # our id -> the model's, -1 where it has none
        self._ours = {theirs: ours for ours, theirs in enumerate(self._theirs)}
        self._same = self._theirs == list(range(len(self._theirs)))

    @classmethod
    def build(
        cls, texts: Iterable[Texts], tokenizer: config.Tokenizer, model: str
    ) -> SentencePiece:
        if model:
            return _given(model, tokenizer.vocab_size)
        return _train(itertools.chain.from_iterable(_sample(texts)), tokenizer)

    @classmethod
    def load(cls, path: pathlib.Path) -> SentencePiece:
        return cls(path.read_bytes(), str(path))

    @property
    def size(self) -> int:
        return len(self._theirs)

    @functools.cached_property
    def digest(self) -> str:
        return hashlib.sha256(b"sentencepiece\n" + self._bytes).hexdigest()

    @property
    def model(self) -> bytes:
        """The bytes of the sentencepiece model."""
        return self._bytes

    @property
    def numbered(self) -> Sequence[str]:
        """The pieces of ids 4, 5, ..."""
        return self.pieces(range(len(SPECIAL), self.size))

    def encode(self, text: str) -> list[int]:
        return self._renumber(self._model.encode(text))

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        return [self._renumber(ids) for ids in self._model.encode(list(texts))]

    def _renumber(self, ids: list[int]) -> list[int]:
        return ids if self._same else [self._ours[i] for i in ids]

    def decode(self, ids: Iterable[int], source: str | None = None) -> str:
        known = (self._known(i) for i in shown(ids))
        return self._model.decode([self._theirs[i] for i in known])

    def pieces(self, ids: Iterable[int]) -> list[str]:
        known = (self._known(i) for i in ids)
        return [
            SPECIAL[i] if i <= EOS else self._model.id_to_piece(self._theirs[i])
            for i in known
        ]

    def labels(self, ids: Sequence[int]) -> list[str]:
        return labels_of(self.pieces(ids), ids)

    def words(self, ids: Sequence[int], text: str | None = None) -> list[int]:
        if text is None:
            pieces = written(ids, self.pieces(ids))
        else:
            pieces = self._model.encode(text, out_type=str)
        return word_numbers(spaced(pieces))

    def _known(self, id_: int) -> int:
        return int(id_) if 0 <= id_ < self.size else UNK

    def spellings(self) -> list[str]:
        check_no_bytes(self._model)
        ids = range(self.size)
        return spaced(written(ids, self.pieces(ids)))

    def spelled(self, text: str) -> str:
        return self.decode(self.encode(text))

    def save(self, path: pathlib.Path) -> None:
        path.write_bytes(self._bytes)


class Sampling(SentencePiece):
    """Segments with BPE dropout: each merge is left out by chance.

    The n-th text that an object encodes is cut by random numbers that depend on n and
    side alone, so that a corpus does not depend on how it is divided into calls.
    sentencepiece can sample too, but not like this: what it draws differs from process
    to process, and a merge that it leaves out gets fewer chances to return than in the
    paper.

    Args:
      trained: whose model it is, of byte pairs.
      tokenizer: how that was built: ``dropout``, the chance that a merge is left out,
        and ``symbols``, which are never parted.
      side: 0 or 1, so that different numbers cut the two sides of a pair.

    Source: Provilkov et al. 2020, BPE-Dropout, arXiv:1910.13267.
    """

    def __init__(self, trained: SentencePiece, tokenizer: config.Tokenizer, side: int):
        super().__init__(trained.model)
        self._rate, self._next = tokenizer.dropout, side
        self._ids = {piece: i for i, piece in enumerate(self.pieces(range(self.size)))}
        self._whole = {UNK, *(self._ids[symbol] for symbol in _symbols(tokenizer))}
        self._scores = {
            piece: self._model.get_score(self._theirs[i])
            for piece, i in self._ids.items()
            if i > EOS and i not in self._whole
        }

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        return [self._cut_anew(ids) for ids in super().encode_many(texts)]

    def _cut_anew(self, ids: Sequence[int]) -> list[int]:
        draw = random.Random(self._next).random
        self._next += 2
        return [
            self._ids[piece]
            for word in self._words(ids)
            for piece in segment(word, self._scores, self._rate, draw)
        ]

    def _words(self, ids: Iterable[int]) -> Iterator[list[str]]:
        """Yield the characters of each word, and the pieces in it that stay whole."""
        word: list[str] = []
        for id_, piece in zip(ids, self.pieces(ids), strict=True):
            if piece.startswith(_SPACE) and word:
                yield word
                word = []
            word += [piece] if id_ in self._whole else piece
        yield word


def segment(
    word: Iterable[str],
    scores: Mapping[str, float],
    rate: float,
    draw: Callable[[], float],
) -> list[str]:
    """Segment a word with BPE dropout.

    Each of the merges that are possible is left out with probability ``rate``; the best
    of the others is made, and all are drawn anew, until none is left.

    Args:
      word: its characters, first the one that marks its beginning.
      scores: of the pieces; the merge whose piece has the highest is made first.
      rate: from 0, plain BPE, to 1, characters.
      draw: returns a random number in [0, 1).

    Source: Provilkov et al. 2020, BPE-Dropout, arXiv:1910.13267, Algorithm 1.
    """
    pieces = list(word)
    while True:
        kept = [
            (scores[merged], -place)
            for place, merged in enumerate(map("".join, itertools.pairwise(pieces)))
            if merged in scores and draw() >= rate
        ]
        if not kept:
            return pieces
        place = -max(kept)[1]
        pieces[place : place + 2] = ["".join(pieces[place : place + 2])]


def open_model(model: bytes, name: str) -> Any:
    """Return sentencepiece's processor for the bytes of a model.

    Raises:
      UserError: if they are something else; the message calls them ``name``.
    """
    import sentencepiece

    try:
        if not model:  # sentencepiece would make a processor without a model
            raise RuntimeError
        return sentencepiece.SentencePieceProcessor(model_proto=model)
    except RuntimeError:
        raise UserError(
            f"{name}: expected a sentencepiece model, got something else; "
            "give the .model file"
        ) from None


def written(ids: Iterable[int], pieces: Iterable[str]) -> list[str]:
    """Return pieces, those of special ids as sentencepiece writes them."""
    return [SPELLED.get(i, piece) for i, piece in zip(ids, pieces, strict=True)]


def spaced(pieces: Iterable[str]) -> list[str]:
    """Return pieces with spaces where sentencepiece has its mark."""
    return [piece.replace(_SPACE, " ") for piece in pieces]


def labels_of(pieces: Sequence[str], ids: Sequence[int]) -> list[str]:
    """Return pieces for people to read, see ``Tokenizer.labels``."""
    bare = [piece.removeprefix(_SPACE) or "\u2423" for piece in pieces]
    return with_ellipses(bare, ids, word_numbers(spaced(pieces)))


def check_no_bytes(model: Any) -> None:
    """Raise a ``UserError`` where a model has pieces of single bytes."""
    if any(model.is_byte(i) for i in range(model.get_piece_size())):
        raise bytes_spell_any_word()


def checksum(model: str) -> dict[str, str]:
    """Return ``{"sha256": hex}`` of a given sentencepiece model."""
    return {"sha256": hashlib.sha256(_read_model(model)).hexdigest()}


def _read_model(path: str) -> bytes:
    try:
        return pathlib.Path(path).read_bytes()
    except OSError as error:
        raise UserError(
            f"expected a sentencepiece model {path}, got: {error}; set "
            "tokenizer.source_model and target_model"
        ) from None


def _given(path: str, limit: int) -> SentencePiece:
    given = SentencePiece(_read_model(path), path)
    if limit and given.size > limit:
        raise UserError(
            f"tokenizer.vocab_size: expected at least {given.size}, the pieces of "
            f"{path}, got {limit}; set it to 0 or {given.size}"
        )
    return given


def _sample(texts: Iterable[Texts], limit: int = TRAINING_PAIRS) -> Iterator[Texts]:
    """Keep the texts of at most ``limit`` pairs, evenly, without knowing the total."""
    kept: list[Texts] = []
    stride = 1
    for number, one in enumerate(texts):
        if number % stride:
            continue
        if len(kept) == limit:
            kept = kept[::2]
            stride *= 2
            if number % stride:
                continue
        kept.append(one)
    return iter(kept)


def _symbols(tokenizer: config.Tokenizer) -> list[str]:
    return [symbol for symbol in tokenizer.symbols.split(",") if symbol]


def _train(texts: Iterable[str], tokenizer: config.Tokenizer) -> SentencePiece:
    import sentencepiece

    if not tokenizer.vocab_size:
        raise UserError(
            "tokenizer.vocab_size: expected a number of pieces to train "
            "sentencepiece, got 0; set it, for example to 8000"
        )
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_writer=model,
            model_type="bpe",
            vocab_size=tokenizer.vocab_size,
            character_coverage=1.0,
            pad_id=PAD,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            user_defined_symbols=_symbols(tokenizer),
            max_sentence_length=_LONGEST,
            minloglevel=3,
        )
    except RuntimeError as error:
        raise _training_error(error, tokenizer.vocab_size) from None
    return SentencePiece(model.getvalue())


def _training_error(error: RuntimeError, size: int) -> Exception:
    """Turn sentencepiece's complaints about the text into the user's terms."""
    message = str(error)
    if largest := re.search(r"value <= (\d+)", message):
        return UserError(
            f"tokenizer.vocab_size: expected at most {largest[1]}, the most that "
            f"this training text yields, got {size}; set it to {largest[1]} or less"
        )
    if "sentences_.empty()" in message:
        return UserError(
            f"data.train: expected lines of at most {_LONGEST:,} bytes to train "
            "sentencepiece, which skips longer ones, got none; give sentences"
        )
    if "all_chars_count" in message:
        return UserError(
            "data.train: expected lines of text to train sentencepiece, got nothing "
            "but spaces; give sentences"
        )
    if "insert_id(" in message:
        least = len(SPECIAL) + 1
        return UserError(
            f"tokenizer.vocab_size: expected at least {least}, as {least - 1} pieces "
            f"are special, got {size}; raise it"
        )
    if needed := re.search(r"required_chars\. \d+ vs (\d+)", message):
        return UserError(
            f"tokenizer.vocab_size: expected at least {needed[1]}, one for each "
            "character of the training text, special piece and symbol, got "
            f"{size}; set it to {needed[1]} or more"
        )
    return error
