"""Seconds of a call, in rounds that each wait for the device once."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

from transformer.nn import hardware

_ROUND = 0.5  # minimum seconds of a round on an accelerator


def times(rounds: int, work: Callable[[], Any], calls: int = 1) -> list[float]:
    """Return the seconds of a call of ``work``, a number for each round.

    Args:
      rounds: how often the result is waited for.
      work: is called; returns arrays.
      calls: per round, dispatched one after another.
    """
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls - 1):
            work()
        jax.block_until_ready(work())
        seconds.append((time.perf_counter() - start) / calls)
    return seconds


def _calls(work: Callable[[], Any], round_seconds: float) -> int:
    """Return how many calls of ``work`` a round needs to last that long, 1 for 0 s."""
    calls = 1
    while round_seconds and calls * times(1, work, calls)[0] < round_seconds:
        calls *= 2
    return calls


def measure(rounds: int, work: Callable[[], Any]) -> tuple[list[float], int]:
    """Return the seconds of a call in each round, and how many calls a round had.

    A host that waited for every call of an accelerator would also measure its round
    trip there; on a CPU there is none.
    """
    calls = _calls(work, _ROUND if hardware.here().accelerator else 0.0)
    return times(rounds, work, calls), calls


def spread(seconds: Sequence[float], name: str) -> dict[str, float]:
    """Return the rows of the table for something's seconds, one per round."""
    return {
        f"{name}, s (median)": statistics.median(seconds),
        f"{name}, s (least)": min(seconds),
        f"{name}, s (most)": max(seconds),
    }
