"""Positions by distance, against their definitions."""

import jax.numpy as jnp
import numpy as np
import pytest
from support.reference import assert_close

from transformer.nn import relative

B, H, T, K = 2, 3, 5, 6


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


# ---- rotated queries and keys --------------------------------------------------------


def test_rotating_is_multiplying_by_complex_numbers():
    x, places = draw(B, H, T, K), np.array([0, 1, 2, 7, 100])
    found = np.asarray(relative.rotated(x, jnp.asarray(places)))
    numbers = x[..., 0::2].astype(np.complex128) + 1j * x[..., 1::2]
    rates = 10_000.0 ** (-2 * np.arange(K // 2) / K)
    expected = numbers * np.exp(1j * places[:, None] * rates)
    # An angle of up to 100 is rounded to 2^-18 of a turn's radian, its rate likewise.
    off = 2 * 100 * 2.0**-24 * abs(numbers).max() + 8 * 2.0**-24 * abs(x).max()
    np.testing.assert_allclose(found[..., 0::2], expected.real, atol=off, rtol=0)
    np.testing.assert_allclose(found[..., 1::2], expected.imag, atol=off, rtol=0)
    one = relative.rotated(x, jnp.asarray(7))
    assert_close(one[:, :, 3], found[:, :, 3], 2)
    assert relative.rotated(x.astype(jnp.bfloat16), one[0, 0, 0, 0]).dtype == "bfloat16"


def test_products_of_rotated_vectors_know_distances_alone():
    q, k = draw(1, 1, 1, K), draw(1, 1, 1, K, seed=1)

    def product(m, n):
        turned = (
            relative.rotated(q, jnp.asarray(m)),
            relative.rotated(k, jnp.asarray(n)),
        )
        return float((turned[0] * turned[1]).sum())

    assert product(3, 1) == pytest.approx(product(9, 7), abs=1e-5)
    assert product(3, 1) != pytest.approx(product(1, 3), abs=1e-2)
    assert product(4, 4) == pytest.approx(float((q * k).sum()), abs=1e-5)


# ---- a slope of each head ------------------------------------------------------------


@pytest.mark.parametrize(
    "heads, exponents",
    [
        (1, [8]),
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),
        (16, np.arange(1, 17) / 2),
        # Of 8 heads, and of 16 heads the first, third, fifth and seventh.
        (12, [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5]),
    ],
)
def test_slopes_of_heads(heads, exponents):
    expected = [2.0 ** -float(x) for x in exponents]
    assert relative.alibi_slopes(heads) == pytest.approx(expected)


def test_the_bias_falls_with_distance_both_ways():
    distances = jnp.asarray([[0, 1, 2], [-1, 0, 1]])
    bias = relative.alibi_bias(2, distances)
    far = np.array([[0.0, 1.0, 2.0], [1.0, 0.0, 1.0]])
    np.testing.assert_array_equal(bias, -np.stack([far / 16, far / 256])[None])
