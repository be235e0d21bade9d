"""Positions by distance in the Transformer: where they act, and where they do not."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.models import make, model_config
from support.reference import assert_close

from transformer.models.distances import Distances
from transformer.models.sublayers import MultiHeadAttention
from transformer.nn.attention import Mask
from transformer.nn.hardware import Hardware

SOURCE = np.array([[5, 4, 10, 7, 3, 0], [9, 3, 0, 0, 0, 0]], np.int32)
TARGET = np.array([[2, 6, 4, 10, 3], [2, 8, 3, 0, 0]], np.int32)
HEADS, K = 2, 4
KINDS: dict[str, dict[str, Any]] = {
    "rotary": {},
    "alibi": {},
    "relative": {"clip": 2},
    "disentangled": {"clip": 2, "farthest": 4},
    "relative per head": {
        "positions": "relative",
        "clip": 2,
        "relative_heads": "per_head",
    },
}


@functools.partial(jax.jit, static_argnums=0)
def logits(model: Any, params: Any, source: jax.Array, target: jax.Array) -> jax.Array:
    out: jax.Array = model.apply({"params": params}, source, target)
    return out


def made(kind: str, **changes: Any) -> Any:
    usual: dict[str, Any] = {"positions": kind, "d_k": K, "layers": 1}
    return make(**(usual | KINDS.get(kind, {}) | changes))


def heads_of(x: np.ndarray, group: Any) -> np.ndarray:
    """Project (T, D) to (H, T, K) in float64."""
    y = x @ np.float64(group["kernel"]) + np.float64(group["bias"])
    return y.reshape(len(x), HEADS, -1).transpose(1, 0, 2)


def rotary(q: np.ndarray, k: np.ndarray, part: Any) -> np.ndarray:
    def turned(x):
        rates = 10_000.0 ** (-np.arange(0, K, 2) / K)
        angles = np.exp(1j * np.arange(x.shape[1])[:, None] * rates)
        return (x[..., 0::2] + 1j * x[..., 1::2]) * angles

    # The real part of a product with the conjugate is a dot product of the pairs.
    return np.einsum("htk,hsk->hts", turned(q), turned(k).conj()).real / np.sqrt(K)


def alibi(q: np.ndarray, k: np.ndarray, part: Any) -> np.ndarray:
    place = np.arange(q.shape[1])
    far = abs(place[:, None] - place)
    scores: np.ndarray = np.einsum("htk,hsk->hts", q, k) / np.sqrt(K)
    # The slopes of two heads.
    return scores - np.stack([far / 2**4, far / 2**8])


def shaw(q: np.ndarray, k: np.ndarray, part: Any) -> np.ndarray:
    place = np.arange(q.shape[1])
    labels = np.clip(place - place[:, None], -2, 2) + 2
    tables = jax.tree.map(np.asarray, part["distances"])
    if "key" in tables:
        table = np.stack([tables["key"]] * HEADS)
    else:
        table = tables["key_per_head"].reshape(5, HEADS, K).swapaxes(0, 1)
    each = k[:, None] + table[:, labels]  # (H, T, T, K)
    return np.einsum("htk,htsk->hts", q, each) / np.sqrt(K)


DEFINITIONS = {
    "rotary": rotary,
    "alibi": alibi,
    "relative": shaw,
    "relative per head": shaw,
}


@pytest.mark.parametrize("window", [0, 2])
@pytest.mark.parametrize("kind", DEFINITIONS)
def test_weights_of_both_stacks_are_those_of_the_definition(kind, window):
    model, params = made(kind, window=window)
    run = jax.jit(lambda *ids: model.apply({"params": params}, *ids, mutable=True)[1])
    sown = run(SOURCE, TARGET)["attention"]
    table = np.float64(params["source_embedding"]) * np.sqrt(16)
    for side, ids in (("encoder", SOURCE), ("decoder", TARGET)):
        length = ids.shape[1]
        far = np.subtract.outer(np.arange(length), np.arange(length))
        for row in range(len(ids)):
            seen = (ids[row] != 0)[None] if side == "encoder" else far >= 0
            seen = seen & (abs(far) <= (window or length))
            part = params[f"{side}_0"]["self_attention"]
            x = table[ids[row]]  # nothing is added to the embeddings
            q, k = heads_of(x, part["query"]), heads_of(x, part["key"])
            scores = np.where(seen, DEFINITIONS[kind](q, k, part), -np.inf)
            peaks = scores.max(-1, keepdims=True, initial=-1e9)
            expected = np.exp(scores - peaks)
            sums = expected.sum(-1, keepdims=True)
            expected = np.divide(expected, sums, where=sums > 0, out=0 * expected)
            (weights,) = sown[f"{side}_0"]["self_attention"][side]
            # Scores of size 10 are sums of 16 and 4 products.
            assert_close(weights[row], expected, 2 * 10 * 20)


def test_disentangled_positions_act_in_the_encoder_and_sinusoids_in_the_decoder():
    model, params = made("disentangled")
    plain, plain_params = made("sinusoidal")
    own = params["encoder_0"]["self_attention"]
    assert "distances" in own and params["source_distances"].shape == (4, 16)
    assert "distances" not in params["decoder_0"]["self_attention"]
    # A decoder that reads no source is that of the model with sinusoids.
    nothing = np.zeros_like(SOURCE)
    shared = {k: v for k, v in params.items() if k not in ("source_distances",)}
    found = logits(model, params, nothing, TARGET)
    encoder = plain_params["encoder_0"]
    expected = logits(plain, shared | {"encoder_0": encoder}, nothing, TARGET)
    assert_close(found, expected, 4)
    # The encoder tells orders apart, by its distances alone.
    turned = SOURCE[:1, [2, 1, 0, 3, 4, 5]]
    states = [
        model.apply({"params": p}, x, method="encode")[0][0]
        for p in (params, params | {"source_distances": jnp.zeros((4, 16))})
        for x in (SOURCE[:1], turned)
    ]
    assert abs(states[0][0] - states[1][2]).max() > 0.01
    assert_close(states[3][2], states[2][0], 300)


@pytest.mark.parametrize("kind", KINDS)
def test_attention_to_the_source_knows_no_distances(kind):
    """Its weights and outputs follow keys and values that change places."""
    model, params = made(kind)
    cross = params["decoder_0"]["cross_attention"]
    assert set(cross) == {"query", "key", "value", "output"}
    part = MultiHeadAttention(model.config, Hardware("cpu"), "cross")
    x = np.random.default_rng(0).normal(size=(1, 5, 16)).astype(np.float32)

    def attend(states):
        bound = part.bind({"params": cross})
        return bound(
            jnp.asarray(x), bound.keys_values(jnp.asarray(states)), Mask(), None
        )

    order = [3, 0, 4, 1, 2]
    assert_close(attend(x[:, order]), attend(x), 60)


def test_without_reach_there_is_one_vector_more_than_without_positions():
    """With k = 0 all pairs have one label: a constant in scores, a vector in values."""
    plain, params = make(positions="none", layers=1)
    model, _ = make(positions="relative", clip=0, layers=1)
    vector = np.random.default_rng(1).normal(size=(1, 3)).astype(np.float32)
    with_labels, moved = dict(params), dict(params)
    for name in ("encoder_0", "decoder_0"):
        own = params[name]["self_attention"]
        tables = {"key": jnp.full((1, 5), 0.3), "value": jnp.asarray(vector)}
        labelled = own | {"distances": tables}
        with_labels[name] = params[name] | {"self_attention": labelled}
        # What every value has more is what its bias could as well have, in each head.
        bias = own["value"]["bias"] + np.tile(vector[0], HEADS)
        value = own | {"value": own["value"] | {"bias": bias}}
        moved[name] = params[name] | {"self_attention": value}

    def run(model: Any, params: Any) -> np.ndarray:
        # Rows with nothing to attend to have no weights either.
        return np.asarray(logits(model, params, SOURCE, TARGET))

    found = run(model, with_labels)
    assert_close(found, run(plain, moved), 400)
    assert abs(found - run(plain, params)).max() > 0.1


def test_general_scores_are_drawn_as_large_as_scaled_products():
    """``q W k`` of unit normal q and k has the variance (K std(W))^2."""
    c = model_config(score="general", heads=8, d_k=16, d_model=128)
    module = MultiHeadAttention(c, Hardware("cpu"))
    inputs = jnp.zeros((1, 2, 128))
    drawn = jax.jit(
        lambda: module.init(jax.random.key(0), inputs, method="keys_values")
    )()
    matrices = drawn["params"]["score_matrix"]
    assert float(matrices.std()) == pytest.approx(1 / 16, rel=0.1)


@pytest.mark.parametrize("heads", ["shared", "per_head"])
def test_tables_of_distances_are_drawn_by_glorot(heads):
    """Uniform in -+ sqrt(6 / (61 + 64)), of the variance 2 / 125."""
    changes = {"positions": "relative", "clip": 30, "relative_heads": heads}
    c = model_config(**changes, heads=4, d_k=64, d_v=64)
    module = Distances(c, Hardware("cpu"), parent=None)
    drawn = module.init(jax.random.key(0), jnp.zeros((1, 4, 3, 64)), None)
    for table in drawn["params"].values():
        assert float(table.std()) == pytest.approx((2 / 125) ** 0.5, rel=0.05)
