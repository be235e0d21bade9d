"""ByteNet: against torch, how far it reads, its grid, its rings, and its sizes."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import unflatten_dict
from support import bytenet_case as case
from support.cases import leave
from support.configs import base, experiment
from support.models import BYTENET, bytenet_config, draw_params
from support.paths import TESTS
from support.reference import assert_close

from transformer import config, models
from transformer.config import UserError
from transformer.data.tokenizers import Bytes, Vocabulary
from transformer.models import bytenet, stacks
from transformer.nn import convolution, dropout
from transformer.pictures import heads
from transformer.translate import Translator

V = 23
features = jax.jit(models.features, static_argnums=0)
SOURCE = jnp.array([[7, 4, 9, 3, 0, 0], [5, 6, 7, 8, 9, 3]])
INPUTS = jnp.array([[2, 8, 5, 9, 4, 6, 6, 5], [2, 6, 6, 7, 8, 8, 9, 4]])


def drawn(**changes):
    model = bytenet.Model(bytenet_config(**changes), V, V)
    return model, draw_params(model)


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"kernel": 2}, "model.kernel: expected an odd number: the encoder reads"),
        ({"d_model": 15}, "model.d_model: expected an even number, as blocks halve it"),
        ({"sets": 0}, "model.sets: expected a number greater than 0, got 0"),
        ({"blocks": 17}, "model.blocks: expected at most 16, got 17"),
        ({"grid": 0.9}, "model.grid: expected at least 1 and at most 10, got 0.9"),
        ({"grid": 10.5}, "model.grid: expected at least 1 and at most 10, got 10.5"),
        ({"heads": 4}, "unknown key model.heads for model.kind = bytenet"),
    ],
)
def test_what_the_keys_may_not_be_is_refused(changes, said):
    values = experiment("base").to_dict()
    usual = {"kind": "bytenet", "vocab_size": V, "dropout": 0.1, "dtype": "float32"}
    values["model"] = usual | BYTENET
    assert config.resolve(values).model == bytenet_config(vocab_size=V)
    values["model"] |= changes
    with pytest.raises(UserError, match=said):
        config.resolve(values)


def test_logits_are_those_of_torch():
    sizes = {"sets": case.SETS, "blocks": case.BLOCKS, "kernel": case.KERNEL}
    settings = bytenet_config(d_model=case.WIDE, tying="none", **sizes)
    model = bytenet.Model(settings, case.V, case.V)
    params = unflatten_dict({tuple(k.split(".")): x for k, x in case.arrays().items()})
    shapes = jax.tree.map(lambda x: x.shape, (params, models.abstract(model)))
    assert shapes[0] == shapes[1]
    # The second row has more padding than in the file's own batch.
    source = jnp.pad(jnp.asarray(case.SOURCE), ((0, 0), (0, 2)))
    hidden, table = features(model, params, source, jnp.asarray(case.INPUTS))
    expected = np.load(TESTS / "golden" / "torch_bytenet.npz")["logits"]
    # Twelve blocks follow one another, each with some 40 operations and a norm of
    # three channels, whose small spread may double an error.
    assert_close(hidden @ table.T, expected, roundings=2 * 12 * 40)


# ---- how far it reads ----------------------------------------------------------------


@pytest.mark.parametrize(
    "sets, here, length",
    leave([(1, 100, 140), (2, 190, 260)], [(2, 190, 260)]),
)
def test_nothing_outside_the_reach_moves_a_column(sets, here, length):
    # Each position has an id, so that a row of a table is the input of one position.
    settings = bytenet_config(d_model=12, sets=sets, blocks=5)
    model = bytenet.Model(settings, length + 1, length + 1)
    params = draw_params(model)

    def open_up(path, x):  # of a ReLU that cuts nothing off every path is open
        return x + 3 if "norm" in str(path) and "bias" in str(path) else x

    params = jax.tree_util.tree_map_with_path(open_up, params)
    ids = jnp.arange(1, length + 1)[None]

    @jax.jit
    def slopes(params):
        def one(params):  # times 2^80: twenty blocks leave little of a slope
            return 2.0**80 * models.features(model, params, ids, ids)[0][0, here].sum()

        found = jax.grad(one)(params)
        return found["source_embedding"][1:], found["target_embedding"][1:]

    source, target = (np.flatnonzero(x.any(1)) for x in slopes(params))
    reach = convolution.reach([3] * 5 * sets, [1, 2, 4, 8, 16] * sets)
    assert reach == {1: 63, 2: 125}[sets]
    first = here - reach + 1
    np.testing.assert_array_equal(target, np.arange(first, here + 1))
    # Of columns up to its own, each of which reads half of a reach to both sides.
    half = reach // 2
    np.testing.assert_array_equal(source, np.arange(first - half, here + half + 1))


# ---- the grid ------------------------------------------------------------------------


def test_the_grid_is_that_of_the_sentence_and_not_of_the_batch():
    model, params = drawn()
    encode = jax.jit(functools.partial(model.apply, method="encode"))
    variables = {"params": params}
    states, live = encode(variables, SOURCE)
    assert states.shape == (2, 8, 16)  # 1.2 times 6, rounded up
    counts = live.sum((1, 2)).astype(int).tolist()
    assert counts == [5, 8]
    # Between the sentence and the end of its grid there is something, behind nothing.
    assert np.abs(states[0, 4]).max() > 0.1
    np.testing.assert_array_equal(states[0, 5:], 0)
    alone = encode(variables, SOURCE[:1, :4])[0]
    assert alone.shape == (1, 5, 16)
    np.testing.assert_allclose(states[0, :5], alone[0], atol=1e-6)


def test_grids_are_exact_and_of_any_ratio():
    lengths = np.arange(200)
    for ratio, top, bottom in ((1.0, 1, 1), (1.2, 6, 5), (1.333, 1333, 1000)):
        expected = [-(-n * top // bottom) for n in range(200)]
        assert bytenet.grid_columns(lengths, ratio).tolist() == expected
        assert bytenet.grid_columns(jnp.asarray(lengths), ratio).tolist() == expected


def test_what_stands_for_padding_is_never_read():
    model, params = drawn()
    table = params["source_embedding"]
    other = params | {"source_embedding": table.at[0].set(9.0)}
    one, another = (features(model, p, SOURCE, INPUTS)[0] for p in (params, other))
    np.testing.assert_array_equal(one, another)


# ---- decoding ------------------------------------------------------------------------


def test_hypotheses_that_change_places_read_their_own_past():
    model, params = drawn(blocks=3)
    beams, steps = 3, 19  # rings of 3, 5 and 9; grids of 5 and 8 columns
    rng = np.random.default_rng(3)
    variables = {"params": params}
    begin = jax.jit(lambda: models.start(model, variables, SOURCE, beams, steps)[1])
    step = jax.jit(functools.partial(model.apply, variables, method="step"))
    cache, pasts, rows = begin(), np.zeros((2, beams, 0), int), np.arange(2)[:, None]
    for _ in range(steps):
        parents = rng.integers(0, beams, (2, beams))
        ids = rng.integers(4, V, (2, beams))
        pasts = np.concatenate([pasts[rows, parents], ids[..., None]], axis=-1)
        logits, cache = step(cache, jnp.asarray(ids), jnp.asarray(parents))
    both = jnp.repeat(SOURCE, beams, axis=0)
    hidden, table = features(model, params, both, jnp.asarray(pasts.reshape(-1, steps)))
    taught = (hidden[:, -1] @ table.T).reshape(2, beams, V)
    largest = float(jnp.abs(taught).max())
    np.testing.assert_allclose(logits, taught, atol=1e-5 * largest, rtol=0)


def test_scanned_sets_that_recompute_have_the_same_gradients():
    model, params = drawn(sets=2, blocks=1)
    key = dropout.make_key(5)
    again = model.clone(remat="layers")
    apart, together = params, stacks.stack(model.stacks, params)
    assert set(together) >= {"encoder", "decoder"} and "encoder_0" not in together

    def slope(model, params):
        def total(params):
            return models.features(model, params, SOURCE, INPUTS, key)[0].sum()

        return jax.jit(jax.grad(total))(params)

    one = slope(model, apart)
    other = stacks.unstack(model.stacks, slope(again, together))
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * float(abs(a).max()), rtol=0)


# ---- its sizes -----------------------------------------------------------------------


def test_the_parameters_of_the_paper_s_blocks():
    values = experiment("bytenet")
    assert values.model.sets == 6
    values.model.sets = 1  # all are alike
    model, d = models.make(config.resolve(values), 260, 260), 800
    tree = models.abstract(model)
    blocks = {k: x for k, x in tree.items() if k.startswith(("encoder", "decoder"))}
    leaves = jax.tree_util.tree_leaves_with_path(blocks)
    matrices = sum(x.size for path, x in leaves if "kernel" in str(path))
    assert 6 * matrices == 60 * 7 * d**2 == 268_800_000
    vectors = sum(x.size for path, x in leaves if "kernel" not in str(path))
    # Three norms of 2 d, d and d channels, two each; biases of d, d and 2 d.
    assert 6 * vectors == 60 * (8 * d + 4 * d) == 576_000
    finish = (2 * d) ** 2 + 2 * d
    everything = sum(x.size for x in jax.tree.leaves(tree))
    assert everything == matrices + vectors + finish + 3 * 260 * 2 * d


def test_there_are_no_maps_to_look_at():
    settings = dataclasses.replace(
        base(**{"tokenizer.kind": "bytes"}), model=bytenet_config()
    )
    vocabulary = Vocabulary(Bytes(), Bytes())
    params = models.abstract(models.make(settings, *vocabulary.sizes))
    found = Translator(settings, vocabulary, None)
    found.params = params
    with pytest.raises(UserError, match="got a model of kind bytenet without any"):
        heads.sizes(found)
