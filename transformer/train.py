"""The training loop: from a configuration to a trained run."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from transformer import config, fitting, models, parallel, validation, warm_start
from transformer.config import Config, UserError
from transformer.data import batches
from transformer.evaluate import evaluate_held
from transformer.nn import optimizer
from transformer.parallel import ahead, hosts, memory, sizes
from transformer.prepare import Prepared, prepare
from transformer.programs import CompiledStep, compile_step
from transformer.run import folder
from transformer.run.checkpoints import Checkpoints
from transformer.run.course import Course, Mark
from transformer.run.history import Claim
from transformer.run.keeper import Keeper
from transformer.run.meter import Meter, Pace
from transformer.run.records import NoRecords, Records, announce
from transformer.run.signals import Terminated, handled, terminate
from transformer.run.stop import Signals
from transformer.step import State
from transformer.trained import imported_vocabulary


def train(
    settings: Config,
    workdir: Path,
    log: Callable[[str], None] = announce,
    feed: Callable[..., Iterator[tuple[int, list[batches.Batch]]]] = batches.prefetch,
    init_from: str | None = None,
) -> Path | None:
    """Train a run to its end, or resume it where it stopped.

    Prepares the data if needed, trains, evaluates on the validation pairs at intervals,
    keeps checkpoints, and ends with an evaluation on the test pairs. SIGTERM and Ctrl-C
    save a checkpoint first, and so does a log whose reader goes away.

    Args:
      settings: the resolved configuration.
      workdir: folder of the run; exists and can be written.
      log: takes messages, one line at a time.
      feed: makes the batches of the steps, ahead of their use.
      init_from: WORKDIR or WORKDIR:STEP of a run whose parameters are taken, see
        ``warm_start``; None = all are drawn.

    Returns:
      The path of results.json, or None where the run was stopped by SIGTERM.

    Raises:
      UserError: if the workdir belongs to another configuration or another process
        works in it, the data cannot be used, ``optimizer.nonfinite_limit`` steps in a
        row were not finite, or the trained model predicts nothing finite.
    """
    folder.check_writable(workdir)
    with hosts.holding(workdir):
        return _train(settings, workdir, hosts.once(log), feed, init_from)


def _train(
    settings: Config,
    workdir: Path,
    log: Callable[[str], None],
    feed: Callable[..., Iterator[tuple[int, list[batches.Batch]]]],
    init_from: str | None,
) -> Path | None:
    mesh = parallel.make_mesh(settings.parallel, jax.devices())
    parallel.check(settings, mesh.shape)
    fitting.check_sizes(settings)
    validation.check(settings)
    origin = warm_start.open_origin(settings, workdir, init_from, log)
    adopt_config(settings, workdir)
    try:
        with handled([signal.SIGTERM], terminate, patient=False):
            if origin:
                vocabulary = origin.vocabulary(settings)
            else:
                vocabulary = imported_vocabulary(workdir)
            prepared = prepare(settings, workdir, log, vocabulary)
        start = warm_start.Start()
        if origin:
            start = origin.start(settings, prepared.vocabulary, log)
        plan = batches.Batches(prepared.corpora["train"], settings.batch, settings.seed)
        _introduce(settings, mesh, plan, log)
        sized = sizes.here(settings, prepared.vocabulary.target.size)
        log(sizes.line(sized))
        it = _Run(sized, settings, workdir, mesh, prepared, plan, start, log)
        with memory.enough(*fitting.STEP):
            if not it.train(feed):
                return None
        with handled([signal.SIGTERM], terminate, patient=False):
            return evaluate_held(workdir, log=log, prepared=prepared)
    except Terminated:
        log("stopped; the same command resumes")
        return None


def adopt_config(settings: Config, workdir: Path) -> None:
    """Write config.json, after checking that a run with checkpoints may resume with it.

    It may resume on other devices, for more steps, and with any other change that does
    not affect the steps that were made, see ``config.other_steps``.

    Before the first checkpoint there is nothing that another configuration could spoil:
    a run that failed on its data, for example, can be fixed in the same workdir. If the
    checkpoints of a run are gone, its results are not replaced by those of another one.
    """
    with Checkpoints(workdir / "checkpoints", settings.train.keep) as checkpoints:
        checkpoints.recover()
        if steps := checkpoints.steps():
            old = _old_settings(settings, workdir, checkpoints)
            folder.check_same_run(workdir, old, settings, steps[-1])
        else:
            folder.check_unspoilt(workdir, settings)
    if hosts.primary():
        folder.write_settings(workdir, settings)


def _old_settings(settings: Config, workdir: Path, checkpoints: Checkpoints) -> Config:
    """Return a run's configuration, from its last checkpoint if the file is gone."""
    if (workdir / "config.json").exists():
        return folder.read_settings(workdir)
    saved = checkpoints.metadata().get("config")
    return config.resolve_saved(saved) if saved else settings


def _introduce(
    settings: Config, mesh: Mesh, plan: batches.Batches, log: Callable[[str], None]
) -> None:
    figures, rule = plan.epoch, settings.optimizer
    # Compiled, it is one program instead of one per operation.
    rate = jax.jit(optimizer.make_schedule(rule, settings.model.d_model))
    highest = min(max(rule.warmup - rule.step_offset, 1), settings.train.steps)
    peak = rate(highest - 1)
    steps = plan.per_epoch / plan.lengths
    each = f"{plan.lengths} per step, " if plan.lengths > 1 else ""
    log(
        f"batches: {plan.per_epoch:,} per epoch in {len(plan.shapes)} shapes, {each}on "
        f"average {figures.source_tokens / steps:,.0f} source and "
        f"{figures.target_tokens / steps:,.0f} target tokens per step, "
        f"{figures.padding:.1%} padding"
    )
    log(f"learning rate: at most {float(peak):.3g}, at step {highest:,}")
    if settings.name == "text" and mesh.devices.flat[0].platform == "cpu":
        log(
            "size: experiments/text.py is for an accelerator; on this machine use "
            f"experiments/text.py:quick,pairs={figures.pairs}, in another workdir"
        )
    # As experiments/text.py:quick computes them for a given number of pairs.
    suitable = max(200, 30 * 15 * figures.pairs // settings.batch.tokens)
    if settings.name == "text_quick" and settings.train.steps > 1.5 * suitable:
        epochs = settings.train.steps / steps
        log(
            f"size: {figures.pairs:,} pairs will be read {epochs:.0f} times; for "
            "fewer, use "
            f"experiments/text.py:quick,pairs={figures.pairs}, in another workdir"
        )
    if mesh.size > 1:
        axes = " x ".join(f"{axis} {size}" for axis, size in mesh.shape.items())
        log(f"spread over {mesh.size} devices: {axes}, by {settings.parallel.how}")


@dataclasses.dataclass(frozen=True)
class _Run:
    """What the loop works with.

    Attributes:
      settings: the configuration, with the sizes of ``sizes.here``.
      written: the same as the user wrote it.
      workdir: folder of the run.
      mesh: of the devices.
      prepared: the data.
      plan: the order of batches.
      start: what parameters start with, if the run has no checkpoint.
      log: takes messages, one line at a time.
    """

    settings: Config
    written: Config
    workdir: Path
    mesh: Mesh
    prepared: Prepared
    plan: batches.Batches
    start: warm_start.Start
    log: Callable[[str], None]

    def train(self, feed: Callable[..., Iterator[Any]]) -> bool:
        """Train from the last checkpoint to the end; False if stopped before."""
        with Signals() as signals:
            listened = dataclasses.replace(self, log=signals.listening(self.log))
            return listened._train(feed, signals)

    def _train(self, feed: Callable[..., Iterator[Any]], signals: Signals) -> bool:
        settings, total = self.settings, self.settings.train.steps
        model = models.make(settings, *self.prepared.vocabulary.sizes)
        draw = functools.partial(warm_start.begin, settings, model)
        abstract = self._fitting(model, jax.eval_shape(draw, {}))
        place = self.workdir / "checkpoints"
        with (
            Checkpoints(place, settings.train.keep, self.log) as checkpoints,
            contextlib.closing(
                compile_step(settings, model, self.mesh, abstract)
            ) as train_step,
        ):
            keeper = Keeper(
                self.written,
                sizes.taken(settings),
                self.workdir,
                self.mesh,
                model,
                abstract,
                checkpoints,
                self.prepared.vocabulary.digest,
                self.prepared.checksums,
                self.start.record,
            )
            # This runs while parameters are drawn or restored. On a CPU the other
            # shapes would only take cores from the first step.
            start = max(checkpoints.steps(), default=0)
            stop = total if train_step.accelerator else min(start + 1, total)
            train_step.begin(self.shapes(start, stop))
            state, tokens, course, mark = keeper.begin(draw, self.start.parts, self.log)
            start, record = int(state.step), functools.partial(keeper.record, tokens)
            with self._records(start, record) as records:
                loop = _Loop(self, model, keeper, records, signals, tokens, course)
                loop.marked = start, mark
                if not loop.run(state, train_step, feed):
                    signals.interrupt_if_asked()
                    return False
                checkpoints.clean()
                keeper.record(loop.meter.tokens, records.claim(), loop.course)
                if loop.stopped():
                    self.log("stopped; the same command evaluates what was trained")
                    signals.interrupt_if_asked()
                    return False
        return True

    def _fitting(self, model: models.Model, shapes: State) -> State:
        """Return the state's shapes and shardings; refuse what cannot fit."""
        settings = self.settings
        abstract = parallel.placed(self.mesh, model.partition, shapes)
        parallel.check_divides(self.mesh.shape, model.partition, abstract.params)
        fitting.check_state(abstract)
        shards = parallel.row_shards(self.mesh.shape)
        fitting.check_batches(settings, abstract, self.plan.shapes, shards)
        fitting.check_decoding(settings, model)
        fitting.check_held_out(
            *(settings, model, self.mesh, abstract.params),
            *(self.prepared.corpora, self.log),
        )
        return abstract

    def _records(self, done: int, record: Callable[[Claim], None]) -> Records:
        if not hosts.primary():
            return NoRecords()
        total = self.settings.train.steps
        return Records(self.workdir, total, done, self.log, record)

    def shapes(self, start: int, stop: int) -> list[batches.Shape]:
        """Return the shapes of the batches of steps start .. stop - 1, each once."""
        return self.plan.shapes_between(
            start * self.plan.lengths, stop * self.plan.lengths
        )


class _Loop:
    """The steps of a run, and what happens between them.

    Args:
      run: what it works with.
      model: the model that is trained.
      keeper: keeps the state.
      records: what the run writes down.
      signals: what stops it.
      tokens: target tokens of the previous steps.
      course: of the previous validations.

    Attributes:
      course: of the validations so far.
      marked: a step, and what was done about it: the one that the run begins with, then
        the last one that was validated or saved.
    """

    def __init__(
        self,
        run: _Run,
        model: models.Model,
        keeper: Keeper,
        records: Records,
        signals: Signals,
        tokens: int,
        course: Course,
    ) -> None:
        self._run, self._model, self._keeper = run, model, keeper
        self._records, self._signals, self.course = records, signals, course
        self._stopping = hosts.Votes(run.mesh)
        self.marked = 0, Mark()
        self.meter = Meter(run.settings, records, tokens)

    def run(
        self,
        state: State,
        train_step: CompiledStep,
        feed: Callable[..., Iterator[tuple[int, list[batches.Batch]]]],
    ) -> bool:
        """Make the remaining steps; False if stopped before the last."""
        run, meter = self._run, self.meter
        total = run.settings.train.steps
        first = done = int(state.step)
        stopped = False
        rows = functools.partial(parallel.local_rows, run.mesh)
        due = _Due(run.settings, run.mesh, done)
        if self._mark_of(done).owed:
            self._validate_and_save(state, done, due, *due(done))
        begun: list[ahead.Future] = []
        pace = Pace(total, lambda: all(x.done() for x in begun), self._records.log_line)
        for step, parts in feed(run.plan, done, total, rows):
            self.course = self._course_at(step)
            if why := self.course.over(run.settings):
                run.log(f"ended at step {done:,}: {why}")
                break
            placed = [parallel.place_rows(run.mesh, part) for part in parts]
            if not train_step.wait(placed, self._signals.decisive):
                break
            state, metrics = train_step(self._lowered(state), *placed)
            meter.read()  # the previous step, while this one is computed
            done = step + 1
            meter.add(done, metrics)
            if step == first:  # at once, not after the next shape's compilation
                meter.read()
                begun += train_step.begin(run.shapes(first, total))
            pace.stepped(done)
            validate, save = due(done)
            if validate or save:
                self._validate_and_save(state, done, due, validate, save)
                pace.restart()
            if stopped := self.stopped():
                break
        if stopped or self.stopped():
            self._stop(state, done, due)
            return False
        end = self._mark_of(done)
        if not (end.validated and end.kept):  # like any end, wherever it is
            self._validate_and_save(state, done, due, not end.validated, True)
        self.course = self._course_at(done)
        return True

    def _mark_of(self, step: int) -> Mark:
        at, mark = self.marked
        return mark if at == step else Mark(kept=False, validated=False)

    def _course_at(self, step: int) -> Course:
        plan, rule = self._run.plan, self._run.settings.optimizer
        return self.course.at(step * plan.lengths / plan.per_epoch, rule)

    def _lowered(self, state: State) -> State:
        """Return the state with the learning-rate factor of its next step."""
        if state.factor is None:
            return state
        factor = np.float32(self.course.factor)
        return state._replace(factor=jax.device_put(factor, state.factor.sharding))

    def _validate_and_save(
        self, state: State, done: int, due: _Due, validate: bool, save: bool
    ) -> None:
        """Do what is due after a step, and save if the run is over."""
        run = self._run
        self.meter.read()
        if validate:
            try:
                self._validate(state, done, due)
            except UserError:  # the user may repair what is validated
                self._save_unfinished(state, done, due, owed=True)
                raise
            save = save or bool(self.course.over(run.settings))
        if save:
            # Saved by checkpoint_minutes, it is not validated, so never the best.
            self._save(state, done, kept=True)
            due.saved(done)
        if validate:
            log = self._records.log_line
            validation.show(run.settings, run.prepared, self._model, state.params, log)
        self.meter.restart()

    def _validate(self, state: State, done: int, due: _Due) -> None:
        run = self._run
        found = validation.measure(
            run.settings, run.prepared, self._model, state.params, run.mesh
        )
        self.meter.validated(done, found.metrics)
        value = found.value if math.isfinite(found.value) else None
        self.marked = done, Mark(kept=False, value=value)
        if due.counts(done):
            rule = run.settings.optimizer
            self.course = self.course.validated(found.value, rule)

    def _save(self, state: State, done: int, **what: bool) -> None:
        mark, claim = self._mark_of(done), self._records.claim()
        self.marked = done, dataclasses.replace(mark, **what)
        self._keeper.save(
            state, done, self.meter.tokens, self.course, self.marked[1], claim
        )

    def stopped(self) -> bool:
        """Return whether this process or another was asked to stop."""
        return self._stopping.cast(bool(self._signals.received))

    def _stop(self, state: State, done: int, due: _Due) -> None:
        """Save a run that was stopped."""
        self.meter.read()
        self._save_unfinished(state, done, due)
        how = "resumes from there" if done else "starts it"
        self._run.log(f"stopped at step {done:,}; the same command {how}")

    def _save_unfinished(
        self, state: State, done: int, due: _Due, owed: bool = False
    ) -> None:
        """Save a checkpoint to resume from that an uninterrupted run would not have."""
        if due.last != done:  # one that is kept must not become temporary
            self._save(state, done, kept=False, owed=owed)
        self._keeper.checkpoints.wait()


class _Due:
    """Tells what is due after a step: a validation, a checkpoint.

    Attributes:
      last: the step of the last checkpoint.
    """

    def __init__(self, settings: Config, mesh: Mesh, done: int) -> None:
        self._train, self._clocks = settings.train, hosts.Votes(mesh)
        self._best = settings.decode.checkpoint == "best"
        self.last, self._since = done, time.monotonic()

    def __call__(self, step: int) -> tuple[bool, bool]:
        """Return whether to validate and whether to save after a step."""
        train = self._train
        by_step = _every(train.checkpoint_every, step) or step == train.steps
        minutes = (time.monotonic() - self._since) / 60
        late = bool(train.checkpoint_minutes) and minutes >= train.checkpoint_minutes
        by_time = self._clocks.cast(late)
        validate = by_step or _every(train.evaluate_every, step)
        return validate, by_step or by_time or (validate and self._best)

    def counts(self, step: int) -> bool:
        """Return whether a longer run validates here too, and so the course counts it.

        The end of a run is validated wherever it is.
        """
        train = self._train
        often = (train.checkpoint_every, train.evaluate_every)
        return any(_every(count, step) for count in often)

    def saved(self, step: int) -> None:
        """Note that a checkpoint was saved."""
        self.last, self._since = step, time.monotonic()
        self._clocks.discard()


def _every(count: int, step: int) -> bool:
    return bool(count) and step % count == 0
