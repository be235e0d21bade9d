"""Text to ids and back: a file and a line of ``TOKENIZERS`` for each kind.

Every tokenizer has the same four special ids, whatever model is behind it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from transformer import config
from transformer.config import UserError
from transformer.data.folder import Folder, opened
from transformer.data.tokenizers.indexed import IndexedWords
from transformer.data.tokenizers.marian import Marian
from transformer.data.tokenizers.sentence_piece import Sampling, SentencePiece
from transformer.data.tokenizers.tokenizer import Pairs, Tokenizer
from transformer.data.tokenizers.trees import (
    Indexed,
    IndexedInOrder,
    InOrder,
    Tagged,
    TopDown,
)
from transformer.data.tokenizers.utf8 import Bytes
from transformer.data.tokenizers.vectors import Vectors
from transformer.data.tokenizers.whitespace import Whitespace
from transformer.files import sealed

__all__ = [
    "TOKENIZERS",
    "Bytes",
    "IndexedWords",
    "Marian",
    "Pairs",
    "SentencePiece",
    "Tokenizer",
    "Vectors",
    "Vocabulary",
    "Whitespace",
    "build_vocabulary",
    "load_vocabulary",
]

_NAME = "vocabulary.json"

TOKENIZERS: dict[str, type[Tokenizer]] = {
    "sentencepiece": SentencePiece,
    "whitespace": Whitespace,
    "bytes": Bytes,
    "indexed_words": IndexedWords,
    "top_down": TopDown,
    "tagged": Tagged,
    "indexed": Indexed,
    "in_order": InOrder,
    "indexed_in_order": IndexedInOrder,
    "marian": Marian,
    "vectors": Vectors,  # of the source alone, where ``data.source`` is of that name
}


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """The tokenizers of both languages; the same object if joint."""

    source: Tokenizer
    target: Tokenizer

    @property
    def joint(self) -> bool:
        """Whether both languages have one tokenizer."""
        return self.source is self.target

    def source_ids(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the ids of source lines, or the arrays that they name."""
        return self.source.encode_many([self.target.reads(line) for line in lines])

    @property
    def sizes(self) -> tuple[int, int]:
        """How many ids the source and the target vocabulary have."""
        return self.source.size, self.target.size

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of both digests."""
        text = f"{self.source.digest}\n{self.target.digest}\n"
        return hashlib.sha256(text.encode()).hexdigest()

    def sampling(self, tokenizer: config.Tokenizer) -> Vocabulary:
        """Return it with BPE dropout, for training pairs, if that is configured."""
        if not tokenizer.dropout:
            return self
        assert isinstance(self.source, SentencePiece)
        assert isinstance(self.target, SentencePiece)
        return Vocabulary(
            Sampling(self.source, tokenizer, 0), Sampling(self.target, tokenizer, 1)
        )

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
        sealed.write_json(folder / _NAME, record)


def build_vocabulary(
    tokenizer: config.Tokenizer,
    pairs: Callable[[], Pairs],
    folder: pathlib.Path,
    *,
    vectors: bool = False,
) -> Vocabulary:
    """Train or read the tokenizers and save them.

    Args:
      tokenizer: what to build.
      pairs: starts a new pass over the training pairs.
      folder: where the vocabulary is saved.
      vectors: whether the sources are the paths of arrays.

    Returns:
      The vocabulary.

    Raises:
      UserError: if the text cannot fill, or does not fit, ``tokenizer.vocab_size``.
    """

    def build(kind: str, model: str, *sides: int) -> Tokenizer:
        texts = (tuple(pair[side] for side in sides) for pair in pairs())
        return TOKENIZERS[kind].build(texts, tokenizer, model)

    if tokenizer.kind == "marian":
        vocabulary = Vocabulary(
            build(tokenizer.kind, tokenizer.source_model, 0),
            build(tokenizer.kind, tokenizer.target_model or tokenizer.source_model, 1),
        )
        if tokenizer.joint:
            _check_one_list(vocabulary)
    elif tokenizer.joint:
        if tokenizer.target_model not in ("", tokenizer.source_model):
            raise UserError(
                "tokenizer.target_model: expected '' as tokenizer.joint=True, got "
                f"{tokenizer.target_model!r}; set tokenizer.joint=False"
            )
        source = build(tokenizer.kind, tokenizer.source_model, 0, 1)
        vocabulary = Vocabulary(source, source)
    else:
        of_source = "vectors" if vectors else tokenizer.kind
        source = build(of_source, tokenizer.source_model, 0)
        kind = tokenizer.target_kind
        target = build(
            tokenizer.kind if kind == "same" else kind, tokenizer.target_model, 1
        )
        vocabulary = Vocabulary(source, target)
    vocabulary.save(folder)
    return vocabulary


def _check_one_list(vocabulary: Vocabulary) -> None:
    """Check that both sides number the same pieces, each cut by a model of its own."""
    source, target = vocabulary.source, vocabulary.target
    assert isinstance(source, Marian) and isinstance(target, Marian)
    if source.numbered != target.numbered:
        raise UserError(
            "tokenizer.target_model: expected the list of pieces of source_model, as "
            "tokenizer.joint=True, got another; set tokenizer.joint=False"
        )


def load_vocabulary(folder: pathlib.Path | Folder) -> Vocabulary:
    """Open what ``Vocabulary.save`` wrote.

    Its files are verified by the manifest of the folder; where there is none, by the
    digest in ``vocabulary.json``.

    Args:
      folder: the folder given to ``save``, or where it is.

    Returns:
      The two tokenizers.

    Raises:
      UserError: if there is none, or its files are not the ones that were saved.
    """
    folder = opened(folder)
    if not os.path.lexists(folder.path):
        raise UserError(
            f"{folder.path}: expected a prepared folder, found none; prepare the data "
            "with transformer train"
        )
    suffixes, digest = folder.json(_NAME, _parse)
    vocabulary = Vocabulary(
        source := _load(folder, f"source{suffixes[0]}"),
        _load(folder, f"target{suffixes[1]}") if len(suffixes) > 1 else source,
    )
    if vocabulary.digest != digest:
        raise UserError(
            f"{folder.path}: expected a vocabulary of digest {digest[:12]}, got "
            f"{vocabulary.digest[:12]}: a tokenizer was changed; {folder.remedy}"
        )
    return vocabulary


def _parse(record: dict[str, Any]) -> tuple[list[str], str]:
    """Return the suffix of one or two tokenizers, and the digest of all."""
    joint, digest = record["joint"], record["digest"]
    sides = ["source"] if joint else ["source", "target"]
    suffixes = [record[side] for side in sides]
    if not isinstance(joint, bool) or not isinstance(digest, str):
        raise TypeError(f"{joint=}, {digest=}")
    known = [kind.suffix for kind in TOKENIZERS.values()]
    if not all(suffix in known for suffix in suffixes):
        raise ValueError(f"tokenizers {suffixes}")
    return suffixes, digest


def _load(folder: Folder, name: str) -> Tokenizer:
    path = folder.verify(name)
    (kind,) = (kind for kind in TOKENIZERS.values() if kind.suffix == path.suffix)
    try:
        return kind.load(path)
    except (OSError, ValueError, UserError) as error:
        got = getattr(error, "strerror", None) or "something else"
        folder.refuse(name, f"a tokenizer ({kind.__name__})", got)
