"""What is measured where no data is needed: a model, and sentences of random ids."""

from __future__ import annotations

import numpy as np

from transformer import models
from transformer.config import Config, UserError
from transformer.ids import EOS, PAD
from transformer.models import Model


def make_sized_model(settings: Config) -> Model:
    """Return the model of a configuration that gives the size of its vocabulary."""
    return models.make(settings, *models.configured_sizes(settings))


def batch_rows(settings: Config, tokens: int, length: int) -> int:
    """Return the rows of a batch with this many padded tokens per side.

    Raises:
      UserError: if there is no room for ``batch.multiple`` rows.
    """
    multiple = settings.batch.multiple
    if multiple * length > tokens:
        raise UserError(
            f"--length: expected room for batch.multiple = {multiple} rows in --tokens "
            f"= {tokens:,}, at most {tokens // multiple:,}, got {length:,}; change one "
            "of them"
        )
    return tokens // length // multiple * multiple


def ragged_sentences(rows: int, length: int, vocabulary: int) -> np.ndarray:
    """Return random ids (rows, length), sentences of length / 2 to length tokens."""
    draw = np.random.default_rng(0)
    ids = draw.integers(EOS + 1, vocabulary, (rows, length), dtype=np.int32)
    lengths = draw.integers((length + 1) // 2, length + 1, rows)
    lengths[0] = length
    places = np.arange(length)
    ids[places == lengths[:, None] - 1] = EOS
    ids[places >= lengths[:, None]] = PAD
    return ids
