"""The worker's end of the measurement: a process that works when it is told to.

A worker program is called with the name of one of its works and a flag for each of the
arguments of that work:

    python experiments/bench/peer_torch.py train --size=small --dtype=bfloat16

It builds the work, does it twice to warm up, and says ``READY {json}``. For each line
``go N`` on its standard input it works N times, waits for the device, and says
``DONE {"seconds": ...}``; when the input ends, so does the process. ``arena.py`` is the
other end.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import inspect
import json
import os
import sys
import time
import typing
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


def _nothing() -> None:
    """Wait for a device that is already done."""


class Work(NamedTuple):
    """What a worker repeats.

    Attributes:
      step: does the work once; may return before an accelerator has done it.
      info: is sent with READY, as JSON.
      wait: returns when all steps are done.
    """

    step: Callable[[], Any]
    info: dict[str, Any]
    wait: Callable[[], Any] = _nothing


def run(*works: Callable[..., Work]) -> None:
    """Be a worker: build the work that the arguments name, and serve it.

    Args:
      *works: functions that build one; the flags are their parameters.
    """
    build, arguments = _parse(works, sys.argv[1:])
    channel = _take_standard_output()
    _serve(build(**arguments), channel)


def _parse(
    works: Sequence[Callable[..., Work]], arguments: Sequence[str]
) -> tuple[Callable[..., Work], dict[str, Any]]:
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="work", required=True)
    for work in works:
        summary = (inspect.getdoc(work) or "").partition("\n")[0]
        command = commands.add_parser(work.__name__, help=summary)
        kinds = typing.get_type_hints(work)
        for name in inspect.signature(work).parameters:
            command.add_argument(f"--{name}", type=kinds[name], required=True)
    values = vars(parser.parse_args(arguments))
    named = values.pop("work")
    return next(work for work in works if work.__name__ == named), values


def _take_standard_output() -> typing.TextIO:
    """Return standard output; from now on libraries print to standard error."""
    channel = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return channel


def _serve(work: Work, channel: typing.TextIO) -> None:
    first = _seconds(work, 1)  # compiles
    _seconds(work, 1)
    info = work.info | {"first_seconds": first}
    print("READY", json.dumps(info), file=channel, flush=True)
    for line in sys.stdin:
        _, times = line.split()
        done = {"seconds": _seconds(work, int(times))}
        print("DONE", json.dumps(done), file=channel, flush=True)


def _seconds(work: Work, times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        work.step()
    work.wait()
    return time.perf_counter() - start


def versions(*distributions: str) -> dict[str, str]:
    """Return the installed version of each distribution."""
    return {name: importlib.metadata.version(name) for name in distributions}
