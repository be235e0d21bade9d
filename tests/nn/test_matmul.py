"""The form that products have on each platform, and the gradients of einsum."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.nn import matmul

SHORT, LONG = 10, 60  # positions: 10 x 10 is a small matrix, 60 x 60 is not


def gradients(equation, x, y, slopes):
    _, back = jax.vjp(functools.partial(matmul.einsum, equation), x, y)
    return back(slopes)


def operands(equation: str, sizes: dict[str, int]) -> list[jax.Array]:
    rng = np.random.default_rng(0)
    parts = re.findall(r"\w+", equation)
    return [
        jnp.asarray(rng.normal(size=[sizes[x] for x in part]), jnp.float32)
        for part in parts
    ]


@pytest.mark.parametrize("keys", [SHORT, LONG])
@pytest.mark.parametrize(
    "equation",
    [
        "bhtk,bhsk->bhts",
        "bhts,bhsk->bhtk",
        "bts,bsk->btk",
        "bhtk,sk->bhts",
        "ts,sk->tk",
    ],
)
def test_gradients_are_the_sums_that_the_equation_says(equation, keys):
    sizes = {"b": 3, "h": 2, "t": 9, "s": keys, "k": 5}
    x, y, slopes = operands(equation, sizes)
    left, right, result = re.findall(r"\w+", equation)
    d_x, d_y = jax.jit(functools.partial(gradients, equation))(x, y, slopes)
    exact = functools.partial(np.einsum, dtype=np.float64)
    # At most 60 products are summed, each below 16: partial sums of random signs stay
    # below sqrt(60) * 16, and each of 60 additions rounds one to 24 bits.
    tolerance = 60 * 60**0.5 * 16 * 2**-24
    np.testing.assert_allclose(
        d_x, exact(f"{result},{right}->{left}", slopes, y), atol=tolerance
    )
    np.testing.assert_allclose(
        d_y, exact(f"{result},{left}->{right}", slopes, x), atol=tolerance
    )


def test_a_cpu_sums_no_rows_of_small_matrices_and_others_turn_nothing():
    sizes = {"b": 2, "h": 3, "t": 9, "s": SHORT, "k": 5}
    equation = "bhts,bhsk->bhtk"
    x, y, slopes = operands(equation, sizes)
    traced = jax.jit(functools.partial(gradients, equation)).trace(x, y, slopes)

    rows = "lhs_contracting_dims={2}, rhs_batch_dims={0,1}, rhs_contracting_dims={2}"
    assert rows not in traced.lower(lowering_platforms=("cpu",)).compile().as_text()
    for platform in ("cuda", "tpu"):
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        assert "optimization_barrier" not in text
        assert text.count("dot_general") == 2


@pytest.mark.parametrize(
    "dtype, rows, inner, turned",
    [
        ("float32", matmul._FEW_ROWS, matmul._LONG_SUM, True),
        ("float32", matmul._FEW_ROWS + 1, matmul._LONG_SUM, False),
        ("float32", matmul._FEW_ROWS, matmul._LONG_SUM - 1, False),
        ("bfloat16", matmul._SMALL_RESULT // 64, 48, True),
        ("bfloat16", matmul._SMALL_RESULT // 64 + 1, 48, False),
    ],
)
def test_a_cpu_has_few_rows_for_the_second_operand(dtype, rows, inner, turned):
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-3, 4, (n, inner)).astype(np.float32) for n in (rows, 64))
    kernel = matmul.Transposed(jnp.asarray(w))
    multiply = jax.jit(functools.partial(matmul.product, dtype=dtype))
    # Whole numbers this small are exact in both dtypes, and so are their sums.
    np.testing.assert_array_equal(multiply(x, kernel), x @ w.T)
    traced = multiply.trace(x, kernel)
    for platform in ("cpu", "cuda", "tpu"):
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        (shape,) = re.findall(r"dot_general.*-> tensor<(\w+)xf32>", text)
        swapped = turned and platform == "cpu"
        assert shape == (f"64x{rows}" if swapped else f"{rows}x64")
