"""What a run writes down as it goes: metrics, TensorBoard events, progress."""

from __future__ import annotations

import datetime
import functools
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer.run.history import Claim, History


def announce(text: str) -> None:
    """Print a line at once, also where the output is a file."""
    print(text, flush=True)


class Records:
    """The metrics and the progress of one run; a context manager.

    ``metrics.jsonl`` holds one JSON object per line, in the order of the steps. A run
    that was killed and resumed ends with the same lines as one that was not, except for
    the keys of ``timing``. A number that is not finite is written as null.
    """

    def __init__(
        self,
        workdir: Path,
        total_steps: int,
        step: int = 0,
        log: Callable[[str], None] = print,
        record: Callable[[Claim], None] = lambda claim: None,
    ) -> None:
        """Open the files of a run, and forget what was written after ``step``.

        Args:
          workdir: folder of the run; it exists.
          total_steps: where the progress ends.
          step: of the checkpoint that the run resumes from.
          log: takes a line where there is no terminal to draw a bar on.
          record: as for ``History``.
        """
        self._lines = History(workdir, step, record)
        self._workdir, self._step = workdir, step
        self._total = total_steps
        self._print = log
        self._bar = _bar(total_steps, step) if sys.stderr.isatty() else None
        self._first: tuple[int, float] | None = None

    def __enter__(self) -> Records:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        self._events.close()
        self._lines.close()

    def log(
        self,
        step: int,
        values: Mapping[str, float],
        timing: Mapping[str, float] | None = None,
    ) -> None:
        """Write one line of metrics.jsonl and the same numbers for TensorBoard.

        Write the lines of a step before its checkpoint is saved; otherwise a kill
        between the two loses them.

        Args:
          step: number of updates made; never less than that of the line before.
          values: numbers that the step, the seed and the data decide.
          timing: numbers that the machine decides: "seconds", "tokens_per_second".
        """
        numbers = {k: float(v) for k, v in {**values, **(timing or {})}.items()}
        line = {k: v if math.isfinite(v) else None for k, v in numbers.items()}
        self._lines.add({"step": step, **line})
        for name, value in numbers.items():
            self._events.add_scalar(name, value, step)

    def claim(self) -> Claim:
        """Return what record.json is to say of the lines so far."""
        return self._lines.claim()

    @functools.cached_property
    def _events(self) -> Any:
        from tensorboardX import SummaryWriter  # the first step need not wait for it

        begin = self._step + 1 if self._step else None
        return SummaryWriter(str(self._workdir / "tensorboard"), purge_step=begin)

    def show(self, step: int, loss: float, tokens_per_second: float) -> None:
        """Show step, loss, speed and the time left, on the bar or as a line."""
        left = self._time_left(step)
        if self._bar is not None:
            numbers = f"loss {loss:.3f}  {tokens_per_second:,.0f} tokens/s  {left} left"
            self._bar.update(self._bar.task_ids[0], completed=step, numbers=numbers)
        else:
            self._print(
                f"step {step:,}/{self._total:,}  loss {loss:.3f}  "
                f"{tokens_per_second:,.0f} tokens/s  {left} left"
            )

    def log_line(self, text: str) -> None:
        """Print a line, above the bar where there is one."""
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            self._print(text)

    def _time_left(self, step: int) -> str:
        now = time.monotonic()
        if self._first is None:  # the steps before were slowed down by compilation
            self._first = step, now
        done, seconds = step - self._first[0], now - self._first[1]
        if step >= self._total:
            return "0:00:00"
        if done == 0:
            return "?"
        remaining = seconds / done * (self._total - step)
        return str(datetime.timedelta(seconds=round(remaining)))


class NoRecords(Records):
    """The records of a process that is not the primary one: nothing."""

    def __init__(self) -> None:
        pass

    def __enter__(self) -> NoRecords:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def log(
        self,
        step: int,
        values: Mapping[str, float],
        timing: Mapping[str, float] | None = None,
    ) -> None:
        pass

    def claim(self) -> Claim:
        return {}

    def show(self, step: int, loss: float, tokens_per_second: float) -> None:
        pass

    def log_line(self, text: str) -> None:
        pass


def _bar(total_steps: int, step: int) -> Any:
    from rich import progress
    from rich.console import Console

    bar = progress.Progress(
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TextColumn("{task.fields[numbers]}"),
        console=Console(stderr=True),
    )
    bar.add_task("train", total=total_steps, completed=step, numbers="compiling")
    return bar


class Board:
    """A table of many runs, drawn in place on a terminal; a context manager.

    Attributes:
      room: rows that can be seen at once, 0 where there is no terminal: then nothing is
        drawn.
    """

    def __init__(self, columns: Sequence[str], log: Callable[[str], None] = print):
        """Make an empty table.

        Args:
          columns: their names.
          log: takes a line where there is no terminal.
        """
        self._columns, self._print = columns, log
        self._shown: tuple[str, Sequence[Sequence[str]]] | None = None
        self._live = _live() if sys.stderr.isatty() else None
        around = 6  # lines: title, head, rules, and one that is free
        self.room = max(self._live.console.height - around, 1) if self._live else 0

    def __enter__(self) -> Board:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, title: str, rows: Sequence[Sequence[str]]) -> None:
        """Draw rows in place of those before, if they differ."""
        if self._live is None or self._shown == (title, rows):
            return
        self._shown = title, rows
        from rich.table import Table

        table = Table(title=title, title_justify="left")
        for name in self._columns:
            table.add_column(name, no_wrap=True)
        for row in rows:
            table.add_row(*row)
        self._live.update(table, refresh=True)

    def log_line(self, text: str) -> None:
        """Print a line, above the table where there is one."""
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False)
        else:
            self._print(text)


def _live() -> Any:
    from rich.console import Console
    from rich.live import Live

    return Live(console=Console(stderr=True), auto_refresh=False)
