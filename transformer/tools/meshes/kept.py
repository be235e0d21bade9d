"""What the layers keep for the backward pass, in bytes per sentence pair, by formula.

Source: Korthikanti et al., arXiv:2205.05198; b bytes per operand, t ways of ``tensor``.
"""

from __future__ import annotations

from transformer import config
from transformer.models.counts import labels

FLOAT = 4  # bytes of what is stored
OPERAND = {"float32": 4, "bfloat16": 2}


def attention_bytes(
    c: config.Transformer, queries: int, keys: int, tensor: int
) -> float:
    """Return what the backward pass of an attention reads, for one sentence.

    ``(4 (n h d_k + m h (d_k + d_v)) + 8 h n m + b n h d_v) / t + b n D`` for n queries
    and m keys, b bytes per operand: Q, K, V; the weights before and after the mask; the
    operands of the output's and of the first projections.

    A GPU's kernel for all of it (``attention.fused_attention``) keeps no weights; here
    they are counted.
    """
    b, weights = OPERAND[c.dtype], c.heads * queries * keys
    projected = queries * c.heads * c.d_k + keys * c.heads * (c.d_k + c.d_v)
    inner = FLOAT * projected + 2 * FLOAT * weights + b * queries * c.heads * c.d_v
    if c.attention_dropout:  # the remaining weights, and the mask
        inner += (FLOAT + 1) * weights
    return inner / tensor + b * queries * c.d_model


def label_bytes(c: config.Transformer, positions: int, tensor: int) -> float:
    """Return what relative positions keep, shares of labels: ``4 h n (2 k + 1)``."""
    return FLOAT * c.heads * positions * labels(c) / tensor


def feed_forward_bytes(c: config.Transformer, positions: int, tensor: int) -> float:
    """Return what it keeps, operands and signs: ``b n D + (b + 1) n F / t``."""
    b = OPERAND[c.dtype]
    marks = 2 if c.relu_dropout else 1
    return positions * (b * c.d_model + (b + marks) * c.d_ff / tensor)


def residual_bytes(c: config.Transformer, positions: int) -> float:
    """Return what it keeps: the normed sum and the dropout mask, ``5 n D``."""
    return positions * c.d_model * (FLOAT + (c.dropout > 0))


def layer_bytes(
    c: config.Transformer, source: int, target: int, tensor: int
) -> tuple[float, float]:
    """Return what an encoder and a decoder layer keep for one sentence pair."""
    encoder = (
        attention_bytes(c, source, source, tensor)
        + label_bytes(c, source, tensor)
        + feed_forward_bytes(c, source, tensor)
        + 2 * residual_bytes(c, source)
    )
    decoder = (
        attention_bytes(c, target, target, tensor)
        + label_bytes(c, target, tensor)
        + attention_bytes(c, target, source, tensor)
        + feed_forward_bytes(c, target, tensor)
        + 3 * residual_bytes(c, target)
    )
    return encoder, decoder


def product_bytes(
    c: config.Transformer, source: int, target: int, tensor: int
) -> tuple[float, float]:
    """Return what ``remat="dots"`` keeps of a layer of either stack beside its input.

    Args:
      c: sizes.
      source: S.
      target: T.
      tensor: t.

    Returns:
      Bytes of a sentence pair: the float32 results of products with parameters, in the
      encoder's layer and in the decoder's.
    """
    query, key_value = c.heads * c.d_k, c.heads * (c.d_k + c.d_v)
    encoder = source * (query + key_value + c.d_ff)
    decoder = target * (2 * query + key_value + c.d_ff) + source * key_value
    return (
        FLOAT * (encoder / tensor + 2 * source * c.d_model),
        FLOAT * (decoder / tensor + 3 * target * c.d_model),
    )


def stack_bytes(
    c: config.Transformer, remat: str, source: int, target: int, tensor: int
) -> float:
    """Return what both stacks keep for one sentence pair under ``parallel.remat``.

    With "none" N times ``layer_bytes``. Otherwise N times the layers' inputs,
    ``4 (S + T) D``, with "dots" ``product_bytes`` too, and once the larger of
    ``layer_bytes``: one layer is recomputed at a time.
    """
    encoder, decoder = each = layer_bytes(c, source, target, tensor)
    if remat == "none":
        return c.layers * encoder + c.depth * decoder
    kept: float = FLOAT * (c.layers * source + c.depth * target) * c.d_model
    if remat == "dots":
        encoder, decoder = product_bytes(c, source, target, tensor)
        kept += c.layers * encoder + c.depth * decoder
    return kept + max(each)
