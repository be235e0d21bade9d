"""Restricted self-attention in blocks against all scores: seconds and memory.

    python experiments/bench/windows.py --window=32 --lengths=256,512,1024,4096

measures one attention of 8 heads of 64, forward and backward, in float32, on the first
device that JAX finds: in blocks, under the window's mask, and over all positions. The
last two compute the same products. It prints the medians of ``--rounds`` of each in
turn, and the bytes of temporaries as compiled. ``--clock=cpu`` counts the CPU seconds
of all threads instead of elapsed time; other programs on the machine hardly change it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from transformer.nn import attention
from transformer.nn.attention_window import window_attention

HEADS, WIDTH = 8, 64
Attend = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def ways(length: int, window: int) -> dict[str, Attend]:
    """Return each way to attend, by its name."""
    near, everything = attention.Mask(window=window), attention.Mask()

    def under(mask: attention.Mask) -> Attend:
        dense = mask.dense(length, length)
        return lambda q, k, v: attention.attention(q, k, v, dense)[0]

    return {
        "blocks": lambda q, k, v: window_attention(q, k, v, near),
        "mask": under(near),
        "all": under(everything),
    }


CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def measure(
    rows: int, length: int, window: int, rounds: int, clock: Callable[[], float]
) -> dict[str, Any]:
    """Measure each way's gradient.

    Args:
      rows: B, sentences.
      length: n, positions of each.
      window: w.
      rounds: measurements of each, in turn.
      clock: returns seconds.

    Returns:
      Median seconds and bytes of temporaries of each.
    """
    q, k, v, cotangent = (
        jax.random.normal(jax.random.key(n), (rows, HEADS, length, WIDTH))
        for n in range(4)
    )

    def compiled(attend: Attend) -> Any:
        def loss(*x: jax.Array) -> jax.Array:
            return jnp.vdot(attend(*x), cotangent)

        return jax.jit(jax.grad(loss, (0, 1, 2))).lower(q, k, v).compile()

    programs = {name: compiled(way) for name, way in ways(length, window).items()}
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for number in range(1 + rounds):
        for name, program in programs.items():
            start = clock()
            jax.block_until_ready(program(q, k, v))
            if number:  # the first round warms up
                seconds[name].append(clock() - start)
    return {
        name: (
            statistics.median(seconds[name]),
            program.memory_analysis().temp_size_in_bytes,
        )
        for name, program in programs.items()
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row of a table for each length."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--window", type=int, default=32)
    parser.add_argument("--lengths", default="256,512,1024,4096")
    parser.add_argument("--tokens", type=int, default=1024, help="of all rows, or more")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    given = parser.parse_args(arguments)
    names = ["n", "rows", "blocks, ms", "mask, ms", "all, ms", "all : blocks"]
    names += ["blocks, MB", "all, MB"]
    print(f"| {' | '.join(names)} |\n{'|--:' * len(names)}|")
    for length in map(int, given.lengths.split(",")):
        rows = max(given.tokens // length, 1)
        clock = CLOCKS[given.clock]
        found = measure(rows, length, given.window, given.rounds, clock)
        times_taken = [f"{1e3 * found[name][0]:.1f}" for name in found]
        ratio = found["all"][0] / found["blocks"][0]
        memory = [f"{found[name][1] / 1e6:.1f}" for name in ("blocks", "all")]
        cells = [length, rows, *times_taken, f"{ratio:.1f}", *memory]
        print(f"| {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main()
