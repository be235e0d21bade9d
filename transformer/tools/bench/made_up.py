"""What is measured where no data is needed: a model, and sentences of random ids."""

from __future__ import annotations

import numpy as np

from transformer.config import Config
from transformer.ids import EOS, PAD
from transformer.models.transformer import (
    Transformer,
    configured_vocabulary,
    make_model,
)
from transformer.nn import hardware


def make_sized_model(settings: Config) -> Transformer:
    """Return the model of a configuration that tells the size of its vocabulary."""
    rows = configured_vocabulary(settings)
    kind = hardware.arranged(None, settings.parallel.tensor)
    return make_model(settings.model, rows, rows, settings.parallel.remat, kind)


def batch_rows(settings: Config, tokens: int, length: int) -> int:
    """Return the rows of a batch of so many padded tokens per side."""
    multiple = settings.batch.multiple
    return max(tokens // length // multiple, 1) * multiple


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
