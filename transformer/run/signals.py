"""Handlers of signals; it imports nothing heavy, as the command line needs it first."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any


class Terminated(KeyboardInterrupt):
    """SIGTERM, where nothing has to be saved: all on disk is complete at any time."""


def terminate(number: int, frame: Any) -> None:
    """Handle SIGTERM: what runs is left, and removes its temporary files."""
    raise Terminated


@contextlib.contextmanager
def handled(
    numbers: Iterable[int],
    handler: Callable[[int, Any], None],
    patient: bool = True,
) -> Iterator:
    """Handle signals inside a ``with`` block, and restore the handlers after it.

    Outside the main thread, where Python allows no handlers, this does nothing.

    Args:
      numbers: signals.
      handler: is called with the number and the frame that was interrupted.
      patient: wait for the handler however long it takes; the command line otherwise
        ends the process some seconds after a signal.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    wakeup = signal.set_wakeup_fd(-1)
    if not patient:
        signal.set_wakeup_fd(wakeup)
    try:
        yield
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler_before in before.items():
            signal.signal(number, handler_before)
