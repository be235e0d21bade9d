"""What every model has to pass; a new one needs a line of ``SMALL`` and no test."""

import dataclasses
import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import toy
from support.configs import base, experiment
from support.models import BYTENET, CONVS2S, RNN, draw_params
from support.runs import write_digits

from transformer import config, decode, models, objective, parallel, step, train
from transformer.config import Config, UserError
from transformer.evaluate import evaluate
from transformer.tools import check
from transformer.translate import load

RECURRENT = ("cgru", "rnnsearch", "encdec")
LUONG = [("general", "global"), ("concat", "local_p")]
TRANSFORMER: dict[str, Any] = {
    "layers": 2,
    "d_model": 16,
    "d_ff": 24,
    "heads": 2,
    "d_k": 8,
    "d_v": 8,
}
POSITIONS: dict[str, dict[str, Any]] = {
    "relative": {"positions": "relative", "clip": 3},
    "per head": {"positions": "relative", "clip": 9, "relative_heads": "per_head"},
    "rotary": {"positions": "rotary"},
    "alibi": {"positions": "alibi"},
    "disentangled": {"positions": "disentangled", "clip": 4, "farthest": 9},
}
# The smallest sizes of each kind, or KIND:MEMBER, with a vocabulary of 23 rows.
SMALL: dict[str, dict[str, Any]] = {
    "transformer": TRANSFORMER,
    "transformer:additive": TRANSFORMER | {"score": "additive", "layers": 1},
    "transformer:windowed": TRANSFORMER | {"window": 2, "layers": 1},
    "transformer:general": TRANSFORMER | {"score": "general"},
    "transformer:marian": TRANSFORMER
    | {"decoder_layers": 1, "activation": "swish", "output_bias": True},
    **{
        f"transformer:{name}": TRANSFORMER | changes
        for name, changes in POSITIONS.items()
    },
    **{
        f"rnn:{member}": RNN | {"member": member, "encoder_norm": member == "cgru"}
        for member in RECURRENT
    },
    **{
        f"rnn:luong {score} {attention}": RNN
        | {
            "member": "luong",
            "layers": 2,
            "score": score,
            "attention": attention,
            "feeding": score != "dot",
            "window": 2 * (attention != "global"),
            "max_positions": 9 * (score == "location"),
            "reverse_source": score == "location",
        }
        for score, attention in LUONG
    },
    "rnn:gnmt": RNN | {"member": "gnmt", "units": 16, "layers": 3},
    "convs2s": CONVS2S,
    "bytenet": BYTENET,
    "toy": {"d_model": 16},
}
# Near others of this list, and long to compile: with -m slow they are held to it, too.
LONG = {
    "transformer:general",
    "transformer:windowed",
    "rnn:luong general global",
    "rnn:gnmt",
    *(f"transformer:{name}" for name in POSITIONS if name != "relative"),
}
# Near others, too, and shorter: with -m thorough.
NEAR = {"transformer:additive", "transformer:marian", "rnn:luong concat local_p"}
MARKS: dict[str, pytest.MarkDecorator] = {
    **dict.fromkeys(NEAR, pytest.mark.thorough),
    **dict.fromkeys(LONG, pytest.mark.slow),
}
KINDS = [pytest.param(kind, marks=MARKS.get(kind, ())) for kind in SMALL]
# What a train step, evaluation and translation ask of these, they ask of others of
# their kind, and of the Transformer in tests/life.
LIKE_OTHERS = {"transformer", "transformer:relative", "rnn:rnnsearch", "rnn:cgru"}
WHOLE_WAY = [
    pytest.param(
        kind, marks=pytest.mark.thorough if kind in LIKE_OTHERS else MARKS.get(kind, ())
    )
    for kind in SMALL
]
V = 23


@pytest.fixture(autouse=True)
def _toy(monkeypatch):
    toy.register(monkeypatch)


def settings_of(name: str, **changes: Any) -> Config:
    kind = re.split("[: ]", name)[0]
    values = experiment("base").to_dict()
    known = {field.name for field in dataclasses.fields(config.MODELS[kind])}
    usual = {name: x for name, x in values["model"].items() if name in known}
    sizes = SMALL[name] | {"kind": kind, "vocab_size": V, "dtype": "float32"}
    values["model"] = usual | sizes
    values["data"]["max_length"] = 64
    for key, value in changes.items():
        group, name = key.split(".")
        values[group][name] = value
    return config.resolve(values)


def test_every_kind_of_model_is_here():
    kinds = {re.split("[: ]", name)[0] for name in SMALL}
    assert kinds == set(models.MODELS) == set(config.MODELS)


@functools.cache
def subject(kind: str) -> check.Subject:
    """Return what the self-checks look at: to draw it compiles longest of all."""
    return check.subject(None, settings_of(kind))


@pytest.mark.parametrize("name", check.CHECKS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_self_checks(kind, name):
    assert check.CHECKS[name](subject(kind)) <= check.TOLERANCE


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_has_one_partition_rule(kind):
    model = models.make(settings_of(kind), V, V)
    tree = models.abstract(model)
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        fitting = [
            axes
            for pattern, axes in model.partition.items()
            if re.search(rf"(^|[._]){pattern}$", name)
        ]
        assert [len(axes) for axes in fitting] == [leaf.ndim], name


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_told_in_advance_are_those_drawn(kind):
    model = models.make(settings_of(kind), V, V)
    drawn = jax.eval_shape(lambda: models.init(model, jax.random.key(0)))
    told, expected = (
        {name: (x.shape, x.dtype) for name, x in models.by_name(tree).items()}
        for tree in (models.abstract(model), drawn)
    )
    assert told == expected


@pytest.mark.parametrize("kind", KINDS)
def test_shapes_of_every_method(kind):
    b, s, t, j, length = 3, 5, 7, 2, 11
    model = models.make(settings_of(kind), V, V)
    params, d = models.abstract(model), model.config.d_model
    # The bias of an output is a column of the table.
    d += kind == "convs2s" or getattr(model.config, "output_bias", False)
    source, inputs = (jax.ShapeDtypeStruct((b, n), jnp.int32) for n in (s, t))
    shape = functools.partial(jax.tree.map, lambda x: x.shape)
    features = functools.partial(models.features, model)
    assert shape(jax.eval_shape(features, params, source, inputs)) == (
        (b, t, d),
        (V, d),
    )

    def first_step(params: Any, source: jax.Array) -> Any:
        variables = models.search_variables(model, params)
        advance, cache = models.start(model, variables, source, j, length)
        return cache, advance(
            cache, jnp.ones((b, j), jnp.int32), jnp.zeros((b, j), int)
        )

    cache, (logits, after) = jax.eval_shape(first_step, params, source)
    assert logits.shape == (b, j, V)
    # The loop of a search needs the same types and shapes after each step.
    same = [jax.tree.map(lambda x: (x.shape, x.dtype), y) for y in (cache, after)]
    assert same[0] == same[1]
    assert all(x.shape[:1] in ((), (b,)) for x in jax.tree.leaves(cache))


def one_hot(ids: np.ndarray) -> np.ndarray:
    """Return ids (B, S) as vectors (B, S, 1 + V)."""
    return np.concatenate([ids[..., None] != 0, np.eye(V)[ids]], -1, dtype="float32")


@pytest.mark.parametrize("kind", ["rnn:cgru", "convs2s", "bytenet", "toy"])
def test_one_hot_vectors_are_read_as_the_ids_that_they_are(kind):
    it, encode = subject(kind), jax.jit(models.encode, static_argnums=0)
    vectors = one_hot(it.source)
    vectors[it.source == 0, 1:] = 99.0  # what stands in padding is nobody's business
    real = np.asarray(it.source != 0)[..., None]
    if kind in ("bytenet", "toy"):  # states of columns, or one of all
        real = np.ones((1, 1, 1), bool)
    ids, found = (
        np.asarray(encode(it.model, it.params, x)) * real for x in (it.source, vectors)
    )
    np.testing.assert_allclose(found, ids, atol=1e-5 * np.abs(ids).max(), rtol=0)


def test_so_are_their_gradients_and_dropout():
    it, key = subject("transformer"), step.dropout_key(jnp.uint32(0), jnp.int32(0))
    inputs = objective.decoder_inputs(jnp.asarray(it.target))

    @jax.jit
    @functools.partial(jax.value_and_grad, has_aux=True)
    def run(params: Any, source: jax.Array) -> tuple[jax.Array, jax.Array]:
        hidden, table = models.features(it.model, params, source, inputs, key)
        logits = hidden @ table.T
        return jnp.sin(logits).sum(), logits

    vectors = one_hot(it.source)
    (_, wanted), expected = run(it.params, it.source)
    (_, got), found = run(it.params, vectors)
    np.testing.assert_allclose(got, wanted, atol=1e-5 * np.abs(wanted).max(), rtol=0)
    for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        scale = np.abs(other).max() + 1e-3
        np.testing.assert_allclose(one, other, atol=1e-4 * scale, rtol=0)
    vectors[it.source == 0, 1:] = 99.0
    (_, other), _ = run(it.params, vectors)
    np.testing.assert_array_equal(got, other)


@pytest.mark.parametrize("kind", WHOLE_WAY)
def test_a_step_of_microbatches_is_that_of_the_batch(kind, monkeypatch):
    results, drawn = [], subject(kind).params
    monkeypatch.setattr(models, "init", lambda model, key: drawn)
    rng = np.random.default_rng(0)
    batch = {
        side: rng.integers(4, V, (8, 6), dtype=np.int32)
        for side in ("source", "target")
    }
    for count in (1, 4):
        changes = {"optimizer.accumulation": count, "loss.block": 64}
        c = settings_of(kind, **changes, **{"decode.tokens": 64})
        model = models.make(c, V, V)
        state = step.init_state(c, model)
        after, metrics = jax.jit(step.make_train_step(c, model))(state, batch)
        results.append((after.params, metrics["loss"], metrics["grad_norm"]))
    # Sums of 8 rows in another order; the first update is of the size of the rate.
    one, four = results
    np.testing.assert_allclose(one[1:], four[1:], rtol=2e-5)
    rate = 2 * float(c.model.d_model) ** -0.5 * c.optimizer.warmup**-1.5
    for a, b in zip(jax.tree.leaves(one[0]), jax.tree.leaves(four[0]), strict=True):
        np.testing.assert_allclose(a, b, atol=rate, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_ensembles_and_prefixes_search_it(kind):
    model = models.make(settings_of(kind), V, V)
    # Sharper than drawn, so that no two tokens are as good as equal.
    draws = [
        jax.tree.map(lambda x: 3 * x, params)
        for params in (subject(kind).params, draw_params(model))
    ]
    source = jnp.asarray(np.random.default_rng(1).integers(4, V, (3, 5)), jnp.int32)
    limits, prefix = jnp.full(3, 6), jnp.array([[7, 9], [8, 0], [0, 0]])
    penalty = decode.length_penalty("gnmt", 0.6)

    @jax.jit
    def search(draws: Any) -> decode.Hypotheses:
        steps, caches = zip(
            *(models.start(model, {"params": p}, source, 2, 6) for p in draws),
            strict=True,
        )
        advance, cache = decode.prefixed(decode.ensemble(steps), caches, prefix)
        return decode.beam(advance, cache, limits, 6, penalty, 2)

    found = search(draws)
    assert found.ids[0, 0, :2].tolist() == [7, 9] and int(found.ids[1, 0, 0]) == 8
    # Scored by whole outputs: the mean probability of each token behind the prefix.
    best = found.ids[:, 0]
    logits = jax.jit(functools.partial(objective.logits, model))
    each = [jax.nn.log_softmax(logits(params, source, best)) for params in draws]
    mean = jax.nn.logsumexp(jnp.stack(each), axis=0) - jnp.log(2)
    tokens = jnp.take_along_axis(mean, best[..., None], axis=-1)[..., 0]
    place = jnp.arange(6)
    given = jnp.pad(prefix, ((0, 0), (0, 4))) != 0
    counts = (place < found.lengths[:, :1]) & ~given
    expected = jnp.where(counts, tokens, 0).sum(-1)
    np.testing.assert_allclose(found.log_probabilities[:, 0], expected, rtol=1e-4)


@pytest.mark.parametrize("kind", WHOLE_WAY)
def test_it_trains_evaluates_and_translates(kind, tmp_path):
    write_digits(tmp_path)
    c = settings_of(
        kind,
        **{
            "data.source": "text",
            "data.dir": str(tmp_path),
            "data.name": "",
            "data.max_length": 16,
            "tokenizer.kind": "whitespace",
            "tokenizer.vocab_size": 0,
            "model.vocab_size": 0,
            "model.dropout": 0.0,  # the steps above have it
            "batch.tokens": 512,
            "batch.shapes": 1,
            "optimizer.scale": 0.3,
            "optimizer.warmup": 5,
            "train.steps": 8,
            "train.log_every": 1,
            "train.evaluate_every": 4,
            "train.checkpoint_every": 4,
            "decode.average": 1,
            "decode.extra_tokens": 4,
        },
    )
    lines: list[str] = []
    run = tmp_path / "run"
    run.mkdir()
    assert train.train(c, run, lines.append) is not None
    perplexities = [
        float(line.split()[-1]) for line in lines if "validation perplexity" in line
    ]
    assert perplexities[-1] < perplexities[0] < 2 * V
    evaluate(run, "validation", log=lines.append)
    translator = load(run)
    assert len(translator.translate(["1 2 3", ""], beam=2)) == 2
    (score,) = translator.score(["1 2"], ["1 2"])
    assert score < 0


def test_what_a_model_has_not_is_refused():
    c = settings_of("toy", **{"parallel.layers": "scanned"})
    with pytest.raises(UserError, match="parallel.layers: expected auto or unrolled"):
        models.scans_layers(c, models.make(c, V, V))
    with pytest.raises(
        UserError, match=r"parallel.tensor: expected 1 for .* = bytenet"
    ):
        parallel.check(settings_of("bytenet"), {"data": 1, "fsdp": 1, "tensor": 2})
    with pytest.raises(UserError, match=r"parallel.remat: expected none for .* = rnn"):
        settings_of("rnn:cgru", **{"parallel.remat": "dots"})
    with pytest.raises(UserError, match="unknown key model.heads for model.kind = toy"):
        values = dataclasses.asdict(settings_of("toy"))
        values["model"]["heads"] = 2
        config.resolve(values)
    with pytest.raises(UserError, match="expected transformer, got 'toy'"):
        config.transformer(settings_of("toy").model)
    assert base().model.kind == "transformer"
