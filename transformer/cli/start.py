"""Devices, chosen before anything is computed."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator

from absl import flags

from transformer.cli.flags import HOSTS, given


def start_devices(device: str) -> None:
    """Choose the devices and log them on standard error."""
    from transformer.parallel import start

    if isinstance(sys.stdout, io.TextIOWrapper):
        # A log is read while it grows, and its samples may be in any script.
        sys.stdout.reconfigure(line_buffering=True, errors="backslashreplace")
    print(start(device), file=sys.stderr)


@contextlib.contextmanager
def started(device: str, values: flags.FlagValues) -> Iterator[None]:
    """Start as one of the processes of a run."""
    from transformer.parallel import hosts

    hosts.join(**given(values, HOSTS))
    start_devices(device)
    with hosts.dependent():
        yield
