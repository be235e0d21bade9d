"""Metrics that are read a step later, and how long the steps of a run will take."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import pytest
from support.configs import base

from transformer.config import UserError
from transformer.run import meter
from transformer.run.meter import Meter, Pace
from transformer.run.records import NoRecords


class Clock:
    """Seconds that go by as told."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Noted(NoRecords):
    """Remembers what was logged."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, float, float]] = []

    def log(
        self,
        step: int,
        values: Mapping[str, float],
        timing: Mapping[str, float] | None = None,
    ) -> None:
        assert timing is not None and values["target_tokens"] == 10 * step
        self.lines.append((step, timing["seconds"], timing["tokens_per_second"]))


def metrics(step: int, skipped: int = 0) -> dict[str, Any]:
    numbers = {"target_tokens": 10 * step, "loss": 1.0, "skipped_in_a_row": skipped}
    return {name: jnp.asarray(number) for name, number in numbers.items()}


def test_the_speed_is_that_of_the_steps_since_the_line_before(monkeypatch):
    clock, records = Clock(), Noted()
    monkeypatch.setattr(meter.time, "monotonic", clock)
    settings = base(**{"train.log_every": 2, "train.steps": 5})
    found = Meter(settings, records, tokens=1000)
    for step in range(1, 6):
        clock.now += 2
        found.read()
        found.add(step, metrics(step))
    clock.now += 2
    found.read()
    # Steps 1 and 2 are read at 4 and 6 seconds, 3 and 4 at 8 and 10, the last at 12.
    assert records.lines == [(2, 6, 30 / 6), (4, 4, 70 / 4), (5, 2, 50 / 2)]
    assert found.tokens == 1000 + 150


def test_as_many_steps_in_a_row_as_the_limit_end_a_run():
    settings = base(**{"optimizer.nonfinite_limit": 3})
    found = Meter(settings, NoRecords(), 0)
    found.add(2, metrics(2, skipped=2))
    found.read()
    found.add(3, metrics(3, skipped=3))
    with pytest.raises(UserError, match="step 3: expected a finite .* got 3 steps in"):
        found.read()


def test_the_steps_left_are_said_once_at_the_pace_of_twenty():
    clock, lines, compiled = Clock(), list[str](), [False]
    pace = Pace(1000, lambda: compiled[0], lines.append, clock)
    for step in range(1, 31):  # a second each, while programs are compiled
        clock.now += 1
        pace.stepped(step)
    compiled[0] = True
    for step in range(31, 100):
        clock.now += 0.5
        pace.stepped(step)
    # From step 31, the first that had not to wait, 20 steps of half a second; 949 left.
    assert lines == [
        "time: 0:07:54 for the 949 steps left, without validations, at the speed "
        "of steps 32 to 51"
    ]


def test_steps_beside_a_validation_are_not_timed():
    clock, lines = Clock(), list[str]()
    pace = Pace(100, lambda: True, lines.append, clock)
    for step in range(1, 60):
        clock.now += 2
        pace.stepped(step)
        if step == 10:
            clock.now += 500  # a validation
            pace.restart()
    assert len(lines) == 1 and lines[0].startswith("time: 0:02:18 for the 69 steps")


def test_short_runs_say_nothing():
    lines = list[str]()
    pace = Pace(20, lambda: True, lines.append, Clock())
    for step in range(1, 21):
        pace.stepped(step)
    assert lines == []
