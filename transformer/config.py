"""The configuration of a run, as frozen dataclasses that are checked once.

Experiments are written as ``ml_collections.ConfigDict`` (see ``experiments/base.py``,
which names every key). ``resolve`` turns one into a ``Config``; below the command line
nothing else is ever passed around, so a wrong name fails where it is written.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NoReturn, TypeVar


class UserError(Exception):
    """A mistake the user can mend: printed as one line, exit code 2."""


# ---- what a value may be -------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Check:
    """What the values of a key have to pass, and the same in words."""

    passes: Callable[[Any], bool]
    expected: str


Number = TypeVar("Number", int, float)
# On a device numbers are float32, and what is counted is int32.
_FINITE = Check(lambda x: abs(x) < 2.0**128, "a finite number of float32")
_COUNTED = Check(lambda x: isinstance(x, float) or x < 2**31, "less than 2^31")
Positive = Annotated[
    Number, Check(lambda x: x > 0, "a number greater than 0"), _COUNTED
]
NotNegative = Annotated[Number, Check(lambda x: x >= 0, "0 or more"), _COUNTED]
Rate = Annotated[float, Check(lambda x: 0 <= x < 1, "at least 0 and less than 1")]
LengthPenalty = Literal["gnmt", "power"]  # ((5 + length) / 6)^alpha or length^alpha
Seed = Annotated[int, Check(lambda x: 0 <= x < 2**32, "0 or more and less than 2^32")]
Digits = Annotated[Positive[int], Check(lambda x: x <= 9, "at most 9")]
# It may be that of a folder, as in an ablation.
Name = Annotated[
    str,
    Check(
        lambda x: x.isprintable() and all(p.strip(".") for p in re.split(r"[/\\]", x)),
        "a name such as base or table3/base, without .. and empty parts",
    ),
]
Parts = Annotated[
    int,
    Check(lambda x: x == -1 or x >= 1, "1 or more, or -1 for what is left"),
    _COUNTED,
]

# ---- every key -----------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Data:
    """Where the sentence pairs come from, and how translations of them are measured."""

    source: str  # a name of data.sources.SOURCES: "numbers", "text" or "tfds"
    dir: str  # folder of the text files, or the data_dir of tensorflow_datasets
    name: str  # tfds builder, e.g. "wmt14_translate/de-en"
    source_language: str
    target_language: str
    train: str  # file stems or tfds splits, several joined by "+"
    validation: str
    test: str
    train_pairs: NotNegative[int]  # use this many training pairs, 0 = all there are
    digits: Digits  # numbers: of at most this many digits
    max_length: Positive[int]  # tokens per side with EOS; longer pairs are left out
    prepared: str  # folder of the encoded corpus, "" = inside the workdir
    measure: str  # a name of metrics.MEASURES: "bleu"


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """How text becomes ids."""

    kind: Literal["sentencepiece", "whitespace", "bytes"]
    vocab_size: NotNegative[int]  # pieces, special ones included; 0 = as many as occur
    joint: bool  # one vocabulary for both languages
    source_model: str  # a given sentencepiece .model, "" = train one, of byte pairs
    target_model: str  # likewise; "" = the source model if joint


@dataclasses.dataclass(frozen=True)
class Batch:
    """How pairs are batched."""

    # padded, per side and step; R * max(S, T) <= tokens / lengths
    tokens: Positive[int]
    shapes: Positive[int]  # how many different (rows, S, T) may be compiled
    multiple: Positive[int]  # rows are a multiple of this
    length_multiple: Positive[int]  # S and T are multiples of this
    lengths: Positive[int]  # batches, each of pairs of its own length, that make a step


@dataclasses.dataclass(frozen=True)
class Model:
    """What every architecture has; ``kind`` tells which of ``MODELS`` has the rest."""

    kind: str
    vocab_size: NotNegative[int]  # rows of an embedding table, 0 = as the tokenizer
    d_model: Positive[int]
    dropout: Rate  # on sub-layer outputs and on embedding + position
    tying: Literal["three", "two", "none"]  # two: target embedding and output
    dtype: Literal["float32", "bfloat16"]  # of matrix-product operands


@dataclasses.dataclass(frozen=True)
class Transformer(Model):
    """The sizes and choices of section 3 of the paper."""

    layers: Positive[int]  # N, in each of the two stacks
    d_ff: Positive[int]
    heads: Positive[int]
    d_k: Positive[int]
    d_v: Positive[int]
    attention_dropout: Rate
    relu_dropout: Rate
    norm: Literal["post", "pre"]  # post: the paper
    norm_epsilon: Positive[float]
    positions: Literal["sinusoidal", "sinusoidal_concat", "learned", "none"]
    max_positions: Positive[int]  # rows of a learned position table
    attention_bias: bool
    score: Literal["scaled_dot", "dot"]
    window: NotNegative[int]  # positions that self-attention reaches each way, 0 = all
    target_space: bool  # a learned vector added to the source embeddings


# A kind of model with keys of its own is one dataclass above and one line here.
MODELS: dict[str, type[Model]] = {"transformer": Transformer}


@dataclasses.dataclass(frozen=True)
class Loss:
    """Section 5.4, label smoothing."""

    smoothing: Rate
    smoothing_over: Literal["all", "others"]  # ids; others: than the target
    block: NotNegative[int]  # rows of logits in memory at a time, 0 = by the device


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """Section 5.3."""

    name: str  # "adam", or an optimiser of optax: "adamw", "lion", "sgd" ...
    options: str  # of it, "weight_decay=0.01, nesterov=True"
    scale: Positive[float]  # of the paper's learning rate, 1.0 = the paper
    warmup: Positive[int]  # steps
    step_offset: NotNegative[int]  # the n-th update has the rate of step n + offset
    b1: Rate
    b2: Rate
    epsilon: Positive[float]
    clip_norm: NotNegative[float]  # global gradient norm, 0 = no clipping
    accumulation: Positive[int]  # microbatches that a batch is computed in
    nonfinite_limit: Positive[int]  # consecutive non-finite steps before the run stops


@dataclasses.dataclass(frozen=True)
class Train:
    """The length of a run and what it writes on the way."""

    steps: Positive[int]
    log_every: Positive[int]  # steps
    evaluate_every: NotNegative[int]  # steps, 0 = only at the end
    checkpoint_every: NotNegative[int]  # steps, 0 = by minutes only
    checkpoint_minutes: NotNegative[float]  # 0 = by steps only
    keep: Positive[int]  # the last K checkpoints, beside the best


@dataclasses.dataclass(frozen=True)
class Decode:
    """Section 6.1: how sentences are searched for."""

    beam: Positive[int]
    alpha: NotNegative[float]
    length_penalty: LengthPenalty
    extra_tokens: NotNegative[int]  # an output has at most input length + this many
    tokens: NotNegative[int]  # padded source tokens per batch, 0 = by the device
    average: Positive[int]  # checkpoints averaged for the final evaluation


@dataclasses.dataclass(frozen=True)
class Parallel:
    """Over which devices a run is spread; its numbers do not depend on it."""

    data: Parts  # replicas, each with its rows of a batch; -1 = what is left
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
    device: Literal["any", "cpu", "gpu", "tpu"]  # the last two stop where absent
    data: Data
    tokenizer: Tokenizer
    batch: Batch
    model: Model
    loss: Loss
    optimizer: Optimizer
    train: Train
    decode: Decode
    parallel: Parallel


def transformer(model: Model) -> Transformer:
    """Return the keys of a Transformer, for what knows of no other kind of model.

    Raises:
      UserError: if it is of another kind.
    """
    if not isinstance(model, Transformer):
        refuse("model.kind", "transformer", model.kind)
    return model


# ---- from values to a Config ---------------------------------------------------------


def resolve(values: Mapping[str, Any]) -> Config:
    """Make a ``Config`` from a ConfigDict or a nested mapping and check it.

    Args:
      values: exactly the keys of ``Config``, nested.

    Returns:
      The frozen configuration.

    Raises:
      UserError: for a key that is unknown or missing, a value of the wrong type, out of
        range, or at odds with another.
    """
    config = _group(Config, values, "")
    _check_model(config)
    _check_batch(config)
    _check_parallel(config)
    if not (config.train.checkpoint_every or config.train.checkpoint_minutes):
        refuse("train.checkpoint_every", "steps, or checkpoint_minutes, above 0", 0)
    return config


def _group(cls: type, values: Mapping[str, Any], prefix: str) -> Any:
    """Make a dataclass, with the dataclasses in it, from the values of its fields."""
    if not hasattr(values, "items"):
        refuse(prefix.rstrip("."), f"a group of keys ({cls.__name__})", values)
    whose = ""
    if cls is Model:
        if (kind := values.get("kind")) not in list(MODELS):
            refuse("model.kind", f"one of {', '.join(MODELS)}", kind)
        cls, whose = MODELS[kind], f" for model.kind = {kind}"
    hints = typing.get_type_hints(cls, include_extras=True)
    unknown = sorted(set(values) - set(hints))
    missing = sorted(set(hints) - set(values))
    if unknown:
        raise UserError(
            f"config: unknown key {prefix}{unknown[0]}{whose}; expected one of "
            f"{', '.join(prefix + name for name in hints)}"
        )
    if missing:
        raise UserError(f"config: key {prefix}{missing[0]} is missing; set it")
    return cls(**{k: _value(hints[k], values[k], prefix + k) for k in hints})


def _value(hint: Any, value: Any, key: str) -> Any:
    """Return the value of a key, checked, as its annotation asks."""
    if dataclasses.is_dataclass(hint):
        return _group(typing.cast(type, hint), value, key + ".")
    kind, checks = type_and_checks(hint)
    if kind is float and type(value) is int and abs(value) < 2**1023:
        value = float(value)
    if type(value) is not kind:
        refuse(key, f"a value of type {kind.__name__}", value)
    for check in checks:
        if not check.passes(value):
            refuse(key, check.expected, value)
    return value


def type_and_checks(hint: Any) -> tuple[type, list[Check]]:
    """Take apart what is written behind a key; every float has to be finite."""
    if typing.get_origin(hint) is Literal:
        choices = typing.get_args(hint)
        return str, [Check(lambda x: x in choices, f"one of {', '.join(choices)}")]
    if typing.get_origin(hint) is Annotated:
        inner, *notes = typing.get_args(hint)
        kind, checks = type_and_checks(inner)
        return kind, [note for note in notes if isinstance(note, Check)] + checks
    return hint, [_FINITE] if hint is float else []


def _check_model(config: Config) -> None:
    model, longest = config.model, config.data.max_length
    if model.tying == "three" and not config.tokenizer.joint:
        refuse("model.tying", "two or none where tokenizer.joint=False", model.tying)
    if not isinstance(model, Transformer):
        return
    if model.positions.startswith("sinusoidal") and model.d_model % 2:
        expected = "an even number for sinusoidal positions"
        refuse("model.d_model", expected, model.d_model)
    if model.positions == "learned" and model.max_positions < longest:
        expected = f"at least data.max_length = {longest}"
        refuse("model.max_positions", expected, model.max_positions)


def _check_batch(config: Config) -> None:
    batch, data = config.batch, config.data
    if batch.multiple % (microbatches := config.optimizer.accumulation):
        expected = f"a divisor of batch.multiple = {batch.multiple}"
        refuse("optimizer.accumulation", expected, microbatches)
    longest = round_up(data.max_length, batch.length_multiple)
    least = batch.lengths * batch.multiple * longest
    if batch.tokens < least:
        each = f"batch.lengths = {batch.lengths} times " if batch.lengths > 1 else ""
        size = f"data.max_length = {data.max_length}"
        if longest > data.max_length:
            size = f"{longest} (batch.length_multiple, {size})"
        expected = (
            f"room for {each}batch.multiple = {batch.multiple} rows of {size} tokens, "
            f"{least} or more"
        )
        refuse("batch.tokens", expected, batch.tokens)


def _check_parallel(config: Config) -> None:
    spread = config.parallel
    if spread.how == "pmap" and (spread.fsdp, spread.tensor) != (1, 1):
        got = f"{spread.fsdp} and {spread.tensor}"
        refuse("parallel.how", "jit where parallel.fsdp or tensor is not 1", got)
    if spread.how == "pmap" and config.batch.lengths > 1:
        refuse("parallel.how", "jit where batch.lengths is not 1", "pmap")


def round_up(length: Any, multiple: int) -> Any:
    """Return the least multiple of a number that is no smaller than a length."""
    return -(-length // multiple) * multiple


def refuse(key: str, expected: str, got: Any) -> NoReturn:
    """Raise the ``UserError`` of a key."""
    raise UserError(f"config: {key}: expected {expected}, got {got!r}; change it")


# ---- values of earlier versions ------------------------------------------------------

# Keys that are newer than some runs, with what those did.
NEWER = {
    "data.digits": 9,
    "data.measure": "bleu",
    "batch.length_multiple": 1,
    "batch.lengths": 1,
    "model.kind": "transformer",
    "optimizer.options": "",
    "parallel.data": -1,
    "parallel.fsdp": 1,
    "parallel.tensor": 1,
    "parallel.how": "jit",
    "parallel.remat": "none",
    "parallel.layers": "unrolled",
}
# Keys that are gone, with the one value whose meaning is still there.
GONE = {"tokenizer.algorithm": "bpe", "model.dropout_bits": "hash"}
# Keys that have another name, with what their values are called now.
RENAMED = {"parallel.scan": ("parallel.layers", {False: "unrolled", True: "scanned"})}


def resolve_saved(values: Mapping[str, Any]) -> Config:
    """Make a ``Config`` from the values of config.json, which may be of an old run."""
    if not isinstance(values, Mapping) or any("." in group for group in values):
        return resolve(values)  # which says what is wrong with it
    flat: dict[str, Any] = {}
    for group, keys in values.items():
        if isinstance(keys, Mapping):
            flat |= {f"{group}.{name}": value for name, value in keys.items()}
        else:
            flat[group] = keys
    nested: dict[str, Any] = {}
    for key, value in upgraded(flat).items():
        group, _, name = key.rpartition(".")
        if isinstance(values.get(group, {}), Mapping):
            (nested.setdefault(group, {}) if group else nested)[name] = value
    return resolve(nested)


def upgraded(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return flat values of an earlier version, or some of them, under today's keys.

    Raises:
      UserError: if a key is gone and its value was one that is gone too.
    """
    now = {key: value for key, value in flat.items() if key not in RENAMED}
    for old, (key, values) in RENAMED.items():
        if old in flat:
            same = [new for value, new in values.items() if value is flat[old]]
            now.setdefault(key, *(same or [flat[old]]))
    for key, value in GONE.items():
        if (got := now.pop(key, value)) != value:
            raise UserError(
                f"config: {key}: expected {value!r}, as this version has no other, got "
                f"{got!r}; use the version that trained the run"
            )
    return NEWER | now


# ---- of a Config ---------------------------------------------------------------------


def flatten(config: Any, prefix: str = "") -> dict[str, Any]:
    """Return ``{"model.heads": 8, ...}`` for a configuration or a part of one."""
    flat: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            flat |= flatten(value, f"{prefix}{field.name}.")
        else:
            flat[prefix + field.name] = value
    return flat


def to_json(config: Config) -> str:
    """Return the resolved configuration as indented JSON, the text of config.json."""
    return json.dumps(dataclasses.asdict(config), indent=2, sort_keys=True) + "\n"


def digest(config: Any) -> str:
    """Return the first 12 hexadecimal digits of SHA-256 over the resolved values."""
    text = json.dumps(dataclasses.asdict(config), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def difference(old: Config, new: Config) -> list[str]:
    """Return one line per key whose value differs, ``"model.heads: 8 -> 4"``.

    Of models of two kinds only the keys that both have are compared.
    """
    a, b = flatten(old), flatten(new)
    return [f"{k}: {a[k]!r} -> {b[k]!r}" for k in a if k in b and a[k] != b[k]]


# Keys, or groups of them, that change where a run is computed: at most the rounding.
_PLACE = ("device", "parallel.", "loss.block", "decode.tokens")
# Those that change no number of a step: how far a run goes, what it writes down on the
# way, when it gives up, and how it is measured at its end.
_COURSE = ("train.", "decode.", "optimizer.nonfinite_limit", "data.measure")


def other_run(old: Config, new: Config) -> list[str]:
    """Return ``difference``, but for where a run is computed: that it may change.

    With it those sizes may change that only round differently, see ``sizes.py``.
    """
    return [line for line in difference(old, new) if not line.startswith(_PLACE)]


def other_steps(old: Config, new: Config) -> list[str]:
    """Return those lines of ``other_run`` that make another run of the same steps.

    What is not among them may change when a run is resumed.
    """
    return [line for line in other_run(old, new) if not line.startswith(_COURSE)]
