"""A trace of the device, and the costliest operations in it."""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax


class Cost(NamedTuple):
    """What one operation of a program took."""

    milliseconds: float
    calls: int
    operation: str


def trace(folder: Path, work: Callable[[], Any], compiled: Any) -> list[Cost]:
    """Write a trace of ``work``; return the costliest operations of its program."""
    with jax.profiler.trace(str(folder), create_perfetto_trace=True):
        jax.block_until_ready(work())
    newest = max(folder.rglob("perfetto_trace.json.gz"), key=os.path.getmtime)
    with gzip.open(newest) as file:
        events = json.load(file)["traceEvents"]
    return costliest(events, compiled.as_text())


def costliest(
    events: Sequence[Mapping[str, Any]], program: str, count: int = 10
) -> list[Cost]:
    """Add up the time of each operation in a trace.

    Args:
      events: of a Perfetto trace, durations in microseconds.
      program: the compiled program's text, which tells where an operation comes from.
      count: how many to return.

    Returns:
      The costliest operations, loops and calls left out because they contain others.
    """
    origin = dict(re.findall(r'%([\w.-]+) = .*op_name="([^"]*)"', program))
    spent: dict[str, list[float]] = {}
    for event in events:
        if event.get("ph") == "X" and "hlo_op" in event.get("args", {}):
            spent.setdefault(event["args"]["hlo_op"], []).append(event["dur"] / 1e3)
    costs = [
        Cost(sum(times), len(times), f"{name}  {origin.get(name, '')}".rstrip())
        for name, times in spent.items()
        if not name.startswith(("while", "call", "conditional"))
    ]
    return sorted(costs, reverse=True)[:count]
