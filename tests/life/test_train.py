"""One update is that of the paper; the loop around it says and keeps what it must."""

import functools
import json
import math
import re
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import reference
from support.reference import assert_close
from support.runs import (
    BATCH,
    NO_DROPOUT,
    V,
    assert_identical,
    compilations,
    first_key,
    flat,
    lines_of,
    model_of,
    sentences,
    start_of,
    tiny,
    tiny_run,
)

from transformer import config, models, objective, parallel, programs, train, warm_start
from transformer import step as steps
from transformer.config import Config, UserError
from transformer.data import batches
from transformer.ids import BOS, EOS, PAD
from transformer.nn import dropout, hardware
from transformer.prepare import prepare
from transformer.run import provenance
from transformer.run.checkpoints import Checkpoints
from transformer.run.folder import read_settings

TOKENS = int((BATCH["target"] != PAD).sum())


@functools.cache
def step_of(settings: Config):
    return jax.jit(steps.make_train_step(settings, model_of(settings)))


@functools.cache
def gradients_of(settings: Config):
    """Return params, batch, key -> the gradient of the mean, and the sums."""

    def mean(params, batch, key):
        model = model_of(settings)
        grads, sums = steps.gradients(settings, model, params, batch, key)
        weight = jnp.maximum(sums.weight, 1)
        return jax.tree.map(lambda x: x / weight, grads), sums

    return jax.jit(mean)


def curve(settings: Config, steps: int) -> list[dict[str, float]]:
    """Return the metrics of some steps on one batch."""
    state, history = start_of(settings), []
    for _ in range(steps):
        state, metrics = step_of(settings)(state, BATCH)
        history.append({name: float(value) for name, value in metrics.items()})
    return history


# ---- gradients -----------------------------------------------------------------------


def plain_loss(settings: Config, params: Any, key: Any) -> jax.Array:
    """Section 5.4 token by token: mean of -sum_v q(v) log p(v) over the real tokens."""
    model, (source, target) = model_of(settings), BATCH.values()
    given = jnp.concatenate([jnp.full((8, 1), BOS), target[:, :-1]], axis=1)
    hidden = model.apply({"params": params}, source, given, key)
    logits = model.apply({"params": params}, hidden, method="logits")
    q = 0.9 * jnp.eye(V)[target] + 0.1 / V
    losses = -(q * jnp.log(jax.nn.softmax(logits))).sum(-1)
    return losses[target != PAD].sum() / TOKENS


@pytest.fixture(scope="module")
def first():
    """The parameters at the start, with gradient and sums of the first step."""
    params = start_of(tiny()).params
    return params, *gradients_of(tiny())(params, BATCH, first_key())


def test_the_gradient_is_that_of_an_independent_loss(first):
    params, gradient, sums = first
    plain = functools.partial(plain_loss, tiny(), key=first_key())
    loss, expected = jax.jit(jax.value_and_grad(plain))(params)
    # A path through the model has about 20 layers of operations, whose longest sums
    # have 40 terms (the tokens); what is summed is of size 1.
    assert_close(sums.loss / TOKENS, loss, roundings=60)
    assert_close(flat(gradient), flat(expected), roundings=200, magnitude=1)
    assert sums.weight == TOKENS < BATCH["target"].size


def test_accumulation_is_the_whole_batch(first):
    params, gradient, sums = first
    quarters = gradients_of(tiny(**{"optimizer.accumulation": 4}))
    accumulated, its_sums = quarters(params, BATCH, first_key())
    # The order of sums over 40 tokens is another, forwards and backwards.
    assert_close(flat(accumulated), flat(gradient), roundings=100, magnitude=1)
    assert_close(its_sums.loss, sums.loss, roundings=100)
    assert_close(its_sums.nll, sums.nll, roundings=100)
    assert (its_sums.correct, its_sums.weight) == (sums.correct, sums.weight)
    # Other masks would have been seen.
    other, _ = quarters(params, BATCH, first_key(seed=7))
    assert np.abs(flat(other) - flat(gradient)).max() > 1000 * 100 * 2**-24


def test_r_drop_reads_each_pair_twice_with_other_dropout(first):
    params, gradient, _ = first
    it, key = tiny(**{"loss.r_drop": 5.0}), first_key()
    found, sums = gradients_of(it)(params, BATCH, key)
    keys = key, dropout.fold_in(key, 1 << 16)
    model, (source, target) = model_of(it), BATCH.values()

    def loss(params: Any) -> jax.Array:
        given = jnp.concatenate([jnp.full((8, 1), BOS), target[:, :-1]], axis=1)
        each = []
        for one in keys:
            hidden = model.apply({"params": params}, source, given, one)
            logits = model.apply({"params": params}, hidden, method="logits")
            each.append(jax.nn.log_softmax(logits))
        p, q = each
        apart = (jnp.exp(p) * (p - q) + jnp.exp(q) * (q - p)).sum(-1)
        likely = sum(plain_loss(it, params, one) for one in keys)
        return likely / 2 + 5 / 4 * apart[target != PAD].sum() / TOKENS

    value, expected = jax.jit(jax.value_and_grad(loss))(params)
    assert_close(sums.loss / TOKENS, value, roundings=120)
    assert_close(flat(found), flat(expected), roundings=400, magnitude=1)
    assert np.abs(flat(found) - flat(gradient)).max() > 1000 * 400 * 2**-24
    # So do microbatches, with the masks of their rows; evaluation reads it once.
    quarters = gradients_of(tiny(**{"loss.r_drop": 5.0, "optimizer.accumulation": 4}))
    accumulated, _ = quarters(params, BATCH, key)
    assert_close(flat(accumulated), flat(found), roundings=200, magnitude=1)
    batch: Any = BATCH
    one, other = (
        objective.batch_sums(x, model_of(x), params, batch) for x in (it, tiny())
    )
    assert one.loss == other.loss


def test_empty_rows_change_nothing(first):
    params, gradient, sums = first
    padded = {name: np.pad(ids, ((0, 4), (0, 0))) for name, ids in BATCH.items()}
    # The masks of the first rows do not depend on how many follow.
    with_empty, its_sums = gradients_of(tiny())(params, padded, first_key())
    assert_close(flat(with_empty), flat(gradient), roundings=100, magnitude=1)
    assert_close(its_sums.loss, sums.loss, roundings=100)
    assert (its_sums.correct, its_sums.weight) == (sums.correct, sums.weight)
    nothing = {name: np.zeros_like(ids) for name, ids in BATCH.items()}
    zero, its_sums = gradients_of(tiny())(params, nothing, first_key())
    assert not flat(zero).any()
    assert its_sums.loss == its_sums.weight == 0


def test_slots_beyond_the_learned_positions_change_nothing():
    learned = {"model.positions": "learned", "model.max_positions": 6}
    settings = tiny(**NO_DROPOUT, **learned, **{"data.max_length": 6})
    params = start_of(settings).params
    gradient, sums = gradients_of(settings)(params, BATCH, first_key())
    # What batch.length_multiple = 8 makes of lengths 6 and 5.
    longer = {n: np.pad(x, ((0, 0), (0, 8 - x.shape[1]))) for n, x in BATCH.items()}
    padded, its_sums = gradients_of(settings)(params, longer, first_key())
    assert_close(flat(padded), flat(gradient), roundings=100, magnitude=1)
    assert_close(its_sums.loss, sums.loss, roundings=100)
    assert flat(gradient["target_positions"]).any()


# ---- steps, rates, dropout -----------------------------------------------------------


def test_an_update_of_descent_has_the_rate_of_equation_3():
    settings = tiny(
        **{
            "optimizer.name": "sgd",
            "optimizer.warmup": 2,
            "optimizer.scale": 0.5,
            "optimizer.step_offset": 1,
        }
    )
    state = start_of(settings)
    for number in (1, 2, 3):
        before = state
        state, metrics = step_of(settings)(state, BATCH)
        rate = reference.learning_rate(number + 1, 16, 2, 0.5)
        assert state.step == number
        assert_close(metrics["learning_rate"], rate, roundings=8)
        key = first_key(step=number - 1)
        gradient, sums = gradients_of(tiny())(before.params, BATCH, key)
        taken = flat(before.params) - rate * flat(gradient)
        assert_close(flat(state.params), taken, roundings=200, magnitude=1)
        assert_close(metrics["loss"], sums.loss / TOKENS, roundings=60)
        assert_close(metrics["nll"], sums.nll / TOKENS, roundings=60)
        assert_close(metrics["accuracy"], sums.correct / TOKENS, roundings=2)
        norm = np.linalg.norm(flat(gradient))
        assert_close(metrics["grad_norm"], norm, roundings=200)
        assert metrics["source_tokens"] == (BATCH["source"] != PAD).sum()
        assert metrics["target_tokens"] == TOKENS


def test_a_factor_lowers_the_rate_and_the_update():
    rule = {"name": "sgd", "schedule": "plateau", "rate": 0.5, "warmup": 1}
    rule |= {"decay": 0.25}
    settings = tiny(**{f"optimizer.{key}": value for key, value in rule.items()})
    start = start_of(settings)
    lowered = start._replace(factor=jnp.float32(0.25))
    found = [step_of(settings)(state, BATCH) for state in (start, lowered)]
    assert [metrics["learning_rate"] for _, metrics in found] == [0.5, 0.125]
    whole, less = (flat(state.params) - flat(start.params) for state, _ in found)
    assert abs(whole).max() > 1e-3
    assert_close(less, 0.25 * whole, roundings=8, magnitude=1)


def test_the_same_seed_takes_the_same_steps_bit_by_bit():
    def two_steps(settings: Config):
        state = start_of(settings)
        for _ in range(2):
            state, metrics = step_of(tiny())(state, BATCH)
        return state, metrics

    assert_identical(two_steps(tiny()), two_steps(tiny()))
    one, other = two_steps(tiny())[0], two_steps(tiny(seed=1))[0]
    assert (flat(one.params) != flat(other.params)).any()


def test_dropout_differs_by_step_and_seed_and_not_otherwise(first):
    params = first[0]

    def loss(seed, step):
        sums = gradients_of(tiny())(params, BATCH, first_key(step, seed))[1]
        return float(sums.loss)

    drawn = [loss(*divmod(n, 4)) for n in range(8)]
    assert len(set(drawn)) == 8
    assert drawn == [loss(*divmod(n, 4)) for n in range(8)]


# ---- numbers that are not finite -----------------------------------------------------


def poisoned(state: steps.State, value: float) -> steps.State:
    table = state.params["source_embedding"].at[EOS, 0].set(value)
    return state._replace(params=state.params | {"source_embedding": table})


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_step_that_is_not_finite_is_skipped_and_counted(value):
    settings = tiny()
    state, _ = step_of(settings)(start_of(settings), BATCH)
    healthy, moments = state.params, state.opt_state.inner_state
    state = poisoned(state, value)
    for count in (1, 2):
        before = state
        state, metrics = step_of(settings)(state, BATCH)
        assert_identical(state.params, before.params)
        assert_identical(state.opt_state.inner_state, moments)
        assert not math.isfinite(metrics["grad_norm"])
        assert metrics["skipped"] == metrics["skipped_in_a_row"] == count
        assert state.step == 1 + count
    state, metrics = step_of(settings)(state._replace(params=healthy), BATCH)
    assert (metrics["skipped"], metrics["skipped_in_a_row"]) == (2, 0)
    # It is the second update that was made, so it has the second rate.
    rate = reference.learning_rate(2, 16, 20)
    assert_close(metrics["learning_rate"], rate, roundings=8)
    assert state.step == 4
    assert (flat(state.params) != flat(healthy)).any()


# ---- curves --------------------------------------------------------------------------

# A change of these numbers is a change of the mathematics (or of jax's random numbers):
# print(curve(tiny(), 6)) makes new ones. The same steps in two accumulated parts, the
# same mathematics rounded otherwise, are off by less than 1e-5.
GOLDEN = {
    "loss": [3.760099, 3.479549, 3.172415, 3.005575, 2.816417, 2.701938],
    "grad_norm": [2.349336, 2.003030, 1.373867, 1.388024, 1.040076, 0.919090],
}


def test_the_golden_curve():
    history = curve(tiny(), 6)
    for name, golden in GOLDEN.items():
        values = [metrics[name] for metrics in history]
        np.testing.assert_allclose(values, golden, rtol=0, atol=1e-4)


def test_bfloat16_stays_close_to_float32():
    exact = [m["loss"] for m in curve(tiny(), 6)]
    rounded = [m["loss"] for m in curve(tiny(**{"model.dtype": "bfloat16"}), 6)]
    difference = np.abs(np.subtract(exact, rounded))
    assert difference.max() < 2**-8 * max(exact)
    # Where nothing multiplies bfloat16, operands stay float32.
    units = hardware.here().operands("bfloat16") == "bfloat16"
    assert (difference.max() > 0) == units


# ---- sizes of one's own text ---------------------------------------------------------


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"name": "text"}, "on this machine use .*:quick,pairs=200, in another"),
        (
            {"name": "text_quick", "train.steps": 2000},
            r"200 pairs will be read \d+ times; for fewer, use .*:quick,pairs=200,",
        ),
        (  # the same pairs in half as many steps
            {"name": "text_quick", "train.steps": 2000, "batch.lengths": 2},
            "200 pairs will be read {} times; for fewer, use",
        ),
        # What it chooses for so few pairs itself is not called too long.
        ({"name": "text_quick", "train.steps": 30 * 15 * 200 // 128}, None),
        ({"name": "text_quick", "train.steps": 30}, None),
        ({"name": "number_words", "train.steps": 1000}, None),
    ],
)
def test_a_run_says_which_size_suits_its_text(tmp_path, changes, said):
    settings = tiny_run(tmp_path / "text", **changes)
    prepared = prepare(settings, tmp_path / "corpus")
    plan = batches.Batches(prepared.corpora["train"], settings.batch, 0)
    mesh = parallel.make_mesh(settings.parallel, jax.devices()[:1])
    lines: list[str] = []
    train._introduce(settings, mesh, plan, lines.append)
    found = [line for line in lines if line.startswith("size: ")]
    assert len(found) == (said is not None)
    times = 2000 * plan.lengths / plan.per_epoch
    assert said is None or re.search(said.replace("{}", f"{times:.0f}"), found[0])


# ---- steps of several batches --------------------------------------------------------


def several(settings: Config):
    mesh = parallel.make_mesh(settings.parallel, jax.devices()[:1])
    start = start_of(settings)
    step = programs.compile_step(settings, model_of(settings), mesh, start)
    return lambda *parts: step(jax.tree.map(jnp.copy, start), *parts)


def test_a_step_of_two_lengths_is_one_of_all_their_pairs():
    plain: dict[str, Any] = dict(NO_DROPOUT)
    plain |= {"optimizer.name": "sgd", "optimizer.scale": 4.0}
    short = {"source": sentences(12, 3, seed=3), "target": sentences(12, 9, seed=4)}
    together = {
        side: np.concatenate([np.pad(x, ((0, 0), (0, 9 - x.shape[1]))) for x in both])
        for side in ("source", "target")
        for both in [(BATCH[side], short[side])]
    }
    one = tiny(**plain)
    expected, its_metrics = step_of(one)(start_of(one), together)
    state, metrics = several(tiny(**plain, **{"batch.lengths": 2}))(BATCH, short)
    assert_close(flat(state.params), flat(expected.params), roundings=200, magnitude=1)
    assert metrics.keys() == its_metrics.keys()
    for name, value in its_metrics.items():
        assert_close(metrics[name], value, roundings=100)
    assert state.step == 1 and metrics["target_tokens"] > TOKENS


def test_the_batches_of_a_step_have_masks_of_their_own():
    step = several(tiny(**{"batch.lengths": 2, "model.dropout": 0.5}))
    empty = {name: np.zeros_like(ids) for name, ids in BATCH.items()}
    orders = (BATCH, empty), (empty, BATCH), (BATCH, BATCH)
    first, second, both = (float(step(*parts)[1]["loss"]) for parts in orders)
    assert abs(first - second) > 0.001
    assert both == pytest.approx((first + second) / 2, rel=1e-5)


# ---- the loop ------------------------------------------------------------------------


# The step does not depend on the keys that these tests change between runs, and jax
# compiles a function once.
_MAKE = steps.make_train_step
_KEPT: dict[Any, Any] = {}


def kept_train_step(settings, model, mesh):
    return _KEPT.setdefault(model, _MAKE(settings, model, mesh))


class Run(NamedTuple):
    settings: Config
    workdir: Path
    said: list[str]
    logged: list[str]
    lines: list[dict[str, Any]]
    first: str  # when the first step was shown


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A short run, its final evaluation apart, with what jax compiled for it."""
    folder, workdir = (tmp_path_factory.mktemp(name) for name in ("data", "run"))
    settings = tiny_run(folder, **{"optimizer.scale": 4.0, "model.dropout": 0.1})
    said: list[str] = []
    first: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        if line.startswith("step ") and not first:
            first.append(provenance.now())
            time.sleep(1)  # so that the end is another second

    with pytest.MonkeyPatch.context() as patch, compilations() as logged:
        patch.setattr(
            train, "evaluate_held", lambda workdir, **_: workdir / "results.json"
        )
        patch.setattr(programs, "make_train_step", kept_train_step)
        assert train.train(settings, workdir, say) == workdir / "results.json"
    return Run(settings, workdir, said, logged, lines_of(workdir), *first)


def plan_of(run: Run) -> batches.Batches:
    corpus = prepare(run.settings, run.workdir).corpora["train"]
    return batches.Batches(corpus, run.settings.batch, run.settings.seed)


def test_a_step_is_compiled_once_a_shape(run):
    compiled = [m for m in run.logged if re.match(r"Compiling jit\(train_step\)", m)]
    plan = plan_of(run)
    shapes = {plan.batch_at(step)["source"].shape for step in range(30)}
    assert len(shapes) == 2
    assert len(compiled) == 2
    assert all("[compile_" in line for line in compiled)


def test_the_programs_of_the_loop_do_what_the_jitted_step_does(run):
    prepared, plan = prepare(run.settings, run.workdir), plan_of(run)
    model = models.make(run.settings, *prepared.vocabulary.sizes)
    step = jax.jit(kept_train_step(run.settings, model, None))
    state = jax.jit(lambda: steps.init_state(run.settings, model))()
    for number in range(30):
        state, _ = step(state, plan.batch_at(number))
    with Checkpoints(run.workdir / "checkpoints", keep=2) as checkpoints:
        _, tree, _ = checkpoints.restore(jax.eval_shape(lambda: state).parts())
    assert_identical(tree, state.parts())


def test_a_step_waits_for_a_program_that_is_being_compiled(monkeypatch):
    settings, let = tiny(), threading.Event()
    compile_it = jax.stages.Lowered.compile

    def slowly(lowered: jax.stages.Lowered) -> jax.stages.Compiled:
        assert let.wait(60)
        return compile_it(lowered)

    monkeypatch.setattr(jax.stages.Lowered, "compile", slowly)
    mesh = parallel.make_mesh(settings.parallel, jax.devices()[:1])
    start = start_of(settings)
    step: Any = programs.compile_step(settings, model_of(settings), mesh, start)
    (program,) = step.begin([(8, 6, 5)])
    assert not step.wait([BATCH], stopped=lambda: True)
    threading.Timer(0.3, let.set).start()
    taken = step(jax.tree.map(jnp.copy, start), BATCH)
    assert program.done() and step.begin([(8, 6, 5)]) == [program]
    assert step.wait([BATCH], stopped=lambda: True)
    assert_identical(taken, step(jax.tree.map(jnp.copy, start), BATCH))
    # Another program rounds elsewhere, some numbers once or twice.
    expected = step_of(settings)(start, BATCH)
    for a, b in zip(
        jax.tree.leaves(taken[0].params),
        jax.tree.leaves(expected[0].params),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=2**-21, atol=1e-8)


def test_metrics_have_a_line_a_step_and_one_a_validation(run):
    steps = [line["step"] for line in run.lines if "loss" in line]
    validated = [line["step"] for line in run.lines if "validation_nll" in line]
    assert steps == list(range(1, 31))
    assert validated == [5, 6, 10, 12, 15, 18, 20, 24, 25, 30]  # all that are planned
    assert [line["step"] for line in run.lines] == sorted([*steps, *validated])
    for line in run.lines:
        if "loss" in line:
            assert {"nll", "accuracy", "grad_norm", "tokens_per_second"} <= set(line)
            batch = plan_of(run).batch_at(line["step"] - 1)
            assert line["source_tokens"] == (batch["source"] != PAD).sum()
            assert line["target_tokens"] == (batch["target"] != PAD).sum()
            rate = reference.learning_rate(line["step"], 16, 20, 4.0)
            assert_close(line["learning_rate"], rate, roundings=8)
        else:
            perplexity = math.exp(line["validation_nll"])
            assert line["validation_perplexity"] == pytest.approx(perplexity)


def test_validation_is_that_of_the_parameters_after_the_step(run):
    prepared = prepare(run.settings, run.workdir)
    size = prepared.vocabulary.target.size
    model = models.make(run.settings, size, size)
    corpus, total, count = prepared.corpora["validation"], 0.0, 0
    with Checkpoints(run.workdir / "checkpoints", keep=2) as checkpoints:
        abstract = jax.eval_shape(lambda: steps.init_state(run.settings, model))
        _, tree, _ = checkpoints.restore({"params": abstract.params})
    for source, target in zip(corpus.source, corpus.target, strict=True):
        pad = np.zeros((1, 7), np.int32)
        pair = pad.copy(), pad.copy()
        for row, ids in zip(pair, (source, target), strict=True):
            row[0, : len(ids)] = ids
        hidden = model.apply(
            {"params": tree["params"]},
            pair[0],
            objective.decoder_inputs(jnp.array(pair[1])),
        )
        logits: Any = model.apply({"params": tree["params"]}, hidden, method="logits")
        log_p = np.asarray(jax.nn.log_softmax(logits), np.float64)[0]
        total -= sum(log_p[t, i] for t, i in enumerate(target))
        count += len(target)
    last = [line for line in run.lines if "validation_nll" in line][-1]
    # One pair at a time, unsmoothed, without dropout: only roundings differ.
    assert_close(last["validation_nll"], total / count, roundings=60)


def test_a_run_of_two_lengths_a_step_compiles_shapes_not_pairs_of_them(run, tmp_path):
    changes = {"batch.lengths": 2, "train.steps": 8, "train.evaluate_every": 0}
    settings = tiny_run(Path(run.settings.data.dir), **changes)
    said: list[str] = []
    with pytest.MonkeyPatch.context() as patch, compilations() as logged:
        patch.setattr(
            train, "evaluate_held", lambda workdir, **_: workdir / "results.json"
        )
        train.train(settings, tmp_path, said.append)
    for name, count in (("differentiate", 2), ("add", 1), ("update", 1)):
        compiled = [line for line in logged if f"Compiling jit({name})" in line]
        assert len(compiled) == count
        assert all("[compile_" in line for line in compiled)
    assert any("shapes, 2 per step, on average" in line for line in said)
    peak = reference.learning_rate(8, 16, 20)  # still warming up
    assert f"learning rate: at most {peak:.3g}, at step 8" in said
    corpus = prepare(settings, tmp_path).corpora["train"]
    plan = batches.Batches(corpus, settings.batch, settings.seed)
    pairs = set()
    for line in (line for line in lines_of(tmp_path) if "loss" in line):
        parts = [plan.batch_at(2 * line["step"] - 2 + i)["target"] for i in range(2)]
        assert line["target_tokens"] == sum((x != PAD).sum() for x in parts)
        pairs.add(tuple(x.shape for x in parts))
    assert len(pairs) > 2


def test_peak_rate_padding_and_sizes_are_said_before_the_first_step(run):
    first = next(i for i, line in enumerate(run.said) if line.startswith("step 1/30"))
    text = "\n".join(run.said[:first])
    peak = reference.learning_rate(20, 16, 20, 4.0)
    assert f"learning rate: at most {peak:.3g}, at step 20" in text
    assert "16 rows of logits (loss.block), 4,096 padded source tokens" in text
    plan = plan_of(run)
    epoch = [plan.batch_at(step) for step in range(plan.per_epoch)]
    slots = sum(batch[side].size for batch in epoch for side in batch)
    real = sum((batch[side] != PAD).sum() for batch in epoch for side in batch)
    assert f"{1 - real / slots:.1%} padding" in text
    assert f"batches: {plan.per_epoch} per epoch in 2 shapes" in text


def test_the_last_and_the_best_checkpoints_are_kept(run):
    nll = {line["step"]: line.get("validation_nll") for line in run.lines}
    with Checkpoints(run.workdir / "checkpoints", keep=2) as checkpoints:
        kept = checkpoints.steps()
    best = min(range(5, 31, 5), key=lambda step: nll[step])
    assert kept == sorted({25, 30, best})


def test_the_record_names_what_made_the_run(run):
    record = json.loads((run.workdir / "record.json").read_text())
    prepared = prepare(run.settings, run.workdir)
    assert record["config_digest"] == config.digest(run.settings)
    assert record["vocabulary_digest"] == prepared.vocabulary.digest
    assert record["data"] == prepared.checksums
    assert record["data"]["train"]
    assert record["seed"] == 0
    assert record["started"] <= run.first < record["ended"]
    # What was taken is recorded; config.json keeps what was written, see below.
    assert run.settings.decode.tokens == 0
    assert record["sizes"] == {"loss.block": 16, "decode.tokens": 4096}
    steps = [line["target_tokens"] for line in run.lines if "loss" in line]
    assert record["tokens"] == sum(steps)
    assert read_settings(run.workdir) == run.settings


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_step_of_no_finite_loss_is_skipped_with_its_finite_gradient(loss):
    settings = tiny()
    halves = steps.halves(settings, model_of(settings), None)
    state = start_of(settings)
    gradient = halves.differentiate(state, jax.tree.map(jnp.asarray, BATCH), None)
    after, metrics = halves.update(state, gradient)
    assert metrics["skipped_in_a_row"] == 0
    assert (flat(after.params) != flat(state.params)).any()
    overflowed = gradient.sums._replace(loss=jnp.float32(loss))
    after, metrics = halves.update(state, gradient._replace(sums=overflowed))
    assert metrics["skipped_in_a_row"] == 1 and np.isfinite(metrics["grad_norm"])
    np.testing.assert_array_equal(flat(after.params), flat(state.params))


def test_a_run_that_blows_up_stops_and_says_what_to_try(run, tmp_path, monkeypatch):
    changes = {"optimizer.scale": 4.0, "optimizer.nonfinite_limit": 3}
    settings = tiny_run(Path(run.settings.data.dir), **changes)
    draw = steps.init_state
    monkeypatch.setattr(
        warm_start, "init_state", lambda *given: poisoned(draw(*given), math.nan)
    )
    monkeypatch.setattr(programs, "make_train_step", kept_train_step)
    with pytest.raises(UserError) as error:
        train.train(settings, tmp_path, lambda line: None)
    text = str(error.value)
    assert text.startswith("step 3: ") and "3 steps in a row" in text
    assert "optimizer.scale" in text and "\n" not in text
    losses = [line["loss"] for line in lines_of(tmp_path)]
    assert losses == [None, None]


def test_thirty_steps_learn_how_often_a_word_occurs(run):
    prepared = prepare(run.settings, run.workdir)
    ids = np.concatenate(list(prepared.corpora["train"].target))
    shares = np.bincount(ids)[EOS:] / len(ids)
    entropy = -sum(p * math.log(p) for p in shares if p)
    nll = [line["nll"] for line in run.lines if "nll" in line]
    guessing = math.log(prepared.vocabulary.target.size)  # 0.8 above the entropy
    assert nll[0] > guessing
    assert np.mean(nll[-5:]) < entropy + 0.3 * (guessing - entropy)
