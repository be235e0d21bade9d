"""Numbers of parameters of a Transformer, by formula."""

from __future__ import annotations

from typing import NamedTuple

from transformer import config
from transformer.models.transformer import TARGET_SPACES


class Count(NamedTuple):
    """Numbers of parameters."""

    matrices: int  # and tables
    vectors: int  # biases and norms


def labels(c: config.Transformer) -> int:
    """Return how many distances self-attention has a vector for, ``2 k + 1`` or 0."""
    return 2 * c.clip + 1 if c.positions == "relative" else 0


def layers_count(c: config.Transformer) -> Count:
    """Count the parameters of both stacks.

    A layer of the encoder has 1 attention and 2 norms, one of the decoder 2 and 3. An
    attention has matrices of ``D h (2 d_k + 2 d_v)``, a feed-forward of ``2 D F``.
    General scores have ``h d_k^2`` more, additive ones ``h d_k``. With relative
    positions, self-attention has tables of ``(2 k + 1) (d_k + d_v)``, or as many for
    each head; with disentangled ones, two more matrices of ``D h d_k`` in the encoder.
    """
    attention = 2 * c.d_model * c.heads * (c.d_k + c.d_v)
    attention += c.heads * {"general": c.d_k**2, "additive": c.d_k}.get(c.score, 0)
    tables = c.heads if c.relative_heads == "per_head" else 1
    both = 2 * c.d_model * c.d_ff + tables * labels(c) * (c.d_k + c.d_v)
    projected = 2 * c.heads * c.d_k * (c.positions == "disentangled")
    matrices = c.layers * (attention + both + projected * c.d_model)
    matrices += c.depth * (2 * attention + both)
    biases = c.attention_bias * (c.heads * (2 * c.d_k + c.d_v) + c.d_model)
    norm, both = 2 * c.d_model, c.d_ff + c.d_model
    vectors = c.layers * (biases + both + 2 * norm + c.attention_bias * projected)
    vectors += c.depth * (2 * biases + both + 3 * norm)
    return Count(matrices, vectors)


def parameter_count(c: config.Transformer, vocabulary: int) -> Count:
    """Count all parameters.

    Args:
      c: sizes and choices.
      vocabulary: V, rows of a table.
    """
    rows = {"three": 1, "two": 2, "none": 3}[c.tying] * vocabulary
    rows += 2 * c.max_positions * (c.positions == "learned")
    rows += 2 * c.clip * (c.positions == "disentangled")
    rows += TARGET_SPACES * c.target_space
    stacks = layers_count(c)
    ends = 4 * c.d_model * (c.norm == "pre") + vocabulary * c.output_bias
    return Count(stacks.matrices + rows * c.d_model, stacks.vectors + ends)
