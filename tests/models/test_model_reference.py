"""Encoder, decoder and the whole model against the float64 reference.

The same parameters, drawn so that no bias is 0 and no scale is 1, go into both.
"""

import dataclasses
import math
from typing import Any

import jax
import numpy as np
import pytest
from support import reference
from support.cases import leave
from support.models import GROWTH, LAYER, options, reference_weights
from support.reference import assert_close

from transformer import config, models
from transformer.models.transformer import Transformer
from transformer.nn import dropout

V_SOURCE, V_TARGET = 13, 11
TINY = config.Transformer(
    kind="transformer",
    vocab_size=0,
    layers=2,
    decoder_layers=0,
    d_model=8,
    d_ff=12,
    activation="relu",
    heads=2,
    d_k=5,
    d_v=3,
    dropout=0.5,  # of no effect: no key is given
    attention_dropout=0.5,
    relu_dropout=0.5,
    norm="post",
    norm_epsilon=1e-6,
    positions="sinusoidal",
    max_positions=9,
    clip=-1,
    farthest=0,
    relative_heads="shared",
    tying="two",
    attention_bias=True,
    score="scaled_dot",
    window=0,
    target_space=False,
    output_bias=False,
    dtype="float32",
)
SOURCE = np.array([[5, 4, 12, 7, 3, 0], [9, 3, 0, 0, 0, 0]])
TARGET = np.array([[2, 6, 4, 10, 3], [2, 8, 3, 0, 0]])

# Every pair of norm, tying and positions occurs.
COMBINATIONS = [
    ("post", "three", "sinusoidal"),
    ("pre", "three", "sinusoidal_concat"),
    ("post", "three", "learned"),
    ("pre", "three", "none"),
    ("pre", "two", "sinusoidal"),
    ("post", "two", "sinusoidal_concat"),
    ("pre", "two", "learned"),
    ("post", "two", "none"),
    ("post", "none", "sinusoidal"),
    ("pre", "none", "sinusoidal_concat"),
    ("post", "none", "learned"),
    ("pre", "none", "none"),
]
# Of each of their options there is a case among the others.
NEAR = [COMBINATIONS[i] for i in (3, 5, 6, 7, 9, 10)]
OPTIONS: list[dict[str, Any]] = [
    {"attention_bias": False},
    {"target_space": True, "positions": "sinusoidal_concat"},
    {"score": "dot"},
    {"window": 1},
    {"window": 2, "norm": "pre"},
    {"norm_epsilon": 0.3},
    {"heads": 1, "d_k": 1, "d_v": 9},
]

# Errors of n roundings add up like a random walk: a value is off by more than
# 5 sqrt(n) 2^-24 with a probability of 1e-5 (Higham and Mary, 2019, theorem 2.4).
ROUNDINGS = round(5 * math.sqrt(4 * LAYER + 8))


def make(**changes: Any) -> tuple[Transformer, Any]:
    settings = dataclasses.replace(TINY, **changes)
    source_size = V_TARGET + 2 if settings.tying == "three" else V_SOURCE
    target_size = source_size if settings.tying == "three" else V_TARGET
    model = Transformer(settings, source_size, target_size)
    shapes = jax.eval_shape(lambda: models.init(model, jax.random.key(0)))
    rng = np.random.default_rng(7)

    def draw(path, leaf):
        x = rng.normal(size=leaf.shape) / np.sqrt(settings.d_model)
        return (x + ("scale" in str(path[-1]))).astype(np.float32)

    return model, jax.tree_util.tree_map_with_path(draw, shapes)


def expected_logits(params: Any, settings: config.Transformer) -> np.ndarray:
    weights = reference_weights(params, settings)
    rows = [
        reference.transformer(weights, source, target, **options(settings))
        for source, target in zip(SOURCE, TARGET, strict=True)
    ]
    return np.stack(rows)


def logits(model: Transformer, params: Any) -> jax.Array:
    def forward(model, source, target):
        return model.logits(model(source, target))

    return jax.jit(
        lambda params, source, target: model.apply(
            {"params": params}, source, target, method=forward
        )
    )(params, SOURCE, TARGET)


@pytest.mark.parametrize("norm, tying, positions", leave(COMBINATIONS, NEAR))
def test_forward_pass_equals_reference(norm, tying, positions):
    # Two layers where the stack matters, one where the ends do.
    depth = 2 if tying == "three" else 1
    model, params = make(norm=norm, tying=tying, positions=positions, layers=depth)
    # Rows of padding count too: what they hold is defined, though nothing reads it.
    expected = expected_logits(params, model.config)
    assert_close(logits(model, params), expected, GROWTH * ROUNDINGS)


@pytest.mark.parametrize("changes", OPTIONS, ids=str)
def test_forward_pass_with_options_equals_reference(changes):
    model, params = make(layers=1, **changes)
    expected = expected_logits(params, model.config)
    assert_close(logits(model, params), expected, GROWTH * ROUNDINGS)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_encoder_equals_reference(norm):
    model, params = make(norm=norm)
    memory: Any = model.apply({"params": params}, SOURCE, method="encode")
    weights = reference_weights(params, model.config)
    expected = [reference.encode(weights, s, **options(model.config)) for s in SOURCE]
    assert_close(memory.states, np.stack(expected), GROWTH * ROUNDINGS)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_growth_of_errors(norm):
    # A change of the embeddings by d moves no logit by more than GROWTH * d.
    model, params = make(norm=norm, tying="none")
    before, size = expected_logits(params, model.config), 1e-6
    rng = np.random.default_rng(0)
    for _ in range(4):
        moved = dict(params)
        for name in ("source_embedding", "target_embedding"):
            change = size * rng.choice([-1, 1], params[name].shape)
            moved[name] = np.asarray(params[name], np.float64) + change
        after = expected_logits(moved, model.config)
        assert abs(after - before).max() < GROWTH * size


@pytest.mark.parametrize(
    "norm, tying, positions",
    [("post", "three", "learned"), ("pre", "none", "sinusoidal")],
)
def test_gradient_of_every_parameter_equals_finite_differences(norm, tying, positions):
    """Along one random direction per parameter array."""
    model, params = make(norm=norm, tying=tying, positions=positions, layers=1)
    rng = np.random.default_rng(1)
    real = (TARGET != 0)[..., None]
    cotangent = rng.normal(size=(*TARGET.shape, model.target_size)) * real

    def value(params):
        return (logits(model, params) * cotangent).sum()

    gradients = jax.jit(jax.grad(value))(params)
    leaves, structure = jax.tree.flatten(params)
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    largest = max(abs(np.asarray(g)).max() for g in jax.tree.leaves(gradients))
    step = 1e-5
    # Forward and backward; an error along the direction is a sum over the array.
    unit = 2 * GROWTH * ROUNDINGS * 2.0**-24 * largest
    for n, gradient in enumerate(jax.tree.leaves(gradients)):
        direction = rng.normal(size=leaves[n].shape)

        def moved(by, n=n, direction=direction):
            changed = [np.asarray(x, np.float64) for x in leaves]
            changed[n] = changed[n] + by * direction
            weights = jax.tree.unflatten(structure, changed)
            return (expected_logits(weights, model.config) * cotangent).sum()

        expected = (moved(step) - moved(-step)) / (2 * step)
        got = (np.asarray(gradient, np.float64) * direction).sum()
        allowed = unit * math.sqrt(direction.size)
        assert abs(got - expected) < allowed, jax.tree_util.keystr(paths[n])


def test_attention_weights_of_a_layer_equal_reference():
    model, params = make(layers=1, positions="none")
    _, state = model.apply(
        {"params": params}, SOURCE, method="encode", mutable=["attention"]
    )
    (weights,) = state["attention"]["encoder_0"]["self_attention"]["encoder"]
    p = reference_weights(params, model.config)
    for row, source in zip(np.asarray(weights), SOURCE, strict=True):
        x = reference.embed(source, p["source_table"])
        own = p["encoder"][0]["self"]
        q, k = (reference.affine(x, *own[name]) for name in ("query", "key"))
        mask = np.tile(reference.padding_mask(source), (len(source), 1))
        for head in range(2):
            at = slice(5 * head, 5 * head + 5)
            _, expected = reference.attention(q[:, at], k[:, at], x, mask)
            assert_close(row[head], expected, 8 + 5 + 3 * 6 + 10, magnitude=10)


def test_a_key_means_dropout():
    model, params = make(layers=1)
    run = jax.jit(lambda key: model.apply({"params": params}, SOURCE, TARGET, key))
    quiet, noisy = (np.asarray(run(key)) for key in (None, dropout.make_key(0)))
    assert abs(quiet - noisy).max() > 0.1
