"""Layers against the float64 reference; dropout against what randomness must be."""

import functools
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

from transformer.nn import dropout, layers, matmul, positions
from transformer.nn.hardware import Hardware


def normal(seed, *shape) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def exact(x) -> Any:
    return np.asarray(x, np.float64)


# --------------------------------------------------------------------------- products


@pytest.mark.parametrize("biased", [True, False])
def test_linear_equals_reference(biased):
    x, kernel, bias = normal(0, 2, 3, 11), normal(1, 11, 5), normal(2, 5)
    bias = bias if biased else None
    y = layers.linear(x, kernel, bias)
    expected = reference.affine(exact(x), exact(kernel), bias)
    assert y.dtype == jnp.float32
    assert_close(y, expected, 11 + 1, magnitude=(abs(x) @ abs(kernel)).max())


def rounded(x) -> Any:
    """Round to bfloat16 and return as float64."""
    return np.asarray(jnp.asarray(x, jnp.bfloat16), np.float64)


def test_bfloat16_linear_multiplies_rounded_operands_and_adds_in_float32():
    x, kernel, bias = normal(0, 3, 300), normal(1, 300, 4), normal(2, 4)
    y = layers.linear(x, kernel, bias, "bfloat16")
    assert y.dtype == jnp.float32
    # The products of rounded operands are exact in float32, the 300 sums are not.
    products = rounded(x) @ rounded(kernel) + bias
    terms = abs(rounded(x)) @ abs(rounded(kernel)) + abs(bias)
    assert_close(y, products, 300 + 1, magnitude=terms.max())
    # Each operand is off by at most 2^-9 of itself (8 bits, rounded to nearest), a
    # product by 2^-8 + 2^-18.
    true = exact(x) @ exact(kernel) + bias
    error = abs(np.asarray(y) - true)
    allowed = (2.0**-8 + 2.0**-18 + 301 * 2.0**-24) * terms
    assert (error <= allowed).all()
    assert error.max() > 1e-4  # the operands were rounded indeed


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rows", [1, 12, 9 * matmul._SMALL_RESULT // 8 // 256])
def test_gradients_of_linear(dtype, transposed, rows):
    """For one row, few rows and many, which are multiplied in different forms."""
    shape, out = (2, rows // 2) if rows > 1 else (1, 1), 256
    x, kernel, bias = normal(0, *shape, 9), normal(1, 9, out), normal(2, out)
    cotangent = normal(3, *shape, out)
    keep = rounded if dtype == "bfloat16" else exact
    flat_x, g = keep(x).reshape(rows, 9), keep(cotangent).reshape(rows, out)
    k = keep(kernel)

    def value(x, kernel, bias):
        y = layers.linear(x, kernel, bias, dtype)
        return (y * cotangent).sum(), y

    run = jax.jit(jax.value_and_grad(value, argnums=(0, 1, 2), has_aux=True))
    stored = matmul.Transposed(kernel.T) if transposed else kernel
    (_, y), (d_x, d_kernel, d_bias) = run(x, stored, bias)
    d_kernel = d_kernel.rows.T if transposed else d_kernel
    for found, wanted, magnitude, terms in [
        (y, flat_x @ k + exact(bias), abs(flat_x) @ abs(k) + abs(bias), 9 + 1),
        (d_x, g @ k.T, abs(g) @ abs(k).T, out),
        (d_kernel, flat_x.T @ g, abs(flat_x).T @ abs(g), rows),
        (d_bias, exact(cotangent).sum((0, 1)), abs(cotangent).sum((0, 1)), rows),
    ]:
        assert found.dtype == jnp.float32
        size = np.asarray(magnitude).max()
        assert_close(found, wanted.reshape(found.shape), terms, magnitude=size)


def test_this_backend_multiplies_bfloat16():
    assert matmul.multiplies("bfloat16")


@pytest.fixture
def tried_anew():
    """Let the next question be answered by a new try, and forget its answer."""
    matmul.multiplies.cache_clear()
    yield
    matmul.multiplies.cache_clear()


def test_a_backend_without_a_form_multiplies_float32(tried_anew, monkeypatch):
    def fail(dtype):
        raise jax.errors.JaxRuntimeError("UNIMPLEMENTED: BF16 x BF16 = F32")

    monkeypatch.setattr(matmul, "_try_every_form", fail)
    assert Hardware("cpu").operands("bfloat16") == "float32"
    assert Hardware("cpu").operands("float32") == "float32"
    assert Hardware("tpu").operands("bfloat16") == "bfloat16"


def test_other_errors_of_a_backend_are_not_hidden(tried_anew, monkeypatch):
    def fail(dtype):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")

    monkeypatch.setattr(matmul, "_try_every_form", fail)
    with pytest.raises(jax.errors.JaxRuntimeError, match="EXHAUSTED"):
        Hardware("cpu").operands("bfloat16")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_of_einsum(dtype):
    keep = rounded if dtype == "bfloat16" else exact
    x, y = (normal(i, 2, 3, n, 7).astype(dtype) for i, n in enumerate((5, 4)))
    cotangent = normal(2, 2, 3, 5, 4)

    def value(x, y):
        z = matmul.einsum("bhtk,bhsk->bhts", x, y)
        return (z * cotangent).sum(), z

    (_, z), (d_x, d_y) = jax.value_and_grad(value, (0, 1), has_aux=True)(x, y)
    g, x, y = keep(cotangent), exact(x), exact(y)
    assert z.dtype == jnp.float32 and d_x.dtype == d_y.dtype == dtype
    for found, form, left, right, terms in [
        (z, "bhtk,bhsk->bhts", x, y, 7),
        (d_x, "bhts,bhsk->bhtk", g, y, 4),
        (d_y, "bhts,bhtk->bhsk", g, x, 5),
    ]:
        wanted = np.einsum(form, left, right)
        wanted = wanted if found.dtype == jnp.float32 else keep(wanted)
        size = np.einsum(form, abs(left), abs(right)).max()
        # A bfloat16 gradient may be rounded to either neighbour: 2^16 units apart.
        apart = 0 if found.dtype == jnp.float32 else 2**16
        assert_close(exact(found), wanted, terms + apart, magnitude=size)


# -------------------------------------------------------------------------- sub-layers


@pytest.mark.parametrize("epsilon", [1e-6, 0.5])
def test_layer_norm_value_and_gradients(epsilon):
    arguments = [2 * normal(0, 4, 6), normal(1, 6), normal(2, 6)]
    cotangent = normal(3, 4, 6)

    def value(x, scale, bias):
        return (layers.layer_norm(x, scale, bias, epsilon) * cotangent).sum()

    def expected(x, scale, bias):
        return reference.layer_norm(exact(x), exact(scale), exact(bias), epsilon)

    # Two means of 6, a root, a product: with spreads above 1/2 nothing grows more
    # than fourfold.
    assert arguments[0].std(-1).min() > 0.5
    x, scale, bias = arguments
    y = layers.layer_norm(x, scale, bias, epsilon)
    assert_close(y, expected(x, scale, bias), 4 * (2 * 6 + 6))
    gradients = jax.grad(value, argnums=(0, 1, 2))(*arguments)
    for n, gradient in enumerate(gradients):

        def of_one(x, n=n):
            args = [x if i == n else a for i, a in enumerate(arguments)]
            return (expected(*args) * cotangent).sum()

        wanted = numerical_gradient(of_one, arguments[n])
        assert_close(gradient, wanted, 16 * (2 * 6 + 6), magnitude=6)


def test_layer_norm_has_mean_bias_and_variance_scale():
    y = layers.layer_norm(normal(0, 5, 512), jnp.full(512, 3.0), jnp.full(512, 7.0))
    assert_close(y.mean(-1), np.full(5, 7.0), 512, magnitude=20)
    np.testing.assert_allclose(y.std(-1), 3, rtol=1e-4)


def test_layer_norm_of_large_offsets_is_not_cancelled_away():
    # E[x^2] - E[x]^2 in float32 would lose all digits of a variance of 1 at 10^4.
    x = normal(0, 3, 64) + np.float32(1e4)
    y = layers.layer_norm(x, jnp.ones(64), jnp.zeros(64))
    expected = reference.layer_norm(exact(x), np.ones(64), np.zeros(64), 1e-6)
    # What remains is the rounding of the mean, common to a row: 64 * 2^-24 * 10^4.
    assert abs(np.asarray(y) - expected).max() < 64 * 2.0**-24 * 1e4 / x.std(-1).min()


def test_layer_norm_of_equal_values_is_the_bias_with_finite_gradient():
    x, bias = jnp.full((1, 8), 3.0), jnp.arange(8.0)
    np.testing.assert_array_equal(
        layers.layer_norm(x, jnp.ones(8), bias)[0], np.arange(8)
    )
    gradient = jax.grad(lambda x: layers.layer_norm(x, jnp.ones(8), bias)[0, 0])(x)
    assert np.isfinite(gradient).all()


def test_layer_norm_computes_bfloat16_in_float32():
    x = jnp.asarray(normal(0, 2, 32), jnp.bfloat16)
    y = layers.layer_norm(x, jnp.ones(32), jnp.zeros(32))
    expected = reference.layer_norm(
        np.asarray(x, np.float64), np.ones(32), np.zeros(32), 1e-6
    )
    assert y.dtype == jnp.float32
    assert_close(y, expected, 4 * (2 * 32 + 6))


def feed_forward_arguments() -> Any:
    return (
        normal(0, 2, 3, 5),
        normal(1, 5, 7),
        normal(2, 7),
        normal(3, 7, 5),
        normal(4, 5),
    )


def test_feed_forward_value_and_gradients():
    arguments, cotangent = feed_forward_arguments(), normal(5, 2, 3, 5)
    precise = [exact(a) for a in arguments]

    def value(*args):
        return (layers.feed_forward(*args) * cotangent).sum()

    def expected_value(n, x):
        args = [x if i == n else a for i, a in enumerate(precise)]
        return (reference.feed_forward(*args) * cotangent).sum()

    x, kernel_1, bias_1, kernel_2, bias_2 = (abs(a) for a in arguments)
    largest = ((x @ kernel_1 + bias_1) @ kernel_2 + bias_2).max()
    assert_close(
        layers.feed_forward(*arguments),
        reference.feed_forward(*precise),
        5 + 7 + 2,
        magnitude=largest,
    )
    gradients = jax.grad(value, argnums=range(5))(*arguments)
    for n, gradient in enumerate(gradients):
        of_one = functools.partial(expected_value, n)
        wanted = numerical_gradient(of_one, precise[n])
        # A gradient adds up at most the 6 positions of what the value adds up.
        most = 6 * largest * abs(cotangent).max()
        assert_close(gradient, wanted, 5 + 7 + 6 + 5, magnitude=most)


def test_feed_forward_with_other_activations_by_hand():
    # At 1: 1 / (1 + 1/e) and the normal distribution function; at -2 likewise.
    x, one, zero = jnp.array([[[1.0], [-2.0]]]), jnp.ones((1, 1)), jnp.zeros(1)
    expected = {
        "relu": [1.0, 0.0],
        "swish": [0.7310586, -0.2384058],
        "gelu": [0.8413447, -0.0455003],
    }
    assert expected.keys() == layers.ACTIVATIONS.keys()
    for name, values in expected.items():
        y = layers.feed_forward(x, one, zero, one, zero, activation=name)
        np.testing.assert_allclose(y[0, :, 0], values, rtol=1e-6)
        # Inner activations are rounded once where they are stored, not in between.
        wide = layers.feed_forward(
            x, one, zero, one, zero, activation=name, inner="bfloat16"
        )
        np.testing.assert_array_equal(wide, y)


def test_feed_forward_treats_positions_alone():
    x, *parameters = feed_forward_arguments()
    before = layers.feed_forward(x, *parameters)
    x[1, 2] = 100
    after = layers.feed_forward(x, *parameters)
    changed = (np.asarray(before) != np.asarray(after)).any(-1)
    assert changed.tolist() == [[False] * 3, [False, False, True]]


def test_relu_dropout_is_inside():
    x, kernel_1, bias_1, kernel_2, bias_2 = feed_forward_arguments()
    key = dropout.make_key(1)
    y = layers.feed_forward(
        x, kernel_1, bias_1, kernel_2, bias_2, dropout_rate=0.5, key=key
    )
    active = jax.nn.relu(layers.linear(x, kernel_1, bias_1))
    inner = np.asarray(dropout.dropout(active, 0.5, key))
    largest = (abs(inner) @ abs(kernel_2) + abs(bias_2)).max()
    assert_close(y, exact(inner) @ kernel_2 + bias_2, 9, magnitude=largest)


# ------------------------------------------------------------ embeddings and positions


def test_embedding_is_scaled_and_its_gradient_counts_ids():
    table, ids = normal(0, 6, 8), jnp.array([[3, 3, 5], [0, 3, 1]])
    embedded = layers.embed(ids, table)
    expected = np.stack([reference.embed(row, exact(table)) for row in np.asarray(ids)])
    assert_close(embedded, expected, 3)
    gradient = jax.grad(lambda table: layers.embed(ids, table).sum())(table)
    counts = np.bincount(np.ravel(ids), minlength=6)
    assert_close(gradient, np.sqrt(8) * np.tile(counts[:, None], 8), 6)


KINDS = [
    (positions.sinusoidal_positions, reference.sinusoids),
    (positions.sinusoidal_positions_concat, reference.sinusoids_concat),
]


@pytest.mark.parametrize("ours, theirs", KINDS)
@pytest.mark.parametrize("length, d_model", [(1, 4), (7, 6), (1000, 16)])
def test_sinusoids_equal_reference(ours, theirs, length, d_model):
    table = ours(length, d_model)
    assert table.dtype == jnp.float32
    # Angles up to 1000 must have been computed in float64: only the result is rounded.
    assert_close(table, theirs(length, d_model), 1, magnitude=1)


def test_sinusoids_by_hand():
    table = positions.sinusoidal_positions(3, 4)
    np.testing.assert_array_equal(table[0], [0, 1, 0, 1])
    row = [math.sin(2), math.cos(2), math.sin(0.02), math.cos(0.02)]
    np.testing.assert_allclose(table[2], row, rtol=1e-6)
    concat = positions.sinusoidal_positions_concat(3, 4)
    np.testing.assert_array_equal(concat[0], [0, 0, 1, 1])
    row = [math.sin(2), math.sin(2e-4), math.cos(2), math.cos(2e-4)]
    np.testing.assert_allclose(concat[2], row, rtol=1e-6)


@settings(max_examples=20)
@given(offset=st.integers(0, 40), kind=st.sampled_from([0, 1]))
def test_encoding_of_an_offset_is_one_linear_map(offset, kind):
    """Section 3.5: "for any fixed offset k, PE(pos + k) is a linear function"."""
    d_model, half = 12, 6
    table = np.asarray(KINDS[kind][0](100, d_model), np.float64)
    exponents = [2 * i / d_model if kind == 0 else i / (half - 1) for i in range(half)]
    shift = np.zeros((d_model, d_model))
    for i, exponent in enumerate(exponents):
        sine, cosine = (2 * i, 2 * i + 1) if kind == 0 else (i, half + i)
        angle = offset / 10000**exponent
        shift[sine, sine] = shift[cosine, cosine] = math.cos(angle)
        shift[cosine, sine], shift[sine, cosine] = math.sin(angle), -math.sin(angle)
    moved = table[: 100 - offset] @ shift
    # Two rounded entries go into each: the map itself is a rotation.
    assert_close(table[offset:], moved, 3, magnitude=1)
    assert_close((table**2).sum(1), np.full(100, half), 2 * d_model)


# ---------------------------------------------------------------------------- dropout
#
# Every statistic below is that of one fixed seed; the thresholds are what a perfect
# generator exceeds with the stated probability.

SIGMAS = 6.0  # two-sided 2e-9; over the 65,536 shifts of a test 1.3e-4
SHAPE = (16, 64, 64)
COUNT = math.prod(SHAPE)


def kept(key, rate, shape=SHAPE):
    return np.asarray(dropout.dropout(jnp.ones(shape), rate, key)) > 0


def test_a_rate_next_to_one_is_a_share_of_32_bits():
    assert not kept(dropout.make_key(0), 1 - 1e-11).any()


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.3, 0.5, 0.9])
def test_dropout_rate_and_expectation(rate):
    x = normal(0, *SHAPE)
    y = np.asarray(dropout.dropout(x, rate, dropout.make_key(1)))
    dropped = y == 0
    error = dropped.sum() - rate * COUNT
    assert abs(error) < SIGMAS * math.sqrt(COUNT * rate * (1 - rate))
    expected = np.where(dropped, 0, exact(x) / (1 - rate))
    assert_close(y, expected, 2)
    # E[y] = x, so the mean of y - x is 0 with variance x^2 rate / (1 - rate) / n.
    sigma = math.sqrt((exact(x) ** 2).sum() * rate / (1 - rate))
    assert abs((exact(y) - x).sum()) < SIGMAS * sigma


def correlations(a, b, rate):
    """Return the correlation of two masks at every cyclic shift, in deviations."""
    a, b = (np.fft.rfft((m.ravel() - (1 - rate)) / np.std(m)) for m in (a, b))
    return np.fft.irfft(a * b.conj(), COUNT) / math.sqrt(COUNT)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_elements_are_independent_at_every_distance(rate):
    # Neighbours along the axes are the distances 1, 64 and 4,096.
    mask = kept(dropout.make_key(2), rate)
    shifts = correlations(mask, mask, rate)
    assert shifts[0] == pytest.approx(math.sqrt(COUNT), rel=0.01)
    assert abs(shifts[1:]).max() < SIGMAS


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_seeds_steps_and_sites_are_independent_at_every_distance(rate):
    key = dropout.make_key(2)
    others = {
        "seed": dropout.make_key(3),
        "step 0": dropout.fold_in(key, 0),
        "step 1": dropout.fold_in(key, 1),
        "step 0, site 1": dropout.fold_in(dropout.fold_in(key, 0), 1),
        "step 1, site 0": dropout.fold_in(dropout.fold_in(key, 1), 0),
        "site 1, seed 3": dropout.fold_in(dropout.make_key(3), 1),
    }
    masks = {"key": kept(key, rate)}
    for name, other in others.items():
        mask = kept(other, rate)
        for before, earlier in masks.items():
            shifts = correlations(earlier, mask, rate)
            assert abs(shifts).max() < SIGMAS, (before, name)
        masks[name] = mask


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_slices_along_every_axis_are_dropped_alike(axis):
    # Chi-square of the counts of the slices: mean n, variance 2 n for n slices.
    rate = 0.3
    counts = kept(dropout.make_key(4), rate).sum(tuple({0, 1, 2} - {axis}))
    slices, size = len(counts), COUNT // len(counts)
    variance = size * rate * (1 - rate)
    chi_square = ((counts - size * (1 - rate)) ** 2 / variance).sum()
    # 1e-4 each way by the cube-root normal approximation (Wilson and Hilferty).
    spread = 3.72 * math.sqrt(2 / (9 * slices))
    low, high = (slices * (1 - 2 / (9 * slices) + z) ** 3 for z in (-spread, spread))
    assert low < chi_square < high


def test_pairs_of_neighbours_fill_a_contingency_table_evenly():
    rate = 0.5
    mask = kept(dropout.make_key(5), rate).astype(int)
    for axis in range(3):
        first, second = (
            np.moveaxis(mask, axis, 0)[0::2],
            np.moveaxis(mask, axis, 0)[1::2],
        )
        cells = np.bincount((2 * first + second).ravel(), minlength=4)
        expected = first.size / 4
        chi_square = ((cells - expected) ** 2 / expected).sum()
        assert chi_square < 21.1, axis  # 3 degrees of freedom, 1e-4


def test_one_element_over_the_steps():
    # The same place of 4,096 steps: as a dropout mask of its own.
    rate = 0.3
    key = dropout.make_key(6)
    steps = jnp.arange(4096)
    masks = jax.vmap(
        lambda step: dropout.dropout(jnp.ones((2, 3)), rate, dropout.fold_in(key, step))
    )(steps)
    mask = np.asarray(masks).reshape(4096, 6) > 0
    sigma = math.sqrt(4096 * rate * (1 - rate))
    assert abs(mask.sum(0) - 4096 * (1 - rate)).max() < SIGMAS * sigma
    centred = mask - (1 - rate)
    pairs = centred.T @ centred / (rate * (1 - rate) * math.sqrt(4096))
    assert abs(pairs - np.diag(np.diag(pairs))).max() < SIGMAS
    following = (centred[1:] * centred[:-1]).sum(0) / (rate * (1 - rate) * 64)
    assert abs(following).max() < SIGMAS


def test_hash_keys_that_count_through_the_same_numbers_are_independent():
    # The first word is where the counter starts, in steps of this constant: of the
    # many masks of a step some overlap, and only the second word keeps them apart.
    rate, size, lag = 0.1, 2**14, 64
    rng = np.random.default_rng(0)

    def words(first, second):
        return dropout.Key((first, second), jnp.uint32(0))

    @jax.jit
    @jax.vmap
    def pair(first, second, other):
        later = first + np.uint32(lag * 0x9E3779B9 % 2**32)
        ones = jnp.ones((1, size))
        a = dropout.dropout(ones, rate, words(first, second))[0, lag:] > 0
        b = dropout.dropout(ones, rate, words(later, other))[0, :-lag] > 0
        return a, b

    first, second, other = rng.integers(0, 2**32, (3, 200), np.uint32)
    same = pair(first, second, second)
    np.testing.assert_array_equal(*same)  # they do overlap
    a, b = (np.asarray(mask) - (1 - rate) for mask in pair(first, second, other))
    correlation = (a * b).sum(1) / (rate * (1 - rate) * math.sqrt(size - lag))
    assert abs(correlation).max() < SIGMAS
    # 200 normal deviates: their mean square is 1 within six deviations of .1.
    assert 0.4 < (correlation**2).mean() < 1.6


@settings(max_examples=20)
@given(
    cut=st.sampled_from([1, 3, 7]),
    seed=st.integers(0, 2**32 - 1),
    first=st.integers(0, 99),
)
def test_mask_does_not_depend_on_how_the_batch_is_cut(cut, seed, first):
    x = normal(0, 8, 3, 5)
    whole = dropout.dropout(x, 0.4, dropout.make_key(seed, first))
    parts = [
        dropout.dropout(x[:cut], 0.4, dropout.make_key(seed, first)),
        dropout.dropout(x[cut:], 0.4, dropout.make_key(seed, first + cut)),
    ]
    np.testing.assert_array_equal(whole, np.concatenate(parts))


def test_row_offset_survives_fold_in():
    x = normal(0, 8, 3, 5)
    key = dropout.fold_in(dropout.fold_in(dropout.make_key(7), 12), 3)
    part = dropout.fold_in(dropout.fold_in(dropout.make_key(7, 6), 12), 3)
    whole = dropout.dropout(x, 0.4, key)
    np.testing.assert_array_equal(whole[6:], dropout.dropout(x[6:], 0.4, part))


def test_same_key_same_mask_compiled_or_not():
    x, key = normal(0, 4, 5), dropout.make_key(8)
    compiled = jax.jit(lambda x, key: dropout.dropout(x, 0.4, key))
    np.testing.assert_array_equal(dropout.dropout(x, 0.4, key), compiled(x, key))


def test_a_settled_key_is_the_same_key():
    key: Any = dropout.fold_in(dropout.make_key(9, 4), 2)
    wanted = [int(x) for x in (*key.words, key.row)]
    assert wanted[0] != wanted[1]
    for settle in (dropout.settled, jax.jit(dropout.settled)):
        same: Any = settle(key)
        assert [int(x) for x in (*same.words, same.row)] == wanted
    assert dropout.settled(None) is None


@pytest.mark.parametrize("rate", [0.05, 0.1])
def test_dropout_of_bfloat16_keeps_the_mean(rate):
    """The factor 1 / (1 - rate), rounded to bfloat16 itself, is up to .2 % off."""
    x = jax.random.uniform(jax.random.key(0), (8, 1 << 15), jnp.float32, 1, 2)
    x = x.astype(jnp.bfloat16)
    y = dropout.dropout(x, rate, dropout.make_key(1))
    assert y.dtype == jnp.bfloat16
    before, after = (np.asarray(a, np.float64) for a in (x, y))
    factor = after.sum() / before[after > 0].sum()
    # The 128 values from 1 to 2, on average 1.5, are rounded to steps of 2^-7 or 2^-6,
    # each by 2^-7 / sqrt(12) or so: their mean by 2^-7 / sqrt(12 * 128) = 2e-4, or
    # 1.3e-4 of it. Five times that is allowed; a rounded factor is 1.6e-3 off or more.
    assert factor * (1 - rate) == pytest.approx(1, abs=6.6e-4)


def test_gradient_of_dropout_is_its_mask():
    x, key = normal(0, 4, 5), dropout.make_key(9)
    gradient = jax.grad(lambda x: dropout.dropout(x, 0.4, key).sum())(x)
    expected = (np.asarray(dropout.dropout(x, 0.4, key)) != 0) / 0.6
    assert_close(gradient, expected, 2)


def test_no_key_or_no_rate_is_the_identity():
    x = normal(0, 4, 5)
    np.testing.assert_array_equal(dropout.dropout(x, 0.9, None), x)
    np.testing.assert_array_equal(dropout.dropout(x, 0.0, dropout.make_key(1)), x)
    assert dropout.fold_in(None, 3) is None
