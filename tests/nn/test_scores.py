"""Scores of attention by their definitions, and local attention by hand."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.nn import scores

B, J, S, A = 2, 3, 5, 4


def draw(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


def test_additive_scores_are_a_layer_of_tanh():
    queries, keys, v = draw(B, J, A), draw(B, S, A), draw(A)
    for b, j, s in np.ndindex(B, J, S):
        expected = np.tanh(queries[b, j] + keys[b, s]) @ v
        got = scores.additive_scores(queries, keys, v)[b, j, s]
        assert got == pytest.approx(expected, rel=1e-5, abs=1e-6)


# ---- of several heads ----------------------------------------------------------------

H, T, K = 3, 6, 4


def plain(q, k, v):
    return (jnp.tanh(q[:, :, :, None] + k[:, :, None]) * v[:, None, None]).sum(-1)


def test_a_pair_is_scored_by_hand():
    # tanh(ln(3) / 2) = (3 - 1) / (3 + 1), tanh(ln(2) / 2) = (2 - 1) / (2 + 1).
    half, third = math.log(3) / 2, math.log(2) / 2
    q, k = jnp.array([[[[half, 0.0]]]]), jnp.array([[[[0.0, third]]]])
    found = scores.additive_head_scores(q, k, jnp.array([[2.0, 3.0]]))
    assert found.item() == pytest.approx(2 / 2 + 3 / 3, rel=1e-6)
    matrix = jnp.array([[[2.0, 5.0], [7.0, 11.0]]])
    transformed = scores.general_queries(jnp.array([[[[1.0, 3.0]]]]), matrix)
    assert transformed[0, 0, 0].tolist() == [1 * 2 + 3 * 7, 1 * 5 + 3 * 11]


@pytest.mark.parametrize("at_a_time", [2**20, 2 * B * H * S * K, 1])
def test_additive_scores_of_heads_are_made_again_for_their_gradients(
    at_a_time, monkeypatch
):
    """All queries at once, two at a time, and one."""
    monkeypatch.setattr(scores, "_AT_A_TIME", at_a_time)
    q, k, v, cotangent = (
        draw(B, H, T, K),
        draw(B, H, S, K),
        draw(H, K),
        draw(B, H, T, S),
    )
    found, pull = jax.vjp(scores.additive_head_scores, q, k, v)
    expected, plain_pull = jax.vjp(plain, q, k, v)
    # Sums of 4 and, over all pairs, of 2 * 6 * 5 numbers of size 1.
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    for ours, theirs in zip(pull(cotangent), plain_pull(cotangent), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    for b, h, t, s in np.ndindex(B, H, T, S):
        exact = np.tanh(q[b, h, t] + k[b, h, s]) @ v[h]
        assert found[b, h, t, s] == pytest.approx(exact, rel=1e-5, abs=1e-5)

    def largest(pull):
        return max(x.size for x in jax.tree.leaves(pull))

    assert largest(plain_pull) >= B * H * T * S * K
    assert largest(pull) <= max(q.size, k.size)


def test_general_scores_of_heads_are_bilinear():
    q, k, matrices = draw(B, H, T, K), draw(B, H, S, K), draw(H, K, K)
    expected = np.einsum("bhtk,hkl,bhsl->bhts", *map(np.float64, (q, matrices, k)))
    found = np.einsum("bhtl,bhsl->bhts", scores.general_queries(q, matrices), k)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


# ---- of the recurrent models ---------------------------------------------------------


def test_general_scores_are_products():
    queries, keys = draw(B, J, A), draw(B, S, A)
    expected = queries @ keys.swapaxes(1, 2)
    found = scores.general_scores(queries, keys)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("positions", [3, 5, 9])
def test_location_scores_know_so_many_positions(positions):
    table = draw(B, J, positions)
    weights = scores.softmax_over(
        scores.location_scores(table, S), jnp.ones((B, S), bool)
    )
    least = min(positions, S)
    np.testing.assert_array_equal(weights[..., least:], 0)
    expected = np.exp(table[..., :least])
    expected /= expected.sum(-1, keepdims=True)
    np.testing.assert_allclose(weights[..., :least], expected, rtol=1e-5)


@pytest.mark.parametrize("length", [9, 14])
def test_a_window_behind_the_positions_that_have_scores_weighs_nothing(length):
    table, real = draw(1, 1, 3), jnp.arange(length) < 9
    energies = scores.location_scores(table, length)
    inside = scores.near(jnp.array([[6.0]]), 1, length) & real
    np.testing.assert_array_equal(scores.softmax_over(energies, inside), 0)
    half = scores.near(jnp.array([[3.0]]), 1, length) & real  # 2 of 2, 3, 4
    assert scores.softmax_over(energies, half)[0, 0, 2] == 1


def test_weights_sum_to_one_over_real_positions():
    real = jnp.array([[1, 1, 0, 0, 0], [0, 0, 0, 0, 0]])
    weights = scores.softmax_over(draw(B, J, S), real)
    np.testing.assert_allclose(weights[0].sum(-1), 1, rtol=1e-6)
    np.testing.assert_array_equal(weights[0, :, 2:], 0)
    np.testing.assert_array_equal(weights[1], 0)  # nothing to attend to


def test_local_attention_by_hand():
    # 21 positions, D = 2, p = 10.3, equal energies: a window of 8 to 12.
    centres = jnp.full((1, 1), 10.3)
    inside = scores.near(centres, 2, 21)
    assert np.flatnonzero(inside).tolist() == [8, 9, 10, 11, 12]
    weights = scores.softmax_over(jnp.zeros((1, 1, 21)), inside)
    weights = (weights * scores.bell(centres, 2, 21))[0, 0, 8:13]
    bell = [0.0710054, 0.4295574, 0.9559975, 0.7827045, 0.2357461]
    np.testing.assert_allclose(weights, 0.2 * np.array(bell), rtol=1e-5)
    assert float(weights.sum()) == pytest.approx(0.4950022, rel=1e-5)
