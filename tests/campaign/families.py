"""Calls that are malformed in the same way: each command, each flag, each key."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator
from typing import Any, Literal

from support.paths import EXPERIMENTS

from transformer import config
from transformer.cli.main import COMMANDS

Row = tuple[str, list[str], str]
_CONFIG = f"--config={EXPERIMENTS}/number_words.py"
_PLAIN = f"--config={EXPERIMENTS}/big.py"

# What the numbers of a run depend on, from every group of keys; R-Drop is refused for a
# model without dropout, whatever the run.
OF_ANOTHER_RUN = [
    "seed=1",
    "data.max_length=7",
    "data.train_pairs=100",
    "tokenizer.kind=bytes",
    "tokenizer.vocab_size=20",
    "batch.tokens=256",
    "batch.multiple=2",
    "model.heads=4",
    "model.dropout=0.2",
    "model.norm=pre",
    "model.positions=none",
    "loss.smoothing=0.2",
    "loss.smoothing_over=others",
    "loss.r_drop=5.0 model.dropout=0.2",
    "optimizer.name=adamw",
    "optimizer.scale=2.0",
    "optimizer.b1=0.5",
    "optimizer.accumulation=2",
]

_MODELS = ["own/nowhere.model", "bad/binary.txt", "own/folder", "own/in.txt"]

# Texts as values: the key, an invalid value, what the message says.
_TEXTS = [
    ("name", "../other", "name"),
    ("name", "a/../b", "name"),
    ("data.source", "other", "data.source"),
    ("data.source", "", "data.source"),
    ("data.dir", "/no/such/folder", "/no/such/folder"),
    ("data.dir", "", "data.dir|expected a file"),
    ("data.source_language", "xx", "train.xx"),
    ("data.target_language", "", "train|target_language"),
    ("data.train", "other", "other.en"),
    ("data.train", "", "data.train|expected"),
    ("data.train", "train+other", "other.en"),
    ("data.train", "../../train", "train"),
    ("data.validation", "other", "other.en"),
    ("data.test", "other", "other.en"),
    ("data.prepared", "{own}/in.txt", "in.txt"),
    ("data.prepared", "{own}/folder", "folder"),
    ("data.measure", "meteor", "data.measure"),
    ("model.kind", "rnn", "model.kind"),
    ("optimizer.name", "other", "optimizer.name"),
    ("optimizer.options", "weight=1", "optimizer.options|weight"),
    ("optimizer.options", "((", "optimizer.options"),
    ("optimizer.options", "b1=inf", "optimizer.options|b1"),
]


def rows() -> Iterator[Row]:
    """Yield what is malformed, the arguments and what the message has to say."""
    yield from _unknown_flags()
    yield from _missing_flags()
    yield from _values_of_flags()
    yield from _unknown_keys()
    yield from _values_of_keys()
    yield from _config_files()


def _required(name: str, but: str = "") -> list[str]:
    """Return the flags that a command requires, except one."""
    values = {
        "workdir": "{run}",
        "config": f"{EXPERIMENTS}/number_words.py",
        "source": "{own}/in.txt",
        "target": "{own}/other.txt",
        "rows": "base",
        "what": "schedule",
        "output": "{own}/out.png",
        "from": "{own}/folder",
        "to": "ctranslate2",
    }
    wanted = [flag for flag in COMMANDS[name].required if flag != but]
    return [f"--{flag}={values[flag]}" for flag in wanted]


def _unknown_flags() -> Iterator[Row]:
    for name in COMMANDS:
        line = [name, *_required(name)]
        yield "unknown flags", [*line, "--bogus=1"], r"bogus.*(expected|see|did)"
        if not COMMANDS[name].positional:
            yield "unknown flags", [*line, "stray"], "expected flags only, got 'stray'"
    for name in ("train", "translate", "evaluate"):
        typo = [name, *_required(name), "--wrokdir=x"]
        yield "unknown flags", typo, "wrokdir.*workdir"


def _missing_flags() -> Iterator[Row]:
    for name, command in COMMANDS.items():
        for flag in command.required:
            line = [name, *_required(name, but=flag)]
            yield "missing flags", line, f"expected --{flag}"
    for name in ("check", "report"):
        yield "missing flags", [name], "expected.*--workdir"


def _wrong(one: Any) -> list[str]:
    """Return values that a flag cannot have."""
    if one.choices:
        return ["other", ""]
    if one.kind is str:
        return []
    if one.kind is bool:
        return ["perhaps"]
    worse = [text for text in ("0", "-1") if not _passes(one, float(text))]
    return ["x", "nan", "inf", *(["1.5"] if one.kind is int else []), *worse]


def _passes(one: Any, value: float) -> bool:
    return all(check.passes(value) for check in one.checks)


def _values_of_flags() -> Iterator[Row]:
    for name, command in COMMANDS.items():
        for flag, one in command.flags().items():
            more = ["--sample"] if flag in ("temperature", "top_p", "top_k") else []
            line = [name, *_required(name, but=flag), *more]
            for value in _wrong(one):
                says = rf"--?{flag}.*expected.*"
                yield "values of flags", [*line, f"--{flag}={value}"], says


def _unknown_keys() -> Iterator[Row]:
    for key in ("model.head", "zzz", "data.dirs", "train.step", "batch.token"):
        yield "unknown keys", ["TRAIN", f"--config.{key}=4"], re.escape(key)
    for group in ("data", "model", "train", "decode", "parallel"):
        yield "unknown keys", ["TRAIN", f"--config.{group}=4"], group


def _values_of_keys() -> Iterator[Row]:
    for key, hint in _hints(config.Config):
        for value in _bad_values(key, hint):
            line = ["TRAIN", f"--config.{key}={value}"]
            yield "values of keys", line, rf"{re.escape(key)}.*expected.*got"
    for key, value, says in _TEXTS:
        yield "texts of keys", ["TRAIN", f"--config.{key}={value}"], says
    pieces = ["TRAIN", "--config.tokenizer.kind=sentencepiece"]
    for model in _MODELS:
        path = "{" + model.replace("/", "}/")
        line = [*pieces, f"--config.tokenizer.source_model={path}"]
        yield "texts of keys", line, f"{model}|source_model"


def _hints(cls: type, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the keys of a configuration with their type hints."""
    for name, hint in typing.get_type_hints(cls, include_extras=True).items():
        if hint is config.Model:
            hint = config.Transformer
        if hasattr(hint, "__dataclass_fields__"):
            yield from _hints(hint, f"{prefix}{name}.")
        else:
            yield prefix + name, hint


def _bad_values(key: str, hint: Any) -> list[str]:
    """Return values that a key cannot have, of each kind."""
    kind, checks = config.type_and_checks(hint)
    inner = typing.get_args(hint)[0] if hasattr(hint, "__metadata__") else hint
    if typing.get_origin(inner) is Literal:
        return ["other"]
    if kind is bool:
        return ["perhaps"]
    if kind is int:
        worse = [x for x in ("-2", "0") if not all(c.passes(int(x)) for c in checks)]
        return ["x", "1.5", *worse[:1]]
    if kind is float:
        return ["x", "nan", "inf", "-1"]
    return []


def _config_files() -> Iterator[Row]:
    names = (
        "syntax imports undefined types opens nothing none number few exits "
        "exits_early recursive interrupts divides needs_two binary"
    )
    for name in names.split():
        path = f"{{bad}}/configs/{name}.py"
        line = ["train", f"--config={path}", "--workdir={new}"]
        yield "config files", line, f"{name}|expected|key batch is missing"
    for path in ("{own}/nowhere.py", "{own}", "{bad}/configs/text.txt"):
        line = ["params", f"--config={path}"]
        yield "config files", line, "--config:.*(expected|fix)"
    yield "config files", ["params", _PLAIN + ":other"], "expected no variant"
    yield "config files", ["params", "--config.seed=1", _CONFIG], "before a value"
