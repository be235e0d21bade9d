"""This project as a worker: its own train step, search and translator.

    python experiments/bench/ours.py search --device=cpu \\
        --size=small --dtype=bfloat16 --sentences=32 --length=32 --beam=4
"""

from __future__ import annotations

import functools
import runpy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import export
import jax
import jax.numpy as jnp
import sizes
import worker

from transformer import config, models, parallel
from transformer.models import Model
from transformer.nn import matmul
from transformer.nn.hardware import Hardware
from transformer.tools.bench.searching import Searcher
from transformer.tools.bench.training import Stepper
from transformer.translate import Translator

BASE = Path(__file__).parents[1] / "base.py"


def train(size: str, dtype: str, rows: int, length: int, device: str) -> worker.Work:
    """Make updates on one batch."""
    settings, model = set_up(size, dtype, device)
    source, target = sizes.training_batch(model.target_size, rows, length)
    stepper = Stepper(settings, model, {"source": source, "target": target})
    return work(stepper, device)


def search(
    size: str, dtype: str, sentences: int, length: int, beam: int, device: str
) -> worker.Work:
    """Translate sentences into as many tokens as they have."""
    settings, model = set_up(size, dtype, device)
    source = sizes.sentences(model.source_size, sentences, length)
    return work(Searcher(settings, model, source, beam), device)


def product(rows: int, inner: int, outer: int, dtype: str) -> worker.Work:
    """Multiply (rows, inner) by (inner, outer), as all layers do."""
    parallel.start("cpu")
    x, kernel = jnp.ones((rows, inner), dtype), jnp.ones((inner, outer), dtype)
    multiply = jax.jit(functools.partial(matmul.product, dtype=dtype))
    return work(lambda: multiply(x, kernel), "cpu")


def work(call: Callable[[], Any], device: str) -> worker.Work:
    """Wait for each step on a CPU, as the peers do, and once a turn elsewhere."""
    if device == "cpu":
        return worker.Work(lambda: jax.block_until_ready(call()), _info())
    last = None

    def step() -> None:
        nonlocal last
        last = call()

    return worker.Work(step, _info(), lambda: jax.block_until_ready(last))


def translate(workdir: Path, input: Path, dtype: str, beam: int) -> worker.Work:
    """Translate a file of sentences, one per line, by a trained run."""
    parallel.start("cpu")
    translator = export.open_run(workdir, dtype)
    return translations(translator, export.read_sentences(input), beam)


def translations(
    translator: Translator, lines: Sequence[str], beam: int
) -> worker.Work:
    """Return the work of translating lines, with its outputs."""
    # The one length penalty that the peers have too.
    how: dict[str, Any] = {"beam": beam, "length_penalty": "power"}
    outputs = [found[0].ids for found in translator.hypotheses(lines, **how)]

    def step() -> list[str]:
        return translator.translate(lines, **how)

    info = {"outputs": outputs, "sentences": len(lines)}
    return worker.Work(step, info | _info())


def set_up(
    size: str, dtype: str, device: str, kind: Hardware | None = None
) -> tuple[config.Config, Model]:
    """Return experiments/base.py of another size, with dropout where peers have it.

    Args:
      size: a name in ``sizes.SIZES``.
      dtype: ``model.dtype``.
      device: ``device``.
      kind: what programs are traced for, None = this process's first device.
    """
    parallel.start(device)
    wanted = sizes.SIZES[size]
    values = runpy.run_path(str(BASE))["get_config"]()
    values.model.layers = wanted.layers
    values.model.d_model = wanted.d_model
    values.model.d_ff = wanted.d_ff
    values.model.heads = wanted.heads
    values.model.d_k = values.model.d_v = wanted.d_model // wanted.heads
    values.model.dropout = sizes.DROPOUT
    values.model.attention_dropout = sizes.inner_dropout(device)
    values.model.relu_dropout = sizes.inner_dropout(device)
    values.model.norm_epsilon = sizes.EPSILON
    values.model.dtype = dtype
    values.loss.smoothing = sizes.SMOOTHING
    settings = parallel.sizes.here(config.resolve(values), wanted.vocabulary)
    ids = wanted.vocabulary
    return settings, models.make(settings, ids, ids, kind)


def _info() -> dict[str, Any]:
    kind = jax.devices()[0].device_kind
    return {"versions": worker.versions("jax", "jaxlib"), "device": kind}


if __name__ == "__main__":
    worker.run(train, search, translate, product)
