"""Operations: by formula as in the traced program, and by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from ml_collections import ConfigDict
from support.configs import experiment

from transformer import config, models
from transformer import step as steps
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


@pytest.mark.parametrize("kind", [None, H200], ids=["here", "cuda"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"model.d_k": 16, "model.d_v": 48, "model.heads": 5},
        {"model.norm": "pre", "model.tying": "none", "optimizer.accumulation": 2},
        {"model.layers": 2, "model.dtype": "float32", "loss.block": 100},
    ],
    ids=str,
)
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
    written_out = c.dtype == "float32" or c.d_k != c.d_v
    if kind is not None and written_out:
        # The loop over layers of an accelerator makes the scores again, Q K^T.
        pairs = source**2 + target**2 + source * target
        formula += rows * c.layers * 2 * c.heads * c.d_k * pairs
    assert counted == formula


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
