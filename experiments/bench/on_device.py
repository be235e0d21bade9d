"""What is measured in one process on a device, for ``on_accelerator.py``.

    python experiments/bench/on_device.py attention --output=attention.json

works, on the first device that JAX finds, and writes what it found as JSON:

    peaks      rates of matrix products and of memory, versions, flags
    attention  the fused kernel against unfused attention, in float32
    dropout    masks against those that the CPU draws
    compare    the last checkpoints and the metrics of two runs, bit by bit
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from transformer import models, parallel
from transformer.files.whole import write_json
from transformer.nn import attention, dropout, hardware
from transformer.run.checkpoints import Checkpoints
from transformer.run.history import read_metrics
from transformer.run.provenance import machine
from transformer.step import init_state
from transformer.tools import datasheets
from transformer.tools.bench.clock import measure
from transformer.tools.bench.peaks import matrix_peak
from transformer.trained import open_run

TIMING = ("seconds", "tokens_per_second")  # the metrics that depend on the clock
_HALF = 2.0**-9  # the largest change of a number of size 1 by rounding to bfloat16


# ---- peaks ---------------------------------------------------------------------------


def peaks(size: int, count: int) -> dict[str, Any]:
    """Measure what this device reaches, beside its datasheet.

    Args:
      size: of square matrices.
      count: consecutive products.
    """
    sheet = datasheets.find(jax.devices()[0].device_kind)
    rates = {dtype: matrix_peak(dtype, size, count) for dtype in FORMS}
    return {
        "machine": machine(),
        "size": size,
        "products": rates,
        "bandwidth": bandwidth(size),
        "datasheet": None if sheet is None else sheet._asdict(),
    }


FORMS = ("bfloat16", "float32")


def bandwidth(size: int, rounds: int = 5) -> float:
    """Measure bytes per second, read and written, of adding 1 to a large array.

    Args:
      size: the array has 4 size^2 numbers of 4 bytes.
      rounds: measurements; the best one counts.
    """
    add = jax.jit(lambda x: x + 1, donate_argnums=0)
    held = [add(jnp.zeros((4, size, size)))]

    def work() -> jax.Array:
        held.append(add(held.pop()))
        return held[0]

    seconds, _ = measure(rounds, work)
    return 2 * held[0].nbytes / min(seconds)


# ---- attention -----------------------------------------------------------------------

# Name: rows, T, S, what the keys lack, whether later positions are hidden.
CASES: dict[str, tuple[int, int, int, str, bool]] = {
    "whole": (4, 64, 64, "nothing", False),
    "padded": (4, 64, 64, "padding", False),
    "causal": (4, 64, 64, "nothing", True),
    "to another length": (4, 32, 64, "padding", False),
    "odd lengths": (4, 33, 31, "padding", False),
    "empty rows": (4, 64, 64, "sentences", False),
    "long": (2, 256, 256, "padding", False),
    "long, causal": (2, 256, 256, "nothing", True),
}


def compare_attention(kernel: Literal["cudnn", "xla", "pallas"]) -> dict[str, Any]:
    """Compare the fused kernel with unfused attention.

    Both take operands in bfloat16 and are compared with float32. The fused kernel may
    be four times as far from it as the other, or as rounding once; without its mask it
    is tens of times as far.

    Args:
      kernel: which fused kernel.

    Returns:
      For each case the largest differences of the output and of the three gradients,
      each as a share of the largest number, and whether they are small enough.
    """
    return {name: _case(*case, kernel) for name, case in CASES.items()}


def _case(
    rows: int, queries: int, keys: int, lacking: str, causal: bool, kernel: Any
) -> dict[str, Any]:
    heads, width = 4, 64
    draw = np.random.default_rng(0)

    def numbers(length: int) -> jax.Array:
        drawn = draw.standard_normal((rows, heads, length, width), np.float32)
        return jnp.asarray(drawn, jnp.bfloat16)

    q, k, v, cotangent = map(numbers, (queries, keys, keys, queries))
    mask = attention.Mask(_ids(rows, keys, lacking), causal)

    def written_out(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return attention.attention(q, k, v, mask.dense(queries, keys))[0]

    def fused(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return attention.fused_attention(q, k, v, mask, kernel=kernel)

    sizes = heads, width, width, (queries, keys)
    chosen = attention.fused_kernel(
        hardware.here(), "bfloat16", "scaled_dot", *sizes, mask
    )
    taken = chosen == kernel
    half, exact = (q, k, v), [x.astype(jnp.float32) for x in (q, k, v)]
    expected = _with_gradients(written_out, exact, cotangent)
    plain = _differences(_with_gradients(written_out, half, cotangent), expected)
    try:
        found = _with_gradients(fused, half, cotangent)
    except Exception as error:  # the kernel's library may raise any kind
        refusal = str(error).splitlines()[0]
        return {"taken": taken, "refused": refusal, "passed": not taken}
    differences = _differences(found, expected)
    allowed = {name: 4 * max(value, _HALF) for name, value in plain.items()}
    # NaN is not small.
    small = all(differences[name] <= allowed[name] for name in differences)
    return {
        "taken": taken,
        "fused": differences,
        "unfused": plain,
        "passed": small,
    }


def _ids(rows: int, length: int, lacking: str) -> jax.Array | None:
    """Return ids (rows, length) that are PAD, 0, beyond the end of a sentence."""
    if lacking == "nothing":
        return None
    ends = length - np.arange(rows) * length // (2 * rows)
    if lacking == "sentences":
        ends[::2] = 0
    return jnp.asarray(np.arange(length) < ends[:, None], jnp.int32)


def _with_gradients(
    function: Callable[..., jax.Array], operands: Sequence[jax.Array], cotangent: Any
) -> dict[str, np.ndarray]:
    """Return the output of a function and its gradients, in float32."""

    @jax.jit
    def run(*operands: jax.Array) -> tuple[jax.Array, ...]:
        output, pull = jax.vjp(function, *operands)
        return output, *pull(cotangent.astype(output.dtype))

    names = ("output", "query", "key", "value")
    arrays = (np.asarray(x, np.float32) for x in run(*operands))
    return dict(zip(names, arrays, strict=True))


def _differences(
    found: dict[str, np.ndarray], expected: dict[str, np.ndarray]
) -> dict[str, float]:
    return {
        name: float(np.abs(found[name] - array).max() / np.abs(array).max())
        for name, array in expected.items()
    }


# ---- dropout -------------------------------------------------------------------------


def compare_dropout() -> bool:
    """Return whether this device draws the CPU's masks."""
    here, there = map(_mask, (jax.devices()[0], jax.devices("cpu")[0]))
    return bool(np.array_equal(here, there))


def _mask(device: jax.Device) -> np.ndarray:
    @jax.jit
    def draw() -> jax.Array:
        key = dropout.fold_in(dropout.make_key(jnp.uint32(7)), 3)
        return dropout.dropout(jnp.ones((16, 32, 512)), 0.1, key)

    with jax.default_device(device):
        return np.asarray(draw())


# ---- two runs ------------------------------------------------------------------------


def compare_runs(first: Path, second: Path) -> dict[str, Any]:
    """Compare the last states of two runs of one configuration, and their metrics.

    Returns:
      Whether all bits are the same; how many arrays differ and by how much, as a share
      of the largest number of each; the first step whose metrics differ.
    """
    states, logs = [_last_state(run) for run in (first, second)], []
    for run in (first, second):
        lines = read_metrics(run)
        logs.append([{k: v for k, v in x.items() if k not in TIMING} for x in lines])
    differing = {
        name: _relative(array, states[1][name])
        for name, array in states[0].items()
        if not np.array_equal(array, states[1][name])
    }
    steps = [a["step"] for a, b in zip(*logs, strict=True) if a != b]
    return {
        "same": not differing and not steps,
        "arrays": len(states[0]),
        "arrays that differ": len(differing),
        "largest difference": max(differing.values(), default=0.0),
        "first step that differs": steps[0] if steps else None,
    }


def _last_state(workdir: Path) -> dict[str, np.ndarray]:
    settings, vocabulary = open_run(workdir)
    model = models.make(settings, *vocabulary.sizes)
    abstract = jax.eval_shape(functools.partial(init_state, settings, model))
    with Checkpoints(workdir / "checkpoints", settings.train.keep) as checkpoints:
        _, tree, _ = checkpoints.restore(abstract.parts())
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def _relative(a: np.ndarray, b: np.ndarray) -> float:
    largest = float(np.abs(a.astype(np.float64)).max())
    difference = float(np.abs(a.astype(np.float64) - b.astype(np.float64)).max())
    return difference / largest if largest else difference


# ---- the command ---------------------------------------------------------------------


def main(arguments: Sequence[str]) -> int:
    """Measure what the arguments name and write it down."""
    parser = argparse.ArgumentParser(description="Look at a device from inside.")
    add = parser.add_argument
    add("work", choices=("peaks", "attention", "dropout", "compare"))
    add("--output", type=Path, required=True, help="file for the result as JSON")
    add("--size", type=int, default=8192, help="of the matrices of peaks")
    add("--count", type=int, default=16, help="consecutive products, of peaks")
    add("--runs", type=Path, nargs=2, help="workdirs to compare")
    values = parser.parse_args(arguments)
    print(parallel.start("any"), file=sys.stderr)
    if values.work == "peaks":
        found: Any = peaks(values.size, values.count)
    elif values.work == "attention":
        here = hardware.here()
        found = {"skipped": f"{here.platform} has no fused kernel"}
        if here.platform == "cuda" and (here.capability or (0, 0)) >= (8, 0):
            kernel: Any = "pallas" if hardware.here().platform == "tpu" else "cudnn"
            found = compare_attention(kernel)
    elif values.work == "dropout":
        found = compare_dropout()
    else:
        found = compare_runs(*values.runs)
    write_json(values.output, found)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
