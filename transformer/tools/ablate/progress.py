"""How far the runs are: read from their metrics, shown as a table or as lines."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Sequence
from typing import Any

from transformer.run.history import read_metrics
from transformer.run.records import Board
from transformer.tools.ablate.runs import Run


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far the metrics of a run have come; None where there are none yet."""

    step: int = 0
    loss: float | None = None
    perplexity: float | None = None  # of the validation pairs
    seconds_left: float | None = None


def progress_of(run: Run) -> Progress:
    """Read how far a run has come from its metrics.jsonl, also while it is written."""
    last: dict[str, Any] = {"step": 0}
    tokens = []
    for line in read_metrics(run.workdir):
        last |= line
        if "target_tokens" in line:
            tokens.append(line["target_tokens"])
    left = None
    if last.get("tokens_per_second") and tokens:
        # Not by seconds: a validation between two lines restarts their count.
        per_step = sum(tokens) / len(tokens) / last["tokens_per_second"]
        left = per_step * (run.settings.train.steps - last["step"])
    return Progress(
        last["step"], last.get("loss"), last.get("validation_perplexity"), left
    )


@dataclasses.dataclass
class RunState:
    """A run and what has become of it."""

    run: Run
    status: str = "waiting"  # or "running", "finished", "failed", "stopped"
    progress: Progress = Progress()
    reason: str = ""  # of a failure

    def cells(self) -> list[str]:
        """Return what the table shows of it."""
        now = self.progress
        return [
            self.run.row,
            str(self.run.seed),
            "evaluating" if self._at_its_end() else self.status,
            f"{now.step:,}/{self.run.settings.train.steps:,}",
            "" if now.loss is None else f"{now.loss:.3f}",
            "" if now.perplexity is None else f"{now.perplexity:.3f}",
            self._time_left(),
        ]

    def _at_its_end(self) -> bool:
        now, total = self.progress.step, self.run.settings.train.steps
        return self.status == "running" and now >= total

    def _time_left(self) -> str:
        left = self.progress.seconds_left
        if self.status != "running" or left is None:
            return ""
        return str(datetime.timedelta(seconds=round(left)))


COLUMNS = ["row", "seed", "status", "step", "loss", "perplexity", "time left"]
_FIRST_SHOWN = ["running", "failed", "stopped", "waiting", "finished"]


class Display:
    """The live table, or lines about what changed where there is no terminal."""

    def __init__(
        self, states: Sequence[RunState], board: Board, log: Callable[[str], None]
    ) -> None:
        self._states, self._board, self._log = states, board, log
        self._logged: dict[Run, tuple[str, float | None]] = {}
        for state in states:
            self._logged[state.run] = "waiting", None
            if state.status == "finished":
                self._logged[state.run] = state.status, state.progress.perplexity

    def show(self) -> None:
        """Draw the table, or log what changed since the last call."""
        states = list(self._states)
        if self._board.room:
            done = sum(state.status == "finished" for state in states)
            if len(states) > self._board.room:
                states.sort(key=lambda state: _FIRST_SHOWN.index(state.status))
            shown = [state.cells() for state in states[: self._board.room]]
            self._board.show(f"{done} of {len(states)} runs finished", shown)
            return
        for state in states:
            now = state.status, state.progress.perplexity
            if now != self._logged[state.run]:
                self._logged[state.run] = now
                self._log(_line(state))


def _line(state: RunState) -> str:
    _, _, status, step, loss, perplexity, left = state.cells()
    parts = [
        f"{state.run.name}: {status}",
        state.progress.step and f"step {step}",
        loss and f"loss {loss}",
        perplexity and f"perplexity {perplexity}",
        left and f"{left} left",
        state.reason,
    ]
    return "  ".join(part for part in parts if part)
