"""What every system is given: sizes of models, ids of sentences, threads.

Every measured system reads this file, so it needs numpy alone.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

PAD, UNK, BOS, EOS = range(4)  # as in transformer/ids.py


class Size(NamedTuple):
    """Sizes of a post-norm Transformer with one table for all embeddings."""

    layers: int  # in each of the two stacks
    d_model: int
    d_ff: int
    heads: int
    vocabulary: int


SIZES = {
    "base": Size(6, 512, 2048, 8, 37_000),  # the paper's
    "medium": Size(4, 384, 1536, 6, 8_000),
    "small": Size(3, 256, 1024, 4, 8_000),
}


class Recurrent(NamedTuple):
    """Sizes of a recurrent encoder-decoder without shared tables."""

    member: str  # "cgru", or "luong" with score general and input feeding
    embedding: int
    units: int  # of each direction and of the decoder
    layers: int  # of luong's two stacks
    d_model: int  # what the output matrix is multiplied by
    source: int  # rows of the tables
    target: int
    dropout: tuple[float, float, float]  # of embeddings, annotations and readout
    normed: bool = False  # layer normalisation inside the cells of cgru's encoder


class Convolutional(NamedTuple):
    """Sizes of a ConvS2S with a single width and without shared tables."""

    width: int  # of embeddings and layers, and what the output matrix is multiplied by
    kernel: int  # k of every convolution
    encoder: int  # layers
    decoder: int  # layers, each with attention
    positions: int  # rows of the two tables of positions
    source: int  # rows of the tables
    target: int
    dropout: float


# Captions in joint BPE of 10,000 merges have this many types on each side.
RECURRENT = {
    "cgru": Recurrent("cgru", 128, 256, 1, 128, 5_204, 7_066, (0.3, 0.5, 0.5)),
    "luong": Recurrent("luong", 512, 512, 2, 512, 5_204, 7_066, (0.2, 0.2, 0.2)),
}
CONVOLUTIONAL = {"convs2s": Convolutional(256, 3, 4, 3, 128, 5_204, 7_066, 0.2)}
# Models that torch.nn has only the parts of.
COMPOSED = RECURRENT | CONVOLUTIONAL
COMPOSED_ROWS = {"cgru": 32, "luong": 32, "convs2s": 64}  # of a training batch
COMPOSED_LENGTH = 16
# Products of the gates in a step of their greedy search: rows x inner x outer.
PRODUCTS = {"cgru": (256, 512, 768), "luong": (256, 512, 2_048)}
CAPTIONS = 1_000
SLOTS = 4_096  # padded source tokens of the captions that are searched at once
EXTRA = 1  # tokens by which an output may exceed its source; EOS counts too
ALPHA = 0.6  # of the length penalty
ROWS, LENGTH = 64, 32  # of a training batch; LENGTH also of what is translated
ACCELERATED = ((776, 32), (96, 256))  # the same on accelerators: the paper's 25,000
DROPOUT = 0.1  # on sub-layers and embeddings, as the paper has it
SMOOTHING = 0.1
EPSILON = 1e-6  # of layer norms


def sentences(
    vocabulary: int, rows: int, length: int, least: float = 1.0, seed: int = 0
) -> np.ndarray:
    """Make sentences whose word frequencies are as uneven as in real text.

    The probability of the n-th id is proportional to 1 / n (Zipf's law).

    Args:
      vocabulary: V.
      rows: B.
      length: of the longest sentence, EOS included.
      least: length of the shortest, as a share of ``length``.
      seed: of the random draws.

    Returns:
      Ids (B, length) int32, padded.
    """
    draw = np.random.default_rng(seed)
    words = np.arange(EOS + 1, vocabulary)
    chances = 1 / np.arange(1, len(words) + 1)
    ids = draw.choice(words, (rows, length), p=chances / chances.sum())
    lengths = draw.integers(int(least * length), length + 1, rows)
    lengths[0] = length
    places = np.arange(length)
    ids[places == lengths[:, None] - 1] = EOS
    ids[places >= lengths[:, None]] = PAD
    return ids.astype(np.int32)


def training_batch(
    vocabulary: int, rows: int = ROWS, length: int = LENGTH
) -> tuple[np.ndarray, np.ndarray]:
    """Return source and target ids, each (rows, length), at most 15 % PAD per row."""
    source, target = (
        sentences(vocabulary, rows, length, 0.85, seed) for seed in range(2)
    )
    return source, target


def composed_batch(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return source and target ids of a training step of a size of ``COMPOSED``."""
    size, rows = COMPOSED[name], COMPOSED_ROWS[name]
    source, target = (
        sentences(vocabulary, rows, COMPOSED_LENGTH, 0.85, seed)
        for seed, vocabulary in enumerate((size.source, size.target))
    )
    return source, target


def captions(vocabulary: int, count: int) -> list[list[int]]:
    """Make sentences as long as the captions of Multi30k, 5 to 34 tokens and EOS.

    Args:
      vocabulary: V.
      count: of the sentences.

    Returns:
      Their ids, each with EOS, the longest not first.
    """
    draw = np.random.default_rng(0)
    lengths = np.clip(np.exp(draw.normal(np.log(12.5), 0.35, count)), 5, 34).astype(int)
    ids = sentences(vocabulary, count, int(lengths.max()))
    rows = zip(ids.tolist(), lengths.tolist(), strict=True)
    return [[*row[: length - 1], EOS + 1, EOS] for row, length in rows]


def inner_dropout(device: str) -> float:
    """Return the dropout on attention weights and inner activations.

    The paper has none. Fused attention that drops weights needs another kernel, which
    not every system has, so there is none on accelerators; on a CPU, where attention is
    written out, every system has it.
    """
    return DROPOUT if device == "cpu" else 0.0


def shift_right(target: np.ndarray) -> np.ndarray:
    """Make the decoder's input from a target: BOS in front, the last id left out."""
    return np.pad(target, ((0, 0), (1, 0)), constant_values=BOS)[:, :-1]


def padded(sequences: list[list[int]]) -> np.ndarray:
    """Return sequences as one array (B, length of the longest), padded."""
    longest = max(map(len, sequences))
    return np.array([ids + [PAD] * (longest - len(ids)) for ids in sequences])


def in_groups(lengths: Sequence[int]) -> list[list[int]]:
    """Return sentence numbers in batches of similar length with ``SLOTS`` slots."""
    groups: list[list[int]] = []
    for row in np.argsort(lengths, kind="stable").tolist():
        if not groups or lengths[row] * (len(groups[-1]) + 1) > SLOTS:
            groups.append([])
        groups[-1].append(row)
    return groups


def cores() -> int:
    """Return how many cores this process may use; each system gets as many threads."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
