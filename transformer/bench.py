"""Speed of a configuration on this machine: training, search, input and start."""

from __future__ import annotations

import functools
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer import decode, flops
from transformer.config import Config
from transformer.data import batches
from transformer.data.tokenizers import BOS, EOS, PAD
from transformer.evaluate import announce
from transformer.model import (
    configured_vocabulary,
    init_params,
    make_model,
    search_variables,
    start_search,
)
from transformer.prepare import prepare
from transformer.records import write_json
from transformer.train import init_state, make_train_step

_PEAK_SIZE = 2048  # of the square matrices whose product gives the machine's peak
_INPUT_BATCHES = 200


def bench(
    settings: Config,
    config_arguments: Sequence[str],
    what: str = "train",
    *,
    tokens: int | None = None,
    length: int = 32,
    rounds: int = 5,
    output: Path | None = None,
    profile: Path | None = None,
    say: Callable[[str], None] = announce,
) -> dict[str, Any]:
    """Measure one kind of work, after a warm-up, and print a table.

    Args:
      settings: the resolved configuration.
      config_arguments: flags that give it, for ``startup``, which starts processes.
      what: "train", "greedy", "beam", "input" or "startup".
      tokens: slots a side of a batch, None = the configuration's.
      length: of the longest sentence; the shortest is half as long.
      rounds: measurements, of which the median is printed.
      output: file for the same numbers as JSON.
      profile: folder for a trace of one more step, for TensorBoard or Perfetto.
      say: is told the results.

    Returns:
      What is printed, by name.
    """
    rows: dict[str, Any] = {"what": what, "device": jax.devices()[0].device_kind}
    if what == "train":
        rows |= _train(
            settings, tokens or settings.batch.tokens, length, rounds, profile
        )
    elif what in ("greedy", "beam"):
        beams = settings.decode.beam if what == "beam" else 1
        slots = tokens or settings.decode.tokens
        rows |= _search(settings, beams, slots, length, rounds, profile)
    elif what == "input":
        rows |= _input(settings, rounds)
    else:
        rows |= _startup(config_arguments, rounds)
    # Kilobytes on Linux, bytes on macOS.
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    rows["peak memory of the process, MB"] = peak / 1e6
    width = max(map(len, rows))
    for name, value in rows.items():
        say(f"{name:{width}}  {_text(value)}")
    if output is not None:
        write_json(output, rows)
    return rows


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _times(rounds: int, work: Callable[[], Any]) -> list[float]:
    """Return the seconds of each call of ``work``, whose result is waited for."""
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        jax.block_until_ready(work())
        seconds.append(time.perf_counter() - start)
    return seconds


def _timing(seconds: list[float], name: str) -> dict[str, float]:
    return {
        f"{name}, s (median)": statistics.median(seconds),
        f"{name}, s (least)": min(seconds),
        f"{name}, s (most)": max(seconds),
    }


def matrix_peak(dtype: str, rounds: int = 5) -> float:
    """Measure the rate of a large matrix product, operations a second.

    Args:
      dtype: of the operands; sums and result are float32.
      rounds: measurements, of which the best counts.
    """
    x = jnp.ones((_PEAK_SIZE, _PEAK_SIZE), dtype)
    product = jax.jit(functools.partial(jnp.dot, preferred_element_type=jnp.float32))
    jax.block_until_ready(product(x, x))
    return 2 * _PEAK_SIZE**3 / min(_times(rounds, lambda: product(x, x)))


def ragged_sentences(rows: int, length: int, vocabulary: int) -> np.ndarray:
    """Return random ids (rows, length), sentences of length / 2 to length tokens."""
    draw = np.random.default_rng(0)
    ids = draw.integers(EOS + 1, vocabulary, (rows, length), dtype=np.int32)
    lengths = draw.integers((length + 1) // 2, length + 1, rows)
    lengths[0] = length
    places = np.arange(length)
    ids[places == lengths[:, None] - 1] = EOS
    ids[places >= lengths[:, None]] = PAD
    return ids


def _train(settings, tokens, length, rounds, profile) -> dict[str, Any]:
    vocabulary = configured_vocabulary(settings)
    height = (
        max(tokens // length // settings.batch.multiple, 1) * settings.batch.multiple
    )
    model = make_model(settings.model, vocabulary, vocabulary)
    state = jax.jit(lambda: init_state(settings, model))()
    batch = {
        "source": jnp.asarray(ragged_sentences(height, length, vocabulary)),
        "target": jnp.asarray(ragged_sentences(height, length, vocabulary)),
    }
    step = make_train_step(settings, model)
    start = time.perf_counter()
    compiled = jax.jit(step, donate_argnums=0).lower(state, batch).compile()
    compile_seconds = time.perf_counter() - start

    def work() -> Any:
        nonlocal state
        state, metrics = compiled(state, batch)
        return metrics

    _times(2, work)
    seconds = _times(rounds, work)
    if profile is not None:
        _trace(profile, work)
    median = statistics.median(seconds)
    counted = flops.traced(step, state, batch)
    formula = flops.train_step(settings.model, height, length, length, vocabulary)
    peak = matrix_peak(settings.model.dtype)
    return {
        "batch": f"{height} x {length}",
        **_timing(seconds, "step"),
        "real target tokens/s": int((batch["target"] != PAD).sum()) / median,
        "target slots/s": height * length / median,
        "compile, s": compile_seconds,
        "operations a step, traced": counted,
        "operations a step, by formula": formula,
        "operations/s": counted / median,
        f"operations/s of a {_PEAK_SIZE} matrix product": peak,
        "share of that": counted / median / peak,
        "temporaries of a step, MB": _temporaries(compiled),
    }


def _temporaries(compiled: Any) -> float:
    return compiled.memory_analysis().temp_size_in_bytes / 1e6


def _search(settings, beams, slots, length, rounds, profile) -> dict[str, Any]:
    """Search for as many tokens as the source has, whatever the model says."""
    vocabulary = configured_vocabulary(settings)
    model = make_model(settings.model, vocabulary, vocabulary)
    key = jax.random.key(settings.seed)
    variables = jax.jit(lambda: search_variables(model, init_params(model, key)))()
    height = max(slots // length, 1)
    source = jnp.asarray(ragged_sentences(height, length, vocabulary))
    limits = jnp.full((height,), length)
    penalty = decode.length_penalty(
        settings.decode.length_penalty, settings.decode.alpha
    )
    never = -1  # no id is this, so that no hypothesis ends before the limit

    @jax.jit
    def search(variables, source):
        step, cache = start_search(model, variables, source, beams, length)
        marks = {"bos": BOS, "eos": never}
        if beams == 1:
            return decode.greedy(step, cache, limits, length, **marks).ids
        found = decode.beam(step, cache, limits, length, beams, penalty, **marks)
        return found.ids

    start = time.perf_counter()
    compiled = search.lower(variables, source).compile()
    compile_seconds = time.perf_counter() - start
    _times(1, lambda: compiled(variables, source))
    seconds = _times(rounds, lambda: compiled(variables, source))
    if profile is not None:
        _trace(profile, lambda: compiled(variables, source))
    return {
        "sentences": height,
        "tokens a sentence": length,
        "beam": beams,
        **_timing(seconds, "batch"),
        "sentences/s": height / statistics.median(seconds),
        "compile, s": compile_seconds,
        "temporaries, MB": _temporaries(compiled),
    }


def _input(settings: Config, rounds: int) -> dict[str, Any]:
    """Make batches of the configuration's own data, and do nothing with them."""
    with tempfile.TemporaryDirectory() as folder:
        prepared = prepare(settings, folder)
        plan = batches.Batches(prepared.corpora["train"], settings.batch, settings.seed)

        def work() -> int:
            return sum(1 for _ in batches.prefetch(plan, 0, _INPUT_BATCHES))

        seconds = _times(rounds, work)
    return {
        "batches": _INPUT_BATCHES,
        **_timing(seconds, "all of them"),
        "batches/s": _INPUT_BATCHES / statistics.median(seconds),
        "padding": plan.figures.padding,
    }


def _startup(config_arguments: Sequence[str], rounds: int) -> dict[str, Any]:
    """Start ``transformer train`` until its first step is done, prepared and cached."""
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds + 1):
            workdir = Path(folder) / str(number)
            command = [
                *(sys.executable, "-m", "transformer", "train"),
                *(*config_arguments, f"--workdir={workdir}"),
                f"--config.data.prepared={Path(folder) / 'corpus'}",
                "--config.train.log_every=1",
            ]
            seconds.append(_until_first_step(command))
    return _timing(seconds[1:], "start to first step")


def _until_first_step(command: list[str]) -> float:
    start = time.perf_counter()
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("step "):
            seconds = time.perf_counter() - start
            process.send_signal(signal.SIGTERM)
            process.communicate()
            return seconds
    raise RuntimeError(f"no step was made, exit code {process.wait()}: {command}")


def _trace(folder: Path, work: Callable[[], Any]) -> None:
    with jax.profiler.trace(str(folder), create_perfetto_trace=True):
        jax.block_until_ready(work())
