"""Operations: by formula as in the traced program, and by hand."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from ml_collections import ConfigDict
from support.cases import leave
from support.configs import base, experiment
from support.models import bytenet_config, convolutional_config, recurrent_config

from transformer import config, models
from transformer import step as steps
from transformer.config import UserError
from transformer.nn import attention_window
from transformer.nn.hardware import Hardware
from transformer.parallel import sizes
from transformer.tools import flops


def settings(**changes) -> config.Config:
    values: ConfigDict = experiment("base")
    values.update_from_flattened_dict(changes)
    return sizes.here(config.resolve(values), 1000)


def test_a_scan_counts_each_turn_and_a_cond_its_dearest_branch():
    x = jnp.ones((3, 3))

    def turns(y):
        return jax.lax.scan(lambda c, _: (c @ y, None), x, length=5)[0]

    def either(y):
        return jax.lax.cond(y[0, 0] > 0, lambda z: z @ z, lambda z: z @ z @ z, y)

    assert flops.traced(turns, x) == 5 * 2 * 27
    assert flops.traced(either, x) == 2 * 2 * 27


@jax.custom_vjp
def squared(x):
    return x @ x


squared.defvjp(lambda x: (squared(x), x), lambda x, g: (g @ x.T + x.T @ g,))


@pytest.mark.parametrize(
    ("function", "programs"),
    [
        (jax.jit(lambda x: x @ x), 1),
        (jax.checkpoint(lambda x: x @ x), 1),
        (squared, 1),
        (lambda x: jax.lax.scan(lambda c, _: (c @ c, None), x, length=3), 1),
        (lambda x: jax.lax.while_loop(lambda c: c[0, 0] < 9, lambda c: c @ c, x), 2),
    ],
    ids=["jit", "checkpoint", "custom_vjp", "scan", "while"],
)
def test_programs_inside_an_equation_are_found_once(function, programs):
    (equation,) = jax.make_jaxpr(function)(jnp.ones((3, 3))).jaxpr.eqns
    inside = flops.inside(equation.params)
    assert len(inside) == len({id(jaxpr) for jaxpr in inside}) == programs
    assert sum(flops.is_product(e) for jaxpr in inside for e in jaxpr.eqns) == 1


def test_a_batched_product_by_hand():
    # 2 * batch 7 * 3 * 5 * sum over 4
    def product(x, y):
        return jnp.einsum("bik,bkj->bij", x, y)

    shapes = jax.ShapeDtypeStruct((7, 3, 4), "f"), jax.ShapeDtypeStruct((7, 4, 5), "f")
    assert flops.traced(product, *shapes) == 2 * 7 * 3 * 5 * 4


def test_a_grouped_and_strided_convolution_by_hand():
    # 2 * batch 2 * places (9 - 3) / 2 + 1 * features 6 * window 3 * of 4 inputs, half
    def convolve(x, kernel):
        return jax.lax.conv_general_dilated(
            x,
            kernel,
            (2,),
            "VALID",
            feature_group_count=2,
            dimension_numbers=("NWC", "WIO", "NWC"),
        )

    shapes = jax.ShapeDtypeStruct((2, 9, 4), "f"), jax.ShapeDtypeStruct((3, 2, 6), "f")
    assert flops.traced(convolve, *shapes) == 2 * 2 * 4 * 6 * 3 * 2


def test_the_products_inside_the_fused_kernel_are_those_written_out(monkeypatch):
    # No cuDNN is needed to trace its kernel, only its version.
    monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 92_000)
    heads = [
        jax.ShapeDtypeStruct((2, length, 3, 16), jnp.bfloat16) for length in (8, 6, 6)
    ]

    def attend(implementation, *x):
        return jax.nn.dot_product_attention(*x, implementation=implementation)

    def change(implementation, *x):
        def loss(*x):
            return attend(implementation, *x).astype(jnp.float32).sum()

        return jax.grad(loss, (0, 1, 2))(*x)

    # 2 * batch 2 * heads 3 * queries 8 * keys 6 * (16 + 16), backward twice more
    for function, products in ((attend, 1), (change, 3)):
        for implementation in ("xla", "cudnn"):
            one = functools.partial(function, implementation)
            assert flops.traced(one, *heads) == products * 2 * 2 * 3 * 8 * 6 * 32


H200 = Hardware("cuda", (9, 0))


@pytest.mark.parametrize("clip", [3, 11])  # distances of 12 words: clipped, or all
def test_products_of_distances_that_are_made_again(clip):
    changes = {"model.layers": 1, "model.positions": "relative", "model.clip": clip}
    it = settings(**changes, **{"parallel.remat": "dots"})
    rows, source, target = 8, 12, 10
    model = models.make(it, 1000, 1000)
    state = jax.eval_shape(lambda: steps.init_state(it, model))
    batch = {
        "source": jax.ShapeDtypeStruct((rows, source), np.int32),
        "target": jax.ShapeDtypeStruct((rows, target), np.int32),
    }
    counted = flops.traced(steps.make_train_step(it, model), state, batch)
    once = flops.train_step(it.model, rows, source, target, 1000)
    again = flops.recomputed(it.model, source, target, "dots")
    assert counted == once + rows * again


def test_each_layer_and_each_pass_makes_its_own_products_again():
    changes = {"model.layers": 3, "model.decoder_layers": 1, "loss.r_drop": 5.0}
    it = settings(**changes, **{"parallel.remat": "dots"})
    c = config.transformer(it.model)
    pairs = 3 * 5**2 + 1 * (7**2 + 5 * 7)
    again = 2 * c.heads * (c.d_k + c.d_v) * pairs
    assert flops.recomputed(c, 5, 7, "dots") == again
    once = flops.train_step(c, 4, 5, 7, 1000) + 4 * again
    assert flops.configured_step(it, 4, 5, 7, 1000) == 2 * once


FORMULA: list[dict[str, Any]] = [
    {},
    {"model.layers": 2, "model.d_k": 16, "model.d_v": 48, "model.heads": 5},
    {
        "model.layers": 2,
        "model.norm": "pre",
        "model.tying": "none",
        "optimizer.accumulation": 2,
    },
    {"model.layers": 2, "model.dtype": "float32", "loss.block": 100},
    {"model.layers": 1, "loss.r_drop": 5.0},
    {"model.layers": 1, "model.score": "additive"},
    {"model.layers": 1, "model.score": "general"},
    {"model.layers": 1, "model.positions": "relative", "model.clip": 3},
    {"model.layers": 1, "model.positions": "disentangled", "model.clip": 3},
    {
        "model.layers": 2,
        "model.decoder_layers": 1,
        "model.activation": "gelu",
        "model.output_bias": True,
        "optimizer.accumulation": 2,
    },
]
# Their products are those of others, of other sizes.
NEAR = [FORMULA[i] for i in (1, 3, 6)]


@pytest.mark.parametrize("kind", [None, H200], ids=["here", "cuda"])
@pytest.mark.parametrize("changes", leave(FORMULA, NEAR), ids=str)
def test_the_traced_train_step_has_the_operations_of_the_formula(
    changes, kind, monkeypatch
):
    monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 92_000)
    it, rows, source, target, vocabulary = settings(**changes), 8, 12, 10, 1000
    model = models.make(it, vocabulary, vocabulary, hardware=kind)
    state = jax.eval_shape(lambda: steps.init_state(it, model))
    batch = {
        "source": jax.ShapeDtypeStruct((rows, source), np.int32),
        "target": jax.ShapeDtypeStruct((rows, target), np.int32),
    }
    counted = flops.traced(steps.make_train_step(it, model), state, batch)
    formula = flops.train_step(it.model, rows, source, target, vocabulary)
    c = config.transformer(it.model)
    written_out = c.dtype == "float32" or c.d_k != c.d_v or c.score == "additive"
    if kind is not None and written_out:
        # The loop over layers of an accelerator makes the scores again, Q K^T.
        pairs = source**2 + target**2 + source * target
        formula += rows * c.layers * 2 * c.heads * c.d_k * pairs
    if kind is not None and c.positions == "relative":
        # Of its own, not of attention to the source, with those of distances.
        pairs = source**2 + target**2 + (2 * c.clip + 1) * (source + target)
        formula += rows * c.layers * 2 * c.heads * c.d_k * pairs
    if kind is not None and c.positions == "disentangled":
        # Of the encoder, with those of distances; those of projections are kept.
        pairs = source**2 + 2 * source * (2 * source - 1)
        formula += rows * c.layers * 2 * c.heads * c.d_k * pairs
    assert counted == it.loss.passes * formula


def test_a_window_is_counted_by_its_blocks(patch):
    patch.setattr(attention_window, "_LEAST", 0)
    patch.setattr(attention_window, "_RATIO", 3)
    c = settings(**{"model.layers": 1, "model.window": 3}).model
    assert flops.forward(c, 12, 10, 0) == flops._up_to_output(c, 12, 10)
    # 4 blocks of 3 queries and 3 * 3 keys; of 10 queries too, and 2 * 3 keys; 8 heads
    # of which each key and each value has 64 numbers.
    pairs = 4 * 3 * 9 + 4 * 3 * 6 + 12 * 10
    assert flops.recomputed(c, 12, 10, "dots") == 2 * 8 * (64 + 64) * pairs
    # Below 9 positions each query meets all.
    pairs = 8 * 8 + 7 * 7 + 8 * 7
    assert flops.recomputed(c, 8, 7, "dots") == 2 * 8 * (64 + 64) * pairs


def test_a_sentence_of_one_word_through_one_layer_by_hand():
    it = settings(
        **{
            "model.layers": 1,
            "model.d_model": 2,
            "model.d_ff": 3,
            "model.heads": 1,
            "model.d_k": 5,
            "model.d_v": 7,
        }
    )
    attention = 2 * 5 + 2 * 5 + 2 * 7 + 7 * 2 + 5 + 7  # Q, K, V, output, scores, sums
    inner = 2 * 3 + 3 * 2
    multiply_adds = (attention + inner) + (2 * attention + inner) + 2 * 11
    assert flops.forward(it.model, 1, 1, vocabulary=11) == 2 * multiply_adds


# ---- other kinds of model ------------------------------------------------------------

LUONG = {"member": "luong", "score": "general", "attention": "global"}
LOCAL = {"member": "luong", "score": "concat", "attention": "local_p", "window": 3}
MEMBERS = [
    {"member": "encdec"},
    {"member": "rnnsearch"},
    {"member": "cgru"},
    LUONG | {"feeding": True, "layers": 2},
    LOCAL,
    {"member": "gnmt", "layers": 3, "d_model": 12, "embedding": 12},
]


def test_a_sentence_of_one_word_through_a_cgru_by_hand():
    sizes = {"embedding": 2, "d_model": 2, "units": 3}
    one_way = 2 * 9 + 3 * 9  # x W and h U, three gates
    encoder = 2 * one_way
    begin = 6 * 3
    keys = 6 * 6
    first = 2 * 9 + 3 * 9
    attention = 3 * 6 + 6 + 6  # the query, its energy, the sum
    second = 6 * 9 + 3 * 9
    readout = 3 * 2 + 2 * 2 + 6 * 2
    multiply_adds = encoder + begin + keys + first + attention + second + readout
    found = flops.forward(recurrent_config(member="cgru", **sizes), 1, 1, vocabulary=11)
    assert found == 2 * (multiply_adds + 2 * 11)


@pytest.mark.parametrize("changes", leave(MEMBERS, [MEMBERS[0], MEMBERS[3]]), ids=str)
def test_the_traced_train_step_of_a_recurrent_model_has_the_operations_counted(changes):
    it = dataclasses.replace(
        base(**{"loss.block": 64}), model=recurrent_config(**changes)
    )
    rows, source, target, vocabulary = 8, 9, 7, 23
    model = models.make(it, vocabulary, vocabulary)
    state = jax.eval_shape(lambda: steps.init_state(it, model))
    batch = {
        "source": jax.ShapeDtypeStruct((rows, source), np.int32),
        "target": jax.ShapeDtypeStruct((rows, target), np.int32),
    }
    counted = flops.traced(steps.make_train_step(it, model), state, batch)
    formula = flops.train_step(it.model, rows, source, target, vocabulary)
    # The backward pass makes energies and sums of attention anew; energies of width A,
    # annotations of width W.
    again = {
        "encdec": 0,
        "rnnsearch": 12 + 24,
        "cgru": 24 + 24,
        "luong": 12 + 12,
        "gnmt": 12 + 12,
    }[changes["member"]]
    remade = 2 * rows * target * source * again
    if changes.get("attention") == "local_p":
        remade += 2 * rows * target * 12  # the centre, tanh(h W_p) . v_p
    assert counted - formula == remade


@pytest.mark.parametrize("source, target", [(1, 1), (5, 7), (11, 4)])
def test_the_traced_bytenet_has_the_operations_of_the_formula(source, target):
    model = bytenet_config(d_model=10, sets=2)
    traced = flops._up_to_output(model, source, target)
    assert traced == flops.forward(model, source, target, vocabulary=0)


def test_the_traced_train_step_of_a_bytenet_has_three_times_as_many():
    it = dataclasses.replace(base(**{"loss.block": 64}), model=bytenet_config())
    rows, source, target, vocabulary = 8, 9, 7, 23
    model = models.make(it, vocabulary, vocabulary)
    state = jax.eval_shape(lambda: steps.init_state(it, model))
    batch = {
        "source": jax.ShapeDtypeStruct((rows, source), np.int32),
        "target": jax.ShapeDtypeStruct((rows, target), np.int32),
    }
    counted = flops.traced(steps.make_train_step(it, model), state, batch)
    assert counted == flops.train_step(it.model, rows, source, target, vocabulary)
    again = flops.recomputed(it.model, source, target, "layers")
    finish = 2 * target * it.model.d_model**2
    assert again + finish == flops.forward(it.model, source, target, vocabulary=0)
    assert flops.recomputed(it.model, source, target, "dots") == 0


def test_a_transformer_counted_as_other_models_are_has_the_operations_of_the_formula():
    model = settings(**{"model.layers": 2, "model.d_k": 16, "model.heads": 5}).model
    counted = flops._polynomial(flops._differences(model), 13, 6)
    assert counted == flops.forward(model, 13, 6, vocabulary=0)


def test_operations_of_arrays_of_lengths_are_those_of_each_pair():
    model = recurrent_config(member="cgru")
    lengths = np.array([[1, 7, 30], [4, 2, 11]])
    sources, targets = lengths
    found: Any = flops.forward(model, sources, targets, 23)
    each = [flops.forward(model, s, t, 23) for s, t in lengths.T.tolist()]
    assert found.tolist() == each


def scanned(jaxpr: Any) -> int:
    """Return the turns of all loops, one after the other."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "scan":
            total += equation.params["length"]
        else:
            total += sum(map(scanned, flops.inside(equation.params)))
    return total


@pytest.mark.parametrize("changes", MEMBERS, ids=str)
def test_sequential_steps_are_the_turns_of_the_loops(changes):
    it = recurrent_config(**changes)
    model = models.rnn.Model(it, 23, 23)
    ids = [jax.ShapeDtypeStruct((1, n), np.int32) for n in (9, 7)]
    params, features = models.abstract(model), functools.partial(models.features, model)
    turns = scanned(jax.make_jaxpr(features)(params, *ids).jaxpr)
    cells = {"cgru": 2, "luong": it.layers, "gnmt": it.layers}.get(it.member, 1)
    found = flops.sequential_steps(it, 9, 7)
    assert (
        found == turns + (cells - 1) * 7 == flops.sequential_steps(it, 9, 7, given=True)
    )


def test_a_transformer_reads_at_once_and_writes_word_by_word():
    model = settings(**{"model.layers": 6}).model
    assert flops.sequential_steps(model, 30, 20) == 6 + 20 * 6
    assert flops.sequential_steps(model, 30, 20, given=True) == 6 + 6


CONVOLUTIONAL = {
    "d_model": 5,
    "embedding": 2,
    "encoder": "2x3k3",
    "decoder": "1x3k3+1x4k1",
}


def test_a_pair_of_sentences_through_convolutions_by_hand():
    source, target, v = 7, 4, 11
    block = 3 * 3 * 2 * 3  # k inputs of width 3, twice the width
    encoder = 2 * 3 + 2 * block + 3 * 2
    attention = [width * 2 + 2 * width + 2 * source * 2 for width in (3, 4)]
    decoder = 2 * 3 + block + 3 * 2 * 4 + 3 * 4 + sum(attention) + 4 * 5
    it = convolutional_config(**CONVOLUTIONAL)
    found = flops.forward(it, source, target, v)
    assert found == 2 * (source * encoder + target * (decoder + 5 * v))


@pytest.mark.parametrize("remat", ["none", "layers", "dots"])
def test_what_a_train_step_of_convolutions_recomputes(remat):
    changes = {"loss.block": 64, "parallel.remat": remat}
    it = dataclasses.replace(
        base(**changes), model=convolutional_config(**CONVOLUTIONAL)
    )
    rows, source, target, v = 8, 9, 7, 23
    model = models.make(it, v, v)
    state = jax.eval_shape(lambda: steps.init_state(it, model))
    batch = {
        "source": jax.ShapeDtypeStruct((rows, source), np.int32),
        "target": jax.ShapeDtypeStruct((rows, target), np.int32),
    }
    counted = flops.traced(steps.make_train_step(it, model), state, batch)
    formula = flops.train_step(it.model, rows, source, target, v)
    formula += rows * flops.recomputed(it.model, source, target, remat)
    # The bias of the output is a column of its matrix, and so multiplied.
    assert counted == formula + 3 * 2 * rows * target * v


def test_convolutions_read_at_once_and_write_word_by_word():
    it = convolutional_config(encoder="20x8k3", decoder="3x8k3")
    assert flops.sequential_steps(it, 30, 12) == 20 + 12 * 3
    assert flops.sequential_steps(it, 30, 12, given=True) == 20 + 3


def test_a_bytenet_reads_at_once_and_writes_character_by_character():
    model = bytenet_config(sets=6, blocks=5)
    assert flops.sequential_steps(model, 30, 20) == 30 + 20 * 30
    assert flops.sequential_steps(model, 30, 20, given=True) == 30 + 30


def test_steps_of_an_unknown_kind_are_refused():
    model = config.Model("toy", 0, 16, 0.1, "two", "float32")
    expected = "expected transformer, rnn, convs2s or bytenet, got"
    with pytest.raises(UserError, match=expected):
        flops.sequential_steps(model, 3, 3)
