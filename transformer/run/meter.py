"""Reads the metrics of steps and writes down those that are due."""

from __future__ import annotations

import datetime
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax

from transformer.config import Config, UserError
from transformer.run.records import Records

LARGEST = 700  # nats per token; the exponential of more counts as infinite
_TIMED = 20  # steps that show how fast the others will be


class Meter:
    """Reads a step's metrics one step later, so that the host never waits for it.

    Args:
      settings: the configuration of the run.
      records: where metrics are written.
      tokens: target tokens of earlier steps.

    Attributes:
      tokens: target tokens of all steps that were read.
    """

    def __init__(self, settings: Config, records: Records, tokens: int):
        self._settings, self._records = settings, records
        self._unread: tuple[int, dict[str, jax.Array]] | None = None
        self.tokens = tokens
        self.restart()

    def restart(self) -> None:
        """Restart the clock: what came in between was not training."""
        self._timed, self._since = 0, time.monotonic()

    def add(self, step: int, metrics: dict[str, jax.Array]) -> None:
        """Take the metrics of a step that is under way, after reading those before."""
        self._unread = step, metrics

    def read(self) -> None:
        """Wait for the metrics that were added last, and log them if they are due.

        Raises:
          UserError: after ``optimizer.nonfinite_limit`` steps that were not finite.
        """
        if self._unread is None:
            return
        (step, arrays), self._unread = self._unread, None
        metrics: dict[str, Any] = {
            k: x.item() for k, x in jax.device_get(arrays).items()
        }
        self._check_finite(step, metrics)
        self.tokens += metrics["target_tokens"]
        self._timed += metrics["target_tokens"]
        train = self._settings.train
        if step % train.log_every == 0 or step == train.steps:
            seconds = time.monotonic() - self._since
            speed = self._timed / seconds
            timing = {"seconds": seconds, "tokens_per_second": speed}
            self._records.show(step, metrics["loss"], speed)
            self._records.log(step, metrics, timing)
            self.restart()

    def validated(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log a validation: the mean loss, the perplexity, and what else is watched."""
        self._records.log(step, metrics)
        rest = {k: v for k, v in metrics.items() if k != "validation_nll"}
        said = (f"{k.removeprefix('validation_')} {v:.3f}" for k, v in rest.items())
        self._records.log_line(f"step {step:,}: validation {', '.join(said)}")

    def _check_finite(self, step: int, metrics: dict[str, Any]) -> None:
        limit = self._settings.optimizer.nonfinite_limit
        if metrics["skipped_in_a_row"] >= limit:
            raise diverged(
                f"step {step}: expected a finite loss and gradient, got {limit} steps "
                "in a row without"
            )


class Pace:
    """Says once, soon after the start, how long the steps of a run will take.

    Steps are timed while nothing else is done: no compilation, no validation.

    Args:
      total: steps of the run.
      compiled: whether all programs of the run are there.
      log: takes the line.
      clock: returns seconds.
    """

    def __init__(
        self,
        total: int,
        compiled: Callable[[], bool],
        log: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total, self._compiled = total, compiled
        self._log, self._clock = log, clock
        self._said = False
        self.restart()

    def restart(self) -> None:
        """Forget the steps that were timed: the next one has to wait."""
        self._since: tuple[int, float] | None = None

    def stepped(self, step: int) -> None:
        """Take note of a step, the first or one after that of the last call."""
        if self._said or not self._compiled():
            return
        now = self._clock()
        if self._since is None:
            self._since = step, now
            return
        first, then = self._since
        if step - first == _TIMED:
            seconds = round((now - then) / _TIMED * (self._total - step))
            self._log(
                f"time: {datetime.timedelta(seconds=seconds)} for the "
                f"{self._total - step:,} steps left, without validations, at the speed "
                f"of steps {first + 1:,} to {step:,}"
            )
            self._said = True


def perplexity(nll: float) -> float:
    """Return the exponential of nats per token, infinity from ``LARGEST`` on."""
    return math.exp(nll) if not nll >= LARGEST else math.inf


def diverged(problem: str) -> UserError:
    """Return the error of a run that diverged, with what helps against it."""
    return UserError(
        f"{problem}; lower the learning rate (optimizer.scale or optimizer.rate), "
        "raise optimizer.warmup, set optimizer.clip_norm, or try model.dtype=float32"
    )
