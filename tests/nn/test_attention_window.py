"""Restricted self-attention in blocks is what a mask of all scores leaves of it."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.nn import attention, dropout, scores
from transformer.nn.attention_window import pays, window_attention

B, H, K, W = 2, 3, 4, 5


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).normal(size=shape).astype(np.float32)


def masked(q, k, v, mask, score):
    dense = mask.dense(q.shape[2], k.shape[2])
    return attention.attention(q, k, v, dense, score=score)[0]


@functools.partial(jax.jit, static_argnums=0)
def with_gradients(attend, cotangent, *operands):
    output, pull = jax.vjp(attend, *operands)
    return output, *pull(cotangent)


ADDITIVE = functools.partial(scores.additive_head_scores, v=jnp.asarray(draw(H, K)))


@pytest.mark.parametrize(
    "length, window, causal, padded, score",
    [
        (12, 3, False, True, attention.scaled_dot_product_scores),
        (13, 3, True, False, attention.scaled_dot_product_scores),
        (8, 1, True, True, attention.dot_product_scores),
        (11, 4, False, False, ADDITIVE),
        (5, 7, False, True, attention.scaled_dot_product_scores),
    ],
    ids=["whole blocks", "part of a block", "one key", "additive", "one block"],
)
def test_blocks_are_the_mask_in_value_and_gradients(
    length, window, causal, padded, score
):
    q, k, v = (draw(B, H, length, n) for n in (K, K, W))
    k = k[:, ::-1]  # not the queries
    # The second sentence has two words, so that some queries have no key at all.
    ids = jnp.ones((B, length), jnp.int32).at[1, 2:].set(0)
    mask = attention.Mask(ids if padded else None, causal, window)
    cotangent = draw(B, H, length, W)
    found, expected = (
        with_gradients(
            functools.partial(attend, mask=mask, score=score), cotangent, q, k, v
        )
        for attend in (window_attention, masked)
    )
    # Sums of at most 15 numbers of size 1, in another order.
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    if padded and length > 2 + window:
        assert not np.asarray(found[0][1, :, 2 + window :]).any()


def test_each_weight_is_dropped_for_itself():
    length, window, rate = 40, 4, 0.25
    mask = attention.Mask(causal=True, window=window)
    nothing = jnp.zeros((B, H, length, K))  # of equal scores, so of equal weights
    every = jnp.broadcast_to(jnp.eye(length), (B, H, length, length))
    _, weights = attention.attention(
        nothing, nothing, every, mask.dense(length, length)
    )

    @jax.jit
    def drop(q: jax.Array, v: jax.Array, row: int) -> jax.Array:
        key = dropout.make_key(3, row)
        return window_attention(q, q, v, mask, dropout_rate=rate, key=key)

    def kept(row: int, rows: slice) -> np.ndarray:
        return np.asarray(drop(nothing[rows], every[rows], row))

    found, seen = kept(0, slice(None)), np.asarray(weights) > 0
    stays = found > 0
    np.testing.assert_allclose(found, stays * weights / (1 - rate), rtol=1e-5)
    # Of 1,140 weights; 5 standard deviations of a binomial distribution.
    share, count = (seen & ~stays).sum() / seen.sum(), seen.sum()
    assert abs(share - rate) < 5 * (rate * (1 - rate) / count) ** 0.5
    # No block, head or sentence has the bits of another.
    patterns = stays.reshape(B * H, length, length)
    blocks = [
        x[n : n + window, n - window : n + window].tobytes()
        for x in patterns
        for n in range(window, length, window)
    ]
    assert len(set(blocks)) == len(blocks)
    # A sentence's bits are those of its row, on whichever device it is.
    np.testing.assert_array_equal(kept(1, slice(1, 2)), found[1:])


def test_memory_is_linear_in_the_length():
    mask = attention.Mask(window=8)

    def gradient(q, k, v):
        def loss(q, k, v):
            return window_attention(q, k, v, mask).sum()

        return jax.grad(loss, (0, 1, 2))(q, k, v)

    def temporaries(length: int) -> int:
        shape = jax.ShapeDtypeStruct((1, H, length, K), jnp.float32)
        compiled: Any = jax.jit(gradient).lower(shape, shape, shape).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    short, long = temporaries(512), temporaries(1024)
    assert long < 2.2 * short
    assert long < 4 * H * 1024**2  # all scores alone


@pytest.mark.parametrize(
    "length, window, there",
    [
        (4096, 0, False),
        (127, 4, False),
        (128, 4, True),
        (128, 1, True),
        (255, 32, False),
        (256, 32, True),
    ],
)
def test_where_blocks_pay(length, window, there):
    assert pays(length, window) is there
