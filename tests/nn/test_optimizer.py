"""The paper's schedule at hand-computed steps; Adam against the float64 reference."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import reference
from support.configs import base
from support.reference import assert_close

from transformer import config
from transformer.nn.optimizer import (
    OPTIMIZERS,
    apply,
    learning_rate,
    make_optimizer,
    moments,
    skip_nonfinite,
    without_gradient,
)

PAPER = config.Optimizer(
    name="adam",
    options="",
    schedule="inverse_sqrt",
    scale=1.0,
    rate=0.0,
    warmup=4000,
    step_offset=0,
    b1=0.9,
    b2=0.98,
    epsilon=1e-9,
    decay=1.0,
    decay_patience=0,
    decay_after=0.0,
    decay_every=0.0,
    least_rate=0.0,
    l2=0.0,
    clip_norm=0.0,
    accumulation=1,
    frozen="",
    nonfinite_limit=10,
)
# Descent whose first step has the rate 0.5: 4^-.5 * 1 * 1^-1.5.
DESCENT = dataclasses.replace(PAPER, name="sgd", warmup=1)
D = 4


def run(settings, gradients, d_model=D, start=None):
    """Return the parameters after each update, and the last state."""
    optimizer = make_optimizer(settings, d_model)
    parameters = start if start is not None else jnp.zeros_like(gradients[0])
    state, history = optimizer.init(parameters), []
    update = jax.jit(optimizer.update)
    for gradient in gradients:
        updates, state = update(gradient, state, parameters)
        parameters = optax.apply_updates(parameters, updates)
        history.append(parameters)
    return history, state


# --------------------------------------------------------------------------- schedule


@pytest.mark.parametrize("d_model, peak", [(512, 6.99e-4), (1024, 4.94e-4)])
def test_peak_is_the_papers(d_model, peak):
    rate = float(learning_rate(4000, d_model, 4000))
    assert round(rate, 6) == peak
    for step in (3999, 4001):
        assert float(learning_rate(step, d_model, 4000)) < rate


@pytest.mark.parametrize(
    "step, expected",
    [
        (1, 1 / 16 / 8000),  # d_model 256, warm-up 400: 256^-.5 and 400^-1.5
        (100, 100 / 16 / 8000),
        (400, 1 / 16 / 20),
        (1600, 1 / 16 / 40),  # four times the steps, half the rate
        (10_000, 1 / 16 / 100),
    ],
)
def test_schedule_by_hand(step, expected):
    assert float(learning_rate(step, 256, 400)) == pytest.approx(expected, rel=1e-6)
    tripled = float(learning_rate(step, 256, 400, 3.0))
    assert tripled == pytest.approx(3 * expected, rel=1e-6)


@given(
    step=st.integers(1, 10**6),
    d_model=st.integers(1, 4096),
    warmup=st.integers(1, 10**5),
)
def test_schedule_equals_reference(step, d_model, warmup):
    # Two powers, two products: within 8 roundings even where a power takes four.
    expected = reference.learning_rate(step, d_model, warmup)
    assert_close(learning_rate(step, d_model, warmup), expected, 8)


@pytest.mark.parametrize("offset", [0, 1, 7])
def test_nth_update_has_the_rate_of_step_n_plus_offset(offset):
    settings = dataclasses.replace(DESCENT, warmup=3, step_offset=offset)
    history, _ = run(settings, [jnp.ones(1)] * 6)
    positions = np.concatenate([[0], np.ravel(history)])
    expected = [reference.learning_rate(n + offset, D, 3) for n in range(1, 7)]
    assert_close(-np.diff(positions), expected, 8, magnitude=abs(positions).max())


# ------------------------------------------------------------------------------- Adam


@pytest.mark.parametrize("b1, b2, epsilon", [(0.9, 0.98, 1e-9), (0.5, 0.9, 0.1)])
def test_adam_equals_reference_over_five_steps(b1, b2, epsilon):
    rng = np.random.default_rng(0)
    start = rng.normal(size=(3, 4)).astype(np.float32)
    gradients = [rng.normal(size=(3, 4)).astype(np.float32) for _ in range(5)]
    settings = dataclasses.replace(PAPER, b1=b1, b2=b2, epsilon=epsilon, warmup=3)
    history, _ = run(settings, gradients, start=start)
    expected = reference.adam(
        start.astype(np.float64),
        [g.astype(np.float64) for g in gradients],
        lambda n: reference.learning_rate(n, D, 3),
        b1,
        b2,
        epsilon,
    )
    for n, (got, wanted) in enumerate(zip(history, expected, strict=True), start=1):
        # A step: two running means of n terms, two corrections 1 - b^n that lose up to
        # 1 / (1 - b) of their digits, a root, a quotient, a product, a sum.
        lost = 1 / (1 - b1) + 1 / (1 - b2)
        assert_close(got, wanted, n * (2 * n + lost + 8))


@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_selecting_equals_branching(clip):
    settings = dataclasses.replace(PAPER, clip_norm=clip, warmup=3)
    ours = make_optimizer(settings, D)
    constants = settings.b1, settings.b2, settings.epsilon
    adam = optax.adam(lambda n: learning_rate(n + 1, D, 3), *constants)
    if clip:
        adam = optax.chain(optax.clip_by_global_norm(clip), adam)
    theirs = optax.apply_if_finite(adam, max_consecutive_errors=100)
    rng = np.random.default_rng(3)
    tree = {"a": jnp.zeros(3), "b": jnp.zeros((2, 4))}
    my_state, its_state = ours.init(tree), theirs.init(tree)
    my_update, its_update = jax.jit(ours.update), jax.jit(theirs.update)

    def check(mine, its):
        # 4 updates of at most 9 operations each; numbers are of the order of 1.
        np.testing.assert_allclose(mine, its, rtol=0, atol=4 * 9 * 2**-24)

    for bad in (True, False, False, True, True, False, False):  # the very first, too
        grads = jax.tree.map(lambda x: rng.normal(size=x.shape).astype("f"), tree)
        grads["b"][1, 2] = math.inf if bad else 0.0
        mine, its = my_update(grads, my_state), its_update(grads, its_state)
        jax.tree.map(check, *map(jax.tree.leaves, (mine, its)))
        my_state, its_state = mine[1], its[1]
    assert int(my_state.total_notfinite) == 3


def test_adam_reads_and_writes_what_its_formula_needs():
    count = 2**16
    params = {"a": jnp.ones(count), "b": jnp.ones((2, count))}

    def numbers_moved(rule):
        def step(params, state, grads):
            finite = jnp.isfinite(optax.tree.norm(grads))
            updates, state = rule.update(grads, state, params, finite=finite)
            return optax.apply_updates(params, updates), state

        jitted = jax.jit(step, donate_argnums=(0, 1))
        compiled = jitted.lower(params, rule.init(params), params).compile()
        cost: Any = compiled.cost_analysis()
        return cost["bytes accessed"] / 4 / (3 * count)

    # The norm reads g; mu and nu read g and themselves and are written; the parameters
    # read both and themselves and are written: 1 + 3 + 3 + 4.
    assert 11 <= numbers_moved(make_optimizer(PAPER, D)) < 11.1
    plain = skip_nonfinite(optax.adam(1e-3, PAPER.b1, PAPER.b2, PAPER.epsilon))
    assert numbers_moved(plain) > 11.9


def test_first_update_is_the_rate_against_the_sign():
    gradient = jnp.array([3.0, -0.002, 1e-5, 0.0])
    (after,), _ = run(PAPER, [gradient], d_model=512)
    rate = 512**-0.5 * 4000**-1.5
    # epsilon is 1e-4 of the smallest gradient
    np.testing.assert_allclose(after, [-rate, rate, -rate, 0], rtol=2e-4)


def test_adam_does_not_care_about_the_scale_of_gradients():
    rng = np.random.default_rng(1)
    gradients = [rng.normal(size=3).astype(np.float32) for _ in range(3)]
    small, _ = run(PAPER, gradients)
    large, _ = run(PAPER, [1024 * g for g in gradients])
    np.testing.assert_allclose(small[-1], large[-1], rtol=1e-5)


# ----------------------------------------------------------- other optimisers of optax


def test_any_optimiser_of_optax_is_named_as_it_is_there():
    options = "weight_decay=0.25, nesterov=True"
    settings = dataclasses.replace(PAPER, name="adamw", options=options, warmup=2)
    rng = np.random.default_rng(4)
    gradients = [rng.normal(size=3).astype(np.float32) for _ in range(3)]
    start = jnp.ones(3)
    history, _ = run(settings, gradients, start=start)
    rule = optax.adamw(
        lambda n: learning_rate(n + 1, D, 2),
        **{"b1": PAPER.b1, "b2": PAPER.b2, "eps": PAPER.epsilon},
        weight_decay=0.25,
        nesterov=True,
    )
    params, state = start, rule.init(start)
    for gradient, after in zip(gradients, history, strict=True):
        updates, state = jax.jit(rule.update)(gradient, state, params)
        params = optax.apply_updates(params, updates)
        np.testing.assert_allclose(after, params, rtol=1e-6)


def test_constants_of_adam_s_family_are_keys_unless_options_say_otherwise():
    gradients = [jnp.array([1.0, -2.0]), jnp.array([0.5, 3.0])]

    def moved(**changes):
        return run(dataclasses.replace(PAPER, name="adamw", **changes), gradients)[0][1]

    assert (moved(b2=0.5) != moved()).all() and (moved(epsilon=0.5) != moved()).all()
    np.testing.assert_array_equal(moved(b1=0.5), moved(options="b1=0.5"))
    np.testing.assert_array_equal(moved(b1=0.5, options=f"b1={PAPER.b1}"), moved())


def test_one_that_optax_makes_of_another_is_that_with_its_option():
    gradients = [jnp.array([1.0, -2.0]), jnp.array([0.5, 3.0])]

    def after(**changes):
        return run(dataclasses.replace(PAPER, **changes), gradients)[0]

    nadamw = after(name="nadamw", options="weight_decay=0.25")
    adamw = after(name="adamw", options="weight_decay=0.25, nesterov=True")
    np.testing.assert_array_equal(nadamw, adamw)
    assert (after(name="nadam")[1] != after(name="adam")[1]).all()


@pytest.mark.parametrize(
    "name, b1, b2",
    [("lion", 0.9, 0.99), ("adan", 0.98, 0.92), ("novograd", 0.9, 0.25)],
)
def test_other_constants_that_are_called_as_adam_s_are_optax_s(name, b1, b2):
    gradients = [jnp.array([1.0, -2.0]), jnp.array([0.5, 3.0])]
    usual, named, other = (
        run(dataclasses.replace(PAPER, name=name, options=options), gradients)[0]
        for options in ("", f"b1={b1}, b2={b2}", f"b1={PAPER.b1}, b2={PAPER.b2}")
    )
    np.testing.assert_array_equal(usual, named)
    assert name == "lion" or (usual[1] != other[1]).any()  # signs alone may agree


def test_an_epsilon_that_a_device_would_take_for_0_is_refused():
    keys = "optimizer.epsilon", "model.norm_epsilon", "optimizer.clip_norm"
    for key in keys:
        for value in (1e-40, 2.0**-127):
            with pytest.raises(config.UserError, match=rf"{key}: expected 0, or at le"):
                base(**{key: value})
        assert base(**{key: 2.0**-126})
    # The least that passes keeps 0 / 0 away where no gradient has come yet.
    settings = dataclasses.replace(PAPER, epsilon=2.0**-126)
    (moved,) = run(settings, [jnp.array([1.0, 0.0])])[0]
    assert jnp.isfinite(moved).all() and moved[1] == 0


@pytest.mark.parametrize("name", config.ELEMENTWISE)
def test_layers_may_be_one_array_to_it(name):
    assert _together_and_apart(name) < 1e-6


@pytest.mark.parametrize("name", ["lamb", "lars", "fromage", "novograd"])
def test_layers_may_not_be_one_array_to_an_optimiser_of_norms(name):
    assert name not in config.ELEMENTWISE and _together_and_apart(name) > 1e-3


def _together_and_apart(name):
    """Return how far updates of two layers differ when they are one array."""
    rule = make_optimizer(dataclasses.replace(PAPER, name=name, warmup=1), D)
    rng = np.random.default_rng(5)
    # Of very different sizes, as an array's norm has to tell.
    draws = rng.normal(size=(3, 2, 2, 3)) * np.array([1, 100]).reshape(1, 2, 1, 1)
    params, *grads = draws.astype(np.float32)

    def after(split):
        tree, state = split(params), rule.init(split(params))
        for gradient in grads:
            updates, state = rule.update(split(gradient), state, tree)
            tree = optax.apply_updates(tree, updates)
        return np.stack(jax.tree.leaves(tree)).reshape(params.shape) - params

    apart = after(lambda x: {"layer_0": x[0], "layer_1": x[1]})
    together = after(lambda x: {"layers": x})
    return abs(apart - together).max() / abs(apart).max()


def test_an_optimiser_of_one_s_own_is_a_line(monkeypatch):
    def sign(settings, schedule, *, factor):
        return optax.chain(
            optax.stateless(
                lambda g, _: jax.tree.map(lambda x: factor * jnp.sign(x), g)
            ),
            optax.scale_by_learning_rate(schedule),
        )

    monkeypatch.setitem(OPTIMIZERS, "sign", sign)
    settings = dataclasses.replace(DESCENT, name="sign", options="factor=2")
    (after,), _ = run(settings, [jnp.array([3.0, -4.0])])
    np.testing.assert_allclose(after, [-1.0, 1.0], rtol=1e-6)


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"name": "adan_w"}, "optimizer.name: expected adam or an optimiser of optax"),
        ({"name": "chain"}, "optimizer.name: expected adam or an optimiser of optax"),
        ({"name": "scale_by_rprop"}, "optimizer.name: expected adam or an optimiser"),
        ({"name": "lbfgs"}, "optimizer.name: expected an optimiser and options that"),
        ({"name": "sm3"}, "optimizer.name: expected an optimiser and options that"),
        (
            {"name": "adamw", "options": "weight_decay='x'"},
            "optimizer.name: expected an optimiser and options that",
        ),
        (
            {"options": "learning_rate=0.1"},
            "optimizer.options: expected options of adam, b1, ",
        ),
        (
            {"name": "sgd", "options": "learning_rate=0.1"},
            "optimizer.options: expected options of sgd, momentum",
        ),
        ({"options": "momentum=0.9"}, "optimizer.options: expected options of adam"),
        (
            {"options": "eps_root='x'"},
            "optimizer.name: expected an optimiser and options that",
        ),
        ({"options": "b1=open('x')"}, "optimizer.options: expected NAME=VALUE"),
        ({"options": "0.9"}, "optimizer.options: expected NAME=VALUE"),
        ({"options": "b1="}, "optimizer.options: expected NAME=VALUE"),
        ({"options": "eps=1e999"}, "optimizer.options: expected NAME=VALUE"),
    ],
)
def test_what_optax_has_not_is_refused(changes, said):
    with pytest.raises(config.UserError, match=f"config: {said}"):
        make_optimizer(dataclasses.replace(PAPER, **changes), D)


@pytest.mark.parametrize(
    "name, options, count",
    [("adam", "", 2), ("sgd", "", 0), ("sgd", "momentum=0.9", 1), ("lion", "", 1)],
)
def test_numbers_of_the_state_per_parameter(name, options, count):
    settings = dataclasses.replace(PAPER, name=name, options=options)
    assert moments(settings) == count


# --------------------------------------------------------------------------- clipping


def test_descent_without_clipping():
    (after,), _ = run(DESCENT, [jnp.array([3.0, -4.0])])
    np.testing.assert_allclose(after, [-1.5, 2.0], rtol=1e-6)


def test_gradients_are_clipped_by_their_global_norm():
    settings = dataclasses.replace(DESCENT, clip_norm=1.0)
    tree = {"a": jnp.array([3.0]), "b": jnp.array([[0.0, -4.0]])}  # norm 5
    optimizer = make_optimizer(settings, D)
    updates, _ = optimizer.update(tree, optimizer.init(tree), tree)
    np.testing.assert_allclose(updates["a"], [-0.3], rtol=1e-6)
    np.testing.assert_allclose(updates["b"], [[0.0, 0.4]], rtol=1e-6)
    short = jax.tree.map(lambda x: x / 10, tree)
    updates, _ = optimizer.update(short, optimizer.init(tree), tree)
    np.testing.assert_allclose(updates["b"], [[0.0, 0.2]], rtol=1e-6)


# ------------------------------------------------------------------- non-finite steps


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name, clip", [("adam", 0.0), ("adam", 1.0), ("sgd", 0.0)])
def test_nonfinite_steps_are_skipped_and_counted(bad, name, clip):
    settings = dataclasses.replace(PAPER, name=name, clip_norm=clip, warmup=2)
    rng = np.random.default_rng(2)
    good = [rng.normal(size=3).astype(np.float32) for _ in range(4)]
    broken = np.array([1, bad, 1], np.float32)
    clean, clean_state = run(settings, good)
    mixed, state = run(settings, [good[0], broken, broken, good[1], good[2], broken])
    np.testing.assert_array_equal(mixed[0], clean[0])
    np.testing.assert_array_equal(mixed[1], clean[0])
    np.testing.assert_array_equal(mixed[2], clean[0])
    # Moments and the schedule's step stand still as well.
    np.testing.assert_array_equal(mixed[3], clean[1])
    np.testing.assert_array_equal(mixed[5], clean[2])
    assert int(state.total_notfinite) == 3
    assert int(state.notfinite_count) == 1
    assert not bool(state.last_finite)
    assert int(clean_state.total_notfinite) == 0


def test_nonfinite_steps_are_never_applied_however_many():
    broken = jnp.array([math.nan])
    history, state = run(PAPER, [broken] * 15 + [jnp.ones(1)])
    assert float(history[14][0]) == 0
    assert float(history[15][0]) < 0
    assert int(state.total_notfinite) == 15
    assert int(state.notfinite_count) == 0


def test_one_bad_parameter_skips_the_whole_step():
    tree = {"a": jnp.array([1.0]), "b": jnp.array([math.nan])}
    optimizer = make_optimizer(DESCENT, D)
    updates, _ = optimizer.update(tree, optimizer.init(tree), tree)
    assert float(updates["a"][0]) == float(updates["b"][0]) == 0


# ------------------------------------------------------------------------- other rates


def test_a_constant_rate_after_its_warm_up():
    constant = dataclasses.replace(DESCENT, schedule="constant", rate=0.5, warmup=2)
    history, _ = run(constant, [jnp.ones(1)] * 4)
    np.testing.assert_allclose(np.ravel(history), [-0.25, -0.75, -1.25, -1.75])


def test_l2_adds_the_gradient_of_the_squares_of_weights_before_clipping():
    constant = dataclasses.replace(DESCENT, schedule="constant", rate=1.0)
    clipped = dataclasses.replace(constant, l2=0.25, clip_norm=2.0)
    optimizer = make_optimizer(clipped, D)
    params = {"kernel": jnp.array([[4.0]]), "bias_input": jnp.array([8.0])}
    grads = {"kernel": jnp.array([[1.0]]), "bias_input": jnp.array([4.0])}
    params |= {"output_bias": jnp.array([9.0]), "output_gain": jnp.array([9.0])}
    grads |= {"output_bias": jnp.zeros(1), "output_gain": jnp.zeros(1)}
    updates, _ = optimizer.update(grads, optimizer.init(params), params)
    # 1 + 2 * .25 * 4 = 3, beside 4: of norm 5, clipped to 2.
    np.testing.assert_allclose(updates["kernel"], [[-1.2]], rtol=1e-6)
    np.testing.assert_allclose(updates["bias_input"], [-1.6], rtol=1e-6)
    assert not updates["output_bias"].any() and not updates["output_gain"].any()


def test_frozen_parameters_have_no_gradient_no_part_in_the_norm_and_no_state():
    rule = dataclasses.replace(
        PAPER, name="sgd", warmup=1, clip_norm=1.0, l2=0.25, frozen="still, .*bias"
    )
    start = {"bias": jnp.array([-0.0, 7.0]), "kernel": jnp.array([2.0, 4.0])}
    params = {"layer": start, "still": {"kernel": jnp.array([100.0])}}

    def loss(params):
        return sum(x.sum() for x in jax.tree.leaves(without_gradient(rule, params)))

    grads = jax.grad(loss)(params)
    assert grads["still"]["kernel"] == 0 and not grads["layer"]["bias"].any()
    optimizer = make_optimizer(rule, D)
    updates, _ = optimizer.update(grads, optimizer.init(params), params)
    new = apply(rule, params, updates)
    # 1 + 2 * l2 * (2, 4) = (2, 3), clipped to a norm of 1; the rate is 0.5.
    expected = np.array([2, 4]) - 0.5 * np.array([2, 3]) / math.sqrt(13)
    assert_close(new["layer"]["kernel"], expected, 8)
    for name in ("layer.bias", "still.kernel"):
        group, key = name.split(".")
        before, after = params[group][key], new[group][key]
        assert np.asarray(after).tobytes() == np.asarray(before).tobytes(), name
    adam = make_optimizer(dataclasses.replace(rule, name="adam"), D).init(params)
    assert sum(x.size == 2 for x in jax.tree.leaves(adam)) == 2  # mu and nu
    assert not any(x.size == 1 and x.ndim for x in jax.tree.leaves(adam))
