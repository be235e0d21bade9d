"""From values to a ``Config``, checked once."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any

from transformer.config.checks import (
    UserError,
    convolutions,
    refuse,
    type_and_checks,
)
from transformer.config.keys import (
    MODELS,
    ByteNet,
    Config,
    Convolutional,
    Data,
    Model,
    Optimizer,
    Recurrent,
    Transformer,
)


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
    _check_data(config.data)
    _check_tokenizer(config)
    _check_marian(config)
    _check_init(config)
    _check_vectors(config)
    _check_model(config)
    _check_loss(config)
    _check_batch(config)
    _check_parallel(config)
    _check_optimizer(config.optimizer)
    _check_validations(config)
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


def _check_data(data: Data) -> None:
    if data.test_digits and not (data.digits == 6 < data.test_digits):
        expected = "0, or 7, 8 or 9 where data.digits = 6"
        refuse("data.test_digits", expected, data.test_digits)


def _check_tokenizer(config: Config) -> None:
    """Check that trees are read as trees, and that symbols have a model to be in."""
    tokenizer, source = config.tokenizer, config.data.source
    pieces = tokenizer.kind in ("sentencepiece", "indexed_words")
    trained = pieces and not tokenizer.source_model
    for side in ("source", "target"):
        model = getattr(tokenizer, f"{side}_model")
        if model and tokenizer.kind in ("whitespace", "bytes"):
            expected = f"'' with tokenizer.kind = {tokenizer.kind}, which has no model"
            refuse(f"tokenizer.{side}_model", expected, model)
    if tokenizer.symbols and (not trained or config.init.vocabulary == "old"):
        expected = "'' where no sentencepiece model is trained"
        refuse("tokenizer.symbols", expected, tokenizer.symbols)
    if tokenizer.dropout:
        plain = tokenizer.target_kind == "same" and not config.data.vectors
        if not (plain and tokenizer.kind == "sentencepiece" and trained):
            expected = "0.0 where no sentencepiece model of both sides is trained"
            refuse("tokenizer.dropout", expected, tokenizer.dropout)
        if tokenizer.target_model or config.init.vocabulary == "old":
            expected = "0.0 with a given vocabulary, whose model may have no merges"
            refuse("tokenizer.dropout", expected, tokenizer.dropout)
    elif tokenizer.samples > 1:
        expected = "1 without tokenizer.dropout, where all segmentations are the same"
        refuse("tokenizer.samples", expected, tokenizer.samples)
    if (tokenizer.target_kind == "same") == (source == "trees"):
        hints = typing.get_type_hints(type(tokenizer))
        _, *forms, last = typing.get_args(hints["target_kind"])
        expected = f"{', '.join(forms)} or {last}" if source == "trees" else "same"
        expected += f" with data.source = {source}"
        refuse("tokenizer.target_kind", expected, tokenizer.target_kind)
    if tokenizer.target_kind == "same":
        if tokenizer.kind == "indexed_words":
            expected = "sentencepiece, whitespace, bytes or marian"
            expected += f" with data.source = {source}"
            refuse("tokenizer.kind", expected, tokenizer.kind)
        return
    if tokenizer.joint:
        refuse("tokenizer.joint", "False with trees as the target", True)
    if tokenizer.target_model:
        expected = "'' with trees as the target"
        refuse("tokenizer.target_model", expected, tokenizer.target_model)


def _check_marian(config: Config) -> None:
    """Check that both sides of a Marian vocabulary are text, and which one each has."""
    tokenizer, source = config.tokenizer, config.data.source
    if tokenizer.kind != "marian":
        return
    if config.data.vectors or tokenizer.target_kind != "same":
        expected = f"sentencepiece, whitespace or bytes with data.source = {source}"
        refuse("tokenizer.kind", expected, "marian")
    if tokenizer.source_model and not (tokenizer.joint or tokenizer.target_model):
        expected = "a .marian or .spm file where tokenizer.joint=False"
        refuse("tokenizer.target_model", expected, "")


def _check_init(config: Config) -> None:
    """Check that no tokenizer is given where another run's are taken."""
    for side in ("source", "target"):
        model = getattr(config.tokenizer, f"{side}_model")
        if model and config.init.vocabulary == "old":
            expected = "'' with init.vocabulary = old"
            refuse(f"tokenizer.{side}_model", expected, model)


def _check_vectors(config: Config) -> None:
    """Check that nothing is asked of vectors that only text has: a vocabulary."""
    if not config.data.vectors:
        return
    where = "with data.source = vectors, whose sources are not text"
    if config.tokenizer.joint:
        refuse("tokenizer.joint", f"False {where}", True)
    if given := config.tokenizer.source_model:
        refuse("tokenizer.source_model", f"'' {where}", given)
    if rows := config.model.vocab_size:
        refuse("model.vocab_size", f"0 {where}", rows)


def _check_model(config: Config) -> None:
    model = config.model
    if model.tying == "three" and not config.tokenizer.joint:
        refuse("model.tying", "two or none where tokenizer.joint=False", model.tying)
    if 0 < model.learned_positions < config.data.max_length:
        expected = f"at least data.max_length = {config.data.max_length}"
        refuse("model.max_positions", expected, model.learned_positions)
    if isinstance(model, Recurrent):
        _check_recurrent(model)
    if isinstance(model, Convolutional):
        _check_convolutional(model)
    if isinstance(model, ByteNet):
        _check_bytenet(model)
    if not isinstance(model, Transformer):
        return
    sinusoids = ("sinusoidal", "sinusoidal_concat", "disentangled")
    if model.positions == "sinusoidal_concat" and model.d_model < 4:
        refuse("model.d_model", f"at least 4 for {model.positions}", model.d_model)
    if model.positions in sinusoids and model.d_model % 2:
        expected = f"an even number for {model.positions.split('_')[0]} positions"
        refuse("model.d_model", expected, model.d_model)
    _check_distances(model)


_SCORES = {
    "rotary": ("scaled_dot", "dot"),
    "alibi": ("scaled_dot", "dot"),
    "relative": ("scaled_dot", "dot"),
    "disentangled": ("scaled_dot",),
}
# Keys with their value for positions that do not use them, and the positions that do.
_OF_DISTANCES: dict[str, tuple[Any, tuple[str, ...]]] = {
    "clip": (-1, ("relative", "disentangled")),
    "relative_heads": ("shared", ("relative",)),
    "farthest": (0, ("disentangled",)),
}


def _check_distances(model: Transformer) -> None:
    """Check that positions by distance fit what attention does."""
    kind = model.positions
    for key, (nothing, users) in _OF_DISTANCES.items():
        if kind not in users and (got := getattr(model, key)) != nothing:
            refuse(f"model.{key}", f"{nothing!r} with {kind} positions", got)
    least = {"relative": 0, "disentangled": 2}.get(kind, -1)
    if model.clip < least:
        refuse("model.clip", f"{least} or more with {kind} positions", model.clip)
    if model.farthest and model.farthest <= model.clip:
        expected = f"0, or more than model.clip = {model.clip}"
        refuse("model.farthest", expected, model.farthest)
    scores = _SCORES.get(kind)
    if scores and model.score not in scores:
        expected = f"{' or '.join(scores)} with {kind} positions"
        refuse("model.score", expected, model.score)
    if model.positions == "rotary" and model.d_k % 2:
        refuse("model.d_k", "an even number for rotary positions", model.d_k)


def _check_bytenet(model: ByteNet) -> None:
    """Check that blocks can halve the channels and that the encoder is symmetric."""
    if model.d_model % 2:
        expected = "an even number, as blocks halve it"
        refuse("model.d_model", expected, model.d_model)
    if model.kernel % 2 == 0:
        expected = "an odd number: the encoder reads equally far to both sides"
        refuse("model.kernel", expected, model.kernel)


_OF_LUONG = {
    "score": "none",
    "attention": "none",
    "feeding": False,
    "window": 0,
    "max_positions": 0,
}


def _check_recurrent(model: Recurrent) -> None:
    """Check that no key is set that another one makes meaningless."""
    if model.tying != "none" and model.embedding != model.d_model:
        expected = f"model.d_model = {model.d_model} where tables are tied"
        refuse("model.embedding", expected, model.embedding)
    if model.encoder_norm and model.member != "cgru":
        expected = f"False for member {model.member}, whose cells have no layer norm"
        refuse("model.encoder_norm", expected, True)
    if model.member == "gnmt" and model.layers < 2:
        refuse("model.layers", "2 or more for member gnmt", model.layers)
    if model.member == "gnmt" and model.d_model != model.units:
        expected = f"model.units = {model.units} for member gnmt"
        refuse("model.d_model", expected, model.d_model)
    if model.member != "luong":
        for key, nothing in _OF_LUONG.items():
            if (got := getattr(model, key)) != nothing:
                refuse(f"model.{key}", f"{nothing!r} for member {model.member}", got)
        return
    for key in ("score", "attention"):
        if getattr(model, key) == "none":
            refuse(f"model.{key}", "a kind of attention for member luong", "none")
    if (model.attention == "global") == bool(model.window):
        expected = "0 with global attention, above 0 with local attention"
        refuse("model.window", expected, model.window)
    if (model.score == "location") != bool(model.max_positions):
        expected = "above 0 with score location, else 0"
        refuse("model.max_positions", expected, model.max_positions)


def _check_convolutional(model: Convolutional) -> None:
    if model.tying != "none" and model.embedding != model.d_model:
        expected = f"model.d_model = {model.d_model} where tables are tied"
        refuse("model.embedding", expected, model.embedding)
    if not all(layer.kernel % 2 for layer in convolutions(model.encoder)):
        expected = "odd kernels, which reach equally far to both sides"
        refuse("model.encoder", expected, model.encoder)


def _check_loss(config: Config) -> None:
    fields = dataclasses.fields(config.model)
    rates = [x.name for x in fields if x.name.endswith("dropout")]
    if config.loss.r_drop and not any(getattr(config.model, x) for x in rates):
        expected = f"0 where {' and '.join(f'model.{x}' for x in rates)} are 0"
        refuse("loss.r_drop", expected, config.loss.r_drop)


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


# Optimisers to which the layers of a stack may be one array; others take a norm or a
# factor of each array, or keep less than its shape.
ELEMENTWISE = (
    *("adam", "adamw", "adabelief", "adadelta", "adagrad", "adamax", "adamaxw", "adan"),
    *("amsgrad", "lion", "nadam", "nadamw", "optimistic_gradient_descent", "radam"),
    *("rmsprop", "sgd", "sign_sgd", "signum", "yogi"),
)
# Keys that a schedule does not use, with the values that say so.
_UNUSED: dict[str, dict[str, float]] = {
    "inverse_sqrt": {"rate": 0.0, "decay": 1.0, "least_rate": 0.0},
    "constant": {"scale": 1.0, "step_offset": 0, "decay": 1.0, "least_rate": 0.0},
    "plateau": {"scale": 1.0, "step_offset": 0},
    "epochs": {"scale": 1.0, "step_offset": 0},
}


def _check_optimizer(rule: Optimizer) -> None:
    """Check that the learning rate is given exactly once."""
    unused = dict(_UNUSED[rule.schedule])
    if rule.schedule != "plateau":
        unused["decay_patience"] = 0
    if rule.schedule != "epochs":
        unused |= {"decay_after": 0.0, "decay_every": 0.0}
    for key, nothing in unused.items():
        if (got := getattr(rule, key)) != nothing:
            expected = f"{nothing!r} with optimizer.schedule = {rule.schedule}"
            refuse(f"optimizer.{key}", expected, got)
    if "rate" not in unused and not rule.rate:
        refuse("optimizer.rate", f"above 0 with {rule.schedule}", rule.rate)
    if "decay" not in unused and rule.decay == 1:
        refuse("optimizer.decay", f"less than 1 with {rule.schedule}", rule.decay)
    if rule.schedule == "epochs" and not rule.decay_every:
        refuse("optimizer.decay_every", "above 0 with epochs", rule.decay_every)
    lowered = rule.schedule == "epochs" and not rule.decay_after
    first = rule.rate * (rule.decay if lowered else 1)
    if rule.least_rate > first:
        expected = f"at most {first:g}, the rate of the first step"
        refuse("optimizer.least_rate", expected, rule.least_rate)


def _check_validations(config: Config) -> None:
    """Check that there are validations if something depends on them."""
    train, best = config.train, config.decode.checkpoint == "best"
    asked = {
        "train.patience": bool(train.patience),
        "optimizer.schedule = plateau": config.optimizer.schedule == "plateau",
        "decode.checkpoint = best": best,
    }
    for what, depends in asked.items():
        if depends and not train.evaluate_every:
            refuse("train.evaluate_every", f"steps above 0 with {what}", 0)
    if best and config.decode.average != 1:
        expected = "1 with decode.checkpoint = best"
        refuse("decode.average", expected, config.decode.average)


def _check_parallel(config: Config) -> None:
    spread = config.parallel
    if spread.how == "pmap" and (spread.fsdp, spread.tensor) != (1, 1):
        got = f"{spread.fsdp} and {spread.tensor}"
        refuse("parallel.how", "jit where parallel.fsdp or tensor is not 1", got)
    if spread.layers == "scanned" and config.optimizer.frozen:
        refuse("parallel.layers", "auto or unrolled with optimizer.frozen", "scanned")
    if spread.layers == "scanned" and config.optimizer.name not in ELEMENTWISE:
        name = config.optimizer.name
        expected = f"auto or unrolled with optimizer.name = {name}"
        refuse("parallel.layers", expected, "scanned")
    if spread.remat != "none" and isinstance(config.model, Recurrent):
        expected = "none for model.kind = rnn, which keeps what it computes"
        refuse("parallel.remat", expected, spread.remat)
    if spread.how == "pmap" and config.batch.lengths > 1:
        refuse("parallel.how", "jit where batch.lengths is not 1", "pmap")


def round_up(length: Any, multiple: int) -> Any:
    """Return the least multiple of a number that is no smaller than a length."""
    return -(-length // multiple) * multiple
