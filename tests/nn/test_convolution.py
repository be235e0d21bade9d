"""Convolutions as products against torch's, loops in NumPy, and by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import convs2s_cases as cases
from support.reference import assert_close
from support.torch_values import everywhere, values

from transformer.nn import convolution


@everywhere
@pytest.mark.parametrize("way", cases.WAYS)
def test_a_convolution_with_normalised_weights_and_its_gradients(way, values_of):
    given = {name: jnp.asarray(x) for name, x in cases.layer().items()}

    def convolve(x, direction, gain):
        y = convolution.windows(x, cases.KERNEL, causal=cases.WAYS[way])
        return y @ convolution.weight_norm(direction, gain) + given["bias"]

    names = ("x", "direction", "gain")
    y, back = jax.vjp(convolve, *(given[name] for name in names))
    expected = values(values_of, "torch_convs2s")
    assert_close(y, expected[f"{way}.y"], roundings=10 * 13)
    for name, found in zip(names, back(given["slopes"]), strict=True):
        # Sums over 2 rows of 6 positions, the norm of 12 weights and its derivative.
        wanted = expected[f"{way}.d_{name}"]
        assert_close(found, wanted, roundings=10 * (12 + 2 * 13))


@pytest.mark.parametrize("kernel", [1, 2, 4])
def test_a_causal_window_has_what_came_before(kernel):
    x = jnp.arange(1.0, 7.0).reshape(1, 3, 2)
    found = convolution.windows(x, kernel, causal=True)[0].reshape(3, kernel, 2)
    for position in range(3):
        for place in range(kernel):
            there = position - (kernel - 1) + place
            expected = x[0, there] if there >= 0 else jnp.zeros(2)
            np.testing.assert_array_equal(found[position, place], expected)


HAND = {  # of 1 2 3 4 5, with kernel [1 10 100] and dilation 2
    False: [10 + 300, 20 + 400, 1 + 30 + 500, 2 + 40, 3 + 50],
    True: [100, 200, 10 + 300, 20 + 400, 1 + 30 + 500],
}


@pytest.mark.parametrize("causal", HAND)
def test_a_dilated_convolution_by_hand(causal):
    x = jnp.arange(1.0, 6.0)[None, :, None]
    kernel = jnp.array([[1.0], [10.0], [100.0]])
    y = convolution.windows(x, 3, causal=causal, dilation=2) @ kernel
    assert y[0, :, 0].tolist() == HAND[causal]


def loop(x, kernel, width, dilation, causal):
    """Add up each tap of each output, kernel (k, d, d')."""
    batch, length, _ = x.shape
    y = np.zeros((batch, length, kernel.shape[-1]))
    centre = width - 1 if causal else width // 2
    for t in range(length):
        for j in range(width):
            read = t + (j - centre) * dilation
            if 0 <= read < length:
                y[:, t] += x[:, read] @ kernel[j]
    return y


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("width, dilation", [(1, 3), (3, 1), (3, 3), (5, 2), (3, 16)])
def test_a_convolution_is_the_loop_over_its_taps(width, dilation, causal):
    rng = np.random.default_rng(width * dilation)
    # Whole numbers, whose sums of products float32 holds exactly.
    x = rng.integers(-9, 9, (2, 7, 3)).astype(np.float32)
    kernel = rng.integers(-9, 9, (width, 3, 4)).astype(np.float32)
    read = convolution.windows(jnp.asarray(x), width, causal=causal, dilation=dilation)
    found = read @ jnp.asarray(kernel.reshape(-1, 4))
    np.testing.assert_array_equal(found, loop(x, kernel, width, dilation, causal))


@pytest.mark.parametrize("sets, expected", [(1, 63), (2, 125), (3, 187), (6, 373)])
def test_the_reach_of_sets_of_five(sets, expected):
    assert convolution.reach([3] * 5 * sets, [1, 2, 4, 8, 16] * sets) == expected


def test_the_first_half_is_let_through_by_the_second():
    found = convolution.glu(jnp.array([[2.0, -4.0, 0.0, jnp.log(3.0)]]))
    np.testing.assert_allclose(found, [[1.0, -3.0]], rtol=1e-6)


def test_gains_are_norms_along_either_axis():
    v = jnp.array([[3.0, 0.5], [-4.0, 0.0]])
    found = convolution.weight_norm(v, jnp.array([10.0, 2.0]))
    np.testing.assert_allclose(found, [[6.0, 2.0], [-8.0, 0.0]], rtol=1e-6)
    turned = convolution.weight_norm(v.T, jnp.array([10.0, 2.0]), axis=1)
    np.testing.assert_array_equal(turned, found.T)


def test_only_the_gradient_is_scaled():
    x = jnp.array([0.1, -3.0, 7e30])
    y, back = jax.vjp(lambda x: convolution.scale_gradient(x, 0.25), x)
    np.testing.assert_array_equal(y, x)
    np.testing.assert_array_equal(back(jnp.array([4.0, 1.0, -2.0]))[0], [1, 0.25, -0.5])
