"""ConvS2S: against torch, its sizes, how far it reaches, and what its keys may be."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict
from support import convs2s_cases as cases
from support import torch_cases
from support.configs import experiment
from support.models import CONVS2S, convolutional_config, draw_params
from support.reference import assert_close
from support.torch_values import everywhere, values

from transformer import config, decode, models, objective
from transformer.config import UserError
from transformer.models import convs2s
from transformer.nn import convolution, dropout
from transformer.search import Search

V = 23
IDS = jnp.array([[7, 4, 9, 3, 0, 0], [5, 6, 7, 8, 9, 3]])
INPUTS = jnp.array([[2, 8, 5, 9, 4], [2, 6, 6, 7, 8]])

features = jax.jit(models.features, static_argnums=0)


def settings(**changes):
    values = experiment("base").to_dict()
    usual = {"kind": "convs2s", "vocab_size": V, "dropout": 0.1, "dtype": "float32"}
    values["model"] = usual | CONVS2S | changes
    values["data"]["max_length"] = 64
    return config.resolve(values)


def drawn(**changes):
    model = models.make(settings(**changes), V, V)
    return model, draw_params(model)


# ---- against torch -------------------------------------------------------------------


def text(blocks):
    return "+".join(f"1x{width}k{kernel}" for width, kernel in blocks)


def of_cases():
    """Return the model that torch has computed, and its parameters."""
    its = convolutional_config(
        d_model=cases.OUTPUT,
        embedding=cases.EMBEDDING,
        encoder=text(cases.ENCODER),
        decoder=text(cases.DECODER),
        max_positions=cases.POSITIONS,
    )
    model = convs2s.Model(its, cases.SOURCE_SIZE, cases.TARGET_SIZE)
    params = {name: jnp.asarray(x) for name, x in cases.parameters().items()}
    return model, unflatten_dict({tuple(n.split(".")): x for n, x in params.items()})


@everywhere
def test_logits_of_given_targets_and_their_gradients(values_of):
    model, params = of_cases()

    def loss(params):
        logits = objective.logits(
            model, params, jnp.asarray(cases.source()), jnp.asarray(cases.TARGET)
        )
        return (logits * cases.slopes()).sum(), logits

    slopes, logits = jax.jit(jax.grad(loss, has_aux=True))(params)
    expected = values(values_of, "torch_convs2s")
    # Through each of the 5 layers a sum of at most 18 products, three of attention,
    # norms of so many weights and some 20 further operations.
    roundings = 5 * 10 * (2 * 18 + 3 * 6 + 20)
    assert_close(logits, expected["logits"], roundings)
    for path, slope in flatten_dict(slopes).items():
        wanted = expected[f"d_{'.'.join(path)}"]
        assert_close(slope, wanted, roundings=2 * roundings)


@everywhere
def test_greedy_outputs(values_of):
    model, params = of_cases()
    limits = np.array([len(ids) - 1 + cases.EXTRA for ids in cases.SOURCES])
    how, longest = Search(1, 0.6, "power"), int(limits.max())

    @jax.jit
    def search(params):
        variables = models.search_variables(model, params)
        source = jnp.asarray(cases.source())
        step, cache = models.start(model, variables, source, 1, longest)
        keys = jax.random.split(jax.random.key(0), len(limits))
        return decode.search(how, step, cache, jnp.asarray(limits), longest, keys)

    found = search(params)
    rows = zip(found.ids[:, 0].tolist(), found.lengths[:, 0].tolist(), strict=True)
    ids = [[i for i in row[:length] if i != 3] for row, length in rows]
    expected = values(values_of, "torch_convs2s")["greedy"]
    np.testing.assert_array_equal(torch_cases.as_rows(ids), expected)


# ---- sizes ---------------------------------------------------------------------------


def count(its, source, target):
    tree = models.abstract(convs2s.Model(its, source, target))
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    gains = sum(leaf.size for path, leaf in leaves if "gain" in str(path[-1]))
    return sum(leaf.size for _, leaf in leaves), gains


def test_the_parameters_of_a_published_model():
    # bentrevett/pytorch-seq2seq, its notebook 5 on Multi30k: plain weights, and one
    # pair of maps of attention for all layers.
    its = convolutional_config(
        d_model=256,
        embedding=256,
        encoder="10x512k3",
        decoder="10x512k3",
        max_positions=100,
    )
    total, gains = count(its, 7853, 5893)
    pair = (512 * 256 + 256) + (256 * 512 + 512)
    # Gains: the maps into and out of both stacks, the output, 20 convolutions, pairs.
    norms = 2 * (512 + 256) + 5893 + 20 * 1024 + 10 * (256 + 512)
    assert gains == norms
    assert total - gains - 9 * pair == 37_351_173


@pytest.mark.parametrize(
    "variant, source, target, plain, normed",
    [
        ("en_de", 42_000, 44_000, "216.1", "216.2"),
        ("iwslt", 35_475, 24_739, "25.71", "25.74"),
    ],
)
def test_the_parameters_of_the_authors_models(variant, source, target, plain, normed):
    its = config.resolve(experiment("convs2s", variant)).model
    total, gains = count(its, source, target)
    digits = len(plain.split(".")[1])
    assert f"{(total - gains) / 1e6:.{digits}f}" == plain
    assert f"{total / 1e6:.{digits}f}" == normed


def test_parameters_as_they_are_drawn():
    wide = convolutional_config(
        d_model=64,
        embedding=64,
        encoder="1x64k3",
        decoder="1x64k3",
        max_positions=50,
        dropout=0.36,
    )
    model = convs2s.Model(wide, 80, 80)
    draw = jax.jit(lambda: models.init(model, jax.random.key(0)))
    params = {".".join(path): x for path, x in flatten_dict(draw()).items()}
    spreads = {
        "source_embedding": 0.1,
        "target_positions": 0.1,
        "encoder_input.direction": 0.8 / 8,  # sqrt(keep / n)
        "encoder_output.direction": 1 / 8,
        "encoder_0.convolution.direction": 2 * 0.8 / 192**0.5,
        "decoder_0.convolution.direction": 2 * 0.8 / 192**0.5,
        "decoder_0.context.direction": 1 / 8,
        "output": 0.8 / 8,
    }
    for name, spread in spreads.items():
        # Of n draws the deviation has one of 1 / sqrt(2 n), at most 0.0125 here.
        assert float(params[name].std()) == pytest.approx(spread, rel=4 * 0.0125)
    for name, x in params.items():
        if name.endswith("gain"):
            own = name == "output_gain"
            v = params["output" if own else name.replace("gain", "direction")]
            axis = 1 if own else 0
            np.testing.assert_allclose(x, np.linalg.norm(v, axis=axis), rtol=1e-5)
        assert not name.endswith("bias") or not x.any()


# ---- what reaches what ---------------------------------------------------------------


@pytest.mark.parametrize("layers, reach", [(4, 9), (15, 31)])
def test_an_encoder_reaches_so_far_and_no_further(layers, reach):
    assert convolution.reach([3] * layers) == reach
    length = reach + 8
    model = models.make(
        settings(encoder=f"{layers}x4k3", decoder="1x4k1", embedding=4), V, V
    )
    params = draw_params(model)
    source = jnp.full((1, length), 5)

    @jax.jit
    @jax.grad
    def slopes_of(places):
        variables = {"params": params | {"source_positions": places}}
        keys = model.apply(variables, source, method="encode").keys
        return keys[0, length // 2].sum()

    slopes = slopes_of(params["source_positions"])[:length]
    seen = abs(np.arange(length) - length // 2) <= reach // 2
    np.testing.assert_array_equal(np.any(slopes, axis=-1), seen)


def test_a_decoder_reaches_back_alone():
    model, params = drawn(decoder="2x16k3", encoder="1x12k1")
    inputs = jnp.full((1, 9), 5)

    @jax.jit
    @jax.grad
    def slopes_of(places):
        tree = params | {"target_positions": places}
        return models.features(model, tree, IDS[:1], inputs)[0][0, 6].sum()

    slopes = slopes_of(params["target_positions"])[:9]
    # Two layers of 3 reach 4 positions back from the sixth.
    expected = [2 <= place <= 6 for place in range(9)]
    np.testing.assert_array_equal(np.any(slopes, axis=-1), expected)


def test_nothing_depends_on_what_padding_is():
    model, params = drawn()
    table = params["source_embedding"]
    other = params | {"source_embedding": table.at[0].set(9.0)}
    one, another = (features(model, p, IDS, INPUTS)[0] for p in (params, other))
    np.testing.assert_array_equal(one, another)


def test_the_number_of_real_tokens_scales_what_is_found():
    model, params = drawn()
    found = model.apply({"params": params}, IDS, method="encode")
    np.testing.assert_allclose(found.root, [2, 6**0.5], rtol=1e-6)


def test_beyond_the_table_of_positions_its_last_row_serves_on():
    model, params = drawn(max_positions=64)
    short = convs2s.Model(dataclasses.replace(model.config, max_positions=4), V, V)
    few, many = dict(params), dict(params)
    for side in ("source_positions", "target_positions"):
        few[side] = params[side][:4]
        many[side] = params[side].at[4:].set(params[side][3])
    one = features(short, few, IDS, INPUTS)[0]
    other = features(model, many, IDS, INPUTS)[0]
    np.testing.assert_array_equal(one, other)


# ---- search, pictures, dropout -------------------------------------------------------


def test_tied_tables_step_as_they_are_taught_whoever_is_continued():
    model, params = drawn(tying="three", embedding=16, decoder="1x16k3+1x12k2")
    assert "output" not in params and "target_embedding" not in params
    hidden, table = features(model, params, IDS, INPUTS)
    np.testing.assert_array_equal(table[:, :-1], params["source_embedding"])
    taught = hidden @ table.T
    parents = jnp.array([[1, 0]] * 2)

    @jax.jit
    def stepwise(params):
        step, cache = models.start(model, {"params": params}, IDS, 2, 5)

        def score(cache, ids):
            # The taught target changes its place at each step; beside it is another.
            (position, own), beside = ids, jnp.full(2, 11)
            both = [jnp.stack(pair, 1) for pair in ((own, beside), (beside, own))]
            logits, cache = step(
                cache, jnp.where(position % 2, both[1], both[0]), parents
            )
            return cache, logits[:, position % 2]

        return jax.lax.scan(score, cache, (jnp.arange(5), INPUTS.T))[1]

    found = stepwise(params).swapaxes(0, 1)
    atol = 1e-5 * float(abs(taught).max())
    np.testing.assert_allclose(found, taught, atol=atol, rtol=0)


def test_every_layer_of_the_decoder_has_its_map():
    model, params = drawn()
    found = models.attention_weights(model, params, IDS, INPUTS)
    assert set(found) == {"cross"} and found["cross"].shape == (2, 2, 1, 5, 6)
    np.testing.assert_allclose(found["cross"].sum(-1), 1, rtol=1e-5)
    np.testing.assert_array_equal(found["cross"][0, ..., 4:], 0)
    # A change to the second layer is seen in its own map.
    bias = params["decoder_1"]["query"]["bias"] + 1
    query = params["decoder_1"]["query"] | {"bias": bias}
    other = params | {"decoder_1": params["decoder_1"] | {"query": query}}
    changed = models.attention_weights(model, other, IDS, INPUTS)["cross"]
    same = np.all(changed == found["cross"], axis=(0, 2, 3, 4))
    assert same.tolist() == [True, False]


def test_what_is_recomputed_changes_no_gradient():
    model, params = drawn()
    params = jax.tree.map(lambda x: 3 * x, params)  # sharp weights of attention

    def slopes(remat):
        its = dataclasses.replace(model, remat=remat)

        def loss(params):
            hidden, _ = models.features(its, params, IDS, INPUTS, dropout.make_key(1))
            return jnp.square(hidden).sum()

        return jax.jit(jax.grad(loss)).lower(params)

    programs = [slopes(remat) for remat in ("none", "layers")]
    kept, again = (one.as_text().count("dot_general") for one in programs)
    assert again > kept  # it is recomputed
    # What a softmax passes on are differences of sums of some ten numbers.
    found = [jax.tree.leaves(one.compile()(params)) for one in programs]
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * abs(a).max())


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"heads": 4}, "unknown key model.heads for model.kind = convs2s"),
        ({"encoder": "4x256"}, "model.encoder: expected layers such as 9x512k3"),
        ({"decoder": ""}, "model.decoder: expected layers such as 9x512k3"),
        ({"decoder": "0x8k3"}, "model.decoder: expected layers such as 9x512k3"),
        ({"encoder": "2x8k3+1x8k2"}, "model.encoder: expected odd kernels"),
        ({"max_positions": 63}, "at least data.max_length = 64, got 63"),
        ({"tying": "two"}, "model.embedding: expected model.d_model = 16 where tables"),
    ],
)
def test_keys_that_contradict_each_other_are_refused(changes, said):
    with pytest.raises(UserError, match=said):
        settings(**changes)
