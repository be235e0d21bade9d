"""Runs small enough for a test to train, and functions that inspect them."""

import contextlib
import functools
import json
import logging
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from support.configs import base
from support.paths import EXPERIMENTS
from transformer import config, models
from transformer import step as steps
from transformer.cli import configs
from transformer.config import Config
from transformer.ids import EOS, PAD
from transformer.parallel import devices
from transformer.prepare import prepare
from transformer.run.checkpoints import Checkpoints, steps_in

V = 23
TIMING = ("seconds", "tokens_per_second")  # of a line of metrics
WORDS = {
    "en": "zero one two three four five six seven eight nine".split(),
    "de": "null eins zwei drei vier fünf sechs sieben acht neun".split(),
}


# Masks are half of a small step's compile time: they are only on where they matter.
EVERY_DROPOUT = {
    f"model.{kind}": 0.1 for kind in ("dropout", "attention_dropout", "relu_dropout")
}
NO_DROPOUT = dict.fromkeys(EVERY_DROPOUT, 0.0)


def tiny(**changes: object) -> Config:
    """Resolve a model of one narrow layer, every kind of dropout on, in float32."""
    sizes = {
        "model.layers": 1,
        "model.d_model": 16,
        "model.d_ff": 32,
        "model.heads": 2,
        "model.d_k": 8,
        "model.d_v": 8,
        "model.dtype": "float32",
        "loss.block": 16,
        "optimizer.warmup": 20,
    }
    return base(**(sizes | EVERY_DROPOUT | changes))


def tiny_run(folder: Path, **changes: object) -> Config:
    """Resolve a run of 30 steps on 200 pairs of number words, written to a folder.

    Without dropout, unless ``changes`` name it.
    """
    write_digits(folder)
    run = {
        "data.source": "text",
        "data.dir": str(folder),
        "data.max_length": 8,
        "tokenizer.kind": "whitespace",
        "tokenizer.vocab_size": 0,
        "batch.tokens": 128,
        "batch.shapes": 2,
        "batch.multiple": 4,
        "batch.length_multiple": 1,
        "train.steps": 30,
        "train.log_every": 1,
        "train.evaluate_every": 6,
        "train.checkpoint_every": 5,
        "train.checkpoint_minutes": 0.0,
        "train.keep": 2,
        "decode.beam": 1,
        "decode.extra_tokens": 1,
    }
    return tiny(**(run | NO_DROPOUT | changes))


def write_digits(folder: Path) -> None:
    """Write 200, 12 and 3 pairs of lines of number words, always the same."""
    folder.mkdir(exist_ok=True)
    draw = random.Random(0)
    for split, count in (("train", 200), ("validation", 12), ("test", 3)):
        rows = [draw.choices(range(10), k=draw.randint(2, 6)) for _ in range(count)]
        for language, words in WORDS.items():
            lines = "".join(" ".join(words[i] for i in row) + "\n" for row in rows)
            (folder / f"{split}.{language}").write_text(lines, encoding="utf-8")


def sentences(rows: int, length: int, seed: int) -> np.ndarray:
    """Return (rows, length) ids of ragged rows; the first one is full."""
    draw = np.random.default_rng(seed)
    ids = draw.integers(EOS + 1, V, (rows, length))
    lengths = np.append(length, draw.integers(2, length + 1, rows - 1))[:, None]
    ids = np.where(np.arange(length) < lengths, ids, PAD)
    return np.where(np.arange(length) == lengths - 1, EOS, ids).astype(np.int32)


BATCH = {"source": sentences(8, 6, seed=1), "target": sentences(8, 5, seed=2)}


def model_of(settings: Config):
    """Return the model of settings, with V ids on both sides."""
    return models.make(settings, V, V)


@functools.cache
def start_of(settings: Config) -> steps.State:
    """Return the state before the first step."""
    return jax.jit(lambda: steps.init_state(settings, model_of(settings)))()


def first_key(step: int = 0, seed: int = 0) -> Any:
    """Return the key of the dropout masks of a step."""
    return steps.dropout_key(jnp.uint32(seed), jnp.int32(step))


def flat(tree: Any) -> np.ndarray:
    """Return all numbers of a tree as one float64 vector."""
    leaves = jax.tree.leaves(tree)
    return np.concatenate([np.asarray(x, np.float64).ravel() for x in leaves])


def assert_identical(a: Any, b: Any) -> None:
    """Assert that two trees hold the same numbers, bit by bit."""
    jax.tree.map(np.testing.assert_array_equal, a, b)


def command(settings: Config, workdir: Path, *more: str) -> list[str]:
    """Return the arguments that train these settings, as differences from text.py."""
    plain = configs.get_config(str(EXPERIMENTS / "text.py"))
    changes = config.difference(config.resolve(plain), settings)
    keys = [change.split(": ")[0] for change in changes]
    values = config.flatten(settings)
    overrides = [f"--config.{key}={values[key]}" for key in keys]
    file = f"--config={EXPERIMENTS / 'text.py'}"
    return ["train", file, f"--workdir={workdir}", *overrides, *more]


def lines_of(workdir: Path) -> list[dict[str, Any]]:
    """Return what a run logged, one dictionary a line."""
    text = (workdir / "metrics.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


@contextlib.contextmanager
def compilations() -> Iterator[list[str]]:
    """Collect what jax logs about its compilations, with the thread of each."""
    logged: list[str] = []

    def emit(record: logging.LogRecord) -> None:
        logged.append(f"{record.getMessage()} [{record.threadName}]")

    handler = logging.Handler()
    handler.emit = emit  # type: ignore[method-assign]
    logging.getLogger("jax").addHandler(handler)
    jax.config.update("jax_log_compiles", True)
    try:
        yield logged
    finally:
        jax.config.update("jax_log_compiles", False)
        logging.getLogger("jax").removeHandler(handler)


@contextlib.contextmanager
def compiling_once(cache: Path) -> Iterator[pytest.MonkeyPatch]:
    """Cache in a folder what this process and its child processes compile.

    Yields:
      The monkeypatch, which is undone at the end.
    """
    values = {
        "jax_compilation_cache_dir": str(cache),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
    }
    before = {name: getattr(jax.config, name) for name in values}
    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        # JAX opens a cache only once: for another folder it has to be reset.
        stack.callback(compilation_cache.reset_cache)
        for name, value in values.items():
            patch.setenv(name.upper(), str(value))
        # The folder that processes use if they read the variable.
        values["jax_compilation_cache_dir"] = str(devices.programs_folder("cpu"))
        for name, value in values.items():
            jax.config.update(name, value)
            stack.callback(jax.config.update, name, before[name])
        compilation_cache.reset_cache()
        yield patch


def metrics_of(workdir: Path) -> list[dict[str, Any]]:
    """Return what a run logged, except what depends on the clock."""
    return [{k: v for k, v in x.items() if k not in TIMING} for x in lines_of(workdir)]


def state_of(settings: Config, workdir: Path, step: int | None = None):
    """Return step, metadata and the arrays of a checkpoint by name."""
    model = models.make(settings, *prepare(settings, workdir).vocabulary.sizes)
    abstract = jax.eval_shape(lambda: steps.init_state(settings, model))
    with Checkpoints(workdir / "checkpoints", settings.train.keep) as checkpoints:
        found, tree, metadata = checkpoints.restore(abstract.parts(), step)
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    arrays = {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}
    return found, metadata, arrays


def checkpoints_of(workdir: Path) -> list[int]:
    """Return the steps of a run's checkpoints."""
    return steps_in(workdir / "checkpoints")
