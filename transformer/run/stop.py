"""What stops a run: signals of the operating system, a log that nobody reads."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

from transformer.parallel import hosts
from transformer.run.signals import handled


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
