"""The smoothed loss against its closed form; the blocked loss against the whole one."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import reference
from support.reference import assert_close, numerical_gradient

from transformer.nn import losses

overs = pytest.mark.parametrize("over", ["all", "others"])


def case(seed=0, tokens=6, size=9) -> Any:
    rng = np.random.default_rng(seed)
    logits = (3 * rng.normal(size=(tokens, size))).astype(np.float32)
    targets = rng.integers(0, size, tokens)
    weights = (rng.random(tokens) < 0.7).astype(np.float32)
    weights[:2] = [1, 0]
    return logits, targets, weights


@overs
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])
def test_loss_and_gradient_equal_the_closed_form(smoothing, over):
    logits, targets, weights = case()

    def loss(logits):
        return losses.smoothed_cross_entropy(logits, targets, weights, smoothing, over)

    (total, weight), gradient = loss(logits), jax.grad(lambda x: loss(x)[0])(logits)
    precise = logits.astype(np.float64)
    expected = reference.smoothed_loss(precise, targets, weights, smoothing, over)
    # A token sums 9 exponentials and 9 logits of at most 9; then 6 tokens are summed.
    largest = 6 * 9 * abs(logits).max()
    assert_close(total, expected[0], 9 + 9 + 6 + 10, magnitude=largest)
    assert float(weight) == expected[1] == weights.sum()
    closed = reference.smoothed_loss_gradient(
        precise, targets, weights, smoothing, over
    )
    assert_close(gradient, closed, 9 + 9 + 10, magnitude=abs(logits).max())
    assert not np.asarray(gradient)[weights == 0].any()


@overs
def test_closed_form_of_the_reference_is_the_derivative(over):
    logits, targets, weights = case(1)
    closed = reference.smoothed_loss_gradient(
        logits.astype(np.float64), targets, weights, 0.1, over
    )
    numerical = numerical_gradient(
        lambda x: reference.smoothed_loss(x, targets, weights, 0.1, over)[0], logits
    )
    np.testing.assert_allclose(closed, numerical, atol=1e-8)


@overs
def test_equal_logits_cost_the_log_of_the_vocabulary(over):
    # The smoothed distribution sums to 1, whatever its form.
    total, weight = losses.smoothed_cross_entropy(
        jnp.full((2, 3, 50), 4.0), jnp.ones((2, 3), int), jnp.ones((2, 3)), 0.1, over
    )
    assert float(total / weight) == pytest.approx(math.log(50), rel=1e-6)


def test_smoothing_by_hand():
    # V = 4, e = .2, logits log(1, 2, 3, 4): p = .1, .2, .3, .4; the target is id 3.
    logits = jnp.log(jnp.array([[1.0, 2.0, 3.0, 4.0]]))
    target, weight = jnp.array([3]), jnp.array([1.0])
    everywhere, _ = losses.smoothed_cross_entropy(logits, target, weight, 0.2, "all")
    expected = -(0.85 * math.log(0.4) + 0.05 * math.log(0.1 * 0.2 * 0.3))
    assert float(everywhere) == pytest.approx(expected, rel=1e-6)
    others, _ = losses.smoothed_cross_entropy(logits, target, weight, 0.2, "others")
    expected = -(0.8 * math.log(0.4) + 0.2 / 3 * math.log(0.1 * 0.2 * 0.3))
    assert float(others) == pytest.approx(expected, rel=1e-6)


@overs
def test_least_loss_is_the_entropy_of_the_smoothed_distribution(over):
    wanted = reference.target_distribution(2, 9, 0.1, over)
    logits = jnp.asarray(np.log(wanted), jnp.float32)[None]

    def loss(logits):
        return losses.smoothed_cross_entropy(
            logits, jnp.array([2]), jnp.array([1.0]), 0.1, over
        )[0]

    entropy = -(wanted * np.log(wanted)).sum()
    assert float(loss(logits)) == pytest.approx(entropy, rel=1e-6)
    assert_close(jax.grad(loss)(logits), np.zeros((1, 9)), 9 + 9 + 10, magnitude=5)


@settings(max_examples=20)
@given(
    size=st.sampled_from([2, 9, 40]),
    smoothing=st.floats(0, 0.4),
    seed=st.integers(0, 9),
)
def test_others_is_all_with_more_smoothing(size, smoothing, seed):
    # e / (V - 1) = e' / V for e' = e V / (V - 1): the same distribution.
    logits, targets, weights = case(seed, size=size)
    others, _ = losses.smoothed_cross_entropy(
        logits, targets, weights, smoothing, "others"
    )
    more = smoothing * size / (size - 1)
    everywhere, _ = losses.smoothed_cross_entropy(logits, targets, weights, more, "all")
    largest = 6 * size * abs(logits).max()
    assert_close(others, everywhere, 2 * (2 * size + 16), magnitude=largest)


def test_huge_logits_stay_finite():
    logits = jnp.array([[1e4, -1e4, 0.0], [-1e30, 0.0, 1e30]])

    def loss(logits):
        return losses.smoothed_cross_entropy(
            logits, jnp.array([1, 2]), jnp.ones(2), 0.0, "all"
        )[0]

    assert float(loss(logits)) == 2e4
    np.testing.assert_array_equal(jax.grad(loss)(logits), [[1, -1, 0], [0, 0, 0]])


def test_loss_of_bfloat16_logits_is_computed_in_float32():
    logits, targets, weights = case(2)
    low = jnp.asarray(logits, jnp.bfloat16)
    total, _ = losses.smoothed_cross_entropy(low, targets, weights, 0.1, "all")
    exact = np.asarray(low, np.float64)
    expected, _ = reference.smoothed_loss(exact, targets, weights, 0.1, "all")
    assert total.dtype == jnp.float32
    assert_close(total, expected, 34, magnitude=6 * 9 * abs(exact).max())


# ----------------------------------------------------------------------- in blocks

B, T, D, V = 3, 8, 5, 11


def hidden_case(seed=0) -> Any:
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=(B, T, D)).astype(np.float32)
    table = rng.normal(size=(V, D)).astype(np.float32)
    targets = rng.integers(0, V, (B, T))
    weights = (rng.random((B, T)) < 0.7).astype(np.float32)
    # Some predictions are right.
    targets[:, ::3] = (hidden @ table.T).argmax(-1)[:, ::3]
    return hidden, table, targets, weights


# A logit sums 5 products; a token 11 exponentials and 11 logits; then 24 tokens.
ROUNDINGS = D + 2 * V + B * T + 10


def largest_sum(hidden, table):
    return B * T * V * (abs(hidden) @ abs(table).T).max()


@pytest.mark.parametrize("block", [1, B, 2 * B, 3 * B, 5 * B + 1, 8 * B, 1000])
@overs
def test_blocks_equal_the_whole(block, over):
    hidden, table, targets, weights = hidden_case()
    precise = hidden.astype(np.float64) @ table.T.astype(np.float64)
    flat = precise.reshape(B * T, V), targets.ravel(), weights.ravel()
    loss, weight = reference.smoothed_loss(*flat, 0.1, over)
    nll, _ = reference.smoothed_loss(*flat, 0.0, over)
    d_logits = reference.smoothed_loss_gradient(*flat, 0.1, over).reshape(B, T, V)

    @jax.jit
    def run(hidden, table):
        def total(hidden, table):
            sums = losses.blocked_cross_entropy(
                hidden, table, targets, weights, 0.1, over, block, "float32"
            )
            return 2 * sums.loss, sums  # a factor from further up the chain

        return jax.grad(total, argnums=(0, 1), has_aux=True)(hidden, table)

    (d_hidden, d_table), with_gradient = run(hidden, table)
    alone = losses.blocked_cross_entropy(
        hidden, table, targets, weights, 0.1, over, block, "float32"
    )
    largest = largest_sum(hidden, table)
    for sums in (alone, with_gradient):
        assert_close(sums.loss, loss, ROUNDINGS, magnitude=largest)
        assert_close(sums.nll, nll, ROUNDINGS, magnitude=largest)
        assert float(sums.weight) == weight
        right = (precise.argmax(-1) == targets) * weights
        assert float(sums.correct) == right.sum() > 0
    most = 2 * abs(table).sum(0).max() * abs(precise).max()
    assert_close(d_hidden, 2 * d_logits @ table, ROUNDINGS, magnitude=most)
    most = 2 * abs(hidden).sum((0, 1)).max() * abs(precise).max()
    expected = 2 * np.einsum("btv,btd->vd", d_logits, hidden)
    assert_close(d_table, expected, ROUNDINGS, magnitude=most)


def test_gradients_of_blocks_equal_finite_differences():
    hidden, table, targets, weights = hidden_case(1)
    hidden, targets, weights = hidden[:2, :3], targets[:2, :3], weights[:2, :3]

    def blocked(hidden, table):
        return losses.blocked_cross_entropy(
            hidden, table, targets, weights, 0.2, "others", 4, "float32"
        ).loss

    def expected(hidden, table):
        logits = (hidden @ table.T).reshape(6, V)
        return reference.smoothed_loss(
            logits, targets.ravel(), weights.ravel(), 0.2, "others"
        )[0]

    d_hidden, d_table = jax.grad(blocked, argnums=(0, 1))(hidden, table)
    exact_hidden, exact_table = hidden.astype(np.float64), table.astype(np.float64)
    wanted = numerical_gradient(lambda x: expected(x, exact_table), exact_hidden)
    most = abs(table).sum(0).max() * abs(hidden @ table.T).max()
    assert_close(d_hidden, wanted, ROUNDINGS, magnitude=most)
    wanted = numerical_gradient(lambda x: expected(exact_hidden, x), exact_table)
    most = abs(hidden).sum((0, 1)).max() * abs(hidden @ table.T).max()
    assert_close(d_table, wanted, ROUNDINGS, magnitude=most)


def total_loss(targets, weights, dtype) -> Any:
    """Return the loss as a function of the hidden states and the table."""

    def total(hidden, table):
        return losses.blocked_cross_entropy(
            hidden, table, targets, weights, 0.1, "all", 2 * B, dtype
        ).loss

    return total


def rounded(x) -> Any:
    return np.asarray(jnp.asarray(x, jnp.bfloat16), np.float64)


def test_bfloat16_rounds_operands_only():
    hidden, table, targets, weights = hidden_case(2)
    total = total_loss(targets, weights, "bfloat16")
    loss, (d_hidden, d_table) = jax.value_and_grad(total, argnums=(0, 1))(hidden, table)
    low_hidden, low_table = rounded(hidden), rounded(table)
    logits = (low_hidden @ low_table.T).reshape(B * T, V)
    flat = logits, targets.ravel(), weights.ravel()
    expected, _ = reference.smoothed_loss(*flat, 0.1, "all")
    assert_close(loss, expected, ROUNDINGS, magnitude=largest_sum(hidden, table))
    # d_logits is rounded once more, by at most 2^-9 of itself, as an operand.
    d_logits = reference.smoothed_loss_gradient(*flat, 0.1, "all").reshape(B, T, V)
    error = abs(np.asarray(d_hidden) - d_logits @ low_table)
    assert (error <= 2.0**-8 * (abs(d_logits) @ abs(low_table)) + 1e-6).all()
    error = abs(np.asarray(d_table) - np.einsum("btv,btd->vd", d_logits, low_hidden))
    terms = np.einsum("btv,btd->vd", abs(d_logits), abs(low_hidden))
    assert (error <= 2.0**-8 * terms + 1e-6).all()


def test_padding_costs_nothing_and_moves_nothing():
    hidden, table, targets, weights = hidden_case(3)
    total = total_loss(targets, weights, "float32")
    d_hidden = np.asarray(jax.grad(total)(hidden, table))
    assert not d_hidden[weights == 0].any()
    assert d_hidden[weights == 1].any(-1).all()
    before = total(hidden, table)
    hidden[weights == 0] = 1e3
    assert float(total(hidden, table)) == float(before)


def intermediate_sizes(jaxpr):
    """Yield the size of every array that a jaxpr makes, those inside loops too."""
    for equation in jaxpr.eqns:
        for variable in equation.outvars:
            yield math.prod(getattr(variable.aval, "shape", ()))
        for value in jax.tree.leaves(
            equation.params, is_leaf=lambda x: hasattr(x, "jaxpr") or hasattr(x, "eqns")
        ):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from intermediate_sizes(inner)


def test_whole_logits_are_never_made():
    length, size = 64, 1009
    arrays = (
        jnp.zeros((2, length, 4)),
        jnp.zeros((size, 4)),
        jnp.zeros((2, length), int),
        jnp.ones((2, length)),
    )

    def largest(block):
        def total(hidden, table):
            return losses.blocked_cross_entropy(
                hidden, table, *arrays[2:], 0.1, "all", block, "float32"
            ).loss

        jaxpr = jax.make_jaxpr(jax.grad(total, argnums=(0, 1)))(*arrays[:2])
        return max(intermediate_sizes(jaxpr.jaxpr))

    assert largest(2 * length) == 2 * length * size  # the measure sees the logits
    assert largest(16) == 16 * size
