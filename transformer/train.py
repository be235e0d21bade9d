"""The training loop: from a configuration to a trained run."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from transformer import config, fitting, models, objective, parallel
from transformer.config import Config
from transformer.data import batches
from transformer.evaluate import evaluate_held
from transformer.nn import optimizer
from transformer.parallel import hosts, memory, sizes
from transformer.prepare import Prepared, prepare
from transformer.programs import compile_step
from transformer.run import folder
from transformer.run.checkpoints import Checkpoints
from transformer.run.history import Claim
from transformer.run.keeper import Keeper
from transformer.run.meter import Meter
from transformer.run.records import NoRecords, Records, announce
from transformer.run.stop import Signals, handled
from transformer.step import init_state


def train(
    settings: Config,
    workdir: Path,
    log: Callable[[str], None] = announce,
    feed: Callable[..., Iterator[tuple[int, list[batches.Batch]]]] = batches.prefetch,
) -> Path | None:
    """Train a run to its end, or go on where it stopped.

    Prepares the data if needed, trains, evaluates on the validation pairs at intervals,
    keeps checkpoints, and ends with an evaluation on the test pairs. SIGTERM and Ctrl-C
    save a checkpoint first.

    Args:
      settings: the resolved configuration.
      workdir: folder of the run; exists and can be written.
      log: takes what happens, one line at a time.
      feed: makes the batches of the steps, ahead of their use.

    Returns:
      The path of results.json, or None where the run was stopped by SIGTERM.

    Raises:
      UserError: if the workdir belongs to another configuration or another process
        works in it, the data cannot be used, ``optimizer.nonfinite_limit`` steps in a
        row were not finite, or what was trained predicts nothing finite.
    """
    folder.check_writable(workdir)
    with hosts.holding(workdir):
        return _train(settings, workdir, hosts.once(log), feed)


def _train(
    settings: Config,
    workdir: Path,
    log: Callable[[str], None],
    feed: Callable[..., Iterator[tuple[int, list[batches.Batch]]]],
) -> Path | None:
    mesh = parallel.make_mesh(settings.parallel, jax.devices())
    parallel.check(settings, mesh.shape)
    fitting.check_sizes(settings)
    adopt_config(settings, workdir)
    try:
        with handled([signal.SIGTERM], _terminate):
            prepared = prepare(settings, workdir, log)
        plan = batches.Batches(prepared.corpora["train"], settings.batch, settings.seed)
        _introduce(settings, mesh, plan, log)
        sized = sizes.here(settings, prepared.vocabulary.target.size)
        log(sizes.line(sized))
        it = _Run(sized, settings, workdir, mesh, prepared, plan, log)
        with memory.enough(*fitting.STEP):
            if not it.train(feed):
                return None
        with handled([signal.SIGTERM], _terminate):
            return evaluate_held(workdir, log=log)
    except _Terminated:
        log("stopped; the same command resumes")
        return None


def adopt_config(settings: Config, workdir: Path) -> None:
    """Write config.json, or check where checkpoints are that the run may go on with it.

    It may on other devices, for more steps, and with all else that changes no number of
    the steps that were made, see ``config.other_steps``.
    Before the first checkpoint there is nothing that another configuration could spoil:
    a run that failed on its data, say, can be mended in the same workdir.
    """
    with Checkpoints(workdir / "checkpoints", settings.train.keep) as checkpoints:
        if steps := checkpoints.steps():
            old = _old_settings(settings, workdir, checkpoints)
            folder.check_same_run(workdir, old, settings, steps[-1])
    if hosts.primary():
        folder.write_settings(workdir, settings)


def _old_settings(settings: Config, workdir: Path, checkpoints: Checkpoints) -> Config:
    """Return the configuration of a run, of its last checkpoint if the file is gone."""
    if (workdir / "config.json").exists():
        return folder.read_settings(workdir)
    saved = checkpoints.metadata().get("config")
    return config.resolve_saved(saved) if saved else settings


def _introduce(
    settings: Config, mesh: Mesh, plan: batches.Batches, log: Callable[[str], None]
) -> None:
    figures, rule = plan.epoch, settings.optimizer
    # Compiled, it is one program instead of one per operation.
    rate = jax.jit(optimizer.learning_rate)
    peak = rate(rule.warmup, settings.model.d_model, rule.warmup, rule.scale)
    steps = plan.per_epoch / plan.lengths
    each = f"{plan.lengths} per step, " if plan.lengths > 1 else ""
    log(
        f"batches: {plan.per_epoch:,} per epoch in {len(plan.shapes)} shapes, {each}on "
        f"average {figures.source_tokens / steps:,.0f} source and "
        f"{figures.target_tokens / steps:,.0f} target tokens per step, "
        f"{figures.padding:.1%} padding"
    )
    log(f"learning rate: at most {float(peak):.3g}, at step {rule.warmup:,}")
    if mesh.size > 1:
        axes = " x ".join(f"{axis} {size}" for axis, size in mesh.shape.items())
        log(f"spread over {mesh.size} devices: {axes}, by {settings.parallel.how}")


@dataclasses.dataclass(frozen=True)
class _Run:
    """What the loop is about.

    Attributes:
      settings: the configuration, with the sizes of ``sizes.here``.
      written: the same as the user wrote it.
      workdir: folder of the run.
      mesh: of the devices.
      prepared: the data.
      plan: the order of batches.
      log: takes what happens, one line at a time.
    """

    settings: Config
    written: Config
    workdir: Path
    mesh: Mesh
    prepared: Prepared
    plan: batches.Batches
    log: Callable[[str], None]

    def train(self, feed: Callable[..., Iterator[Any]]) -> bool:
        """Train from the last checkpoint to the last step; False if stopped before."""
        settings, total = self.settings, self.settings.train.steps
        model = models.make(settings, *self.prepared.vocabulary.sizes)
        draw = functools.partial(init_state, settings, model)
        shapes = jax.eval_shape(draw)
        abstract = parallel.placed(self.mesh, model.partition, shapes)
        parallel.check_divides(self.mesh.shape, model.partition, abstract.params)
        fitting.check_state(abstract)
        shards = parallel.row_shards(self.mesh.shape)
        fitting.check_batches(settings, abstract, self.plan.shapes, shards)
        fitting.check_decoding(settings, model)
        with (
            Signals() as signals,
            Checkpoints(
                self.workdir / "checkpoints", settings.train.keep, self.log
            ) as checkpoints,
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
            )
            # Beside the drawing or restoring of the parameters. On a CPU the other
            # shapes would only keep the first step from its cores.
            start = max(checkpoints.steps(), default=0)
            stop = total if train_step.accelerator else min(start + 1, total)
            train_step.begin(self._shapes(start, stop))
            state, tokens = keeper.begin(draw, self.log)
            first = done = int(state.step)
            rows = functools.partial(parallel.local_rows, self.mesh)
            due, stopping = (
                _Due(settings.train, self.mesh, done),
                hosts.Votes(self.mesh),
            )
            record = functools.partial(keeper.record, tokens)
            with self._records(done, record) as records:
                meter, stopped = Meter(settings, records, tokens), False
                for step, parts in feed(self.plan, done, total, rows):
                    placed = [parallel.place_rows(self.mesh, part) for part in parts]
                    if not train_step.wait(placed, signals.decisive):
                        break
                    state, metrics = train_step(state, *placed)
                    meter.read()  # the step before, while this one is computed
                    done = step + 1
                    meter.add(done, metrics)
                    if step == first:  # at once, not after the next shape's compilation
                        meter.read()
                        train_step.begin(self._shapes(first, total))
                    validate, save = due(done)
                    if validate or save:
                        meter.read()
                        nll = self._validation_nll(model, state.params)
                        if validate:  # what the clock decides is no metric
                            meter.validated(done, nll)
                        if save:
                            keeper.save(state, done, meter.tokens, nll, records.claim())
                            due.saved(done)
                        meter.restart()
                    stopped = stopping.cast(bool(signals.received))
                    if stopped:
                        break
                if stopped or stopping.cast(bool(signals.received)):
                    meter.read()
                    if due.last != done:  # one that is kept must not become temporary
                        keeper.save(
                            state,
                            done,
                            meter.tokens,
                            None,
                            records.claim(),
                            temporary=True,
                        )
                    checkpoints.wait()
                    self.log(
                        f"stopped at step {done:,}; the same command resumes from there"
                    )
                    signals.interrupt_if_asked()
                    return False
                checkpoints.clean()
                keeper.record(meter.tokens, records.claim(), ended=True)
        return True

    def _records(self, done: int, record: Callable[[Claim], None]) -> Records:
        if not hosts.primary():
            return NoRecords()
        total = self.settings.train.steps
        return Records(self.workdir, total, done, self.log, record)

    def _shapes(self, start: int, stop: int) -> list[batches.Shape]:
        """Return the shapes of the batches of steps start .. stop - 1, each once."""
        return self.plan.shapes_between(
            start * self.plan.lengths, stop * self.plan.lengths
        )

    def _validation_nll(self, model: models.Model, params: Any) -> float:
        """Return the negative log-likelihood of the validation pairs per token."""
        corpus = self.prepared.corpora["validation"]
        sums = objective.corpus_sums(self.settings, model, params, corpus, self.mesh)
        return sums["nll"] / sums["weight"]


class _Due:
    """Tells what is due after a step: a validation, a checkpoint.

    Attributes:
      last: the step of the last checkpoint.
    """

    def __init__(self, train: config.Train, mesh: Mesh, done: int) -> None:
        self._train, self._clocks = train, hosts.Votes(mesh)
        self.last, self._since = done, time.monotonic()

    def __call__(self, step: int) -> tuple[bool, bool]:
        """Return whether to validate and whether to save after so many steps."""
        train = self._train
        by_step = _every(train.checkpoint_every, step) or step == train.steps
        minutes = (time.monotonic() - self._since) / 60
        late = bool(train.checkpoint_minutes) and minutes >= train.checkpoint_minutes
        by_time = self._clocks.cast(late)
        return by_step or _every(train.evaluate_every, step), by_step or by_time

    def saved(self, step: int) -> None:
        """Take note of a checkpoint."""
        self.last, self._since = step, time.monotonic()
        self._clocks.discard()


def _every(count: int, step: int) -> bool:
    return bool(count) and step % count == 0


class _Terminated(BaseException):
    """SIGTERM where nothing has to be saved: all on disk is whole at any time."""


def _terminate(number: int, frame: Any) -> None:
    raise _Terminated
