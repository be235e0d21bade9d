"""What stops a run: signals of the operating system, a log that nobody reads."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from transformer.parallel import hosts


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


def unless_closed(
    log: Callable[[str], None], closed: Callable[[BrokenPipeError], None]
) -> Callable[[str], None]:
    """Return a log that reports that its reader went away, instead of raising.

    Args:
      log: takes lines; ``train | head`` closes it.
      closed: is called once; the lines that follow are dropped.
    """
    gone = False

    def passed(text: str) -> None:
        nonlocal gone
        if gone:
            return
        try:
            log(text)
        except BrokenPipeError as error:
            gone = True
            closed(error)

    return passed


class Signals:
    """Remembers SIGTERM or Ctrl-C, for a loop that asks between two steps."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._handled = handled((signal.SIGTERM, signal.SIGINT), self._receive)

    def __enter__(self) -> Signals:
        self._handled.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._handled.__exit__(*error)

    def decisive(self) -> bool:
        """Return whether one came and no other process needs to agree."""
        return bool(self.received) and not hosts.several()

    def _receive(self, number: int, frame: Any) -> None:
        if self.received == signal.SIGINT == number:
            raise KeyboardInterrupt  # asked twice: at once
        self.received = number

    def listening(self, log: Callable[[str], None]) -> Callable[[str], None]:
        """Return a log whose reader stops the loop by going away, as a signal does."""
        return unless_closed(log, lambda error: self._receive(signal.SIGPIPE, None))

    def interrupt_if_asked(self) -> None:
        if self.received == signal.SIGINT:
            raise KeyboardInterrupt
        if self.received == signal.SIGPIPE:
            raise BrokenPipeError
