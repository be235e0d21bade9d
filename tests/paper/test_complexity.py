"""Table 1: the layers against loops, counts by hand, exponents and paths."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cases import leave
from support.reference import sigmoid

from transformer.nn import attention
from transformer.paper import complexity
from transformer.paper.complexity import Sizes

SIZES = Sizes(n=4, d=2, k=3, r=3)


def draw(*shapes):
    generator = np.random.default_rng(1)
    return [generator.standard_normal(shape).astype(np.float32) for shape in shapes]


def attended(q, keys, values):
    """Attend from one query, number by number."""
    scores = [np.exp(sum(q * key) / np.sqrt(len(q))) for key in keys]
    return sum(s * v for s, v in zip(scores, values, strict=True)) / sum(scores)


@pytest.mark.parametrize("r", [3, 5])
def test_attention_to_all_and_to_a_neighbourhood_as_loops_have_it(r):
    q, k, v = draw((7, 4), (7, 4), (7, 4))
    expected = [attended(q[t], k, v) for t in range(7)]
    np.testing.assert_allclose(
        complexity.self_attention(q, k, v), expected, rtol=1e-5, atol=1e-6
    )
    near = [slice(max(t - r // 2, 0), t + r // 2 + 1) for t in range(7)]
    expected = [attended(q[t], k[near[t]], v[near[t]]) for t in range(7)]
    np.testing.assert_allclose(
        complexity.restricted_self_attention(q, k, v, r),
        expected,
        rtol=1e-5,
        atol=1e-6,
    )


def test_a_gathered_neighbourhood_is_the_window_of_a_mask():
    q, k, v = draw((9, 4), (9, 4), (9, 4))
    gathered = complexity.restricted_self_attention(q, k, v, 5)
    mask = attention.window_mask(9, 2)
    q, k, v = jnp.array([q, k, v])[:, None, None]
    masked, _ = attention.attention(q, k, v, mask)
    np.testing.assert_allclose(gathered, masked[0, 0], rtol=1e-5, atol=1e-6)


def gru(x, h, weights):
    into, bias, gates, candidate = weights
    x_z, x_r, x_h = np.split(x @ into + bias, 3)
    h_z, h_r = np.split(h @ gates, 2)
    z, r = sigmoid(x_z + h_z), sigmoid(x_r + h_r)
    return (1 - z) * h + z * np.tanh(x_h + (r * h) @ candidate)


def test_the_recurrent_layer_is_a_gru_as_a_loop_has_it():
    read, shapes = complexity.ROWS["recurrent, GRU"].layer(Sizes(5, 3))
    x, *weights = draw(*shapes)
    named = {weight.shape: weight for weight in weights}
    parts = [named[shape] for shape in ((3, 9), (9,), (3, 6), (3, 3))]
    assert len(weights) == 4
    state, expected = np.zeros(3), []
    for now in x:
        state = gru(now, state, parts)
        expected.append(state)
    np.testing.assert_allclose(read(x, *weights), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("row, kind", complexity.RECURRENT.items())
def test_the_step_of_a_path_is_that_of_the_layer(row, kind):
    read, shapes = complexity.ROWS[row].layer(Sizes(4, 3))
    x, *weights = draw(*shapes)
    step, own = complexity.recurrent_step(kind, 3)
    assert sorted(own) == sorted(shapes[1:])
    state = (jnp.zeros((1, 3)),) * (2 if kind == "lstm" else 1)
    outputs = []
    for now in x:
        state = step(now[None], state, *weights)
        outputs.append(state[0][0])
    np.testing.assert_allclose(read(x, *weights), outputs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dilation", [1, 2])
def test_convolution_as_a_loop_has_it(dilation):
    x, kernel = draw((6, 2), (3, 2, 2))
    expected = np.zeros((6, 2))
    for t in range(6):
        for i in range(3):
            if t - i * dilation >= 0:
                expected[t] += x[t - i * dilation] @ kernel[2 - i]
    np.testing.assert_allclose(
        complexity.convolution(x, kernel, dilation), expected, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize(
    "row, alone, whole",
    [
        ("self-attention", 2 * (4 * 4 * 2) * 2, 4 * (4 * 2 * 2) * 2),
        ("recurrent, GRU", 6 * (4 * 2 * 2) * 2, 0),
        ("recurrent, LSTM", 8 * (4 * 2 * 2) * 2, 0),
        ("convolutional", 3 * (4 * 2 * 2) * 2, 0),
        ("self-attention, restricted", 2 * (4 * 3 * 2) * 2, 4 * (4 * 2 * 2) * 2),
    ],
)
def test_the_operations_of_four_positions_of_width_two_by_hand(row, alone, whole):
    assert complexity.operations(row, SIZES) == alone
    assert complexity.whole_operations(row, SIZES) == alone + whole


@pytest.mark.parametrize(
    "row, sizes, expected",
    [
        ("convolutional, separable", SIZES, 2 * (3 * 4 * 2 + 4 * 2 * 2)),
        # Blocks of 1 with 3 keys; 5 positions in 3 blocks of 2 with 6 keys.
        ("self-attention, in blocks", SIZES, 2 * (4 * 3 * 2) * 2),
        ("self-attention, in blocks", Sizes(5, 2, r=5), 2 * (6 * 6 * 2) * 2),
        # 3 positions of 2 numbers each to 4; 2 to 1, 3 of 1 to 1, 1 to 2.
        ("convolutional, block of ConvS2S", SIZES, 2 * 4 * (3 * 2) * 4),
        ("convolutional, block of ByteNet", SIZES, 2 * 4 * (2 * 1 + 3 * 1 + 1 * 2)),
    ],
)
def test_layers_that_the_table_does_not_have_by_hand(row, sizes, expected):
    assert complexity.operations(row, sizes) == expected
    assert complexity.MORE[row].operations(sizes) == expected
    chain = {"convolutional, block of ConvS2S": 1, "convolutional, block of ByteNet": 3}
    assert complexity.sequential_operations(row, sizes) == chain.get(row, 2)


@pytest.mark.parametrize("dilation", [1, 3])
def test_a_block_of_bytenet_reads_what_its_convolution_reads(dilation):
    # Wide enough that no position has all its features cut off by a ReLU.
    function, shapes = complexity.bytenet_block(Sizes(9, 64), dilation)
    x, *weights = draw(*shapes)
    (kernel,) = draw((3, 64, 64))
    np.testing.assert_array_equal(
        complexity.dependence(lambda x: function(x, *weights), x),
        complexity.dependence(lambda x: complexity.convolution(x, kernel, dilation), x),
    )


def test_a_block_of_convs2s_reads_as_far_to_both_sides():
    function, shapes = complexity.convs2s_block(Sizes(9, 4, k=5))
    x, *weights = draw(*shapes)
    found = complexity.dependence(lambda x: function(x, *weights), x)
    np.testing.assert_array_equal(found, np.tri(9, k=2) - np.tri(9, k=-3))


def test_blocks_attend_to_the_neighbourhood_and_to_nothing_else():
    q, k, v = draw((9, 4), (9, 4), (9, 4))
    found = complexity.blocked_self_attention(q, k, v, 5)
    expected = complexity.restricted_self_attention(q, k, v, 5)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    pattern = complexity.dependence(
        lambda x: complexity.blocked_self_attention(x, x, x, 5), q
    )
    np.testing.assert_array_equal(pattern, np.tri(9, k=2) - np.tri(9, k=-3))


def test_a_separable_convolution_is_one_whose_kernel_is_a_product():
    x, depthwise, pointwise = draw((6, 2), (3, 2), (2, 2))
    kernel = depthwise[:, :, None] * pointwise
    np.testing.assert_allclose(
        complexity.separable_convolution(x, depthwise, pointwise),
        complexity.convolution(x, kernel),
        rtol=1e-5,
        atol=1e-6,
    )


# Exponents fitted to counts that are products of powers: off by rounding only.
ROUNDING = 1e-6


@pytest.mark.parametrize("row", complexity.ROWS)
def test_operations_and_chains_grow_as_the_paper_says(row):
    paper = complexity.ROWS[row]
    found = complexity.operations_law(row)
    assert found.powers == pytest.approx(paper.operations, abs=ROUNDING)
    found = complexity.sequential_law(row)
    assert found.powers == pytest.approx(paper.sequential, abs=ROUNDING)


@pytest.mark.parametrize(
    "row, steps",
    [
        ("self-attention", 2),  # scores, then sums
        ("recurrent, GRU", 22),  # gates, then the candidate that they reset
        ("recurrent, LSTM", 11),
        ("convolutional", 1),
        ("self-attention, restricted", 2),
    ],
)
def test_the_longest_chain_at_eleven_positions(row, steps):
    assert complexity.sequential_operations(row, Sizes(11, 3)) == steps


def test_only_turns_that_need_the_one_before_make_a_chain():
    x = jnp.ones((5, 3, 3))

    def apart(x):
        return jax.lax.scan(lambda c, y: (c + 1, y @ y @ y), 0.0, x)[1]

    def together(x):
        return jax.lax.scan(lambda c, y: (c @ y, c), x[0] @ x[0], x)

    def at_first(x):  # only the first turn needs what came before the loop
        return jax.lax.scan(lambda c, y: (y, c @ y), x[0] @ x[0], x)[1]

    assert complexity.longest_chain(apart, x) == 2
    assert complexity.longest_chain(at_first, x) == 2
    assert complexity.longest_chain(together, x) == 1 + 5
    assert complexity.longest_chain(lambda x: together(apart(x)), x) == 2 + 1 + 5


def test_a_loop_whose_length_no_trace_tells_has_no_chain():
    def endless(x):
        return jax.lax.while_loop(lambda y: y.sum() < 9, lambda y: y @ y, x)

    with pytest.raises(ValueError, match="while"):
        complexity.longest_chain(endless, jnp.ones((2, 2)))


def logarithm(base: int, number: int) -> int:
    """Return the logarithm, rounded up."""
    return next(power for power in range(number) if base**power >= number)


@pytest.mark.parametrize("n, k", [(10, 3), (27, 3), (28, 3), (16, 2)])
def test_the_layers_until_all_depends_on_all(n, k):
    def layers(name, r=3):
        return complexity.path_length(name, Sizes(n, 2, k, r))

    assert layers("convolutional, contiguous") == -(-(n - 1) // (k - 1))
    assert layers("convolutional, dilated") == logarithm(k, n)


@pytest.mark.parametrize("n, r", [(10, 3), (12, 7)])
def test_the_layers_and_steps_of_attention_and_recurrence(n, r):
    def layers(name):
        return complexity.path_length(name, Sizes(n, 2, r=r))

    assert layers("self-attention") == 1
    assert all(layers(row) == n for row in complexity.RECURRENT)
    assert layers("self-attention, restricted") == -(-(n - 1) // (r // 2))


@pytest.mark.parametrize(
    "name, n, k, r, layers",
    [
        ("convolutional, separable", 10, 4, 3, 3),
        # Each block reads (k - 1) / 2 positions further, each way.
        ("convolutional, block of ConvS2S", 10, 5, 3, 5),
        ("self-attention, in blocks", 13, 3, 7, 4),
        # From 2 positions to 62 of a set, then 2 of the next, 6, 14 and so on.
        ("convolutional, block of ByteNet", 63, 3, 3, 5),
        ("convolutional, block of ByteNet", 66, 3, 3, 7),
    ],
)
def test_the_layers_that_other_stacks_need(name, n, k, r, layers):
    assert complexity.path_length(name, Sizes(n, 1, k, r)) == layers


@pytest.mark.parametrize(
    "name", ["convolutional, dilated", "convolutional, contiguous"]
)
def test_a_kernel_of_one_never_reaches_further(name):
    with pytest.raises(ValueError, match="k=1"):
        complexity.path_length(name, Sizes(4, 1, k=1))


def test_the_product_of_patterns_is_the_pattern_of_the_stack():
    x, kernel = draw((9, 2), (2, 2, 2))
    layers = [
        functools.partial(complexity.convolution, kernel=kernel, dilation=dilation)
        for dilation in (1, 2, 4)
    ]

    def stack(x):
        for layer in layers:
            x = layer(x)
        return x

    each = [complexity.dependence(layer, x) for layer in layers]
    together = complexity.dependence(stack, x)
    np.testing.assert_array_equal(each[2] @ each[1] @ each[0], together)
    band = np.tri(9) - np.tri(9, k=-8)  # 1 + 1 + 2 + 4 positions
    np.testing.assert_array_equal(together, band)


@pytest.mark.parametrize("row", complexity.RECURRENT)
def test_one_recurrent_layer_reaches_all_that_came_before(row):
    read, shapes = complexity.ROWS[row].layer(Sizes(6, 2))
    x, *weights = draw(*shapes)
    pattern = complexity.dependence(lambda x: read(x, *weights), x)
    np.testing.assert_array_equal(pattern, np.tri(6, dtype=bool))


NEAR = ("recurrent, LSTM", "convolutional, dilated")  # to the GRU, and contiguous


@pytest.mark.parametrize("name", leave(complexity.PATHS, NEAR))
def test_paths_grow_as_the_paper_says(name):
    # A path is (n - 1) / (k - 1), or 2 (n - 1) / (r - 1), where the paper has n / k and
    # n / r: its logarithm's slope is n / (n - 1) by n and k / (k - 1) by k, at most
    # that of the least n and k, 33 and 9. All others are laws without a remainder.
    paper = complexity.PATHS[name].powers
    slack = {"n": 1 / 32, "k": 1 / 8, "r": 1 / 8} if len(paper) > 1 else {}
    found = complexity.path_law(name).powers
    assert found.keys() == paper.keys()
    for size, power in paper.items():
        assert abs(found[size] - power) <= slack.get(size, ROUNDING)


@given(
    st.floats(0.1, 100),
    st.tuples(*[st.integers(-3, 3)] * 2),
)
def test_a_fit_finds_the_law_that_made_the_values(constant, powers):
    points = [Sizes(n, d) for n in (2, 3, 8) for d in (1, 4, 5)]
    values = [constant * p.n ** powers[0] * p.d ** powers[1] for p in points]
    law = complexity.fit(["n", "d"], points, values)
    assert law.constant == pytest.approx(constant)
    assert list(law.powers.values()) == pytest.approx(powers, abs=ROUNDING)


def test_the_seconds_of_each_row_at_each_length():
    found = complexity.seconds((4, 8), d=2, k=3, r=3, rounds=3)
    assert found.keys() == complexity.EVERY.keys()
    assert all(len(times) == 2 and min(times) > 0 for times in found.values())
