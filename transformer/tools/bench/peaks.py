"""What this device reaches: the rate of large matrix products, beside its datasheet."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from transformer.nn import hardware, matmul
from transformer.tools import datasheets
from transformer.tools.bench.clock import measure

# Size of the square matrices whose product gives the machine's peak, and the number of
# consecutive products: one alone is too short for an accelerator.
_PEAK_CPU, _PEAK = (2048, 1), (8192, 16)


def matrix_peak(dtype: str, size: int, count: int, rounds: int = 5) -> float:
    """Measure the rate of large matrix products, operations per second.

    Args:
      dtype: of the operands; sums are float32.
      size: of the square matrices, whose numbers are random: a GPU multiplies matrices
        of ones faster, as it needs less power for them.
      count: consecutive products, each with the result of the one before.
      rounds: measurements; the best one counts.
    """
    draw = np.random.default_rng(0).standard_normal((size, size), np.float32)
    x = jnp.asarray(draw * size**-0.5, dtype)
    exact = matmul.precision(x.dtype)

    @jax.jit
    def products(x):
        y = x
        for _ in range(count - 1):
            y = jnp.dot(x, y, precision=exact)
        return jnp.dot(x, y, precision=exact, preferred_element_type=jnp.float32)

    jax.block_until_ready(products(x))
    seconds, _ = measure(rounds, lambda: products(x))
    return 2 * size**3 * count / min(seconds)


def peaks(dtype: str, rate: float) -> dict[str, float]:
    """Return the peaks of this device beside the operations per second of some work.

    Args:
      dtype: ``model.dtype`` of that work.
      rate: of it, operations per second.
    """
    here = hardware.here()
    size, count = _PEAK if here.accelerator else _PEAK_CPU
    peak = matrix_peak(here.operands(dtype), size, count)
    rows = {
        f"operations/s of a {size} matrix product": peak,
        "share of that": rate / peak,
    }
    sheet = datasheets.find(jax.devices()[0].device_kind)
    if sheet is not None and dtype == "bfloat16":
        rows["operations/s in the datasheet"] = sheet.operations
        rows["share of the datasheet's"] = rate / sheet.operations
    return rows
