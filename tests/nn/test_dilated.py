"""Dilated convolutions by hand and by a loop in NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest

from transformer.nn import dilated, layers

HAND = {  # of 1 2 3 4 5, with kernel [1 10 100] and dilation 2
    False: [10 + 300, 20 + 400, 1 + 30 + 500, 2 + 40, 3 + 50],
    True: [100, 200, 10 + 300, 20 + 400, 1 + 30 + 500],
}


@pytest.mark.parametrize("causal", HAND)
def test_a_convolution_by_hand(causal):
    x = jnp.arange(1.0, 6.0)[None, :, None]
    kernel = jnp.array([[1.0], [10.0], [100.0]])
    y = layers.linear(dilated.taps(x, 3, 2, causal=causal), kernel)
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
    taps = dilated.taps(jnp.asarray(x), width, dilation, causal=causal)
    found = layers.linear(taps, jnp.asarray(kernel.reshape(-1, 4)))
    np.testing.assert_array_equal(found, loop(x, kernel, width, dilation, causal))


@pytest.mark.parametrize("sets, expected", [(1, 63), (2, 125), (3, 187), (6, 373)])
def test_the_reach_of_sets_of_five(sets, expected):
    assert dilated.reach(3, [1, 2, 4, 8, 16] * sets) == expected
