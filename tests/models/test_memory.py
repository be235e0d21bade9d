"""Layers computed again or in a loop: the same numbers, less memory or program."""

import dataclasses
import functools
import math
import shutil
import types
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.models import GROWTH, LAYER
from support.reference import assert_close
from support.runs import BATCH, V, assert_identical, flat, tiny, tiny_run

from transformer import config, models, train
from transformer import step as steps
from transformer.config import Config
from transformer.models import Model, stacks
from transformer.models.transformer import STACKS
from transformer.nn import dropout
from transformer.nn.hardware import Hardware
from transformer.prepare import prepare
from transformer.run.checkpoints import Checkpoints
from transformer.tools import flops, traces
from transformer.tools.bench.table import bench
from transformer.tools.traces import Case

LAYERS = 2
FORMS = ("unrolled", "scanned")
WAYS = [(remat, form) for remat in ("none", "layers", "dots") for form in FORMS]
# Masks differ by layer and place, not by kind: one kind is enough, and compiles faster.
ONE_DROPOUT = {"model.attention_dropout": 0.0, "model.relu_dropout": 0.0}
S, T = BATCH["source"].shape[1], BATCH["target"].shape[1]


def settings(remat: str, form: str, **changes: Any) -> Config:
    how = {"model.layers": LAYERS, "parallel.remat": remat, "parallel.layers": form}
    return tiny(**(ONE_DROPOUT | how | changes))


def model_of(c: Config, hardware: Hardware | None = None) -> Model:
    return models.make(c, V, V, hardware)


def gradients(c: Config, hardware: Hardware | None = None) -> Any:
    return functools.partial(steps.gradients, c, model_of(c, hardware))


def key_of(c: Config, seed: int = 0) -> Any:
    return steps.dropout_key(jnp.uint32(seed), jnp.int32(0))


def params_at(workdir: Path, c: Config, step: int) -> np.ndarray:
    """Return the parameters of a checkpoint, as one vector."""
    size = prepare(c, workdir).vocabulary.target.size
    shapes = models.abstract(models.make(c, size, size))
    with Checkpoints(workdir / "checkpoints", c.train.keep) as checkpoints:
        return flat(checkpoints.restore({"params": shapes}, step)[1])


@functools.cache
def params_of(norm: str) -> Any:
    c = settings("none", "unrolled", **{"model.norm": norm})
    return jax.jit(lambda: models.init(model_of(c), jax.random.key(0)))()


def in_form(c: Config, tree: Any) -> Any:
    return stacks.stack(tuple(STACKS), tree) if c.parallel.layers == "scanned" else tree


def shapes_of(c: Config) -> Any:
    return jax.eval_shape(lambda p: in_form(c, p), models.abstract(model_of(c)))


@functools.cache
def gradients_of(c: Config, hardware: Hardware | None) -> Any:
    return jax.jit(gradients(c, hardware))


@functools.cache
def differentiated(
    c: Config, seed: int = 0, hardware: Hardware | None = None
) -> tuple[np.ndarray, Any]:
    """Return the gradient of all parameters, and the sums."""
    params = in_form(c, params_of(config.transformer(c.model).norm))
    found, sums = gradients_of(c, hardware)(params, BATCH, key_of(c, seed))
    return flat(stacks.unstack(tuple(STACKS), found)), sums


# Forward and back through both stacks, the roundings of test_model_reference.py; the
# gradient's own sums run over the 16 or 32 numbers of a layer or 48 slots.
ROUNDINGS = GROWTH * round(5 * math.sqrt(2 * 2 * LAYERS * LAYER + 48))


# ---- the same numbers ----------------------------------------------------------------


@pytest.mark.parametrize("remat, form", [WAYS[2], WAYS[1], WAYS[5]])
def test_value_and_gradient_are_those_of_layers_in_a_row(remat, form):
    plain = settings("none", "unrolled")
    expected, its_sums = differentiated(plain)
    found, sums = differentiated(settings(remat, form))
    assert_close(sums.loss, its_sums.loss, ROUNDINGS)
    assert_close(found, expected, ROUNDINGS)
    # Another mask in any layer would have been seen.
    other, _ = differentiated(plain, seed=1)
    assert abs(other - expected).max() > 100 * ROUNDINGS * 2**-24 * abs(expected).max()


TPU = Hardware("tpu")


def test_an_accelerator_s_form_has_the_same_value_and_gradient():
    """It keeps less of a layer for the backward pass; masks are made again."""
    expected, its_sums = differentiated(settings("none", "unrolled"))
    found, sums = differentiated(settings("none", "scanned"), hardware=TPU)
    assert_close(sums.loss, its_sums.loss, ROUNDINGS)
    assert_close(found, expected, ROUNDINGS)


@pytest.mark.thorough
def test_an_accelerator_rounds_no_more_than_operands():
    """What it stores in bfloat16, the next product would have rounded."""
    expected, _ = differentiated(settings("none", "unrolled"))
    low = {"model.dtype": "bfloat16"}

    def off(form: str, hardware: Hardware) -> float:
        found, _ = differentiated(settings("none", form, **low), hardware=hardware)
        return np.sqrt(np.square(found - expected).mean())

    on_cpu = off("unrolled", Hardware("cpu"))
    # It also rounds the operands of attention, 6 products of a pair of layers beside
    # the 14 with parameters; a mean of so many gradients is known to some tenths.
    assert on_cpu / 2 < off("scanned", TPU) < 2 * on_cpu
    assert on_cpu > 2.0**-9 * np.sqrt(np.square(expected).mean())


def test_layers_are_put_together_and_taken_apart_wherever_parameters_are():
    c = settings("none", "scanned", **{"model.norm": "pre"})
    draw = jax.jit(lambda: steps.init_state(c, model_of(c)))
    together, apart = draw(), stacks.unstack(tuple(STACKS), draw())
    plain = dataclasses.replace(c, parallel=settings("none", "unrolled").parallel)
    expected = jax.jit(lambda: steps.init_state(plain, model_of(plain)))()
    assert_identical(apart, expected)  # of the same names too
    assert_identical(stacks.stack(tuple(STACKS), apart), together)
    moments = together.opt_state.inner_state[0].mu
    for tree in (together.params, moments):
        for stack in STACKS:
            assert {len(x) for x in jax.tree.leaves(tree[stack])} == {LAYERS}
    for i in range(LAYERS):
        found = together.params["decoder"]["feed_forward"]["kernel_1"][i]
        np.testing.assert_array_equal(
            found, apart.params[f"decoder_{i}"]["feed_forward"]["kernel_1"]
        )
    assert_identical(stacks.stack(tuple(STACKS), together), together)
    assert_identical(stacks.unstack(tuple(STACKS), apart), apart)


def test_an_optimiser_of_norms_has_layers_apart_also_on_an_accelerator():
    for name, scanned in (("adamw", True), ("lamb", False)):
        c = settings("none", "auto", **{"optimizer.name": name})
        assert models.scans_layers(c, model_of(c, TPU)) is scanned


@pytest.mark.slow
def test_a_run_goes_on_in_a_loop_and_its_checkpoints_stay_the_same(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(train, "evaluate_held", lambda workdir, **_: workdir)
    descent = {"optimizer.name": "sgd", "optimizer.scale": 4.0, "train.steps": 10}
    short = {"model.layers": LAYERS, "batch.shapes": 1, "train.evaluate_every": 0}
    plain = tiny_run(tmp_path / "data", **(descent | short), **{"model.dropout": 0.1})
    looped = dataclasses.replace(plain, parallel=settings("layers", "scanned").parallel)
    workdir = tmp_path / "run"
    workdir.mkdir()
    train.train(plain, workdir, lambda line: None)
    unbroken = params_at(workdir, plain, 10)
    shutil.rmtree(workdir / "checkpoints" / "10")
    said: list[str] = []
    train.train(looped, workdir, said.append)
    assert "resuming from step 5" in said
    found = params_at(workdir, plain, 10)
    # Gradients are off as above, in each of 5 updates of a rate of at most 0.11.
    assert_close(found, unbroken, 5 * ROUNDINGS)


def test_weights_that_are_asked_for_come_from_every_layer():
    c = settings("layers", "scanned")
    given = {"params": shapes_of(settings("layers", "unrolled"))}, *BATCH.values()
    run = functools.partial(model_of(c).apply, mutable=["attention"])
    for key in (None, dropout.make_key(0)):
        _, found = jax.eval_shape(run, *given, key)
        stacks = {f"{s}_{i}" for s in ("encoder", "decoder") for i in range(LAYERS)}
        assert set(found["attention"]) == stacks


# ---- what is computed again and what is kept -----------------------------------------


@pytest.mark.parametrize("remat, form", WAYS)
def test_the_products_made_twice_are_those_of_the_formula(remat, form):
    c = settings(remat, form)
    counted = flops.traced(gradients(c), shapes_of(c), BATCH, key_of(c))
    again = len(BATCH["source"]) * flops.recomputed(c.model, S, T, remat)
    rows = len(BATCH["source"])
    assert counted - flops.train_step(c.model, rows, S, T, V) == again


def test_the_products_without_parameters_by_hand():
    c = config.transformer(settings("dots", "unrolled").model)
    c = dataclasses.replace(c, layers=7, heads=2, d_k=3, d_v=5)
    # 2 a multiply-add, 7 layers, 2 heads of 3 + 5, attentions of 4x4, 6x6 and 6x4.
    assert flops.recomputed(c, 4, 6, "dots") == 2 * 7 * 2 * 8 * (16 + 36 + 24)


def kept_by_a_layer(remat: str) -> int:
    """Return the numbers that one more layer keeps, its parameters left out."""

    def kept(count: int) -> int:
        c = settings(remat, "unrolled", **{"model.layers": count})
        model, key = model_of(c), key_of(c)

        def back(params):
            def run(p):
                return model.apply({"params": p}, BATCH["source"], BATCH["target"], key)

            return jax.vjp(run, params)[1]

        shapes = jax.eval_shape(back, models.abstract(model))
        rows = len(BATCH["source"])
        return sum(x.size for x in jax.tree.leaves(shapes) if x.shape[:1] == (rows,))

    return kept(2) - kept(1)


def test_a_layer_keeps_its_input_and_what_the_policy_names():
    c = config.transformer(settings("dots", "unrolled").model)
    rows = len(BATCH["source"])
    inputs = rows * (S + T) * c.d_model
    keys, values = c.heads * c.d_k, c.heads * c.d_v
    encoder = S * (2 * keys + values + c.d_ff + 2 * c.d_model)
    decoder = T * (3 * keys + values + c.d_ff + 3 * c.d_model) + S * (keys + values)
    assert kept_by_a_layer("layers") == inputs
    assert kept_by_a_layer("dots") == inputs + rows * (encoder + decoder)
    assert kept_by_a_layer("none") > 2 * kept_by_a_layer("dots")


@pytest.mark.parametrize("dtype, size", [("float32", 4), ("bfloat16", 2)])
def test_a_loop_on_an_accelerator_keeps_no_weights_and_no_masks(dtype, size):
    """Bytes a layer, of which its input and the sums of its residuals are float32."""
    count = 3
    changes = {"model.layers": count, "model.dtype": dtype, "model.relu_dropout": 0.1}
    c = settings("none", "scanned", **changes)
    model, key = model_of(c, TPU), key_of(c)

    def back(params):
        def run(p):
            return model.apply({"params": p}, BATCH["source"], BATCH["target"], key)

        return jax.vjp(run, params)[1]

    shapes = jax.tree.leaves(jax.eval_shape(back, shapes_of(c)))
    rows, m = len(BATCH["source"]), config.transformer(c.model)
    kept = [x for x in shapes if x.shape[:2] == (count, rows)]
    keys, values = m.heads * m.d_k, m.heads * m.d_v
    means = 2 * 4  # a mean and a variance each norm
    encoder = S * (
        size * (2 * keys + 2 * values + m.d_ff) + 4 * 3 * m.d_model + 2 * means
    )
    decoder = T * (
        size * (3 * keys + 3 * values + m.d_ff) + 4 * 4 * m.d_model + 3 * means
    )
    decoder += S * size * (keys + values)
    assert sum(x.size * x.dtype.itemsize for x in kept) == count * rows * (
        encoder + decoder
    )


# ---- the size of the program ---------------------------------------------------------


def instructions(count: int, form: str, lengths: int = 1) -> int:
    """Return how many the train step hands to the compiler."""
    sizes = {"model.layers": count, "tokenizer.vocab_size": V, "batch.lengths": lengths}
    c = settings("none", form, **sizes)
    traced = traces.train_step(Case(c, (V, V), (8, 6, 6), jax.devices()))
    text = traced.lower().as_text()
    return sum(" = " in line for line in text.splitlines())


def test_layers_are_scanned_where_it_is_said_and_else_on_accelerators():
    tpu, cpu = Hardware("tpu"), Hardware("cpu")
    for wanted, kind, stacked in (
        ("auto", tpu, True),
        ("auto", cpu, False),
        ("unrolled", tpu, False),
        ("scanned", cpu, True),
    ):
        c = settings("none", wanted)
        model = models.make(c, V, V, hardware=kind)
        state = jax.eval_shape(functools.partial(steps.init_state, c, model))
        assert ("encoder_0" in state.params) is not stacked
        assert ("encoder" in state.params) is stacked


def test_six_layers_in_a_loop_are_as_much_program_as_two():
    two, six = instructions(2, "scanned"), instructions(6, "scanned")
    assert six == two
    # A step of several batches, which are programs of their own, is shown as one batch.
    assert instructions(2, "scanned", lengths=2) == two
    assert instructions(6, "unrolled") > 2 * two


# ---- what the compiler says ----------------------------------------------------------


@pytest.mark.thorough
def test_a_step_that_computes_again_has_fewer_temporaries():
    changes = {"model.layers": 4, "tokenizer.vocab_size": 30}

    def temporaries(remat):
        c = settings(remat, "scanned", **changes)
        traced = traces.train_step(Case(c, (30, 30), (32, 16, 16), jax.devices()))
        compiled: Any = traced.lower().compile()
        return compiled.memory_analysis().temp_size_in_bytes

    # Of a pair of layers "layers" keeps the inputs, 2 x 16 x 16 floats a sentence, and
    # "none" at least the float32 weights of 3 attentions of 2 heads of 16 x 16 more.
    assert (
        temporaries("none") - temporaries("layers") > (4 - 1) * 32 * 3 * 2 * 16 * 16 * 4
    )


def test_the_bench_tells_the_memory_of_every_way(monkeypatch):
    tried = []

    def train_step(case):
        how = case.settings.parallel
        tried.append((how.remat, how.layers, *case.shape))
        size = types.SimpleNamespace(temp_size_in_bytes=1e6 * len(tried))
        program = types.SimpleNamespace(memory_analysis=lambda: size)
        lowered = types.SimpleNamespace(compile=lambda: program)
        return types.SimpleNamespace(lower=lambda: lowered)

    monkeypatch.setattr(traces, "train_step", train_step)
    rows = bench(tiny(), [], "memory", tokens=512, length=16, log=lambda _: None)
    assert rows["batch"] == "32 x 16"
    assert sorted(tried) == sorted((*way, 32, 16, 16) for way in WAYS)
    for number, (remat, form, *_) in enumerate(tried, 1):
        assert rows[f"remat={remat}, layers={form}: temporaries, MB"] == number
