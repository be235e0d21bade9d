"""Self-checks on a machine that rounds float32 operands unless it is told not to.

An NVIDIA GPU rounds them to TF32, with 10 bits of the significand stored, a TPU to
bfloat16, with 7: here the compiler for the CPU does so. ``test_check.py`` runs this
file in a separate process, as a lowering rule applies to all programs of a process:

    PYTHONPATH=tests python tests/programs/rounding_machine.py 10 HIGHEST
"""

import argparse
import sys

import jax
from jax import lax
from jax._src.lax import lax as internal
from jax.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo
from support.checks import SOUND, changed

from transformer.nn import matmul
from transformer.tools import check

_EXPONENT_BITS = 8


def round_operands(bits: int) -> None:
    """Make products of default precision round float32 operands to ``bits`` bits."""

    def lower(ctx, *operands, precision, **options):
        if precision is None or lax.Precision.HIGHEST not in precision:
            operands = tuple(
                stablehlo.reduce_precision(x, _small(_EXPONENT_BITS), _small(bits))
                for x in operands
            )
        rule = internal._dot_general_lower
        return rule(ctx, *operands, precision=precision, platform="cpu", **options)

    mlir.register_lowering(internal.dot_general_p, lower, platform="cpu")


def _small(number: int) -> ir.IntegerAttr:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(32), number)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bits", type=int, help="of the significand that are kept")
    parser.add_argument("precision", choices=["HIGHEST", "DEFAULT"])
    asked = parser.parse_args()
    round_operands(asked.bits)
    if asked.precision != "HIGHEST":
        matmul.precision = lambda dtype: lax.Precision[asked.precision]
    jax.config.update("jax_enable_compilation_cache", False)
    wide = {"layers": 2, "d_model": 64, "d_ff": 128, "d_k": 32, "d_v": 32}
    sys.exit(check.check(settings=changed(SOUND, **wide)))
