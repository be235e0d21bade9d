"""The model's parameters, shapes, masks, dropout and cache."""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.cases import leave
from support.configs import base, experiment
from support.models import SIZE, make, model_config
from support.reference import assert_close

from transformer import config, models
from transformer.config import UserError
from transformer.models.modules import with_bias
from transformer.models.transformer import Memory, Transformer
from transformer.nn import (
    attention,
    attention_window,
    dropout,
    layers,
    matmul,
    positions,
)
from transformer.nn.hardware import Hardware
from transformer.tools.params import parameter_table

BASE = base()


def forward(model: Transformer, source, target, key=None):
    """Return logits (B, T, V); a method for ``apply``."""
    return model.logits(model(source, target, key))


@functools.partial(jax.jit, static_argnums=0)
def logits(model, params, source, target, key=None):
    return model.apply({"params": params}, source, target, key, method=forward)


SOURCE = np.array([[5, 4, 10, 7, 3, 0], [9, 3, 0, 0, 0, 0]], np.int32)
TARGET = np.array([[2, 6, 4, 10, 3], [2, 8, 3, 0, 0]], np.int32)


# ---- counts and shapes of the parameters ---------------------------------------------

# Table 3 of the paper: what differs from base, the printed millions of parameters
# (None where the cell is blank), and the same to four digits at V = 40,960.
ROWS: dict[str, tuple[dict[str, Any], int | None, float]] = {
    "base": ({}, 65, 65.11),
    "A_h1": ({"heads": 1, "d_k": 512, "d_v": 512}, None, 65.11),
    "A_h4": ({"heads": 4, "d_k": 128, "d_v": 128}, None, 65.11),
    "A_h16": ({"heads": 16, "d_k": 32, "d_v": 32}, None, 65.11),
    "A_h32": ({"heads": 32, "d_k": 16, "d_v": 16}, None, 65.11),
    "B_dk16": ({"d_k": 16}, 58, 58.02),
    "B_dk32": ({"d_k": 32}, 60, 60.38),
    "C_N2": ({"layers": 2}, 36, 35.68),
    "C_N4": ({"layers": 4}, 50, 50.40),
    "C_N8": ({"layers": 8}, 80, 79.82),
    "C_d256": ({"d_model": 256, "d_k": 32, "d_v": 32}, 28, 27.85),
    "C_d1024": ({"d_model": 1024, "d_k": 128, "d_v": 128}, 168, 167.94),
    "C_ff1024": ({"d_ff": 1024}, 53, 52.51),
    "C_ff4096": ({"d_ff": 4096}, 90, 90.30),
    "D_drop0.0": ({"dropout": 0.0}, None, 65.11),
    "D_drop0.2": ({"dropout": 0.2}, None, 65.11),
    "D_smooth0.0": ({}, None, 65.11),
    "D_smooth0.2": ({}, None, 65.11),
    # Two tables of 1,024 rows: 2 * 1024 * 512 = 1.05 million more.
    "E_learned": ({"positions": "learned"}, None, 66.16),
    # The paper's 213 needs a vocabulary of 35,296 to 36,272.
    "big": ({"d_model": 1024, "d_ff": 4096, "heads": 16, "dropout": 0.3}, None, 218.3),
}


@functools.cache
def count(model: config.Transformer) -> int:
    settings = dataclasses.replace(BASE, model=model)
    shapes = models.abstract(models.make(settings, 40_960, 40_960))
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


@pytest.mark.parametrize("row", ROWS)
def test_parameter_counts_of_table_3(row):
    changes, printed, millions = ROWS[row]
    total = count(dataclasses.replace(config.transformer(BASE.model), **changes)) / 1e6
    assert round(total, 1 if row == "big" else 2) == millions
    if printed is not None:
        assert round(total) == printed


@pytest.mark.parametrize("heads, extra", [("shared", 50_688), ("per_head", 405_504)])
def test_tables_of_distances_of_the_base_model(heads, extra):
    """Keys' and values', of 33 labels 64 wide, in 12 layers: of 8 heads or of one."""
    base_model = config.transformer(BASE.model)
    relative = dataclasses.replace(
        base_model, positions="relative", clip=16, relative_heads=heads
    )
    assert count(relative) - count(base_model) == extra


def test_the_vocabularies_that_give_the_paper_s_big_model():
    total = count(dataclasses.replace(config.transformer(BASE.model), **ROWS["big"][0]))
    # One row of the tied table is d_model = 1,024 parameters.
    sizes = [35_295, 35_296, 36_272, 36_273]
    millions = [round((total - (40_960 - v) * 1024) / 1e6) for v in sizes]
    assert millions == [212, 213, 213, 214]


def test_parameters_that_data_decide_are_not_told():
    with pytest.raises(UserError, match="expected sources of tokens, got data.source"):
        parameter_table(config.resolve(experiment("digits")))


def test_the_parameter_table_adds_up():
    settings = base(**{"model.vocab_size": 40_960})
    _, *lines, total = parameter_table(settings).splitlines()
    cells = [line.split() for line in lines]
    assert all(cell[3:5] == ["float32", "replicated"] for cell in cells)
    sizes = {name: int(size.replace(",", "")) for name, _, size, *_ in cells}
    for name, shape, *_ in cells:
        assert math.prod(map(int, shape.split("x"))) == sizes[name]
    every = sum(sizes.values())
    assert total.split() == ["total", f"{every:,}", f"{4 * every:,}"]
    assert sizes["source_embedding"] == 40_960 * 512


B, T, S, H, K, W, D, F, V, U, P, M, J = 3, 5, 7, 2, 11, 13, 17, 19, 23, 29, 31, 37, 41
PRIMES = {
    "layers": 1,
    "d_model": D,
    "d_ff": F,
    "heads": H,
    "d_k": K,
    "d_v": W,
    "max_positions": P,
    "positions": "learned",  # sinusoids want an even width
    "tying": "none",
}
ATTENTION = {
    "query.kernel": (D, H * K),
    "query.bias": (H * K,),
    "key.kernel": (D, H * K),
    "key.bias": (H * K,),
    "value.kernel": (D, H * W),
    "value.bias": (H * W,),
    "output.kernel": (H * W, D),
    "output.bias": (D,),
}
FEED_FORWARD = {
    "feed_forward.kernel_1": (D, F),
    "feed_forward.bias_1": (F,),
    "feed_forward.kernel_2": (F, D),
    "feed_forward.bias_2": (D,),
}


def norms(*names: str) -> dict[str, tuple[int, ...]]:
    return {f"{name}.{kind}": (D,) for name in names for kind in ("scale", "bias")}


def under(prefix: str, shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple]:
    return {f"{prefix}.{name}": shape for name, shape in shapes.items()}


POST = {
    "source_embedding": (U, D),
    "target_embedding": (V, D),
    "output": (V, D),
    "source_positions": (P, D),
    "target_positions": (P, D),
    **under(
        "encoder_0",
        under("self_attention", ATTENTION)
        | FEED_FORWARD
        | norms("residual_1.norm", "residual_2.norm"),
    ),
    **under(
        "decoder_0",
        under("self_attention", ATTENTION)
        | under("cross_attention", ATTENTION)
        | FEED_FORWARD
        | norms("residual_1.norm", "residual_2.norm", "residual_3.norm"),
    ),
}
ONE_TABLE = {"target_embedding", "output"}
POSITIONS = {"source_positions", "target_positions"}


@pytest.mark.parametrize(
    "changes, less, more",
    [
        ({}, set(), {}),
        ({"norm": "pre"}, set(), norms("encoder_norm", "decoder_norm")),
        ({"target_space": True}, set(), {"target_space": (32, D)}),
        ({"tying": "two"}, {"output"}, {}),
        ({"tying": "three"}, ONE_TABLE, {}),
        ({"positions": "none"}, POSITIONS, {}),
        (
            {"attention_bias": False},
            {f"{x}.bias" for x in ("query", "key", "value", "output")},
            {},
        ),
    ],
    ids=lambda value: str(sorted(value)),
)
def test_shapes_of_parameters(changes, less, more):
    model = Transformer(model_config(**(PRIMES | changes)), U, V)
    found = {
        jax.tree_util.keystr(path, simple=True, separator="."): leaf.shape
        for path, leaf in jax.tree_util.tree_leaves_with_path(models.abstract(model))
    }
    kept = {k: v for k, v in POST.items() if not k.endswith(tuple(less))}
    assert found == kept | more


def test_shapes_of_every_method():
    model = Transformer(model_config(**PRIMES), U, V)
    params = {"params": models.abstract(model)}

    def shapes(method, *shapes_or_sizes):
        """Return the shapes of a method's results; tuples are arrays of ids."""
        arrays = [
            jax.ShapeDtypeStruct(x[0], x[1]) for x in shapes_or_sizes if x is not None
        ]
        run = functools.partial(model.apply, method=method)
        return jax.tree.map(lambda x: x.shape, jax.eval_shape(run, params, *arrays))

    ids_in, ids_out = ((B, S), jnp.int32), ((B, T), jnp.int32)
    assert shapes("__call__", ids_in, ids_out) == (B, T, D)
    assert shapes("encode", ids_in)[0] == (B, S, D)

    def decode(model, target, memory, source):
        return model.decode(target, Memory(memory, attention.Mask(source)))

    memory = (B, S, D), jnp.float32
    assert shapes(decode, ids_out, memory, ids_in) == (B, T, D)
    assert shapes("logits", ((B, T, D), jnp.float32)) == (B, T, V)
    assert shapes("features", ids_in, ids_out) == ((B, T, D), (V, D))

    def start(variables, source):
        return model.apply(variables, source, J, M, method="start")

    source = jax.ShapeDtypeStruct((B, S), jnp.int32)
    cache = jax.eval_shape(start, params, source)
    assert M == 37
    sizes = (16, M - 16)  # positions of the blocks
    expected = {
        "ancestors": ((), (B, J, M)),
        "own": (
            (
                tuple((B, H, K, size * J) for size in sizes),
                tuple((B, H, size * J, W) for size in sizes),
                (),
            ),
        ),
        "memory": ((((B, H, K, S),), ((B, H, S, W),), ()),),
        "memory_mask": (B, 1, 1, S),
    }
    assert jax.tree.map(lambda x: x.shape, cache)._asdict() == expected
    beams = jax.ShapeDtypeStruct((B, J), jnp.int32)
    step = functools.partial(model.apply, method="step")
    scores, after = jax.eval_shape(step, params, cache, beams, beams)
    assert scores.shape == (B, J, V)
    # The loop of a search needs the same types and shapes after each step.
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(
        lambda x: (x.shape, x.dtype), cache
    )


def test_a_vocabulary_larger_than_the_table_is_refused():
    settings = base(**{"model.vocab_size": 40})
    assert models.make(settings, 40, 38).source_size == 40
    with pytest.raises(UserError, match="at least the vocabulary's 41, got 40"):
        models.make(settings, 40, 41)


# ---- initial values ------------------------------------------------------------------


def test_embeddings_enter_and_leave_with_unit_variance():
    size, width = 2000, 32
    settings = model_config(layers=1, d_model=width, tying="three", positions="none")
    model = Transformer(settings, size, size)
    params = jax.jit(lambda: models.init(model, jax.random.key(0)))()
    table = np.asarray(params["source_embedding"], np.float64)
    entered = np.asarray(layers.embed(jnp.arange(size), params["source_embedding"]))
    # The variance of n normal numbers has a deviation of sqrt(2 / n): 5 of them.
    assert abs(entered.var() - 1) < 5 * math.sqrt(2 / entered.size)
    assert_close(entered, table * math.sqrt(width), 2)
    # A row that a layer norm wrote has |x|^2 = D, and no factor is on the way out.
    x = np.random.default_rng(0).normal(size=(64, width)).astype(np.float32)
    x /= np.sqrt((x**2).mean(-1, keepdims=True))
    left = model.apply({"params": params}, x, method="logits")
    assert_close(left, x.astype(np.float64) @ table.T, width + 2, magnitude=6)
    assert abs(np.asarray(left).var() - 1) < 5 * math.sqrt(2 / table.size)
    # Glorot's uniform distribution: +- sqrt(6 / (in + out)).
    kernel = np.asarray(params["encoder_0"]["feed_forward"]["kernel_1"])
    limit = math.sqrt(6 / sum(kernel.shape))
    assert 0.99 * limit < abs(kernel).max() <= limit


# ---- leaks ---------------------------------------------------------------------------


@functools.cache
def influence() -> dict[str, np.ndarray]:
    """Return whether a position has any gradient to each row of logits.

    Learned positions are added to the embeddings, so their gradient is that of the
    embeddings of the place: (T, S) for "source", (T, T) for "target".
    """
    model, params = make(positions="learned", max_positions=8)
    names = ("source_positions", "target_positions")
    random = np.random.default_rng(0).normal(size=SIZE)

    def rows(positions):
        return logits(model, params | positions, SOURCE[:1], TARGET[:1])[0] @ random

    gradients = jax.jacrev(rows)({name: params[name] for name in names})
    found = {}
    for name, length in zip(names, (SOURCE.shape[1], TARGET.shape[1]), strict=True):
        there = np.asarray(abs(gradients[name]).max(-1) > 0)
        assert not there[:, length:].any()
        found[name.split("_")[0]] = there[:, :length]
    return found


def test_no_logit_has_a_gradient_to_a_later_position():
    assert (influence()["target"] == np.tril(np.ones((5, 5), bool))).all()


def test_no_logit_has_a_gradient_to_padding():
    assert (influence()["source"] == np.broadcast_to(SOURCE[0] != 0, (5, 6))).all()


def test_padding_changes_nothing_and_an_empty_sentence_gives_numbers():
    model, params = make(layers=1)
    wide_source, wide_target = (np.pad(x, ((0, 0), (0, 3))) for x in (SOURCE, TARGET))
    wide_source[1] = 0  # nothing at all to attend to
    wide = np.asarray(logits(model, params, wide_source, wide_target))
    narrow = np.asarray(logits(model, params, SOURCE, TARGET))
    # The same sums with zeros between: only their order may differ.
    assert_close(wide[0, :5], narrow[0], 300)
    assert np.isfinite(wide).all()


# ---- attention weights ---------------------------------------------------------------


def test_sown_attention_weights_are_distributions_over_what_may_be_seen():
    model, params = make(window=2, layers=1)

    @jax.jit
    def run(source, target):
        variables = {"params": params}
        return model.apply(variables, source, target, mutable=["attention"])[1]

    sown = run(SOURCE, TARGET)["attention"]
    assert set(sown) == {"encoder_0", "decoder_0"}

    def near(length):
        far = np.abs(np.subtract.outer(np.arange(length), np.arange(length)))
        return far <= 2

    real = (SOURCE != 0)[:, None, None, :]
    allowed = {
        ("encoder", "self_attention"): real & near(6),
        ("decoder", "self_attention"): np.tril(near(5))[None, None],
        ("decoder", "cross_attention"): real & np.ones((5, 1), bool),
    }
    for (side, kind), mask in allowed.items():
        (weights,) = sown[f"{side}_0"][kind]["cross" if "cross" in kind else side]
        mask = np.broadcast_to(mask, (2, 2, *mask.shape[2:]))
        assert ((np.asarray(weights) > 0) == mask).all()
        assert_close(weights.sum(-1), mask.any(-1), 8)


# ---- dropout, norm and dtype ---------------------------------------------------------


OFF: dict[str, Any] = {"dropout": 0.0, "attention_dropout": 0.0, "relu_dropout": 0.0}


@functools.partial(jax.jit, static_argnums=0)
def encoded(model, params, key):
    return model.apply({"params": params}, SOURCE, key, method="encode")[0]


def test_dropout_is_a_matter_of_the_key_alone():
    noisy, params = make(layers=1)
    quiet, _ = make(layers=1, **OFF)
    run = functools.partial(encoded, noisy, params)
    assert (run(None) == encoded(quiet, params, None)).all()
    first, again, other = (run(dropout.make_key(seed)) for seed in (0, 0, 1))
    assert (first == again).all()
    assert (first != other).any() and (first != run(None)).any()


@pytest.mark.parametrize("rate", OFF)
def test_each_dropout_rate_has_an_effect_of_its_own(rate):
    model, params = make(layers=1, **(OFF | {rate: 0.5}))
    quiet = encoded(model, params, None)
    assert (encoded(model, params, dropout.make_key(0)) != quiet).any()


def test_where_the_norm_stands():
    """With sub-layers that return 0, "pre" passes the embeddings on, "post" norms."""
    results = {}
    for norm in ("post", "pre"):
        model, params = make(norm=norm, layers=1)
        layer = params["encoder_0"]
        output, inner = layer["self_attention"]["output"], layer["feed_forward"]
        for part, names in [(output, output), (inner, ("kernel_2", "bias_2"))]:
            part.update({name: jnp.zeros_like(part[name]) for name in names})
        results[norm] = encoded(model, params, None)
        x = layers.embed(jnp.asarray(SOURCE), params["source_embedding"])
        x = x + positions.sinusoidal_positions(6, 16)
        if norm == "pre":
            places = [params["encoder_norm"]]
        else:
            places = [layer[f"residual_{n}"]["norm"] for n in (1, 2)]
        for place in places:
            x = layers.layer_norm(x, place["scale"], place["bias"])
        assert_close(results[norm], x, 64)
    assert abs(results["post"] - results["pre"]).max() > 0.1


def test_bfloat16_is_as_far_off_as_rounded_parameters_are():
    exact, params = make(layers=1)
    # On a CPU without such units bfloat16 is emulated, where it is asked for.
    sizes = model_config(layers=1, dtype="bfloat16")
    rounded = Transformer(sizes, SIZE, SIZE, hardware=Hardware("cpu"))
    before = np.asarray(logits(exact, params, SOURCE, TARGET))
    rng = np.random.default_rng(0)

    def spread(x):
        return np.sqrt(np.square(np.asarray(x) - before).mean())

    def noisy(x):
        # bfloat16 has 8 bits: rounding moves a number by at most a share of 2^-8 / 2.
        return (x * (1 + rng.uniform(-1, 1, x.shape) * 2.0**-9)).astype(np.float32)

    noise = [
        spread(logits(exact, jax.tree.map(noisy, params), SOURCE, TARGET))
        for _ in range(8)
    ]
    # Parameters make up half of the operands of the products, results of the layer
    # below the other half: together sqrt(2) times the noise of the parameters. The
    # spread of some hundred correlated logits is itself known to a factor of 2.
    off = spread(logits(rounded, params, SOURCE, TARGET))
    expected = math.sqrt(2) * np.sqrt(np.square(noise).mean())
    assert expected / 2 < off < expected * 2


def test_fused_attention_serves_where_no_weights_are_due(patch):
    """As on a GPU, with JAX's own form of the kernel in cuDNN's place."""
    calls, whole = [], attention.fused_attention

    def fused(q, k, v, mask, scale, kernel):
        assert kernel == "cudnn"
        calls.append((mask.keys is None, mask.causal))
        return whole(q, k, v, mask, scale, "xla")

    patch.setattr(attention, "fused_attention", fused)
    exact, params = make(layers=1, d_k=8, d_v=8, attention_dropout=0.4)
    settings = dataclasses.replace(exact.config, dtype="bfloat16")
    kernel, written_out = (
        Transformer(settings, SIZE, SIZE, hardware=kind)
        for kind in (Hardware("cuda", (9, 0)), Hardware("tpu"))
    )
    target = np.pad(TARGET, ((0, 0), (0, 1)))  # of even length
    expected = np.asarray(logits(exact, params, SOURCE, target))

    def off(model):
        found = np.asarray(logits(model, params, SOURCE, target))
        return np.sqrt(np.square(found - expected).mean())

    # Two ways to round the same products, each known to a factor of some 2.
    assert off(written_out) / 3 < off(kernel) < 3 * off(written_out)
    encoder, decoder, cross = (False, False), (True, True), (False, False)
    assert calls == [encoder, decoder, cross]
    # Weights that are asked for, or dropped, have to exist.
    run = functools.partial(kernel.apply, {"params": params}, SOURCE, target)
    run(mutable=["attention"])
    run(dropout.make_key(0))
    assert len(calls) == 3


def test_the_layers_of_a_stack_share_one_trace(patch):
    model, params = make(layers=3)
    calls, whole = [], attention.attention

    def counted(*arguments, **options):
        calls.append(arguments[0].shape)
        return whole(*arguments, **options)

    patch.setattr(attention, "attention", counted)
    jax.eval_shape(functools.partial(model.apply, {"params": params}), SOURCE, TARGET)
    assert len(calls) == 3  # the encoder's, and the decoder's two


def test_windows_are_computed_in_blocks_where_no_weights_are_wanted(patch):
    patch.setattr(attention_window, "_LEAST", 0)
    calls, whole = [], attention_window.window_attention

    def counted(q, k, v, mask, **options):
        calls.append((mask.causal, q.shape[2]))
        return whole(q, k, v, mask, **options)

    patch.setattr(attention_window, "window_attention", counted)
    model, params = make(window=2, layers=1, score="additive")
    source = np.pad(np.tile(SOURCE, (1, 4))[:, :17], ((0, 0), (0, 4)))
    target = np.tile(TARGET, (1, 4))[:, :16]

    @functools.partial(jax.jit, static_argnums=0)
    def run(mutable):
        variables = {"params": params}
        return model.apply(variables, source, target, mutable=mutable)

    blocks = run(False)
    assert calls == [(False, 21), (True, 16)]
    masked, _ = run("attention")
    assert len(calls) == 2
    # The roundings of two layers and how they grow, as in test_model_reference.py.
    assert_close(blocks, masked, 20 * round(5 * math.sqrt(4 * 150)))


# ---- the cache -----------------------------------------------------------------------


def test_under_a_window_the_cache_holds_that_many_positions():
    model = Transformer(model_config(window=3, layers=1), SIZE, SIZE)
    params = {"params": models.abstract(model)}

    def start(variables, length):
        source = jnp.zeros((2, 5), jnp.int32)
        return model.apply(variables, source, 4, length, method="start")

    for length, held in ((3, 3), (4, 4), (60, 3 + 1)):
        cache = jax.eval_shape(functools.partial(start, length=length), params)
        c = config.transformer(model.config)
        (keys,), (values,), _ = cache.own[0]
        assert keys.shape == (2, c.heads, c.d_k, 4 * held)
        assert values.shape == (2, c.heads, 4 * held, c.d_v)


OPTIONS: list[dict[str, Any]] = [
    {"positions": "sinusoidal", "tying": "three", "layers": 2},
    {"norm": "pre", "positions": "sinusoidal_concat", "tying": "two"},
    {"positions": "learned", "tying": "none", "target_space": True},
    {"norm": "pre", "positions": "none", "score": "dot", "window": 2},
    {"window": 1, "attention_bias": False},
    {"score": "additive", "norm": "pre"},
    {"score": "general"},
    {"positions": "rotary", "d_k": 4},
    {"positions": "alibi", "heads": 3, "window": 5},
    {"positions": "relative", "clip": 4, "window": 9},
    {"positions": "disentangled", "clip": 3},
    {"positions": "relative", "clip": 20, "relative_heads": "per_head"},
    # A table of positions that is shorter than the sentences.
    {"positions": "learned", "max_positions": 3},
]
NEAR = [OPTIONS[i] for i in (1, 2, 4, 5, 6, 7)]  # whose cache is that of others


@functools.partial(jax.jit, static_argnums=0)
def stepwise_and_whole(model, params, ids, parents, histories):
    """Return logits by steps (T, B, J, V), and of ``histories`` (B, n, T) in full."""
    steps, _, beams = ids.shape
    variables = models.search_variables(model, params)
    step, cache = models.start(model, variables, jnp.asarray(SOURCE), beams, steps)
    _, stepwise = jax.lax.scan(lambda c, xs: step(c, *xs)[::-1], cache, (ids, parents))
    count = histories.shape[1]
    sources = jnp.repeat(SOURCE, count, axis=0)
    targets = histories.reshape(-1, steps)
    whole = model.apply({"params": params}, sources, targets, method=forward)
    return stepwise, whole


@pytest.mark.parametrize("changes", leave(OPTIONS, NEAR), ids=str)
def test_steps_with_a_cache_equal_the_full_pass_of_each_history(changes):
    """Beams continue random others; each must find exactly its own past."""
    model, params = make(**({"layers": 1} | changes))
    batch, beams, length = len(SOURCE), 3, 18  # more than one block of the cache
    rng = np.random.default_rng(0)
    parents = rng.integers(0, beams, (length, batch, beams))
    ids = rng.integers(2, SIZE, (length, batch, beams)).astype(np.int32)
    history, histories = np.zeros((batch, beams, length), np.int32), []
    for t in range(length):
        history = np.take_along_axis(history, parents[t][..., None], axis=1)
        history[:, :, t] = ids[t]
        histories.append(history)
    assert len({tuple(x) for x in history.reshape(-1, length)}) == batch * beams
    # All histories of all steps in one pass: what comes after them is not seen.
    every = np.stack(histories, axis=1).reshape(batch, -1, length)
    stepwise, whole = stepwise_and_whole(model, params, ids, parents, every)
    whole = np.asarray(whole).reshape(batch, length, beams, length, SIZE)
    expected = np.stack([whole[:, t, :, t] for t in range(length)])
    # The roundings of two layers and how they grow, as in test_model_reference.py.
    assert_close(stepwise, expected, 20 * round(5 * math.sqrt(4 * 150)))


@pytest.mark.parametrize("dtype, bits", [("float32", 24), ("bfloat16", 16)])
def test_a_bias_of_the_output_is_not_rounded_with_the_operands(dtype, bits):
    """Or the loss would be of other logits than a search, which adds it itself."""
    bias = jax.random.normal(jax.random.key(0), (40,)) * 9
    x, table = jnp.zeros((1, 2, 8)), jnp.zeros((40, 8))

    @jax.jit
    def logits(bias):
        both = with_bias(x, table, bias, dtype)
        return matmul.product(both[0], matmul.Transposed(both[1]), dtype)

    found, back = jax.vjp(logits, bias)
    np.testing.assert_allclose(found[0, 1], bias, rtol=2.0**-bits)
    assert (back(jnp.ones((1, 2, 40)))[0] == 2).all()
