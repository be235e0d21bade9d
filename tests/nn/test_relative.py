"""Positions by distance, against their definitions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.paths import TESTS
from support.reference import assert_close

from transformer.nn import attention, relative

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


# ---- learned vectors by clipped distance ---------------------------------------------


def attend(q, k, v, keys, values, mask=None):
    """Attend with a bias and a second term, as ``MultiHeadAttention`` does."""
    keys, values = (relative.within(x, q.shape[2]) for x in (keys, values))

    def beside(weights):
        shares = relative.from_pairs(weights, values.shape[-2])
        return relative.shaw_values(shares, values, "float32")

    scaled = q * q.shape[-1] ** -0.5
    bias = relative.to_pairs(relative.shaw_scores(scaled, keys))
    return attention.attention(q, k, v, mask, bias=bias, beside=beside)[0]


def test_two_positions_by_hand():
    q, k, v = (
        jnp.reshape(jnp.array(x), (1, 1, 2, 1)) for x in ([1.0, 2], [1.0, 1], [1.0, 0])
    )
    keys, values = jnp.array([[0.5], [0], [-0.5]]), jnp.array([[0.1], [0], [-0.1]])
    found = attend(q, k, v, keys, values).ravel()
    # Scores 1, 1 - .5 and 2 + 2 * .5, 2; the labels of distances -1, 0, 1.
    first, second = (
        np.exp(1) / (np.exp(1) + np.exp(0.5)),
        np.exp(3) / (np.exp(3) + np.exp(2)),
    )
    expected = [first - 0.1 * (1 - first), second + 0.1 * second]
    assert found == pytest.approx(expected, rel=1e-6)
    assert found == pytest.approx([0.5847053, 0.8041644], abs=1e-7)


def written_out(q, k, v, keys, values, mask):
    """Attend with a vector for each pair of positions, n x n x K, in float64."""
    place, clip = np.arange(q.shape[2]), keys.shape[-2] // 2
    labels = np.clip(place - place[:, None], -clip, clip) + clip
    if keys.ndim == 2:
        keys, values = (np.stack([x] * q.shape[1]) for x in (keys, values))
    a_k, a_v = keys[:, labels], values[:, labels]  # (H, T, T, K)
    each = k[:, :, None] + a_k
    scores = np.einsum("bhik,bhijk->bhij", q, each) / np.sqrt(q.shape[-1])
    weights = np.exp(np.where(mask, scores, -np.inf))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("bhij,bhijk->bhik", weights, v[:, :, None] + a_v)


@pytest.mark.parametrize(
    "length, clip", [(5, 0), (5, 2), (5, 3), (5, 4), (3, 9), (1, 1)]
)
@pytest.mark.parametrize("heads", [(), (H,)], ids=["shared", "per head"])
def test_attention_is_that_with_a_vector_for_every_pair(length, clip, heads):
    q, k, v = (draw(B, H, length, K, seed=seed) for seed in range(3))
    keys, values = (draw(*heads, 2 * clip + 1, K, seed=seed) for seed in (3, 4))
    mask = np.tril(np.ones((length, length), bool))
    found = attend(q, k, v, keys, values, jnp.asarray(mask))
    q, k, v, keys, values = (x.astype(np.float64) for x in (q, k, v, keys, values))
    assert_close(found, written_out(q, k, v, keys, values, mask), 60)


def test_a_step_reads_slots_as_the_whole_reads_positions():
    """Two hypotheses at position 3: their slots of positions 0, 1, 2 and 3."""
    clip, now, beams = 2, 3, 2
    labels = relative.slot_labels(jnp.arange(12) // beams - now, clip)
    assert labels.tolist() == [0, 0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    weights = draw(B, H, beams, 12)
    shares = relative.from_slots(jnp.asarray(weights), labels, clip, "float32")
    expected = [weights[..., labels == x].sum(-1) for x in range(5)]
    assert_close(shares, np.stack(expected, axis=-1), 4)


@pytest.mark.parametrize(
    "length, labels", [(6, 5), (3, 9), (4, 1), (4, 8), (1, 2), (70, 9)]
)
def test_adding_up_by_labels_is_the_transpose_of_laying_out(length, labels):
    x, w = draw(2, length, labels), draw(2, length, length, seed=1)

    @jax.jit
    def both(x, w):
        out, back = jax.vjp(relative.to_pairs, x)
        return out, back(w)[0], relative.from_pairs(w, labels)

    out, transposed, added = both(x, w)
    if labels % 2:  # otherwise 2 T, for distances of which none is clipped
        place, clip = np.arange(length), labels // 2
        read = np.clip(place - place[:, None], -clip, clip) + clip
        np.testing.assert_array_equal(out, x[:, place[:, None], read])
    assert_close(transposed, added, 8)
    assert_close((out * w).sum(), (x * added).sum(), 80, 20)


# ---- content to position and position to content -------------------------------------


@pytest.fixture(scope="module")
def deberta():
    """Return what ``programs/deberta_values.py`` has computed, by its names."""
    with np.load(TESTS / "golden" / "deberta.npz", allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


@pytest.mark.parametrize("buckets, farthest", [(256, 512), (32, 128), (4, 9), (5, 40)])
def test_logarithmic_buckets_are_those_of_the_library(deberta, buckets, farthest):
    expected = deberta[f"of_{buckets}_to_{farthest}"]
    distances = np.arange(len(expected)) - len(expected) // 2
    found = relative.log_buckets(distances, buckets, farthest)
    np.testing.assert_array_equal(found, expected)


def test_logarithmic_buckets_by_hand():
    """The values of buckets = 256 to 512: the middle one is 128."""
    pairs = {128: 128, 129: 129, 140: 137, 200: 169, 256: 192, 300: 207, 400: 233}
    pairs |= {511: 255, 512: 256, -300: -207, 0: 0}
    found = relative.log_buckets(np.array(list(pairs)), 256, 512)
    assert found.tolist() == list(pairs.values())


@pytest.mark.parametrize("name, clip, farthest", [("linear", 3, 0), ("buckets", 4, 10)])
def test_disentangled_attention_is_that_of_the_library(deberta, name, clip, farthest):
    prefix = f"{name}."
    its = {
        k.removeprefix(prefix): a for k, a in deberta.items() if k.startswith(prefix)
    }
    heads, x = 2, its["x"]
    rows = relative.disentangled_rows(x.shape[1], clip, farthest)

    def projected(x, part):
        y = x @ its[f"{part}.weight"].T + its[f"{part}.bias"]
        return attention.split_heads(jnp.asarray(y), heads)

    q, k, v = (projected(x, f"{part}_proj") for part in ("query", "key", "value"))
    table = its["table"][rows][None]
    keys, queries = (
        projected(table, f"pos_{part}_proj")[0] for part in ("key", "query")
    )
    scale = (3 * q.shape[-1]) ** -0.5
    output, weights = attention.attention(
        q * 3**-0.5,
        k,
        v,
        jnp.asarray(its["mask"])[:, None, None],
        bias=relative.disentangled_bias(q, k, keys, queries) * scale,
    )
    # Sums of three terms, of 8 products each and of 4 of these, up to 30 in size; what
    # it is given is rounded, too.
    assert_close(weights, its["weights"], 2 * 30 * 20)
    assert_close(attention.merge_heads(output), its["output"], 2 * 30 * 20)
