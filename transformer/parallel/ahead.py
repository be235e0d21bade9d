"""Compilation of programs in threads, before they are first called."""

from __future__ import annotations

import concurrent.futures
import os
import sys
import threading
from collections.abc import Callable, Hashable
from typing import Any

import jax

_THREADS = 4  # compile at the same time on an accelerator's host
_under_way: set[threading.Thread] = set()

Compiled = jax.stages.Compiled
Future = concurrent.futures.Future[Compiled]


class Compiler:
    """Threads that compile programs in the order in which they are requested.

    A CPU's cores have to compute the steps, so only one thread compiles beside them; it
    takes part of the cores while there is something to compile. The host of an
    accelerator waits for it, so several threads compile. Tracing is Python, which runs
    in one thread at a time: each program is traced before the next one is begun.

    Args:
      accelerator: whether the programs are for one.
      checked: returns a compiled program, or raises what its first call is to raise.
    """

    def __init__(
        self, accelerator: bool, checked: Callable[[Compiled], Compiled] = lambda x: x
    ) -> None:
        self.accelerator, self._checked = accelerator, checked
        threads = min(_THREADS, os.cpu_count() or 1) if accelerator else 1
        self._threads = concurrent.futures.ThreadPoolExecutor(threads, "compile")
        self._tracing = threading.Lock()

    def begin(self, trace: Callable[[], jax.stages.Lowered]) -> Future:
        """Compile what a function traces, in a thread; return at once."""
        return self._threads.submit(self._compile, trace)

    def _compile(self, trace: Callable[[], jax.stages.Lowered]) -> Compiled:
        _under_way.add(threading.current_thread())
        try:
            with self._tracing:
                lowered = trace()
            return self._checked(lowered.compile())
        finally:
            _under_way.discard(threading.current_thread())

    def close(self) -> None:
        """Begin no more programs; do not wait for those that were begun."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class Program:
    """A jitted function as compiled programs, one for each shape, each compiled once.

    Args:
      compiler: compiles them.
      jitted: the function.
      arguments: given a shape, returns the shapes of all arguments.
    """

    def __init__(
        self,
        compiler: Compiler,
        jitted: jax.stages.Wrapped,
        arguments: Callable[[Any], tuple[Any, ...]],
    ) -> None:
        self.jitted = jitted
        self._compiler, self._arguments = compiler, arguments
        self._compiled: dict[Hashable, Future] = {}

    def __getitem__(self, shape: Hashable) -> Future:
        """Return the future program of a shape; begin compiling it if nobody did."""
        if shape not in self._compiled:
            self._compiled[shape] = self._compiler.begin(
                lambda: self.jitted.lower(*self._arguments(shape))
            )
        return self._compiled[shape]


def leave(code: int) -> None:
    """End this process at once if a compilation, which nothing can stop, is under way.

    It does nothing if other processes would lose this one.
    """
    if _under_way and not jax.distributed.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
