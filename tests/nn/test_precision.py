"""Mixed precision: operands of products are bfloat16, all else is float32."""

import functools
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend import core
from support.runs import BATCH, V, first_key, flat, model_of, start_of, tiny

from transformer import models
from transformer import step as steps
from transformer.nn import matmul
from transformer.nn.hardware import Hardware
from transformer.tools import flops

MIXED, EXACT = (
    tiny(**{"model.layers": 2, "model.dtype": dtype})
    for dtype in ("bfloat16", "float32")
)
MOVES = {
    *("convert_element_type", "reshape", "transpose", "broadcast_in_dim", "squeeze"),
    *("concatenate", "slice", "dynamic_slice", "optimization_barrier"),
}


def equations(jaxpr: core.Jaxpr) -> Iterator[core.JaxprEqn]:
    """Go through a program and all that is called in it."""
    for equation in jaxpr.eqns:
        inner = flops.inside(equation.params)
        inner += [x.jaxpr for x in equation.params.get("branches", ())]
        if not inner:
            yield equation
        for part in inner:
            yield from equations(part)


def dtypes(variables: Any) -> set[str]:
    return {str(x.aval.dtype) for x in variables}


@pytest.mark.parametrize(
    "how", [{}, {"parallel.remat": "dots", "parallel.layers": "scanned"}]
)
def test_nothing_but_operands_of_products_is_bfloat16(how):
    settings = tiny(**({"model.dtype": "bfloat16"} | how))
    # A CPU with units for bfloat16, whatever this one has: nothing is run.
    model = models.make(settings, V, V, Hardware("cpu"))
    state = jax.eval_shape(lambda: steps.init_state(settings, model))
    step = steps.make_train_step(settings, model)
    products = 0
    for equation in equations(jax.make_jaxpr(step)(state, BATCH).jaxpr):
        if "bfloat16" not in dtypes([*equation.invars, *equation.outvars]):
            continue
        if flops.is_product(equation):
            assert dtypes(equation.invars) == {"bfloat16"}
            assert dtypes(equation.outvars) == {"float32"}
            products += 1
        else:
            assert equation.primitive.name in MOVES, equation
    # Forward and twice backward: 3 attentions of 4, two of 2, and the logits.
    assert products >= 3 * (3 * 4 + 2 * 2 + 1)
    after, metrics = jax.eval_shape(step, state, BATCH)
    kept = {str(x.dtype) for x in jax.tree.leaves((after.params, after.opt_state))}
    assert kept <= {"float32", "int32", "bool"}
    assert metrics["loss"].dtype == metrics["grad_norm"].dtype == jnp.float32


def low(x: jax.Array) -> jax.Array:
    """Round to the 8 bits of bfloat16, and stay float32."""
    return lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def product_of_rounded(x, kernel, dtype):
    """Multiply as ``matmul._product`` says that it does, in float32 throughout."""
    transposed = isinstance(kernel, matmul.Transposed)
    return low(x) @ (low(kernel.rows).T if transposed else low(kernel))


def forward(x, kernel, dtype):
    return product_of_rounded(x, kernel, dtype), (x, kernel)


def backward(dtype, operands, gradient):
    x, kernel = operands
    rows, slopes = (low(y).reshape(-1, y.shape[-1]) for y in (x, gradient))
    if isinstance(kernel, matmul.Transposed):
        d_x = slopes @ low(kernel.rows)
        return d_x.reshape(x.shape), matmul.Transposed(slopes.T @ rows)
    return (slopes @ low(kernel).T).reshape(x.shape), rows.T @ slopes


product_of_rounded.defvjp(forward, backward)


@pytest.mark.slow
def test_the_gradient_is_that_of_rounded_operands(monkeypatch):
    params = start_of(EXACT).params

    def gradient(settings):
        function = functools.partial(steps.gradients, settings, model_of(settings))
        found, sums = jax.jit(function)(params, BATCH, first_key())
        return flat(found), float(sums.loss)

    mixed, loss = gradient(MIXED)
    exact, exact_loss = gradient(EXACT)
    monkeypatch.setattr(matmul, "_product", product_of_rounded)
    expected, expected_loss = gradient(MIXED)

    def spread(x):
        return math.sqrt(np.square(x).mean())

    # Both ways an operand is known to n roundings of float32 before it is rounded to 8
    # bits, whose steps are 2^-8 to 2^-7 of it: n 2^-16 of the operands are rounded
    # otherwise, by a step. Against the rounding itself, of a spread of step / sqrt(12),
    # that is sqrt(12 n 2^-16). On the way to an operand n adds up as in test_memory.py
    # to about 5 sqrt(4 layers of 120).
    n = 5 * math.sqrt(4 * 120)
    share = math.sqrt(12 * n * 2**-16)
    assert spread(mixed - expected) < share * spread(mixed - exact)
    assert abs(loss - expected_loss) < share * 2**-8 * exact_loss
    assert spread(mixed - exact) > 2**-9 * spread(exact)  # something was rounded
