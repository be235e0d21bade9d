"""What the parameters of a Transformer are called, here and in two other systems.

This file knows parameters by name; the others in this folder do through it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from transformer import config


class Name(NamedTuple):
    """One parameter.

    Attributes:
      ours: its dotted name here, where matrices are (I, O).
      transformers: in ``MarianMTModel``, where they are (O, I).
      marian: in Marian's ``.npz``, where they are (I, O) and vectors (1, O).
      turned: whether it is a matrix that is (I, O) here and (O, I) there.
      width: its axis of d_model, here; None = it has none.
      rows: its axis of the vocabulary, here; None = it has none.
    """

    ours: str
    transformers: str
    marian: str
    turned: bool = False
    width: int | None = None
    rows: int | None = None


# Of an attention: here, in Transformers, in Marian; the axis of d_model of its matrix.
_PROJECTIONS = (
    ("query", "q_proj", "q", 0),
    ("key", "k_proj", "k", 0),
    ("value", "v_proj", "v", 0),
    ("output", "out_proj", "o", 1),
)
# The sub-layers of a layer: here, in Transformers, in Marian, and the norm after each.
_SELF = "self_attention", "self_attn", "self", "self_attn_layer_norm", "self_Wo"
_CROSS = "cross_attention", "encoder_attn", "context", "encoder_attn_layer_norm"
_STACKS = {
    "encoder": [_SELF],
    "decoder": [_SELF, (*_CROSS, "context_Wo")],
}


def names(c: config.Transformer) -> list[Name]:
    """Return every parameter of a post-norm Transformer, its tables first."""
    return [*_tables(c), *_layers("encoder", c.layers), *_layers("decoder", c.depth)]


def _tables(c: config.Transformer) -> Iterator[Name]:
    def table(ours: str, transformers: str, marian: str) -> Name:
        return Name(ours, transformers, marian, width=1, rows=0)

    if c.tying == "three":
        yield table("source_embedding", "model.shared.weight", "Wemb")
    else:
        encoder = "model.encoder.embed_tokens.weight"
        yield table("source_embedding", encoder, "encoder_Wemb")
        decoder = "model.decoder.embed_tokens.weight"
        yield table("target_embedding", decoder, "decoder_Wemb")
    if c.tying == "none":
        yield table("output", "lm_head.weight", "decoder_ff_logit_out_W")
    if c.output_bias:
        bias = "final_logits_bias", "decoder_ff_logit_out_b"
        yield Name("output_bias", *bias, rows=0)
    if c.positions == "learned":
        for side, stack in (("source", "encoder"), ("target", "decoder")):
            theirs = f"model.{stack}.embed_positions.weight"
            yield Name(f"{side}_positions", theirs, f"{stack}_Wpos", width=1)


def _layers(stack: str, count: int) -> Iterator[Name]:
    for i in range(count):
        ours, theirs = f"{stack}_{i}", f"model.{stack}.layers.{i}"
        marian = f"{stack}_l{i + 1}"
        parts = _STACKS[stack]
        for number, (mine, its, short, norm, normed) in enumerate(parts, start=1):
            for name, proj, letter, axis in _PROJECTIONS:
                yield Name(
                    f"{ours}.{mine}.{name}.kernel",
                    f"{theirs}.{its}.{proj}.weight",
                    f"{marian}_{short}_W{letter}",
                    turned=True,
                    width=axis,
                )
                yield Name(
                    f"{ours}.{mine}.{name}.bias",
                    f"{theirs}.{its}.{proj}.bias",
                    f"{marian}_{short}_b{letter}",
                    width=0 if name == "output" else None,
                )
            yield from _norm(
                f"{ours}.residual_{number}", f"{theirs}.{norm}", f"{marian}_{normed}_ln"
            )
        for n, axis in ((1, 0), (2, 1)):
            yield Name(
                f"{ours}.feed_forward.kernel_{n}",
                f"{theirs}.fc{n}.weight",
                f"{marian}_ffn_W{n}",
                turned=True,
                width=axis,
            )
            yield Name(
                f"{ours}.feed_forward.bias_{n}",
                f"{theirs}.fc{n}.bias",
                f"{marian}_ffn_b{n}",
                width=0 if n == 2 else None,
            )
        yield from _norm(
            f"{ours}.residual_{len(parts) + 1}",
            f"{theirs}.final_layer_norm",
            f"{marian}_ffn_ffn_ln",
        )


def _norm(ours: str, transformers: str, marian: str) -> Iterator[Name]:
    for mine, its in (("scale", "weight"), ("bias", "bias")):
        yield Name(
            f"{ours}.norm.{mine}", f"{transformers}.{its}", f"{marian}_{mine}", width=0
        )
