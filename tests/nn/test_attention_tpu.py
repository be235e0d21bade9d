"""The TPU's kernel is attention, of operands rounded to bfloat16.

It runs here in Pallas' interpreter; ``test_lowering.py`` lowers it for a TPU.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

from transformer.nn import attention, attention_tpu
from transformer.nn.attention import Mask


@pytest.fixture(autouse=True)
def interpreter(monkeypatch):
    run = functools.partial(pl.pallas_call, interpret=True)
    monkeypatch.setattr(attention_tpu.pl, "pallas_call", run)


def drawn(rng: np.random.Generator, *shape: int) -> Any:
    return np.asarray(jnp.asarray(rng.normal(size=shape), jnp.bfloat16), np.float32)


@pytest.mark.parametrize(
    "rows, queries, keys, heads, width, causal, window, padded",
    [
        (8, 8, 16, 2, 64, False, 0, True),  # 8 sentences share a matrix of scores
        (6, 24, 24, 2, 64, True, 0, False),  # 2 of them
        (3, 7, 13, 1, 128, False, 0, True),  # 1, of odd lengths
        (4, 16, 16, 8, 32, False, 3, True),  # two tiles of four heads
        (9, 130, 130, 2, 64, True, 5, True),  # blocks of 7, the last one not full
    ],
)
def test_the_kernel_is_attention(
    rows, queries, keys, heads, width, causal, window, padded
):
    rng = np.random.default_rng(rows)
    ids = np.ones((rows, keys), np.int32)
    if padded:
        lengths = rng.integers(1, keys + 1, rows)
        lengths[1] = 0
        ids = (np.arange(keys) < lengths[:, None]).astype(np.int32)
    mask = Mask(jnp.asarray(ids) if padded else None, causal, window)
    q, k, v, direction = (
        drawn(rng, rows, n, heads * width) for n in (queries, keys, keys, queries)
    )

    def split(x):
        return attention.split_heads(x, heads)

    def kernel(q, k, v):
        output = attention.fused_attention(
            split(q), split(k), split(v), mask, None, "pallas"
        )
        return attention.merge_heads(output).astype(jnp.float32)

    def plain(q, k, v):
        dense = mask.dense(queries, keys)
        output, _ = attention.attention(split(q), split(k), split(v), dense)
        return attention.merge_heads(output)

    @functools.partial(jax.jit, static_argnums=0)
    def both(function, *operands):
        output, back = jax.vjp(function, *operands)
        return output, *back(direction)

    found, expected = both(kernel, q, k, v), both(plain, q, k, v)
    # Weights, at most 1, and derivatives of scores are rounded to 8 bits before they
    # are multiplied, results once more. Errors of a sum of n products add up like a
    # random walk, and its largest value is some 3 sqrt(n) of them: 4 covers the rest.
    for ours, theirs, name in zip(found, expected, "o q k v".split(), strict=True):
        off = np.abs(np.asarray(ours) - theirs).max()
        assert off < 4 * 2.0**-9 * np.abs(theirs).max(), name
    if padded:  # nothing to attend to: no output, and nothing to be learnt from it
        assert not found[0][1].any() and not any(x[1].any() for x in found[1:])


def test_an_own_scale_and_sentences_without_neighbours():
    """Other rows, other heads, and what lies beyond a sentence's end change nothing."""
    rng = np.random.default_rng(0)
    q, k, v = (jnp.asarray(drawn(rng, 4, 32, 128), jnp.bfloat16) for _ in range(3))
    ids = jnp.asarray(np.arange(32) < 20, jnp.int32)[None].repeat(4, 0)
    attend = jax.jit(
        lambda q, k, v: attention_tpu.attend(q, k, v, ids, heads=2, scale=1.0)
    )
    output = attend(q, k, v)
    alone = attend(*(x.at[:3].set(7.0) for x in (q, k, v)))
    assert (alone[3] == output[3]).all() and (alone[0] != output[0]).any()
    head = attend(*(x.at[..., 64:].set(7.0) for x in (q, k, v)))
    assert (head[..., :64] == output[..., :64]).all()
    end = attend(q, *(x.at[:, 20:].set(7.0) for x in (k, v)))
    assert (end == output).all()
    halved = attend(q / 2, k, v)
    assert (halved != output).any()
    sharper = attention_tpu.attend(q / 2, k, v, ids, heads=2, scale=2.0)
    assert (sharper == output).all()  # a power of two rounds nothing
