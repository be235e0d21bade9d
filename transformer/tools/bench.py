"""Speed of a configuration on this machine: training, search, input and start.

And the memory of a training step, which the compiler tells without making one.
"""

from __future__ import annotations

import dataclasses
import functools
import gzip
import importlib.metadata
import json
import os
import re
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer import decode, parallel
from transformer.config import Config, UserError
from transformer.data import batches
from transformer.ids import BOS, EOS, PAD
from transformer.models.transformer import (
    Transformer,
    configured_vocabulary,
    init_params,
    make_model,
    search_variables,
    start_search,
)
from transformer.nn import hardware, layers
from transformer.parallel import sizes
from transformer.prepare import prepare
from transformer.run.records import announce, versions, write_json
from transformer.tools import datasheets, flops, traces
from transformer.train import compile_step, init_state, make_train_step, train
from transformer.translate import model_of

# Size of the square matrices whose product gives the machine's peak, and how many
# products are made in a row: one alone is too short for an accelerator.
_PEAK_CPU, _PEAK = (2048, 1), (8192, 16)
_ROUND = 0.5  # seconds that a round on an accelerator lasts at least
_LOOP_ROUND = 3.0  # the same of the training loop, anywhere
_ENDLESS = 2**30  # steps
_INPUT_STEPS = 200
_NEVER = -1  # no id is this, so that no hypothesis ends before the limit


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
      what: "train", "loop", "greedy", "beam", "input", "startup" or "memory".
      tokens: slots a side of a step, None = the configuration's; but for "input" a
        step is one batch, whatever ``batch.lengths`` says.
      length: of the longest sentence; the shortest is half as long.
      rounds: measurements, of which the median is printed.
      output: file for the same numbers, and what they were measured with, as JSON.
      profile: folder for a trace of one more step, for TensorBoard or Perfetto; its
        costliest operations are printed too.
      say: is told the results.

    Returns:
      What is printed, by name.

    Raises:
      UserError: if a trace is asked for of what no device does.
    """
    if profile is not None and what in ("loop", "input", "startup", "memory"):
        raise UserError(
            f"--profile: expected --what=train, greedy or beam, got {what}; "
            "leave it out"
        )
    rows: dict[str, Any] = {"what": what, "device": jax.devices()[0].device_kind}
    settings = sizes.here(settings, configured_vocabulary(settings))
    if what == "train":
        rows |= _train(
            settings, tokens or settings.batch.tokens, length, rounds, profile
        )
    elif what in ("greedy", "beam"):
        beams = settings.decode.beam if what == "beam" else 1
        slots = tokens or settings.decode.tokens
        rows |= _search(settings, beams, slots, length, rounds, profile)
    elif what == "loop":
        rows |= _loop(settings, rounds)
    elif what == "input":
        rows |= _input(settings, rounds)
    elif what == "memory":
        rows |= _memory(settings, tokens or settings.batch.tokens, length)
    else:
        rows |= _startup(config_arguments, rounds)
    # Kilobytes on Linux, bytes on macOS.
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    rows["peak memory of the process, MB"] = peak / 1e6
    costliest = rows.pop("costliest", [])
    width = max(map(len, rows))
    for name, value in rows.items():
        say(f"{name:{width}}  {_text(value)}")
    for cost in costliest:
        say(f"{cost.milliseconds:10.2f} ms  {cost.calls:5} x  {cost.operation}")
    if output is not None:
        write_json(output, rows | {"machine": machine()})
    return rows


def machine() -> dict[str, Any]:
    """Return what decides the speed of a program beside the program itself.

    Returns:
      Devices, versions of what computes (for a GPU those of CUDA, cuDNN and the driver
      too), and the flags that XLA was given.
    """
    accelerated = re.compile(r"nvidia-|jax-cuda|jax-rocm|libtpu", re.IGNORECASE)
    device = jax.devices()[0]
    return {
        "devices": [one.device_kind for one in jax.devices()],
        "platform": device.client.platform_version,
        "compute_capability": getattr(device, "compute_capability", None),
        "driver": hardware.nvidia_driver(),
        "versions": versions()
        | {
            one.name: one.version
            for one in importlib.metadata.distributions()
            if accelerated.match(one.name)
        },
        "flags": {
            name: value
            for name, value in os.environ.items()
            if name.startswith(("XLA_", "LIBTPU_"))
        },
    }


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _times(rounds: int, work: Callable[[], Any], calls: int = 1) -> list[float]:
    """Return the seconds of a call of ``work``, a number for each round.

    Args:
      rounds: how often the result is waited for.
      work: is called; returns arrays.
      calls: of a round, dispatched one after another.
    """
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls - 1):
            work()
        jax.block_until_ready(work())
        seconds.append((time.perf_counter() - start) / calls)
    return seconds


def _calls(work: Callable[[], Any], round_seconds: float) -> int:
    """Return how many calls of ``work`` a round needs to last so long, 1 for 0 s."""
    calls = 1
    while round_seconds and calls * _times(1, work, calls)[0] < round_seconds:
        calls *= 2
    return calls


def measure(rounds: int, work: Callable[[], Any]) -> tuple[list[float], int]:
    """Return the seconds of a call in each round, and how many calls a round had.

    A host that waited for every call of an accelerator would measure its own way there
    and back as well; in a CPU there is no such way.
    """
    calls = _calls(work, _ROUND if hardware.here().accelerator else 0.0)
    return _times(rounds, work, calls), calls


def _timing(seconds: list[float], name: str) -> dict[str, float]:
    return {
        f"{name}, s (median)": statistics.median(seconds),
        f"{name}, s (least)": min(seconds),
        f"{name}, s (most)": max(seconds),
    }


def matrix_peak(dtype: str, size: int, count: int, rounds: int = 5) -> float:
    """Measure the rate of large matrix products, operations a second.

    Args:
      dtype: of the operands; sums are float32.
      size: of the square matrices, whose numbers are random: a GPU multiplies those of
        ones faster, as it needs less power for them.
      count: products in a row, each with the result of the one before.
      rounds: measurements, of which the best counts.
    """
    draw = np.random.default_rng(0).standard_normal((size, size), np.float32)
    x = jnp.asarray(draw * size**-0.5, dtype)
    exact = layers.precision(x.dtype)

    @jax.jit
    def products(x):
        y = x
        for _ in range(count - 1):
            y = jnp.dot(x, y, precision=exact)
        return jnp.dot(x, y, precision=exact, preferred_element_type=jnp.float32)

    jax.block_until_ready(products(x))
    seconds, _ = measure(rounds, lambda: products(x))
    return 2 * size**3 * count / min(seconds)


def _peaks(dtype: str, rate: float) -> dict[str, float]:
    """Return the peaks of this device beside the operations a second of some work."""
    size, count = _PEAK if hardware.here().accelerator else _PEAK_CPU
    peak = matrix_peak(dtype, size, count)
    rows = {
        f"operations/s of a {size} matrix product": peak,
        "share of that": rate / peak,
    }
    sheet = datasheets.find(jax.devices()[0].device_kind)
    if sheet is not None and dtype == "bfloat16":
        rows["operations/s in the datasheet"] = sheet.operations
        rows["share of the datasheet's"] = rate / sheet.operations
    return rows


def _device_memory() -> dict[str, float]:
    """Return the most memory the device has used so far, where it tells."""
    told = jax.devices()[0].memory_stats() or {}
    names = {
        "peak_bytes_in_use": "peak memory of the device, MB",
        "bytes_limit": "memory of the device for JAX, MB",
    }
    return {names[key]: told[key] / 1e6 for key in names if key in told}


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


class Stepper:
    """A compiled train step with the state it goes on from; call it to make a step."""

    def __init__(self, settings: Config, model: Transformer, batch: Any) -> None:
        self.state = jax.jit(lambda: init_state(settings, model))()
        self.batch = jax.tree.map(jnp.asarray, dict(batch))
        self.step = make_train_step(settings, model)
        start = time.perf_counter()
        jitted = jax.jit(self.step, donate_argnums=0)
        self.compiled = jitted.lower(self.state, self.batch).compile()
        self.compile_seconds = time.perf_counter() - start

    def __call__(self) -> Any:
        self.state, metrics = self.compiled(self.state, self.batch)
        return metrics


class Searcher:
    """A compiled search by a model of drawn parameters; call it to search.

    Every output is as long as the longest source, whatever the model says.
    """

    def __init__(
        self, settings: Config, model: Transformer, source: np.ndarray, beams: int
    ) -> None:
        key = jax.random.key(settings.seed)
        draw = jax.jit(lambda: search_variables(model, init_params(model, key)))
        self.variables, self.source = draw(), jnp.asarray(source)
        rows, length = source.shape
        limits, wanted = jnp.full((rows,), length), settings.decode
        penalty = decode.length_penalty(wanted.length_penalty, wanted.alpha)
        marks = {"bos": BOS, "eos": _NEVER}

        @jax.jit
        def search(variables, source):
            step, cache = start_search(model, variables, source, beams, length)
            if beams == 1:
                return decode.greedy(step, cache, limits, length, **marks).ids
            found = decode.beam(step, cache, limits, length, beams, penalty, **marks)
            return found.ids

        start = time.perf_counter()
        self.compiled = search.lower(self.variables, self.source).compile()
        self.compile_seconds = time.perf_counter() - start

    def __call__(self) -> Any:
        return self.compiled(self.variables, self.source)


def _height(settings: Config, tokens: int, length: int) -> int:
    """Return the rows of a batch of so many slots a side."""
    multiple = settings.batch.multiple
    return max(tokens // length // multiple, 1) * multiple


def _model(settings: Config) -> Transformer:
    rows = configured_vocabulary(settings)
    kind = hardware.arranged(None, settings.parallel.tensor)
    return make_model(settings.model, rows, rows, settings.parallel.remat, kind)


def _train(settings, tokens, length, rounds, profile) -> dict[str, Any]:
    vocabulary = configured_vocabulary(settings)
    height = _height(settings, tokens, length)
    model = _model(settings)
    batch = dict.fromkeys(
        ("source", "target"), ragged_sentences(height, length, vocabulary)
    )
    step = Stepper(settings, model, batch)
    _times(2, step)
    seconds, calls = measure(rounds, step)
    memory = _device_memory()
    costliest = _trace(profile, step, step.compiled) if profile is not None else []
    median = statistics.median(seconds)
    counted = flops.traced(step.step, step.state, step.batch)
    formula = flops.train_step(settings.model, height, length, length, vocabulary)
    return {
        "batch": f"{height} x {length}",
        "steps between two waits": calls,
        **_timing(seconds, "step"),
        "real target tokens/s": int((batch["target"] != PAD).sum()) / median,
        "target slots/s": height * length / median,
        "compile, s": step.compile_seconds,
        "operations a step, traced": counted,
        "operations a step, by formula": formula,
        "operations/s": counted / median,
        **_peaks(settings.model.dtype, counted / median),
        "temporaries of a step, MB": _temporaries(step.compiled),
        **memory,
        **traces.choices(settings, hardware.here(), (length, length)),
        "costliest": costliest,
    }


def _temporaries(compiled: Any) -> float:
    return compiled.memory_analysis().temp_size_in_bytes / 1e6


def _memory(settings: Config, tokens: int, length: int) -> dict[str, Any]:
    """Compile the train step in each way there is to differentiate the layers."""
    height = _height(settings, tokens, length)
    shape, both = (height, length, length), (configured_vocabulary(settings),) * 2
    rows: dict[str, Any] = {"batch": f"{height} x {length}"}
    for form in ("unrolled", "scanned"):
        for remat in ("none", "layers", "dots"):
            how = dataclasses.replace(settings.parallel, remat=remat, layers=form)
            one = dataclasses.replace(settings, parallel=how)
            start = time.perf_counter()
            traced = traces.train_step(one, both, shape, jax.devices())
            compiled = traces.compile_anew(traced)
            seconds = time.perf_counter() - start
            name = f"remat={remat}, layers={form}"
            rows[f"{name}: temporaries, MB"] = _temporaries(compiled)
            rows[f"{name}: compile, s"] = seconds
    return rows


def _search(settings, beams, slots, length, rounds, profile) -> dict[str, Any]:
    vocabulary = configured_vocabulary(settings)
    model = _model(settings)
    height = max(slots // length, 1)
    source = ragged_sentences(height, length, vocabulary)
    search = Searcher(settings, model, source, beams)
    _times(1, search)
    seconds, calls = measure(rounds, search)
    costliest = _trace(profile, search, search.compiled) if profile is not None else []
    return {
        "sentences": height,
        "tokens a sentence": length,
        "beam": beams,
        "batches between two waits": calls,
        **_timing(seconds, "batch"),
        "sentences/s": height / statistics.median(seconds),
        "compile, s": search.compile_seconds,
        "temporaries, MB": _temporaries(search.compiled),
        **_device_memory(),
        **traces.choices(settings, hardware.here(), (beams, length * beams)),
        "costliest": costliest,
    }


class _Turn(NamedTuple):
    """A step of the training loop, from asking for its batches to asking for the next.

    Attributes:
      parts: its batches.
      waited: seconds until they came.
      seconds: of all of it; the device has then done the step before.
      new: whether a shape of batch came for the first time, to be compiled.
    """

    parts: list[batches.Batch]
    waited: float
    seconds: float
    new: bool

    @property
    def tokens(self) -> int:
        """Real target tokens."""
        return sum(int((part["target"] != PAD).sum()) for part in self.parts)


class _Enough(Exception):
    """The loop has been measured."""


class _Feed:
    """Makes batches as ``batches.prefetch`` does, and times the loop that takes them.

    Steps with a shape that is compiled first are left out, and so is the first round.

    Attributes:
      rounds: turns of each round, which last ``_LOOP_ROUND`` seconds.
      first: seconds until the first step was done.
      left_out: turns with new shapes.
      shapes: of all batches so far.
    """

    def __init__(self, rounds: int) -> None:
        self.rounds: list[list[_Turn]] = []
        self.first, self.left_out = 0.0, 0
        self.shapes: set[tuple[tuple[int, ...], ...]] = set()
        self._wanted, self._start = rounds, time.perf_counter()

    def __call__(
        self, plan: batches.Batches, *steps: Any
    ) -> Iterator[tuple[int, list[batches.Batch]]]:
        """Yield what ``batches.prefetch`` would.

        Raises:
          _Enough: when the rounds are full.
        """
        current: list[_Turn] = []
        warm = False
        asked = time.perf_counter()
        for step, parts in batches.prefetch(plan, *steps):
            came = time.perf_counter()
            yield step, parts
            again = time.perf_counter()
            self.first = self.first or again - self._start
            turn = _Turn(parts, came - asked, again - asked, self._is_new(parts))
            asked = again
            if turn.new:
                self.left_out += 1
                continue
            current.append(turn)
            if sum(turn.seconds for turn in current) < _LOOP_ROUND:
                continue
            if warm:
                self.rounds.append(current)
            warm, current = True, []
            if len(self.rounds) == self._wanted:
                raise _Enough

    def _is_new(self, parts: list[batches.Batch]) -> bool:
        before = len(self.shapes)
        self.shapes |= {(part["source"].shape, part["target"].shape) for part in parts}
        return len(self.shapes) > before


def _loop(settings: Config, rounds: int) -> dict[str, Any]:
    """Train for a while on the configuration's own data; then without the loop.

    The bare steps are those of the last round, of batches that lie on the device.
    """
    quiet = dataclasses.replace(
        settings.train,
        steps=_ENDLESS,
        evaluate_every=0,
        checkpoint_every=_ENDLESS,
        checkpoint_minutes=0.0,
    )
    settings = dataclasses.replace(settings, train=quiet)
    with tempfile.TemporaryDirectory() as folder:
        feed = _Feed(rounds)
        try:
            train(settings, Path(folder), lambda line: None, feed)
        except _Enough:
            pass
        memory = _device_memory()
        last = feed.rounds[-1]
        bare = _bare_steps(settings, Path(folder), [turn.parts for turn in last])
    each = [sum(t.seconds for t in turns) / len(turns) for turns in feed.rounds]
    tokens = [
        sum(t.tokens for t in turns) / sum(t.seconds for t in turns)
        for turns in feed.rounds
    ]
    measured = [turn for turns in feed.rounds for turn in turns]
    waited = sum(t.waited for t in measured) / sum(t.seconds for t in measured)
    busy = bare / each[-1]
    return {
        "steps": len(measured),
        "steps left out, of new shapes": feed.left_out,
        "shapes, a program each": len(feed.shapes),
        "start of training to first step done, s": feed.first,
        **_timing(each, "step"),
        "real target tokens/s": statistics.median(tokens),
        "step without the loop, s": bare,
        "share of the loop's time in such steps": busy,
        "share in which the loop waited for a batch": waited,
        "share in which the device did, at most": max(0.0, min(waited, 1 - busy)),
        **memory,
    }


def _bare_steps(
    settings: Config, workdir: Path, steps: Sequence[Sequence[batches.Batch]]
) -> float:
    """Return the seconds of a step whose batches are on the device, waited for once.

    Args:
      settings: the configuration.
      workdir: where its data has been prepared.
      steps: the batches of each.
    """
    mesh = parallel.make_mesh(settings.parallel, jax.devices())
    model = model_of(settings, prepare(settings, workdir).vocabulary)
    draw = functools.partial(init_state, settings, model)
    abstract = parallel.placed(mesh, jax.eval_shape(draw))
    step = compile_step(settings, model, mesh, abstract)
    state = jax.jit(draw, out_shardings=parallel.shardings(mesh, abstract))()
    placed = [[parallel.place_rows(mesh, part) for part in parts] for parts in steps]

    def work() -> Any:
        nonlocal state
        for parts in placed:
            state, metrics = step(state, *parts)
        return metrics

    _times(1, work)  # finds each shape's program
    return statistics.median(_times(3, work)) / len(steps)


def _input(settings: Config, rounds: int) -> dict[str, Any]:
    """Make batches of the configuration's own data; then train on one of them."""
    with tempfile.TemporaryDirectory() as folder:
        prepared = prepare(settings, folder)
        plan = batches.Batches(prepared.corpora["train"], settings.batch, settings.seed)

        def work() -> int:
            return sum(1 for _ in batches.prefetch(plan, 0, _INPUT_STEPS))

        seconds = _times(rounds, work)
        model = model_of(settings, prepared.vocabulary)
        step = Stepper(settings, model, plan.batch_at(0))
    _times(2, step)
    made = _INPUT_STEPS * plan.lengths / statistics.median(seconds)
    training = plan.lengths * statistics.median(_times(rounds, step))
    return {
        "batches": _INPUT_STEPS * plan.lengths,
        **_timing(seconds, "all of them"),
        "batches/s": made,
        "steps/s": 1 / training,
        "batches ready when a step ends": made * training,
        "padding": plan.epoch.padding,
        "shapes, a program each": len(plan.shapes),
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


class Cost(NamedTuple):
    """What one operation of a program took."""

    milliseconds: float
    calls: int
    operation: str


def _trace(folder: Path, work: Callable[[], Any], compiled: Any) -> list[Cost]:
    """Write a trace of ``work``; return the costliest operations of its program."""
    with jax.profiler.trace(str(folder), create_perfetto_trace=True):
        jax.block_until_ready(work())
    newest = max(folder.rglob("perfetto_trace.json.gz"), key=os.path.getmtime)
    with gzip.open(newest) as file:
        events = json.load(file)["traceEvents"]
    return costliest(events, compiled.as_text())


def costliest(
    events: Sequence[Mapping[str, Any]], program: str, count: int = 10
) -> list[Cost]:
    """Add up the time of each operation in a trace.

    Args:
      events: of a Perfetto trace, durations in microseconds.
      program: the compiled program's text, which says where an operation comes from.
      count: how many to return.

    Returns:
      The costliest operations, loops and calls left out because they contain others.
    """
    origin = dict(re.findall(r'%([\w.-]+) = .*op_name="([^"]*)"', program))
    spent: dict[str, list[float]] = {}
    for event in events:
        if event.get("ph") == "X" and "hlo_op" in event.get("args", {}):
            spent.setdefault(event["args"]["hlo_op"], []).append(event["dur"] / 1e3)
    costs = [
        Cost(sum(times), len(times), f"{name}  {origin.get(name, '')}".rstrip())
        for name, times in spent.items()
        if not name.startswith(("while", "call", "conditional"))
    ]
    return sorted(costs, reverse=True)[:count]
