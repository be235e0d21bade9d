"""No tokenizer: a source of vectors is read from the .npy files that its lines name."""

from __future__ import annotations

import hashlib
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn, Self

import numpy as np

from transformer import config
from transformer.config import UserError
from transformer.data import vectors
from transformer.data.tokenizers.tokenizer import OfText, Texts


class Vectors(OfText):
    """Arrays of frames x features, in the place of ids.

    A "text" is the path of an array, or the array itself. ``size`` is the number of
    features, each of which has a row of the source table, see ``layers.source_rows``.
    """

    suffix = ".vectors"

    def __init__(self, features: int):
        self.size = features

    @classmethod
    def build(
        cls, texts: Iterable[Texts], tokenizer: config.Tokenizer, model: str
    ) -> Self:
        """Count the features of the first array."""
        for (path,) in texts:
            return cls(vectors.read(pathlib.Path(path)).shape[1])
        raise UserError("data.train: expected arrays to train on, got none; give some")

    @classmethod
    def load(cls, path: pathlib.Path) -> Self:
        features = int(path.read_text())
        if features < 1:
            raise ValueError(f"{features} features")
        return cls(features)

    @property
    def digest(self) -> str:
        return hashlib.sha256(b"vectors\n%d\n" % self.size).hexdigest()

    def encode(self, text: str | np.ndarray) -> Any:
        """Return an array (S, F) float32, read from its file where a path is given."""
        if isinstance(text, np.ndarray):
            return vectors.checked(text, "source", self.size)
        return vectors.read(pathlib.Path(text), self.size)

    def encode_many(self, texts: Sequence[str | np.ndarray]) -> list[Any]:
        return [self.encode(text) for text in texts]

    def pieces(self, ids: Iterable[Any]) -> list[str]:
        """Return the number of each frame, from 0."""
        return [str(number) for number, _ in enumerate(ids)]

    def save(self, path: pathlib.Path) -> None:
        path.write_text(f"{self.size}\n")

    def decode(self, ids: Iterable[int], source: str | None = None) -> NoReturn:
        _refuse()

    def labels(self, ids: Sequence[int]) -> NoReturn:
        _refuse()

    def words(self, ids: Sequence[int], text: str | None = None) -> NoReturn:
        _refuse()

    def spellings(self) -> NoReturn:
        _refuse()

    def plain(self, text: str) -> NoReturn:
        _refuse()


def _refuse() -> NoReturn:
    raise UserError(
        "expected a run whose sources are text, got one of data.source = vectors, "
        "which have no words; choose another run, or the target side"
    )
