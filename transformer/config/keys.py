"""Every key of a configuration, as frozen dataclasses."""

from __future__ import annotations

import dataclasses
from typing import Literal

from transformer.config.checks import (
    Blocks,
    Clip,
    Convolutions,
    Decay,
    Digits,
    Grid,
    Language,
    LengthPenalty,
    Name,
    NotNegative,
    Parts,
    Positive,
    Rate,
    Seed,
    Symbols,
    TestDigits,
    refuse,
)
from transformer.config.patterns import Patterns


@dataclasses.dataclass(frozen=True)
class Data:
    """Where the sentence pairs come from, and how translations of them are measured."""

    # A name of data.sources.SOURCES: "numbers", "text", "parquet", "tfds", "trees" or
    # "vectors".
    source: str
    dir: str  # folder of the files, or the data_dir of tensorflow_datasets
    # tfds: the builder, "wmt14_translate/de-en"; parquet: "" or two columns, "src,ref"
    name: str
    source_language: Language
    target_language: Language
    # File stems or tfds splits, several joined by "+"; for files "ep*2#<ep>+news", the
    # first twice and with a tag. validation and test also take "sacrebleu:wmt14/full".
    train: str
    validation: str
    test: str
    train_pairs: NotNegative[int]  # use this many training pairs, 0 = all
    digits: Digits  # numbers: at most this many digits
    # numbers: test numbers have more than six digits, at most this many; 0 = as others
    test_digits: TestDigits
    max_length: Positive[int]  # tokens per side with EOS; longer pairs are left out
    prepared: str  # folder of the encoded corpus, "" = inside the workdir
    measure: str  # a name of metrics.measures.MEASURES: "bleu", "f1" or "errors"

    @property
    def vectors(self) -> bool:
        """Whether sources are vectors, frames x features, and not text."""
        return self.source == "vectors"


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """How text becomes ids."""

    kind: Literal["sentencepiece", "whitespace", "bytes", "indexed_words", "marian"]
    # Of the target; "same" = kind. Trees are written as trees.forms says.
    target_kind: Literal[
        "same", "top_down", "tagged", "indexed", "in_order", "indexed_in_order"
    ]
    vocab_size: NotNegative[int]  # pieces, special ones included; 0 = as many as occur
    joint: bool  # one vocabulary for both languages
    # An existing sentencepiece .model, "" = train one, by BPE; for marian a .marian, or
    # a .spm with vocab.json beside it.
    source_model: str
    target_model: str  # the same for the target; "" = the source model if joint
    symbols: Symbols  # that a trained sentencepiece never splits, "<ep>,<news>"
    # sentencepiece: BPE dropout, the probability of skipping a merge in training pairs,
    # and the number of segmentations of each pair; an epoch reads all of them.
    dropout: Rate
    samples: Positive[int]


@dataclasses.dataclass(frozen=True)
class Batch:
    """How pairs are batched."""

    # padded, per side and step; R * max(S, T) <= tokens / lengths
    tokens: Positive[int]
    shapes: Positive[int]  # how many different (rows, S, T) may be compiled
    multiple: Positive[int]  # rows are a multiple of this
    length_multiple: Positive[int]  # S and T are multiples of this
    lengths: Positive[int]  # batches per step, each of pairs of similar length


@dataclasses.dataclass(frozen=True)
class Model:
    """The keys of every architecture; ``kind`` selects the rest from ``MODELS``."""

    kind: str
    vocab_size: NotNegative[int]  # rows of an embedding table, 0 = the tokenizer's
    d_model: Positive[int]
    dropout: Rate  # on sub-layer outputs and on embedding + position
    tying: Literal["three", "two", "none"]  # two: target embedding and output
    dtype: Literal["float32", "bfloat16"]  # of matrix-product operands

    @property
    def learned_positions(self) -> int:
        """Rows of the table of learned positions, 0 if there is none."""
        return 0


@dataclasses.dataclass(frozen=True)
class Transformer(Model):
    """The sizes and choices of section 3 of the paper."""

    layers: Positive[int]  # N, in each of the two stacks
    decoder_layers: NotNegative[int]  # of the decoder if it differs, 0 = N
    d_ff: Positive[int]
    activation: Literal["relu", "swish", "gelu"]  # of the feed-forward networks
    heads: Positive[int]
    d_k: Positive[int]
    d_v: Positive[int]
    attention_dropout: Rate
    relu_dropout: Rate
    norm: Literal["post", "pre"]  # post: the paper
    norm_epsilon: Positive[float]
    positions: Literal[
        "sinusoidal",
        "sinusoidal_concat",
        "learned",
        "none",
        "rotary",
        "alibi",
        "relative",
        "disentangled",
    ]
    max_positions: Positive[int]  # rows of a learned position table
    # k, of relative and disentangled positions: larger distances count as k; else -1
    clip: Clip
    farthest: NotNegative[int]  # disentangled: k logarithmic buckets to here, 0 = none
    relative_heads: Literal["shared", "per_head"]  # whether heads share their vectors
    attention_bias: bool
    score: Literal["scaled_dot", "dot", "additive", "general"]
    window: NotNegative[int]  # positions that self-attention reaches each way, 0 = all
    target_space: bool  # a learned vector added to the source embeddings
    output_bias: bool  # a learned number added to each logit

    @property
    def depth(self) -> int:
        """The number of layers of the decoder."""
        return self.decoder_layers or self.layers

    @property
    def learned_positions(self) -> int:
        return self.max_positions if self.positions == "learned" else 0


@dataclasses.dataclass(frozen=True)
class Recurrent(Model):
    """The sizes and choices of recurrent encoder-decoders."""

    member: Literal["encdec", "rnnsearch", "cgru", "luong", "gnmt"]
    embedding: Positive[int]  # m, of the embedding tables
    units: Positive[int]  # n, of each direction and of the decoder
    layers: Positive[int]  # of the encoder; of the decoder of luong and gnmt too
    # ``dropout`` applies to embeddings and between layers.
    context_dropout: Rate  # on the annotations of the source
    readout_dropout: Rate  # on the input of the output matrix
    encoder_norm: bool  # cgru: layer normalisation inside the encoder's cells
    reverse_source: bool
    # Of luong; elsewhere the values are "none", False and 0.
    score: Literal["none", "dot", "general", "concat", "location"]
    attention: Literal["none", "global", "local_m", "local_p"]
    feeding: bool  # h~ is part of the next step's input
    window: NotNegative[int]  # D: positions that local attention reaches each way
    max_positions: NotNegative[int]  # with location: source positions that have scores


@dataclasses.dataclass(frozen=True)
class Convolutional(Model):
    """The sizes of a convolutional encoder-decoder; ``d_model`` is its output width."""

    embedding: Positive[int]  # f, of tables, positions and attention
    # Layers, "9x512k3+2x2048k1": 9 of width 512 and kernel 3, then 2 of 2,048 and 1.
    encoder: Convolutions
    decoder: Convolutions
    max_positions: Positive[int]  # rows of each of the two tables of positions

    @property
    def learned_positions(self) -> int:
        return self.max_positions


@dataclasses.dataclass(frozen=True)
class ByteNet(Model):
    """The sizes of dilated convolutions on one grid; ``d_model`` is the paper's 2 d."""

    sets: Positive[int]  # in each of the two stacks
    blocks: Blocks  # of a set, dilated by 1, 2, 4, ...
    kernel: Positive[int]  # k
    grid: Grid  # encoder columns per source token
    # ``dropout`` applies to embeddings and to what a block adds.


# A kind of model with keys of its own is one dataclass above and one line here.
MODELS: dict[str, type[Model]] = {
    "transformer": Transformer,
    "rnn": Recurrent,
    "convs2s": Convolutional,
    "bytenet": ByteNet,
}


@dataclasses.dataclass(frozen=True)
class Init:
    """What a run takes from another one, with ``train --init_from``."""

    only: Patterns  # the parameters that are taken, "" = all
    skip: Patterns  # those of them that are drawn at random anyway
    vocabulary: Literal["new", "old"]  # old: the other run's tokenizers


@dataclasses.dataclass(frozen=True)
class Loss:
    """Section 5.4, label smoothing, and R-Drop, which is not in the paper."""

    smoothing: Rate
    smoothing_over: Literal["all", "others"]  # ids; others: all but the target
    r_drop: NotNegative[float]  # alpha, of two passes with different dropout; 0 = one
    block: NotNegative[int]  # rows of logits in memory at a time, 0 = chosen by device

    @property
    def passes(self) -> int:
        """How many times a step reads each pair."""
        return 2 if self.r_drop else 1


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """Section 5.3."""

    name: str  # "adam", or an optimiser of optax: "adamw", "lion", "sgd" ...
    options: str  # of the optimiser, "weight_decay=0.01, nesterov=True"
    schedule: Literal["inverse_sqrt", "constant", "plateau", "epochs"]
    scale: Positive[float]  # of inverse_sqrt, equation 3; 1.0 = the paper
    rate: NotNegative[float]  # of the other schedules, after the warm-up
    warmup: Positive[int]  # steps
    step_offset: NotNegative[int]  # the n-th update has the rate of step n + offset
    b1: Rate
    b2: Rate
    epsilon: Positive[float]
    # Of plateau and epochs; elsewhere the values are 1 and 0.
    decay: Decay  # factor on the rate
    # plateau: validations without improvement before a decay
    decay_patience: NotNegative[int]
    decay_after: NotNegative[float]  # epochs: how many before the first decay
    decay_every: NotNegative[float]  # epochs: how many between two decays
    least_rate: NotNegative[float]  # the run ends before a lower rate; 0 = never
    l2: NotNegative[float]  # times the sum of squares of all weights, added to the loss
    clip_norm: NotNegative[float]  # global gradient norm, 0 = no clipping
    accumulation: Positive[int]  # microbatches that a batch is split into
    frozen: Patterns  # parameters that stay as they are, "" = none
    nonfinite_limit: Positive[int]  # consecutive non-finite steps before the run stops


@dataclasses.dataclass(frozen=True)
class Train:
    """The length of a run and what it writes on the way."""

    steps: Positive[int]
    log_every: Positive[int]  # steps
    # Steps; 0 = only at the end. Checkpoints by steps are validated, too.
    evaluate_every: NotNegative[int]
    # How validations are compared: "perplexity", or a variant of data.measure.
    watch: str
    watch_pairs: NotNegative[int]  # pairs on which a measure is taken, 0 = all
    show: NotNegative[int]  # validation sentences to translate and show each time
    # Validations without improvement before the run ends, 0 = no limit.
    patience: NotNegative[int]
    checkpoint_every: NotNegative[int]  # steps, 0 = by minutes only
    checkpoint_minutes: NotNegative[float]  # 0 = by steps only
    keep: Positive[int]  # the last K checkpoints, besides the best


@dataclasses.dataclass(frozen=True)
class Decode:
    """Section 6.1: how translations are searched for."""

    checkpoint: Literal["last", "best"]  # best: by validation
    beam: Positive[int]
    alpha: NotNegative[float]
    length_penalty: LengthPenalty
    extra_tokens: NotNegative[int]  # an output has at most input length + this many
    tokens: NotNegative[int]  # padded source tokens per batch, 0 = chosen by device
    average: Positive[int]  # checkpoints averaged for the final evaluation
    constrained: bool  # trees: search only among outputs that are trees


@dataclasses.dataclass(frozen=True)
class Parallel:
    """The devices a run is distributed over; its numbers do not depend on them."""

    data: Parts  # replicas, each with its rows of a batch; -1 = all devices left
    fsdp: Positive[int]  # shards of parameters and moments, each with its rows
    tensor: Positive[int]  # shards of the heads, of d_ff and of the vocabulary
    how: Literal["jit", "pmap"]
    remat: Literal["none", "layers", "dots"]  # what the backward pass recomputes
    layers: Literal["auto", "unrolled", "scanned"]  # scanned: one is compiled, not N


@dataclasses.dataclass(frozen=True)
class Config:
    """One run: everything that decides its numbers."""

    name: Name
    seed: Seed
    device: Literal["any", "cpu", "gpu", "tpu"]  # gpu and tpu stop if there is none
    data: Data
    tokenizer: Tokenizer
    batch: Batch
    model: Model
    init: Init
    loss: Loss
    optimizer: Optimizer
    train: Train
    decode: Decode
    parallel: Parallel


def transformer(model: Model) -> Transformer:
    """Return the keys of a Transformer, for code that knows no other kind of model.

    Raises:
      UserError: if it is of another kind.
    """
    if not isinstance(model, Transformer):
        refuse("model.kind", "transformer", model.kind)
    return model
