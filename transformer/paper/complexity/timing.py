"""Seconds of the layers on this machine."""

from __future__ import annotations

import functools
import statistics
import time

import jax

from transformer.paper.complexity.layers import EVERY, Sizes, draw


@functools.cache
def seconds(
    lengths: tuple[int, ...], d: int, k: int, r: int, rounds: int = 7
) -> dict[str, list[float]]:
    """Measure how long the layers take on this machine, compiled, without projections.

    Args:
      lengths: the n.
      d: width.
      k: kernel.
      r: neighbourhood.
      rounds: how often each is run, after a first run that does not count.

    Returns:
      Row of ``ROWS`` or ``MORE`` to the median seconds at each length.
    """
    return {
        row: [_seconds(row, Sizes(n, d, k, r), rounds) for n in lengths]
        for row in EVERY
    }


def _seconds(row: str, sizes: Sizes, rounds: int) -> float:
    function, shapes = EVERY[row].layer(sizes)
    compiled, weights = jax.jit(function), jax.device_put(draw(shapes))
    jax.block_until_ready(compiled(*weights))
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        jax.block_until_ready(compiled(*weights))
        times.append(time.perf_counter() - start)
    return statistics.median(times)
