"""The loss of R-Drop against its definition, and its gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import reference
from support.reference import assert_close, numerical_gradient

from transformer.nn import losses
from transformer.nn.r_drop import blocked_r_drop

B, T, D, V = 3, 8, 5, 11
# A logit sums 5 products; a token 11 exponentials, 11 logits and 11 terms of the
# divergence, of two passes; then 24 tokens.
ROUNDINGS = D + 6 * V + B * T + 20
HOW = (0.1, "all")


def case(seed=0):
    rng = np.random.default_rng(seed)
    hidden = tuple(rng.normal(size=(2, B, T, D)).astype(np.float32))
    table = rng.normal(size=(V, D)).astype(np.float32)
    targets = rng.integers(0, V, (B, T))
    weights = (rng.random((B, T)) < 0.7).astype(np.float32)
    targets[:, ::3] = (hidden[0] @ table.T).argmax(-1)[:, ::3]
    return hidden, table, targets, weights


def expected(hidden, table, targets, weights, alpha, over="all"):
    """Return half of equation 4 of R-Drop, in float64, from distributions."""
    ps, losses_ = [], []
    for h in hidden:
        z = h.astype(np.float64) @ table.astype(np.float64).T
        flat = z.reshape(-1, V), targets.ravel(), weights.ravel()
        losses_.append(reference.smoothed_loss(*flat, 0.1, over)[0])
        e = np.exp(z - z.max(-1, keepdims=True))
        ps.append(e / e.sum(-1, keepdims=True))
    p, q = ps
    divergence = (p * np.log(p / q) + q * np.log(q / p)).sum(-1)
    return sum(losses_) / 2 + alpha / 4 * (divergence * weights).sum()


@pytest.mark.parametrize("block", [1, 2 * B, 5 * B + 1, 1000])
@pytest.mark.parametrize("over", ["all", "others"])
def test_blocks_are_the_definition(block, over):
    hidden, table, targets, weights = case()

    @jax.jit
    def run(hidden, table):
        how = (5.0, 0.1, over, block, "float32")
        return blocked_r_drop(hidden, table, targets, weights, *how)

    sums = run(hidden, table)
    wanted = expected(hidden, table, targets, weights, 5.0, over)
    logit = (abs(hidden[0]) @ abs(table).T).max() + (
        abs(hidden[1]) @ abs(table).T
    ).max()
    assert_close(sums.loss, wanted, ROUNDINGS, magnitude=5 / 4 * B * T * V * logit)
    each = [
        losses.blocked_cross_entropy(
            h, table, targets, weights, 0.1, over, 1000, "float32"
        )
        for h in hidden
    ]
    for name in ("nll", "correct", "weight"):
        mean = sum(getattr(x, name) for x in each) / 2
        np.testing.assert_allclose(getattr(sums, name), mean, rtol=1e-5)
    assert each[0].correct != each[1].correct


def test_the_gradient_is_that_of_the_definition():
    hidden, table, targets, weights = case(1)
    cut = tuple(h[:2, :3] for h in hidden)
    targets, weights = targets[:2, :3], weights[:2, :3]

    def loss(hidden, table):
        how = (2.0, *HOW, 4, "float32")
        # A factor from further up the chain.
        return 3 * blocked_r_drop(hidden, table, targets, weights, *how).loss

    (d_first, d_second), d_table = jax.grad(loss, argnums=(0, 1))(cut, table)
    (first, second), exact = (h.astype(np.float64) for h in cut), table.astype(float)

    def of(first, second, table):
        return 3 * expected((first, second), table, targets, weights, 2.0)

    logit = max((abs(h) @ abs(table).T).max() for h in cut)
    most = 3 * 2 * V * abs(table).max() * logit
    for got, function, at in (
        (d_first, lambda x: of(x, second, exact), first),
        (d_second, lambda x: of(first, x, exact), second),
    ):
        wanted = numerical_gradient(function, at)
        assert_close(got, wanted, ROUNDINGS, magnitude=most)
        assert not np.asarray(got)[weights == 0].any()
    wanted = numerical_gradient(lambda x: of(first, second, x), exact)
    most = 3 * 2 * sum(abs(h).sum((0, 1)).max() for h in cut) * logit
    assert_close(d_table, wanted, ROUNDINGS, magnitude=most)


def test_equal_passes_cost_what_one_does():
    (first, _), table, targets, weights = case(2)
    plain = (table, targets, weights, *HOW, 6, "float32")

    def twice(h):
        how = (5.0, *HOW, 6, "float32")
        return blocked_r_drop((h, h), table, targets, weights, *how).loss

    def once(h):
        return losses.blocked_cross_entropy(h, *plain).loss

    (one, d_one), (two, d_two) = (
        jax.value_and_grad(f)(jnp.asarray(first)) for f in (once, twice)
    )
    np.testing.assert_allclose(two, one, rtol=1e-6)
    np.testing.assert_allclose(d_two, d_one, atol=1e-5 * np.abs(d_one).max(), rtol=0)
