"""The training loop on the configuration's own data, beside its bare steps."""

from __future__ import annotations

import dataclasses
import functools
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from transformer import models, parallel
from transformer.config import Config
from transformer.data import batches
from transformer.ids import PAD
from transformer.prepare import prepare
from transformer.programs import compile_step
from transformer.run.signals import Terminated
from transformer.step import init_state
from transformer.tools.bench.clock import spread, times
from transformer.tools.bench.memory import device_memory
from transformer.train import train

_LOOP_ROUND = 3.0  # the same of the training loop, anywhere
_ENDLESS = 2**30  # steps


class _TimedStep(NamedTuple):
    """A step of the training loop, from asking for its batches to asking for the next.

    Attributes:
      several: its batches.
      waited: seconds until they came.
      seconds: of all of it; the device has then done the step before.
      new: whether a batch shape came for the first time, and was compiled.
    """

    several: list[batches.Batch]
    waited: float
    seconds: float
    new: bool

    @property
    def tokens(self) -> int:
        """Real target tokens."""
        return sum(int((batch["target"] != PAD).sum()) for batch in self.several)


class _Enough(Exception):
    """The loop has been measured."""


class _Feed:
    """Makes batches as ``batches.prefetch`` does, and times the loop that takes them.

    Steps with a shape that is compiled first are left out, and so is the first round.

    Attributes:
      rounds: timed steps of each round, which last ``_LOOP_ROUND`` seconds.
      first: seconds until the first step was done.
      left_out: steps with new shapes.
      shapes: of all batches so far.
    """

    def __init__(self, rounds: int) -> None:
        self.rounds: list[list[_TimedStep]] = []
        self.first, self.left_out = 0.0, 0
        self.shapes: set[tuple[tuple[int, ...], ...]] = set()
        self._wanted, self._start = rounds, time.perf_counter()

    def __call__(
        self, stream: batches.Batches, *steps: Any
    ) -> Iterator[tuple[int, list[batches.Batch]]]:
        """Yield what ``batches.prefetch`` would.

        Raises:
          _Enough: when the rounds are full.
        """
        current: list[_TimedStep] = []
        warm = False
        asked = time.perf_counter()
        for step, several in batches.prefetch(stream, *steps):
            came = time.perf_counter()
            yield step, several
            again = time.perf_counter()
            self.first = self.first or again - self._start
            one = _TimedStep(
                several, came - asked, again - asked, self._is_new(several)
            )
            asked = again
            if one.new:
                self.left_out += 1
                continue
            current.append(one)
            if sum(each.seconds for each in current) < _LOOP_ROUND:
                continue
            if warm:
                self.rounds.append(current)
            warm, current = True, []
            if len(self.rounds) == self._wanted:
                raise _Enough

    def _is_new(self, several: list[batches.Batch]) -> bool:
        before = len(self.shapes)
        self.shapes |= {
            (batch["source"].shape, batch["target"].shape) for batch in several
        }
        return len(self.shapes) > before


def measure_loop(settings: Config, rounds: int) -> dict[str, Any]:
    """Train for a while on the configuration's own data; then without the loop.

    The bare steps are those of the last round, of batches that are on the device.
    """
    quiet = dataclasses.replace(
        settings.train,
        steps=_ENDLESS,
        evaluate_every=0,
        checkpoint_every=_ENDLESS,
        checkpoint_minutes=0.0,
    )
    lasting = dataclasses.replace(settings.optimizer, least_rate=0.0)
    settings = dataclasses.replace(settings, train=quiet, optimizer=lasting)
    with tempfile.TemporaryDirectory() as folder:
        feed = _Feed(rounds)
        try:
            train(settings, Path(folder), lambda line: None, feed)
            raise Terminated  # it only ends where it is stopped
        except _Enough:
            pass
        memory = device_memory()
        last = feed.rounds[-1]
        bare = _bare_steps(settings, Path(folder), [step.several for step in last])
    each = [sum(t.seconds for t in timed) / len(timed) for timed in feed.rounds]
    tokens = [
        sum(t.tokens for t in timed) / sum(t.seconds for t in timed)
        for timed in feed.rounds
    ]
    measured = [step for timed in feed.rounds for step in timed]
    waited = sum(t.waited for t in measured) / sum(t.seconds for t in measured)
    busy = bare / each[-1]
    return {
        "steps": len(measured),
        "steps left out, of new shapes": feed.left_out,
        "shapes, a compiled program each": len(feed.shapes),
        "start of training to first step done, s": feed.first,
        **spread(each, "step"),
        "real target tokens/s": statistics.median(tokens),
        "step without the loop, s": bare,
        "share of the loop's time in such steps": busy,
        "share in which the loop waited for a batch": waited,
        "share in which the device did, at most": max(0.0, min(waited, 1 - busy)),
        **memory,
    }


def _bare_steps(
    settings: Config, workdir: Path, steps: Sequence[Sequence[batches.Batch]]
) -> float:
    """Return the seconds of a step whose batches are on the device, waited for once.

    Args:
      settings: the configuration.
      workdir: where its data has been prepared.
      steps: the batches of each.
    """
    mesh = parallel.make_mesh(settings.parallel, jax.devices())
    model = models.make(settings, *prepare(settings, workdir).vocabulary.sizes)
    draw = functools.partial(init_state, settings, model)
    abstract = parallel.placed(mesh, model.partition, jax.eval_shape(draw))
    step = compile_step(settings, model, mesh, abstract)
    state = jax.jit(
        draw, out_shardings=parallel.shardings(mesh, model.partition, abstract)
    )()
    placed = [[parallel.place_rows(mesh, one) for one in many] for many in steps]

    def work() -> Any:
        nonlocal state
        for several in placed:
            state, metrics = step(state, *several)
        return metrics

    times(1, work)  # finds each shape's compiled program
    return statistics.median(times(3, work)) / len(steps)
