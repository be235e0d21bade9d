"""Operands of matrix products in bfloat16 and in float32, side by side on this CPU.

    python experiments/bench/operands.py --size=medium

measures train steps, greedy searches and searches for one sentence by a model with
``model.dtype="bfloat16"``, with bfloat16 operands and with the float32 ones that a CPU
without units for bfloat16 gets. It prints the medians of ``--rounds`` of each in turn,
and how many times as long bfloat16 takes, with the least and the most in a round.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import arena
import ours
import sizes

from transformer.nn.hardware import Hardware
from transformer.tools.bench.clock import times
from transformer.tools.bench.searching import Searcher
from transformer.tools.bench.training import Stepper

KINDS = {"bfloat16": True, "float32": False}  # operands, and whether the CPU has units


def works(size: str, operands: str) -> dict[str, Callable[[], Any]]:
    """Compile each kind of work with operands of one dtype; return calls by its name.

    Args:
      size: a name in ``sizes.SIZES``.
      operands: a name in ``KINDS``.

    Raises:
      SystemExit: if the backend lacks products of such operands.
    """
    kind = Hardware("cpu", bfloat16=KINDS[operands])
    settings, model = ours.set_up(size, "bfloat16", "cpu", kind)
    if model.operands != operands:
        raise SystemExit(f"expected products of {operands}, this backend has none")
    source, target = sizes.training_batch(model.target_size)
    step = Stepper(settings, model, {"source": source, "target": target})
    found: dict[str, Callable[[], Any]] = {f"train, {sizes.ROWS} pairs": step}
    for rows in (32, 1):
        sentences = sizes.sentences(model.source_size, rows, sizes.LENGTH)
        found[f"greedy, {rows}"] = Searcher(settings, model, sentences, 1)
    return found


def measure(works: Sequence[Callable[[], Any]], rounds: int) -> list[list[float]]:
    """Return the seconds of each work in each round, after one that warms up."""
    taken = [[times(1, work)[0] for work in works] for _ in range(1 + rounds)]
    return [list(seconds) for seconds in zip(*taken[1:], strict=True)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row of a table for each kind of work."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=sizes.SIZES, default="medium")
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args(arguments)
    both = [works(given.size, operands) for operands in KINDS]
    names = ["work", *(f"{operands}, ms" for operands in KINDS), "bfloat16 : float32"]
    print(f"| {' | '.join(names)} |\n|---{'|--:' * (len(names) - 1)}|")
    for name in both[0]:
        half, full = measure([one[name] for one in both], given.rounds)
        found = arena.ratio(full, half)
        cells = [f"{1e3 * statistics.median(taken):.1f}" for taken in (half, full)]
        cells += [f"{found.median:.2f} ({found.least:.2f} to {found.most:.2f})"]
        print(f"| {' | '.join([name, *cells])} |", flush=True)


if __name__ == "__main__":
    main()
