"""Recurrent models: what their keys may be, their sizes, and what each member reads."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.configs import experiment
from support.models import RNN, draw_params

from transformer import config, models
from transformer.config import UserError
from transformer.ids import BOS
from transformer.models.modules import Linear
from transformer.models.rnn import layers
from transformer.nn import dropout

V = 23
KEY = jax.random.key(0)
USUAL = RNN | {
    "kind": "rnn",
    "vocab_size": V,
    "member": "cgru",
    "dropout": 0.1,
    "dtype": "float32",
}
LUONG = USUAL | {"member": "luong", "score": "dot", "attention": "global"}
GNMT = USUAL | {"member": "gnmt", "layers": 3, "units": 16}


def settings(model, **changes):
    values = experiment("base").to_dict()
    values["model"] = model | changes
    return config.resolve(values)


def drawn(**changes):
    model = models.make(settings(USUAL, **changes), V, V)
    return model, draw_params(model)


features = jax.jit(models.features, static_argnums=0)
IDS = jnp.array([[7, 4, 9, 3, 0, 0], [5, 6, 7, 8, 9, 3]])
INPUTS = jnp.array([[BOS, 8, 5, 9], [BOS, 6, 6, 7]])


@pytest.mark.parametrize(
    "model, changes, said",
    [
        (USUAL, {"feeding": True}, "model.feeding: expected False for member cgru"),
        (USUAL, {"score": "dot"}, "model.score: expected 'none' for member cgru"),
        (USUAL, {"window": 3}, "model.window: expected 0 for member cgru"),
        (USUAL, {"attention": "global"}, "model.attention: expected 'none' for memb"),
        (USUAL, {"max_positions": 9}, "model.max_positions: expected 0 for member"),
        (USUAL, {"embedding": 8}, "model.embedding: expected model.d_model = 16"),
        (LUONG, {"score": "none"}, "model.score: expected a kind of attention"),
        (LUONG, {"attention": "local_p"}, "model.window: expected 0 with global"),
        (LUONG, {"window": 3}, "model.window: expected 0 with global"),
        (LUONG, {"score": "location"}, "model.max_positions: expected above 0 with"),
        (LUONG, {"encoder_norm": True}, "model.encoder_norm: expected False for memb"),
        (USUAL, {"member": "gnmt"}, "model.layers: expected 2 or more for member gnmt"),
        (
            USUAL,
            {"member": "gnmt", "layers": 2},
            "model.d_model: expected model.units = 12",
        ),
        (LUONG, {"heads": 4}, "unknown key model.heads for model.kind = rnn"),
    ],
)
def test_keys_that_contradict_each_other_are_refused(model, changes, said):
    with pytest.raises(UserError, match=said):
        settings(model, **changes)


def test_the_parameters_of_the_paper_s_rnnsearch():
    sizes = {"embedding": 620, "units": 1000, "d_model": 500, "tying": "none"}
    c = settings(USUAL, member="rnnsearch", vocab_size=30_000, **sizes)
    tree = models.abstract(models.make(c, 30_000, 30_000))
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    counted = sum(leaf.size for path, leaf in leaves if "bias" not in str(path))
    # Tables, encoder, decoder, first state, attention, readout, output.
    parts = 37_200_000, 9_720_000, 10_860_000, 1_000_000, 3_001_000, 3_620_000
    assert counted == sum(parts) + 15_000_000


def test_the_parameters_of_gnmt():
    c = config.resolve(experiment("gnmt"))
    tree = models.abstract(models.make(c, 32_000, 32_000))
    n = 1024

    def lstm(width):  # four gates of the input and of the state, one bias each
        return 4 * n * (width + n) + 4 * n

    tables = 3 * 32_000 * n  # source, target, output
    encoder = 2 * lstm(n) + lstm(2 * n) + 6 * lstm(n)  # the first in both directions
    decoder = 8 * lstm(2 * n)  # all of them read the context too
    attention = 2 * n * n + n
    expected = tables + encoder + decoder + attention
    assert sum(leaf.size for leaf in jax.tree.leaves(tree)) == expected
    assert round(expected / 1e6) == 281


def test_the_parameters_of_a_public_gru_with_attention():
    # bentrevett/pytorch-seq2seq has 20,518,405. torch's cells have two biases of every
    # gate, these have one of z and of r.
    m, n, source, target = 256, 512, 7_853, 5_893

    def count(module, *shapes):
        given = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
        params = jax.eval_shape(module.init, KEY, *given)["params"]
        return sum(x.size for x in jax.tree.leaves(params))

    class Gru(nn.Module):
        width: int

        @nn.compact
        def __call__(self, x):
            return layers.Cell("gru_reset_after", self.width, n, "float32").gates(x)

    tables = (source + target) * m
    encoder = 2 * (count(Gru(m), (1, m)) + 2 * n)
    bridge = count(Linear(n, "float32"), (1, 2 * n))
    energy = count(Linear(n, "float32"), (1, 3 * n)) + n
    decoder = count(Gru(2 * n + m), (1, 2 * n + m)) + 2 * n
    readout = count(Linear(target, "float32"), (1, n + 2 * n + m))
    found = tables + encoder + bridge + energy + decoder + readout
    assert found == 20_518_405


def test_a_reversed_source_is_read_from_its_end():
    model, params = drawn(member="encdec")
    turned, _ = drawn(member="encdec", reverse_source=True)
    backwards = jnp.array([[3, 9, 4, 7, 0, 0], [3, 9, 8, 7, 6, 5]])
    one = features(model, params, backwards, INPUTS)[0]
    other = features(turned, params, IDS, INPUTS)[0]
    np.testing.assert_array_equal(one, other)


def test_weights_of_a_reversed_source_are_in_its_own_order():
    model, params = drawn(member="cgru")
    turned, _ = drawn(member="cgru", reverse_source=True)
    backwards = jnp.array([[3, 9, 4, 7, 0, 0], [3, 9, 8, 7, 6, 5]])
    one = models.attention_weights(model, params, backwards, INPUTS)["cross"]
    other = models.attention_weights(turned, params, IDS, INPUTS)["cross"]
    # Softmax and context are sums of at most 6 numbers, in another order.
    np.testing.assert_allclose(one[0, ..., 3::-1], other[0, ..., :4], rtol=1e-6)
    np.testing.assert_array_equal(other[0, ..., 4:], 0)
    np.testing.assert_allclose(one[1, ..., ::-1], other[1], rtol=1e-6)


@pytest.mark.parametrize("member", ["encdec", "rnnsearch", "cgru"])
def test_before_the_first_word_there_is_none(member):
    model, params = drawn(member=member)
    table = params["target_embedding"]
    other = params | {"target_embedding": table.at[BOS].set(9.0)}
    one, another = (features(model, p, IDS, INPUTS)[0] for p in (params, other))
    np.testing.assert_array_equal(one, another)


@pytest.mark.parametrize("member", ["rnnsearch", "cgru"])
def test_weights_of_attention_are_found(member):
    model, params = drawn(member=member)
    found = models.attention_weights(model, params, IDS, INPUTS)
    assert set(found) == {"cross"} and found["cross"].shape == (2, 1, 1, 4, 6)
    np.testing.assert_allclose(found["cross"].sum(-1), 1, rtol=1e-5)
    np.testing.assert_array_equal(found["cross"][0, ..., 4:], 0)


LUONGS = [  # score, attention, feeding, reverse_source
    ("dot", "local_m", False, True),
    ("location", "global", True, False),
    ("concat", "local_p", True, True),
    ("location", "local_p", False, True),
]


@pytest.mark.parametrize("score, attention, feeding, reverse", LUONGS)
def test_a_luong_of_any_choices_steps_as_it_is_taught(
    score, attention, feeding, reverse
):
    model, params = drawn(
        member="luong",
        score=score,
        attention=attention,
        feeding=feeding,
        reverse_source=reverse,
        window=int(attention != "global"),
        max_positions=5 * (score == "location"),
        layers=2,
    )
    params = jax.tree.map(lambda x: 3 * x, params)  # sharp weights
    hidden, table = features(model, params, IDS, INPUTS)
    taught = hidden @ table.T
    # The steps see more padding: nothing may depend on it either.
    wide = jnp.pad(IDS, ((0, 0), (0, 3)))
    parents = jnp.zeros((len(IDS), 1), jnp.int32)

    @jax.jit
    def stepwise(params):
        step, cache = models.start(model, {"params": params}, wide, 1, INPUTS.shape[1])

        def score_of(cache, ids):
            return step(cache, ids[:, None], parents)[::-1]

        return jax.lax.scan(score_of, cache, INPUTS.T)[1]

    cached = stepwise(params)[:, :, 0].swapaxes(0, 1)
    np.testing.assert_allclose(cached, taught, atol=1e-5 * abs(taught).max(), rtol=0)


RATES = ("dropout", "context_dropout", "readout_dropout")


@pytest.mark.parametrize("member", ["encdec", "cgru"])
@pytest.mark.parametrize("rate", RATES)
def test_every_rate_of_dropout_is_of_its_own_place(rate, member):
    changes = dict.fromkeys(RATES, 0.0) | {"member": member, rate: 0.5}
    model, params = drawn(**changes)

    plain, dropped = (
        features(model, params, IDS, INPUTS, key)[0]
        for key in (None, dropout.make_key(1))
    )
    assert not np.array_equal(plain, dropped)
    # What is read out is 0 where it is dropped, and else only if what it is made of is.
    share = (dropped == 0).mean()
    assert (0.4 < share < 0.6) if rate == "readout_dropout" else share == 0
    if rate == "readout_dropout":
        kept = dropped != 0
        np.testing.assert_allclose(dropped[kept], 2 * plain[kept], rtol=1e-6)


@pytest.mark.parametrize("model", [LUONG | {"layers": 2}, GNMT])
def test_layers_of_the_decoder_read_what_dropout_left(model):
    model = models.make(settings(model, dropout=0.5), V, V)
    params = draw_params(model)

    @jax.jit
    @jax.grad
    def slopes(cells, key):
        decoder = params["decoder"] | {"cells_1": cells}
        given = params | {"decoder": decoder}
        return models.features(model, given, IDS[:1], INPUTS[:1, :1], key)[0].sum()

    kernel = params["decoder"]["cells_1"]
    for key in (None, dropout.make_key(1)):
        gradient = slopes(kernel, key)["kernel_input"]
        # One sentence, one step: what was dropped moves none of the matrix.
        share = (gradient == 0).all(axis=1).mean()
        assert share == 0 if key is None else 0.2 < share < 0.8


def test_the_norm_is_that_of_the_encoder_alone():
    tree = models.abstract(drawn(encoder_norm=True)[0])
    gains = {
        jax.tree_util.keystr(path, simple=True, separator=".").split(".")[0]
        for path, _ in jax.tree_util.tree_leaves_with_path(tree)
        if "gain" in str(path)
    }
    assert gains == {"encoder_0"}


def test_one_fixed_vector_is_no_attention():
    model, params = drawn(member="encdec")
    assert models.attention_weights(model, params, IDS, INPUTS) == {}
