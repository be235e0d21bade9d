"""Text to ids and back: a file and a line of ``TOKENIZERS`` for each kind.

Every tokenizer has the same four special ids, whatever model stands behind it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Callable

from transformer import config
from transformer.config import UserError
from transformer.data.tokenizers.sentence_piece import SentencePiece
from transformer.data.tokenizers.tokenizer import Pairs, Tokenizer
from transformer.data.tokenizers.utf8 import Bytes
from transformer.data.tokenizers.whitespace import Whitespace

__all__ = [
    "TOKENIZERS",
    "Bytes",
    "Pairs",
    "SentencePiece",
    "Tokenizer",
    "Vocabulary",
    "Whitespace",
    "build_vocabulary",
    "load_vocabulary",
]

TOKENIZERS: dict[str, type[Tokenizer]] = {
    "sentencepiece": SentencePiece,
    "whitespace": Whitespace,
    "bytes": Bytes,
}


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """The tokenizers of both languages; one and the same object where joint."""

    source: Tokenizer
    target: Tokenizer

    @property
    def joint(self) -> bool:
        """Whether both languages have one tokenizer."""
        return self.source is self.target

    @property
    def sizes(self) -> tuple[int, int]:
        """How many ids the source and the target vocabulary have."""
        return self.source.size, self.target.size

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

    def build(model: str, *sides: int) -> Tokenizer:
        texts = (tuple(pair[side] for side in sides) for pair in pairs())
        return TOKENIZERS[tokenizer.kind].build(texts, tokenizer, model)

    if tokenizer.joint:
        if tokenizer.target_model not in ("", tokenizer.source_model):
            raise UserError(
                "tokenizer.target_model: expected '' as tokenizer.joint=True, got "
                f"{tokenizer.target_model!r}; set tokenizer.joint=False"
            )
        source = build(tokenizer.source_model, 0, 1)
        vocabulary = Vocabulary(source, source)
    else:
        source = build(tokenizer.source_model, 0)
        target = build(tokenizer.target_model, 1)
        vocabulary = Vocabulary(source, target)
    vocabulary.save(folder)
    return vocabulary


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
    (kind,) = (kind for kind in TOKENIZERS.values() if kind.suffix == path.suffix)
    try:
        return kind.load(path)
    except OSError as error:
        raise UserError(f"expected a tokenizer, got: {error}; prepare it") from None
