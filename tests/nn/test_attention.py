"""Attention against the float64 reference, and what must hold for any input."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import reference
from support.reference import assert_close, numerical_gradient

from transformer.nn import attention, dropout, layers
from transformer.nn.hardware import Hardware

B, H, T, S, K, W = 2, 3, 4, 5, 7, 2  # d_k and d_v differ on purpose

# One after the other in attention: a sum of K products, a softmax over S (the error
# of a score, at most doubled by the subtraction of the largest, is the relative error
# of a weight), a sum of S products.
ROUNDINGS = 2 * K + 3 * S + 10


def inputs(seed=0):
    rng = np.random.default_rng(seed)
    q, k, v = (
        rng.normal(size=(B, H, length, size)).astype(np.float32)
        for length, size in ((T, K), (S, K), (S, W))
    )
    mask = rng.random((B, 1, T, S)) < 0.6
    mask[..., 0] = True
    return q, k, v, mask


def reference_attention(q, k, v, mask, scaled=True):
    mask = np.broadcast_to(mask, (B, H, T, S))
    output, weights = np.zeros((B, H, T, W)), np.zeros((B, H, T, S))
    for b in range(B):
        for h in range(H):
            output[b, h], weights[b, h] = reference.attention(
                q[b, h], k[b, h], v[b, h], mask[b, h], scaled
            )
    return output, weights


def largest_sum(q, k, v):
    """Bound what is added up anywhere: sums of |q k| and |v|."""
    return max(np.einsum("bhtk,bhsk->bhts", abs(q), abs(k)).max(), abs(v).max())


def test_padding_mask_is_true_where_there_is_a_token():
    ids = np.array([[5, 1, 2, 0], [7, 0, 0, 0]])
    mask = attention.padding_mask(jnp.array(ids))
    assert mask.shape == (2, 1, 1, 4) and mask.dtype == bool
    np.testing.assert_array_equal(
        mask[:, 0, 0], [reference.padding_mask(row) for row in ids]
    )


@pytest.mark.parametrize("length", [1, 2, 6])
def test_causal_mask(length):
    mask = attention.causal_mask(length)
    np.testing.assert_array_equal(mask, reference.causal_mask(length)[None, None])
    assert mask.dtype == bool


@pytest.mark.parametrize("window", [0, 1, 3, 9])
def test_window_mask(window):
    mask = attention.window_mask(6, window)
    np.testing.assert_array_equal(mask, reference.window_mask(6, window)[None, None])
    assert mask.dtype == bool


@pytest.mark.parametrize("name, scaled", [("scaled_dot", True), ("dot", False)])
def test_attention_equals_reference(name, scaled):
    q, k, v, mask = inputs()
    output, weights = attention.attention(
        q, k, v, jnp.array(mask), score=attention.SCORES[name]
    )
    expected_output, expected_weights = reference_attention(q, k, v, mask, scaled)
    largest = largest_sum(q, k, v)
    assert_close(output, expected_output, ROUNDINGS, magnitude=largest)
    assert_close(weights, expected_weights, ROUNDINGS, magnitude=largest)


def test_no_mask_allows_everything():
    q, k, v, _ = inputs()
    everything = np.ones((1, 1, T, S), bool)
    for got, wanted in zip(
        attention.attention(q, k, v),
        attention.attention(q, k, v, jnp.array(everything)),
        strict=True,
    ):
        np.testing.assert_array_equal(got, wanted)


def test_scale_is_the_root_of_the_key_width():
    q, k, _, _ = inputs()
    plain = attention.dot_product_scores(q, k)
    scaled = attention.scaled_dot_product_scores(q, k)
    assert_close(scaled, np.asarray(plain, float) / np.sqrt(K), 2 * K)


def test_scores_of_bfloat16_are_summed_in_float32():
    rng = np.random.default_rng(3)
    q, k = (
        jnp.asarray(rng.normal(size=(1, 1, 2, 512)), jnp.bfloat16) for _ in range(2)
    )
    scores = attention.dot_product_scores(q, k)
    assert scores.dtype == jnp.float32
    exact_q, exact_k = (np.asarray(x, np.float64) for x in (q, k))
    exact = np.einsum("bhtk,bhsk->bhts", exact_q, exact_k)
    largest = np.einsum("bhtk,bhsk->bhts", abs(exact_q), abs(exact_k)).max()
    assert_close(scores, exact, 512, magnitude=largest)


@pytest.mark.parametrize("argument", [0, 1, 2])
def test_attention_gradients_equal_finite_differences(argument):
    q, k, v, mask = inputs(1)
    mask[0, 0, 1] = False  # one row sees nothing
    cotangent = np.random.default_rng(2).normal(size=(B, H, T, W))

    def value(q, k, v):
        return (attention.attention(q, k, v, jnp.array(mask))[0] * cotangent).sum()

    def expected_value(x):
        a, b, c = (x if n == argument else y for n, y in enumerate((q, k, v)))
        return (reference_attention(a, b, c, mask)[0] * cotangent).sum()

    gradient = jax.grad(value, argnums=argument)(q, k, v)
    expected = numerical_gradient(expected_value, (q, k, v)[argument])
    # Back through the same sums, each term times a cotangent and a value.
    largest = largest_sum(q, k, v) * abs(cotangent).sum(-1).max()
    assert_close(gradient, expected, 2 * ROUNDINGS, magnitude=largest)
    assert np.abs(expected).max() > 0.1


def test_rows_that_see_nothing_are_zero_with_finite_gradients():
    q, k, v, _ = inputs()
    mask = np.ones((B, 1, T, S), bool)
    mask[0, 0, 2] = False
    mask[1] = False

    def value(q, k, v):
        output, weights = attention.attention(q, k, v, jnp.array(mask))
        return (output**2).sum() + weights.sum(), (output, weights)

    gradients, (output, weights) = jax.grad(value, argnums=(0, 1, 2), has_aux=True)(
        q, k, v
    )
    for array in (output, weights):
        assert np.all(np.asarray(array)[0, :, 2] == 0)
        assert np.all(np.asarray(array)[1] == 0)
        assert np.all(np.asarray(array)[0, :, :2].any(-1))
    for gradient in gradients:
        assert np.isfinite(gradient).all()
        assert np.all(np.asarray(gradient)[1] == 0)
    assert np.all(np.asarray(gradients[0])[0, :, 2] == 0)


@pytest.mark.parametrize("size", [1, 1e4, 1e8])
def test_weights_sum_to_one_over_allowed_keys_only(size):
    rng = np.random.default_rng(5)
    scores = (rng.normal(size=(B, H, T, S)) * size).astype(np.float32)
    mask = rng.random((B, 1, 1, S)) < 0.5
    mask[..., 1] = True
    weights = np.asarray(
        attention.attention_weights(jnp.array(scores), jnp.array(mask))
    )
    assert_close(weights.sum(-1), np.ones((B, H, T)), 2 * S)
    assert weights.min() >= 0
    assert not weights[np.broadcast_to(~mask, weights.shape)].any()


def test_weights_are_float32_for_bfloat16_scores():
    scores = jnp.zeros((1, 1, 1, 3), jnp.bfloat16)
    weights = attention.attention_weights(scores, None)
    assert weights.dtype == jnp.float32
    assert_close(weights, np.full((1, 1, 1, 3), 1 / 3), 4)


def test_adding_a_constant_to_a_row_of_scores_changes_nothing():
    rng = np.random.default_rng(6)
    scores = rng.integers(-8, 8, size=(B, H, T, S)).astype(np.float32)
    mask = jnp.array(rng.random((B, 1, T, S)) < 0.7)
    shift = rng.integers(-100, 100, size=(B, H, T, 1))  # exact in float32
    np.testing.assert_array_equal(
        attention.attention_weights(jnp.array(scores), mask),
        attention.attention_weights(jnp.array(scores + np.float32(shift)), mask),
    )


@settings(max_examples=20, deadline=None)
@given(order=st.permutations(range(S)), seed=st.integers(0, 10))
def test_order_of_the_keys_does_not_matter(order, seed):
    q, k, v, mask = inputs(seed)
    output, weights = attention.attention(q, k, v, jnp.array(mask))
    permuted_output, permuted_weights = attention.attention(
        q, k[:, :, order], v[:, :, order], jnp.array(mask[..., order])
    )
    largest = largest_sum(q, k, v)
    assert_close(permuted_output, output, ROUNDINGS, magnitude=largest)
    assert_close(
        permuted_weights, np.asarray(weights)[..., order], ROUNDINGS, magnitude=largest
    )


def test_what_is_masked_cannot_be_noticed():
    q, k, v, mask = inputs(7)
    hidden = ~mask.any((1, 2))
    hidden[:, -1] = True
    mask = mask & ~hidden[:, None, None]
    before, _ = attention.attention(q, k, v, jnp.array(mask))
    for b, s in zip(*np.nonzero(hidden), strict=True):
        k[b, :, s], v[b, :, s] = 1e4, -1e30
    after, _ = attention.attention(q, k, v, jnp.array(mask))
    np.testing.assert_array_equal(before, after)


def test_heads_are_neighbouring_columns():
    x = jnp.arange(2 * 3 * 8).reshape(2, 3, 8)
    heads = attention.split_heads(x, 4)
    assert heads.shape == (2, 4, 3, 2)
    for h in range(4):
        np.testing.assert_array_equal(heads[:, h], x[:, :, 2 * h : 2 * h + 2])
    np.testing.assert_array_equal(attention.merge_heads(heads), x)


def test_multi_head_attention_with_different_key_and_value_widths():
    d_model, rng = 6, np.random.default_rng(8)
    x, memory = rng.normal(size=(T, d_model)), rng.normal(size=(S, d_model))
    mask = rng.random((T, S)) < 0.7
    shapes = {
        "query": (d_model, H * K),
        "key": (d_model, H * K),
        "value": (d_model, H * W),
        "output": (H * W, d_model),
    }
    weights = {
        name: (rng.normal(size=shape) / 3, rng.normal(size=shape[1]))
        for name, shape in shapes.items()
    }

    def project(name, y):
        kernel, bias = (jnp.asarray(a, jnp.float32) for a in weights[name])
        return layers.linear(jnp.asarray(y, jnp.float32), kernel, bias)

    q = attention.split_heads(project("query", x[None]), H)
    k = attention.split_heads(project("key", memory[None]), H)
    v = attention.split_heads(project("value", memory[None]), H)
    heads, _ = attention.attention(q, k, v, jnp.array(mask)[None, None])
    output = project("output", attention.merge_heads(heads))[0]
    expected = reference.multi_head_attention(x, memory, mask, weights, H)
    # Four linear maps around attention; values on the way stay below the sums in it.
    roundings = ROUNDINGS + 4 * (d_model + 2) + H * W
    largest = largest_sum(np.asarray(q), np.asarray(k), np.asarray(v)) * H * W
    assert_close(output, expected, roundings, magnitude=largest)


def test_a_bias_is_added_to_the_scores_before_the_softmax():
    q, k, v, mask = inputs(9)
    bias = np.random.default_rng(4).normal(size=(1, q.shape[1], T, S)).astype("f")

    def attend(q, bias):
        return attention.attention(q, k, v, jnp.array(mask), bias=bias)

    output, weights = attend(q, bias)
    plain = np.asarray(attention.attention(q, k, v, jnp.array(mask))[1], np.float64)
    # softmax(s + b) is softmax(s) e^b, normalised again over the allowed keys.
    expected = plain * np.exp(np.asarray(bias, np.float64))
    expected /= np.maximum(expected.sum(-1, keepdims=True), 1e-300)
    assert_close(weights, expected, 8 * S, magnitude=1)
    assert_close(output, np.einsum("bhts,bhsw->bhtw", expected, v), 16 * S, magnitude=4)
    assert np.abs(jax.grad(lambda b: attend(q, b)[0].sum())(bias)).max() > 0


def test_dropout_acts_on_the_weights_before_the_values():
    key = dropout.make_key(3)
    q, k, v, mask = inputs(9)
    output, weights = attention.attention(
        q, k, v, jnp.array(mask), dropout_rate=0.4, key=key
    )
    kept, undropped = attention.attention(q, k, v, jnp.array(mask))
    dropped = np.asarray(dropout.dropout(weights, 0.4, key), np.float64)
    np.testing.assert_array_equal(weights, undropped)
    assert_close(output, np.einsum("bhts,bhsw->bhtw", dropped, v), 2 * S + 4)
    assert np.abs(np.asarray(output) - np.asarray(kept)).max() > 0.1


def test_without_a_key_there_is_no_dropout():
    q, k, v, mask = inputs(9)
    kept, _ = attention.attention(q, k, v, jnp.array(mask), dropout_rate=0.9)
    np.testing.assert_array_equal(
        kept, attention.attention(q, k, v, jnp.array(mask))[0]
    )


# ---- keys in blocks ------------------------------------------------------------------


@pytest.mark.parametrize("filled", [1, 2, 3])
def test_block_attention_is_attention_to_the_filled_blocks(filled):
    rng = np.random.default_rng(filled)
    q, *_ = inputs(filled)
    ends = [4, 8, 11]
    end = ends[filled - 1]
    k, v = (rng.normal(size=(B, H, 11, width)).astype(np.float32) for width in (K, W))
    mask = rng.random((B, 1, T, 11)) < 0.6
    mask[..., 0] = True
    mask[..., end:] = False
    # Whatever a block that is not filled holds must not matter.
    k[:, :, end:] = v[:, :, end:] = np.nan
    found = jax.jit(attention.block_attention)(
        q,
        np.split(k.swapaxes(2, 3), ends[:2], axis=3),
        np.split(v, ends[:2], axis=2),
        mask,
        jnp.asarray(filled),
    )
    present = k[:, :, :end], v[:, :, :end], mask[..., :end]
    expected, _ = attention.attention(*map(jnp.asarray, (q, *present)))
    # 11 keys where ``inputs`` has S.
    assert_close(found, expected, 2 * ROUNDINGS, magnitude=largest_sum(q, *present[:2]))


# ---- the fused kernel ----------------------------------------------------------------


IDS: Any = np.array([[5, 4, 9, 3, 7, 2, 3][:S], [8, 3, 0, 0, 0, 0, 0][:S]], np.int32)
EMPTY: Any = IDS * np.array([[1], [0]], np.int32)


@pytest.mark.parametrize(
    "mask, queries",
    [
        (attention.Mask(), T),
        (attention.Mask(IDS), T),
        (attention.Mask(EMPTY), T),
        (attention.Mask(causal=True), S),
        (attention.Mask(causal=True, window=2), S),
    ],
    ids=["all", "padded", "an empty sentence", "causal", "window"],
)
def test_fused_attention_is_attention_of_rounded_operands(mask, queries):
    """JAX's own form of the call that cuDNN serves on a GPU, value and gradients."""
    rng = np.random.default_rng(5)
    q, k, v = (
        rng.normal(size=(B, H, n, K)).astype(np.float32) for n in (queries, S, S)
    )

    def rounded(x):
        return np.asarray(jnp.asarray(x, jnp.bfloat16), np.float32)

    def with_gradients(function, *arrays):
        def total(*arrays):
            found = function(*arrays)
            return (found**2).sum(), found

        slopes, found = jax.jit(jax.grad(total, (0, 1, 2), has_aux=True))(*arrays)
        return found, slopes

    def fused(q, k, v):
        return attention.fused_attention(q, k, v, mask, kernel="xla")

    def plain(q, k, v):
        return attention.attention(q, k, v, mask.dense(queries, S))[0]

    operands = rounded(q), rounded(k), rounded(v)
    found, our_slopes = with_gradients(fused, q, k, v)
    expected, their_slopes = with_gradients(plain, *operands)
    assert found.dtype == jnp.bfloat16
    if mask.keys is EMPTY:
        assert not found[1].any() and found[0].any()
    # The weights (up to 1) and the output are rounded to 8 bits once each, the scores
    # too: 2^-9 of the largest product, which the softmax hands on at most twice.
    scores = np.einsum("bhtk,bhsk->bhts", abs(q), abs(k)).max() / np.sqrt(K)
    share = 2.0**-9 * (2 + 2 * scores)
    np.testing.assert_allclose(found, expected, atol=share * abs(v).max(), rtol=0)
    for ours, theirs in zip(our_slopes, their_slopes, strict=True):
        # Products of some ten numbers that are each off by the share above.
        np.testing.assert_allclose(ours, theirs, atol=10 * share * abs(theirs).max())


def test_a_mask_written_out_is_what_its_parts_allow():
    padding = attention.padding_mask(jnp.asarray(IDS))
    near, past = attention.window_mask(S, 2), attention.causal_mask(S)
    cases: list[tuple[attention.Mask, Any]] = [
        (attention.Mask(), np.ones((1, 1, 1, S), bool)),
        (attention.Mask(IDS), padding),
        (attention.Mask(IDS, window=2), padding & near),
        (attention.Mask(causal=True), past),
        (attention.Mask(causal=True, window=2), past & near),
    ]
    for mask, expected in cases:
        found = np.asarray(mask.dense(S, S))
        shape = np.broadcast_shapes(found.shape, np.shape(expected))
        np.testing.assert_array_equal(
            np.broadcast_to(found, shape), np.broadcast_to(expected, shape)
        )


@pytest.mark.parametrize(
    "changes, there",
    [
        ({}, True),
        ({"hardware": Hardware("cuda", (8, 0))}, True),
        ({"hardware": Hardware("cuda", (7, 5), bfloat16=False)}, False),  # a T4
        ({"hardware": Hardware("rocm")}, False),
        ({"hardware": Hardware("cpu")}, False),
        ({"dtype": "float32"}, False),
        ({"score": "dot"}, True),
        ({"d_v": 32}, False),
        ({"d_k": 60, "d_v": 60}, False),
        ({"d_k": 512, "d_v": 512}, False),
        ({"lengths": (7, 8)}, False),
        ({"lengths": (8, 1)}, False),
        ({"mask": attention.Mask(IDS)}, True),
        ({"mask": attention.Mask(causal=True, window=2)}, True),
        ({"mask": attention.Mask(IDS, window=2)}, False),
    ],
    ids=str,
)
def test_where_a_fused_kernel_is_known(changes, there):
    usual = {
        "hardware": Hardware("cuda", (9, 0)),
        "dtype": "bfloat16",
        "score": "scaled_dot",
        "heads": 8,
        "d_k": 64,
        "d_v": 64,
        "lengths": (8, 32),
        "mask": attention.Mask(causal=True),
    }
    assert attention.fused_kernel(**(usual | changes)) == ("cudnn" if there else None)


@pytest.mark.parametrize(
    "changes, there",
    [
        ({}, True),
        ({"dtype": "float32"}, False),
        ({"score": "dot"}, True),
        ({"d_k": 32}, False),
        ({"heads": 4, "d_k": 32, "d_v": 32}, True),
        ({"heads": 3}, False),  # half of the lanes of a tile would be idle
        ({"d_k": 96, "d_v": 96}, False),
        ({"lengths": (7, 9)}, True),
        ({"lengths": (512, 512)}, True),
        ({"lengths": (513, 512)}, False),
        ({"mask": attention.Mask(IDS, window=2)}, True),
        ({"hardware": Hardware("tpu", cuts_heads=True)}, False),
        ({"hardware": Hardware("cpu")}, False),
        ({"hardware": Hardware("rocm")}, False),
    ],
    ids=str,
)
def test_where_a_tpu_has_a_kernel(changes, there):
    usual = {
        "hardware": Hardware("tpu"),
        "dtype": "bfloat16",
        "score": "scaled_dot",
        "heads": 2,
        "d_k": 64,
        "d_v": 64,
        "lengths": (8, 32),
        "mask": attention.Mask(causal=True),
    }
    assert attention.fused_kernel(**(usual | changes)) == ("pallas" if there else None)
