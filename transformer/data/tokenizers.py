"""Text to ids and back: sentencepiece, whitespace and bytes.

Every tokenizer has the same four special ids, whatever model stands behind it.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import io
import itertools
import json
import pathlib
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence

from transformer import config
from transformer.config import UserError
from transformer.ids import BOS, EOS, PAD, SPECIAL, UNK

# sentencepiece holds its training text in memory: this many pairs take 1.2 GB.
TRAINING_PAIRS = 500_000

Pairs = Iterable[tuple[str, str]]


class Tokenizer(typing.Protocol):
    """One language's text to ids and back.

    Attributes:
      size: number of ids, the four special ones included.
      digest: SHA-256 (hex) of everything that decides what the ids mean.
      suffix: of the file that ``save`` writes.
    """

    suffix: str

    @property
    def size(self) -> int: ...

    @property
    def digest(self) -> str: ...

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, none of them special except UNK."""

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """Return ``encode`` of each text, on all cores where that is faster."""

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids; PAD, BOS and EOS say nothing."""

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Return the written form of each id."""

    def labels(self, ids: Sequence[int]) -> list[str]:
        """Return the pieces for people to read, an ellipsis where a word goes on."""

    def words(self, ids: Sequence[int]) -> list[int]:
        """Return for each id the number of its word, from 0, in the text of all."""

    def plain(self, text: str) -> str:
        """Return a line of the corpus as ``decode`` would write it: joins undone."""

    def save(self, path: pathlib.Path) -> None:
        """Write the file that ``load_vocabulary`` reads."""


class SentencePiece:
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
        import sentencepiece

        try:
            self._model = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError:
            raise UserError(
                f"{name}: expected a sentencepiece model, got something else; "
                "give the .model file"
            ) from None
        self._bytes = model
        m = self._model
        special = [m.pad_id(), m.unk_id(), m.bos_id(), m.eos_id()]
        rest = [i for i in range(m.get_piece_size()) if i not in special]
        self._theirs = special + rest  # our id -> the model's, -1 where it has none
        self._ours = {theirs: ours for ours, theirs in enumerate(self._theirs)}
        self._same = self._theirs == list(range(len(self._theirs)))

    @property
    def size(self) -> int:
        return len(self._theirs)

    @functools.cached_property
    def digest(self) -> str:
        return hashlib.sha256(b"sentencepiece\n" + self._bytes).hexdigest()

    def encode(self, text: str) -> list[int]:
        return self._renumber(self._model.encode(text))

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        return [self._renumber(ids) for ids in self._model.encode(list(texts))]

    def _renumber(self, ids: list[int]) -> list[int]:
        return ids if self._same else [self._ours[i] for i in ids]

    def decode(self, ids: Iterable[int]) -> str:
        known = (self._known(i) for i in ids if i not in (PAD, BOS, EOS))
        return self._model.decode([self._theirs[i] for i in known])

    def pieces(self, ids: Iterable[int]) -> list[str]:
        known = (self._known(i) for i in ids)
        return [
            SPECIAL[i] if i <= EOS else self._model.id_to_piece(self._theirs[i])
            for i in known
        ]

    def labels(self, ids: Sequence[int]) -> list[str]:
        bare = [piece.removeprefix("\u2581") or "\u2423" for piece in self.pieces(ids)]
        return _joined(bare, ids, self.words(ids))

    def words(self, ids: Sequence[int]) -> list[int]:
        begins = [piece.startswith("\u2581") for piece in self.pieces(ids)]
        return list(itertools.accumulate(begins[1:], initial=0)) if begins else []

    def _known(self, id_: int) -> int:
        return int(id_) if 0 <= id_ < self.size else UNK

    def plain(self, text: str) -> str:
        return text

    def save(self, path: pathlib.Path) -> None:
        path.write_bytes(self._bytes)


class Whitespace:
    """Words of a text that is segmented already; ``"@@ "`` joins two of them.

    Args:
      words: the words of ids 4, 5, ...
    """

    suffix = ".vocab"

    def __init__(self, words: Sequence[str]):
        self._pieces = [*SPECIAL, *words]
        self._ids = {word: id_ for id_, word in enumerate(words, len(SPECIAL))}

    @property
    def size(self) -> int:
        return len(self._pieces)

    @functools.cached_property
    def digest(self) -> str:
        return hashlib.sha256(f"whitespace\n{self._text()}".encode()).hexdigest()

    def encode(self, text: str) -> list[int]:
        return [self._ids.get(word, UNK) for word in text.split()]

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        words = self.pieces(i for i in ids if i not in (PAD, BOS, EOS))
        return self.plain(" ".join(words))

    def pieces(self, ids: Iterable[int]) -> list[str]:
        return [self._pieces[i if 0 <= i < self.size else UNK] for i in ids]

    def labels(self, ids: Sequence[int]) -> list[str]:
        bare = [piece.removesuffix("@@") for piece in self.pieces(ids)]
        return _joined(bare, ids, self.words(ids))

    def words(self, ids: Sequence[int]) -> list[int]:
        ends = [not piece.endswith("@@") for piece in self.pieces(ids)]
        return list(itertools.accumulate(ends[:-1], initial=0)) if ends else []

    def plain(self, text: str) -> str:
        return re.sub(r"@@( |$)", "", " ".join(text.split()))

    def _text(self) -> str:
        return "".join(f"{piece}\n" for piece in self._pieces)

    def save(self, path: pathlib.Path) -> None:
        path.write_bytes(self._text().encode())


class Bytes:
    """The bytes of UTF-8: byte b has id 4 + b."""

    suffix = ".bytes"
    size = len(SPECIAL) + 256
    digest = hashlib.sha256(b"bytes").hexdigest()

    def encode(self, text: str) -> list[int]:
        return [byte + len(SPECIAL) for byte in text.encode()]

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text; what is not UTF-8, UNK included, becomes U+FFFD."""
        shown = (i for i in ids if i not in (PAD, BOS, EOS))
        # 0xff never occurs in UTF-8.
        raw = bytes(i - 4 if len(SPECIAL) <= i < self.size else 0xFF for i in shown)
        return raw.decode(errors="replace")

    def pieces(self, ids: Iterable[int]) -> list[str]:
        return [self._piece(int(i)) for i in ids]

    def labels(self, ids: Sequence[int]) -> list[str]:
        space = self.encode(" ")
        return ["\u2423" if [i] == space else self._piece(int(i)) for i in ids]

    def words(self, ids: Sequence[int]) -> list[int]:
        """Return the number of each id's word; a space belongs to the one before."""
        spaces = [i in self.encode(" ") for i in ids]
        return list(itertools.accumulate(spaces[:-1], initial=0)) if spaces else []

    def _piece(self, id_: int) -> str:
        if id_ < len(SPECIAL) or id_ >= self.size:
            return SPECIAL[id_ if 0 <= id_ < self.size else UNK]
        byte = id_ - len(SPECIAL)
        return chr(byte) if 0x20 < byte < 0x7F else f"<0x{byte:02X}>"

    def plain(self, text: str) -> str:
        return text

    def save(self, path: pathlib.Path) -> None:
        path.write_bytes(b"")


def _joined(pieces: list[str], ids: Sequence[int], words: Sequence[int]) -> list[str]:
    """Put an ellipsis where two pieces of a word meet; special ones stand alone."""
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


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """The tokenizers of both languages; one and the same object where joint."""

    source: Tokenizer
    target: Tokenizer

    @property
    def joint(self) -> bool:
        return self.source is self.target

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of both digests."""
        text = f"{self.source.digest}\n{self.target.digest}\n"
        return hashlib.sha256(text.encode()).hexdigest()

    def save(self, folder: pathlib.Path) -> None:
        """Write the tokenizers and ``vocabulary.json`` to a folder."""
        folder = pathlib.Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        sides = ("source",) if self.joint else ("source", "target")
        for side in sides:
            tokenizer = getattr(self, side)
            tokenizer.save(folder / f"{side}{tokenizer.suffix}")
        record = {"joint": self.joint, "digest": self.digest}
        record |= {side: getattr(self, side).suffix for side in sides}
        (folder / "vocabulary.json").write_text(json.dumps(record, indent=2) + "\n")


def load_vocabulary(folder: pathlib.Path) -> Vocabulary:
    """Open what ``Vocabulary.save`` wrote.

    Args:
      folder: the folder given to ``save``.

    Returns:
      The two tokenizers.

    Raises:
      UserError: if there is none, or its files are not the ones that were saved.
    """
    folder = pathlib.Path(folder)
    path = folder / "vocabulary.json"
    if not path.is_file():
        raise UserError(f"expected a vocabulary in {path}, found none; prepare it")
    record = json.loads(path.read_text())
    source = _load(folder / f"source{record['source']}")
    target = source
    if not record["joint"]:
        target = _load(folder / f"target{record['target']}")
    vocabulary = Vocabulary(source, target)
    if vocabulary.digest != record["digest"]:
        raise UserError(
            f"{folder}: expected a vocabulary of digest {record['digest'][:12]}, got "
            f"{vocabulary.digest[:12]}: a file was changed; prepare it again"
        )
    return vocabulary


def _load(path: pathlib.Path) -> Tokenizer:
    if path.suffix == Bytes.suffix:
        return Bytes()
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"expected a tokenizer, got: {error}; prepare it") from None
    if path.suffix == Whitespace.suffix:
        # Only "\n" ends a line here: a word may hold other "line ends" of Unicode.
        return Whitespace(data.decode().split("\n")[len(SPECIAL) : -1])
    return SentencePiece(data, str(path))


def build_vocabulary(
    tokenizer: config.Tokenizer, pairs: Callable[[], Pairs], folder: pathlib.Path
) -> Vocabulary:
    """Train or read the tokenizers and save them.

    Args:
      tokenizer: what to build.
      pairs: starts a new pass over the training pairs.
      folder: where the vocabulary is saved.

    Returns:
      The vocabulary.

    Raises:
      UserError: if the text cannot fill, or does not fit, ``tokenizer.vocab_size``.
    """
    if tokenizer.joint:
        if tokenizer.target_model not in ("", tokenizer.source_model):
            raise UserError(
                "tokenizer.target_model: expected '' as tokenizer.joint=True, got "
                f"{tokenizer.target_model!r}; set tokenizer.joint=False"
            )
        source = _build(tokenizer, tokenizer.source_model, pairs, (0, 1))
        vocabulary = Vocabulary(source, source)
    else:
        source = _build(tokenizer, tokenizer.source_model, pairs, (0,))
        target = _build(tokenizer, tokenizer.target_model, pairs, (1,))
        vocabulary = Vocabulary(source, target)
    vocabulary.save(folder)
    return vocabulary


def _build(
    tokenizer: config.Tokenizer,
    model: str,
    pairs: Callable[[], Pairs],
    sides: tuple[int, ...],
) -> Tokenizer:
    if tokenizer.kind == "bytes":
        return Bytes()
    if tokenizer.kind == "whitespace":
        texts = (pair[side] for pair in pairs() for side in sides)
        return _build_whitespace(texts, tokenizer.vocab_size)
    if model:
        return _given(model, tokenizer.vocab_size)
    texts = (pair[side] for pair in _sample(pairs()) for side in sides)
    return _train_sentencepiece(texts, tokenizer)


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


def _build_whitespace(texts: Iterable[str], limit: int) -> Whitespace:
    counts: collections.Counter[str] = collections.Counter()
    for text in texts:
        counts.update(text.split())
    for special in SPECIAL:  # written in a text they are words like any unknown one
        del counts[special]
    if limit and len(counts) + len(SPECIAL) > limit:
        raise UserError(
            f"tokenizer.vocab_size: expected at least {len(counts) + len(SPECIAL)}, "
            f"{len(counts)} words and {len(SPECIAL)} special ones, got {limit}; "
            "set it to 0, or segment the text into fewer pieces"
        )
    return Whitespace(sorted(counts, key=lambda word: (-counts[word], word)))


def _sample(pairs: Pairs, limit: int = TRAINING_PAIRS) -> Iterator[tuple[str, str]]:
    """Thin pairs out evenly to at most ``limit``, without knowing how many come."""
    kept: list[tuple[str, str]] = []
    stride = 1
    for number, pair in enumerate(pairs):
        if number % stride:
            continue
        if len(kept) == limit:
            kept = kept[::2]
            stride *= 2
            if number % stride:
                continue
        kept.append(pair)
    return iter(kept)


def _train_sentencepiece(
    texts: Iterable[str], tokenizer: config.Tokenizer
) -> SentencePiece:
    import sentencepiece

    if not tokenizer.vocab_size:
        raise UserError(
            "tokenizer.vocab_size: expected a number of pieces to train "
            "sentencepiece, got 0; set it, 8000 say"
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
            minloglevel=3,
        )
    except RuntimeError as error:
        raise _training_error(error, tokenizer.vocab_size) from None
    return SentencePiece(model.getvalue())


def _training_error(error: RuntimeError, size: int) -> Exception:
    """Turn sentencepiece's complaints about the text into the user's words."""
    message = str(error)
    if largest := re.search(r"value <= (\d+)", message):
        return UserError(
            f"tokenizer.vocab_size: expected at most {largest[1]}, all that this "
            f"training text can fill, got {size}; set it to {largest[1]} or less"
        )
    if "sentences_.empty()" in message:
        return UserError(
            "data.train: expected text to train sentencepiece, got none; give sentences"
        )
    if needed := re.search(r"required_chars\. \d+ vs (\d+)", message):
        return UserError(
            f"tokenizer.vocab_size: expected at least {needed[1]}, the characters of "
            f"the training text, got {size}; set it to more than {needed[1]}"
        )
    return error
