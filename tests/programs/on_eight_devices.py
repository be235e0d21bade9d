"""A run on eight devices equals the run on one, however they are arranged.

Eight devices are simulated on the CPU, which has to be set before jax starts, so
``test_devices.py`` runs these tests in a separate process. By hand:

    JAX_NUM_CPU_DEVICES=8 python -m pytest -n0 tests/programs/on_eight_devices.py
"""

import dataclasses
import functools
import math
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from support.cases import leave
from support.reference import assert_close
from support.runs import (
    NO_DROPOUT,
    command,
    compilations,
    flat,
    lines_of,
    sentences,
    tiny,
    tiny_run,
)

from transformer import config, models, parallel, programs, train, translate
from transformer import step as steps
from transformer.config import Config
from transformer.data.tokenizers import Bytes, Vocabulary
from transformer.ensemble import EnsembleTranslator
from transformer.models import counts
from transformer.nn.hardware import Hardware
from transformer.run.folder import read_results, read_settings
from transformer.tools.meshes import cost, table
from transformer.translate import Translator

V, ROWS, STEPS = 64, 16, 20


def spread(shape: str, **changes: Any) -> Config:
    """Resolve a small model on a mesh "data fsdp tensor", with plain descent."""
    sizes = dict(zip(parallel.AXES, map(int, shape.split()), strict=True))
    small = {
        "model.d_model": 16,
        "model.heads": 8,
        "model.d_k": 2,
        "model.d_v": 4,
        "model.d_ff": 24,
        # Their masks take time to compile: only one test has them.
        "model.dropout": 0.0,
        "model.relu_dropout": 0.0,
        "batch.multiple": ROWS,
        "optimizer.name": "sgd",
        "optimizer.scale": 4.0,
        "optimizer.warmup": 60,
        **{f"parallel.{axis}": size for axis, size in sizes.items()},
    }
    return tiny(**(small | changes))


def batch_of(step: int) -> dict[str, np.ndarray]:
    source, target = sentences(ROWS, 6, 2 * step), sentences(ROWS, 5, 2 * step + 1)
    target[ROWS - 2 :] = 0  # the last device of eight has only empty rows
    return {"source": source, "target": target}


@functools.cache
def drawn(model: Any, optimizer: str) -> steps.State:
    """Return the initial state, in host memory."""
    settings = spread("1 1 1", **{"optimizer.name": optimizer})
    return jax.device_get(jax.jit(lambda: steps.init_state(settings, model))())


class Spread:
    """Training on some of the eight devices."""

    def __init__(self, settings: Config) -> None:
        wanted = dataclasses.astuple(settings.parallel)[:3]
        devices = jax.devices()[: math.prod(wanted)]
        self.model = models.make(settings, V, V)
        self.mesh = parallel.make_mesh(settings.parallel, devices)
        parallel.check(settings, self.mesh.shape)
        model: Any = self.model
        start = drawn(model, settings.optimizer.name)
        rules = self.model.partition
        self.abstract = parallel.placed(self.mesh, rules, start)
        parallel.check_divides(self.mesh.shape, rules, self.abstract.params)
        places = parallel.shardings(self.mesh, rules, start)
        self.state = jax.device_put(start, places)
        self.step: Any = programs.compile_step(
            settings, self.model, self.mesh, self.abstract
        )

    def run(self, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Return metrics (steps, n) and the parameters after the last step.

        Args:
          seed: of the dropout masks.
        """
        history, key = [], jax.device_put(np.uint32(seed), self.state.key.sharding)
        state = jax.tree.map(jnp.copy, self.state._replace(key=key))
        for step in range(STEPS):
            state, metrics = self.step(state, batch_of(step))
            history.append([float(metrics[name]) for name in sorted(metrics)])
        return np.array(history), flat(state.params)


spread_once = functools.cache(Spread)


@functools.cache
def trained(settings: Config) -> tuple[np.ndarray, np.ndarray]:
    return spread_once(settings).run()


def assert_same_training(settings: Config, other: Config) -> None:
    metrics, params = trained(settings)
    expected_metrics, expected_params = trained(other)
    # A gradient is off by at most 200 roundings (see test_train.py), which are added to
    # parameters of at most 1 times learning rates that sum to less than 1 here; a step
    # rounds once more. A loss is off by 60 roundings and by the parameters' error.
    assert_close(params, expected_params, roundings=200 + STEPS, magnitude=1)
    for i in range(metrics.shape[1]):
        assert_close(metrics[:, i], expected_metrics[:, i], roundings=300)


MESHES = ["8 1 1", "1 8 1", "1 1 8", "2 2 2"]  # the last along every axis


# Every axis with masks is in the next test.
@pytest.mark.parametrize("shape", leave(MESHES, MESHES[1:]))
def test_every_mesh_trains_as_one_device(shape):
    assert_same_training(spread(shape), spread("1 1 1"))


def test_the_masks_of_layers_are_those_of_one_device():
    only = NO_DROPOUT | {"model.dropout": 0.2, "model.relu_dropout": 0.1}
    assert_same_training(spread("2 2 2", **only), spread("1 1 1", **only))


def test_the_masks_of_another_device_would_be_seen():
    _, params = trained(spread("1 1 1"))
    _, other = spread_once(spread("1 1 1")).run(seed=1)
    assert np.abs(params - other).max() > 10 * 220 * 2**-24  # ten times what is allowed


def test_parts_of_a_batch_are_as_many_devices():
    eight = spread("8 1 1")
    assert_same_training(spread("1 1 1", **{"optimizer.accumulation": 8}), eight)


@pytest.mark.thorough
def test_steps_of_two_lengths_are_those_of_one_device():
    it = Spread(spread("2 2 2", **NO_DROPOUT, **{"batch.lengths": 2}))
    state, whole = it.state, Spread(spread("1 1 1", **NO_DROPOUT))
    expected = jax.tree.map(jnp.copy, whole.state)
    for step in range(2):
        rows = batch_of(step)
        halves = ({k: x[i::2] for k, x in rows.items()} for i in range(2))
        state, metrics = it.step(state, *halves)
        expected, its_metrics = whole.step(expected, rows)
        assert_close(metrics["loss"], its_metrics["loss"], roundings=300)
    assert_close(flat(state.params), flat(expected.params), roundings=220, magnitude=1)


@pytest.mark.thorough
def test_a_plan_s_formulas_are_what_the_compiler_makes():
    settings = spread("2 2 2", **{"model.layers": 2, "optimizer.name": "adam"})
    # Wide enough for what is counted to outweigh a loss's few sums.
    load, mesh = cost.Load(64, 8, 8, 160), cost.Mesh(2, 2, 2)
    compiled = table.as_compiled(settings, mesh, load, jax.devices())
    paper = table.by_formula(settings, mesh, load)
    assert compiled.operations == pytest.approx(paper.operations, rel=0.03)
    sent = paper.sent
    if jax.__version_info__ > (0, 11, 0):  # the layers are gathered once more
        layers = counts.layers_count(config.transformer(settings.model))
        sent += 1 / 2 * 4 * layers.matrices / mesh.tensor
    assert compiled.sent == pytest.approx(sent, rel=0.03)
    # By formula biases are not cut: up to a tenth of so narrow a model's parameters.
    assert 0 <= paper.held - compiled.held < 0.1 * paper.held


def test_pmap_is_jit():
    trained(spread("8 1 1"))
    with compilations() as logged:
        by_pmap = spread("8 1 1", **{"parallel.how": "pmap"})
        assert_same_training(by_pmap, spread("8 1 1"))
    compiled = [line for line in logged if line.startswith("Compiling ")]
    assert len([line for line in compiled if "[compile_" in line]) == 1
    # The loop's own thread only lays rows out and draws numbers.
    here = [line for line in compiled if "[MainThread]" in line]
    assert not [line for line in here if re.match(r"Compiling jit\((_fun|train)", line)]


def test_the_program_keeps_rows_and_moments_apart():
    it = Spread(spread("2 2 2", **{"optimizer.name": "adam"}))
    compiled = it.step.lower(it.abstract, batch_of(0)).compile()
    # No device is given more than its part of parameters and moments.
    parts = 0
    for leaf in jax.tree.leaves(it.abstract):
        parts += math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
    batch = ROWS * (6 + 5) * 4 // parallel.row_shards(it.mesh.shape)
    memory = compiled.memory_analysis()
    unread = 1  # whether the last gradient was finite
    assert memory.argument_size_in_bytes == parts + batch - unread
    assert memory.alias_size_in_bytes == parts - unread  # donated
    # Only parameters are gathered, along fsdp alone: no rows, no logits.
    text = compiled.as_text()
    gathered = re.findall(r"= f32\[([\d,]*)\]\S* all-gather\(", text)
    tensor = it.mesh.shape["tensor"]
    whole = set()
    for leaf, spec in zip(
        jax.tree.leaves(it.abstract.params),
        jax.tree.leaves(parallel.specs(it.model.partition, it.abstract.params)),
        strict=True,
    ):
        sizes = zip(leaf.shape, spec, strict=True)
        cut = [n // tensor if axis == "tensor" else n for n, axis in sizes]
        whole.add(",".join(map(str, cut)))
    assert gathered and set(gathered) <= whole
    assert " all-to-all(" not in text and " collective-permute(" not in text
    assert "all-reduce" in text


def test_one_device_runs_the_program_without_a_mesh():
    it = Spread(spread("1 1 1"))
    plain = jax.jit(steps.make_train_step(spread("1 1 1"), it.model), donate_argnums=0)
    shapes = jax.eval_shape(lambda: it.state), batch_of(0)
    texts = [step.lower(*shapes).as_text() for step in (it.step, plain)]
    names = [re.findall(r"= stablehlo.(\w+)", text) for text in texts]
    assert names[0] == names[1] and len(names[0]) > 1000


# ---- going on elsewhere --------------------------------------------------------------


LAST = 8  # step of a run


def run_of(folder: Path) -> Config:
    return tiny_run(
        folder,
        **{
            "model.heads": 4,
            "model.attention_dropout": 0.1,
            "model.vocab_size": 24,
            "batch.shapes": 1,
            "batch.multiple": 24,  # for eight devices, or six
            "batch.tokens": 192,
            "train.steps": LAST,
            "train.evaluate_every": 0,
            "train.checkpoint_every": 2,
            "optimizer.name": "sgd",
        },
    )


def go(
    settings: Config,
    workdir: Path,
    count: int,
    mesh: str,
    steps: int = LAST,
    form: str = "unrolled",
) -> list[str]:
    """Train on some of the devices, up to a step of the run; return its lines."""
    sizes = dict(zip(parallel.AXES, map(int, mesh.split()), strict=True))
    how: Any = {**sizes, "layers": form}
    there = dataclasses.replace(settings.parallel, **how)
    devices, said = jax.devices()[:count], []

    def say(line: str) -> None:
        said.append(line)
        if line.startswith(f"step {steps - 1}/") and steps < LAST:
            os.kill(os.getpid(), signal.SIGTERM)

    workdir.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "devices", lambda: devices)
        train.train(dataclasses.replace(settings, parallel=there), workdir, say)
    return said


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """Runs on eight devices and on one."""
    folder = tmp_path_factory.mktemp("runs")
    jax.config.update("jax_compilation_cache_dir", str(folder / "cache"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    settings = run_of(folder / "data")
    go(settings, folder / "eight", 8, "-1 1 1")
    go(settings, folder / "one", 1, "1 1 1")
    assert_same_run(folder / "eight", folder / "one")
    return settings, folder / "one"


def assert_same_run(workdir: Path, other: Path) -> None:
    found, expected = lines_of(workdir), lines_of(other)
    assert [x["step"] for x in found] == [x["step"] for x in expected]
    for name in ("source_tokens", "target_tokens"):
        assert values(found, name) == values(expected, name)  # the same batches
    for name in ("loss", "nll", "grad_norm", "validation_nll"):
        assert_close(values(found, name), values(expected, name), roundings=300)
    results, others = map(read_results, (workdir, other))
    assert results.pop("sentences") == others.pop("sentences")
    for name in ("last", "average"):
        measured, expected = results.pop(name), others.pop(name)
        assert measured["tokens"] == expected["tokens"]
        assert measured["bleu"] == expected["bleu"]
        assert_close(measured["nll"], expected["nll"], roundings=300)
    assert results == others


def values(lines: list[dict[str, Any]], name: str) -> list[float]:
    return [line[name] for line in lines if name in line]


def test_a_run_goes_on_on_other_devices(unbroken, tmp_path):
    settings, expected = unbroken
    workdir = tmp_path / "moved"
    places = [(2, 8, "-1 1 1"), (4, 1, "1 1 1"), (LAST, 4, "1 2 2")]
    for stop, count, mesh in places:
        form = "scanned" if stop == LAST else "unrolled"
        said = go(settings, workdir, count, mesh, stop, form)
        assert stop == 2 or any("resuming from step" in line for line in said)
    assert_same_run(workdir, expected)
    assert read_settings(workdir).parallel.fsdp == 2


# ---- many hosts ----------------------------------------------------------------------


def start_processes(settings: Config, workdir: Path) -> list[subprocess.Popen[str]]:
    """Start a run as two processes of three devices each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "transformer", *command(settings, workdir)),
                *(f"--coordinator=127.0.0.1:{port}", "--num_processes=2"),
                f"--process_id={number}",
            ],
            env=os.environ | {"JAX_NUM_CPU_DEVICES": "3"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in range(2)
    ]


def wait_for(workdir: Path, step: int) -> None:
    """Wait until the metrics of a step are written."""
    path = workdir / "metrics.jsonl"
    while not (path.exists() and f'"step": {step},' in path.read_text()):
        time.sleep(0.05)


def test_two_processes_are_one(unbroken, tmp_path):
    settings, expected = unbroken
    # The middle row of the mesh is of both: neither has a block of its own.
    there = dataclasses.replace(settings.parallel, fsdp=2)
    spread = dataclasses.replace(settings, parallel=there)
    workdir = tmp_path / "run"
    first, second = start_processes(spread, workdir)
    output, silent = first.communicate()[0], second.communicate()[0]
    assert (first.returncode, second.returncode) == (0, 0), output + silent
    assert "spread over 6 devices: data 3 x fsdp 2 x tensor 1" in output
    assert f"step {LAST}/{LAST}" in output and "step" not in silent
    assert_same_run(workdir, expected)


@pytest.mark.slow
def test_a_stopped_or_lost_process_ends_the_others_and_the_run_goes_on(
    unbroken, tmp_path
):
    settings, expected = unbroken
    workdir = tmp_path / "run"
    first, second = start_processes(settings, workdir)
    wait_for(workdir, 1)
    second.terminate()
    output = first.communicate(timeout=60)[0]
    second.communicate(timeout=60)
    assert (first.returncode, second.returncode) == (143, 143)
    stopped = re.search(r"stopped at step (\d); the same command resumes", output)
    assert stopped and int(stopped[1]) < LAST
    first, second = start_processes(settings, workdir)
    wait_for(workdir, int(stopped[1]) + 1)
    second.kill()
    second.communicate()
    output = first.communicate(timeout=60)[0]
    assert first.returncode != 0
    assert "another task died" in output or "start all of them again" in output
    said = go(settings, workdir, 8, "-1 1 1")
    assert any("resuming from step" in line for line in said)
    assert_same_run(workdir, expected)


# ---- translating ---------------------------------------------------------------------


def test_eight_devices_translate_as_one():
    settings = tiny(
        **{
            "model.vocab_size": 0,
            "data.max_length": 16,
            "decode.tokens": 64,
            "decode.extra_tokens": 3,
        }
    )
    vocabulary = Vocabulary(Bytes(), Bytes())
    size = vocabulary.source.size
    model = models.make(settings, size, size)
    params = jax.jit(lambda: models.init(model, jax.random.key(1)))()
    # Sharper than drawn: outputs of many lengths, and no near ties.
    params = jax.tree.map(lambda x: x * 3, params)
    draw = np.random.default_rng(0)
    lines = [
        "".join(map(chr, draw.integers(97, 123, draw.integers(1, 13))))
        for _ in range(24)  # three per device, except that each has a power of two
    ]
    one, eight = (
        Translator(settings, vocabulary, params, print, jax.devices()[:count])
        for count in (1, 8)
    )
    how: dict[str, Any]
    for how in ({"beam": 2}, {"sample": True}):
        found, expected = (x.hypotheses(lines, **how) for x in (eight, one))
        for a, b in zip(found, expected, strict=True):
            assert a[0].ids == b[0].ids
            assert_close(a[0].score, b[0].score, roundings=300, magnitude=10)
        assert len({len(a[0].ids) for a in found}) > 3
    scores = eight.score(lines, lines[::-1]), one.score(lines, lines[::-1])
    assert_close(*scores, roundings=300)
    for state, other in zip(eight.encode(lines), one.encode(lines), strict=True):
        assert_close(state, other, roundings=300, magnitude=1)
    ids = eight.source_ids(lines), [[*range(4, 4 + i % 7)] for i in range(len(lines))]
    seen, wanted = (dict(x.attentions(*ids)) for x in (eight, one))
    assert seen.keys() == wanted.keys() == set(range(len(lines)))
    for row, pair in seen.items():
        for kind, weights in pair.weights.items():
            assert_close(weights, wanted[row].weights[kind], 300, magnitude=1)
    two = [EnsembleTranslator([x, x]) for x in (eight, one)]
    scores = two[0].score(lines, lines[::-1]), two[1].score(lines, lines[::-1])
    assert_close(*scores, roundings=300)


@pytest.mark.parametrize(
    "name, sides, kernels", [("_log_probabilities", 2, 3), ("_encode", 1, 1)]
)
def test_a_score_on_eight_devices_lowers_for_tpus(name, sides, kernels):
    """The compiler does not divide a TPU's kernels among devices."""
    widths = {"model.d_k": 16, "model.d_v": 16, "model.d_model": 128}
    settings = tiny(**widths, **{"model.heads": 8, "model.dtype": "bfloat16"})
    model = models.make(settings, V, V, hardware=Hardware("tpu"))
    mesh = parallel.replica_mesh(jax.devices())
    ids = [jax.ShapeDtypeStruct((ROWS, 16), jnp.int32)] * sides
    traced = getattr(translate, name).trace(model, mesh, models.abstract(model), *ids)
    text = traced.lower(lowering_platforms=("tpu",)).as_text()
    assert text.count("@tpu_custom_call") == kernels


@pytest.mark.parametrize("shape", leave(MESHES, MESHES[:3]))
def test_a_step_on_a_mesh_lowers_for_accelerators(shape, monkeypatch):
    """As in ``test_lowering.py``, for eight GPUs with cuDNN's kernel, and for TPUs."""
    monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 91000)
    narrow = {"model.d_k": 8, "model.d_v": 8, "model.attention_dropout": 0.0}
    settings = spread(shape, **narrow, **{"model.dtype": "bfloat16"})
    ids = jax.ShapeDtypeStruct((ROWS, 8), jnp.int32)
    for hardware, kernels in ((Hardware("cuda", (9, 0)), 6), (Hardware("tpu"), 0)):
        model = models.make(settings, V, V, hardware=hardware)
        mesh = parallel.make_mesh(settings.parallel, jax.devices())
        draw = functools.partial(steps.init_state, settings, model)
        state = parallel.placed(mesh, model.partition, jax.eval_shape(draw))
        step: Any = programs.compile_step(settings, model, mesh, state)
        traced = step.trace(state, {"source": ids, "target": ids})
        text = traced.lower(lowering_platforms=(hardware.platform,)).as_text()
        # A kernel that the compiler has to cut, along tensor, is another custom call.
        calls = re.findall(r"custom_call @(__cudnn\$fmha|CustomSPMDPartitioning)", text)
        assert len(calls) == kernels
