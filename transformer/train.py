"""Training: the state, the pure train step, and the loop that drives it."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import json
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding

from transformer import config, parallel
from transformer.config import Config, UserError
from transformer.data import batches
from transformer.evaluate import batch_sums, corpus_sums, evaluate
from transformer.ids import PAD
from transformer.models.transformer import (
    Transformer,
    init_params,
    is_stacked,
    scans_layers,
    stack_layers,
    unstack_layers,
)
from transformer.nn import dropout, losses, optimizer
from transformer.parallel import ahead, hosts, sizes
from transformer.prepare import Prepared, prepare
from transformer.run.checkpoints import Checkpoints
from transformer.run.provenance import write_run_record
from transformer.run.records import (
    NoRecords,
    Records,
    announce,
    write_json,
)
from transformer.run.stop import handled
from transformer.translate import model_of

Batch = Mapping[str, jax.Array]
Metrics = dict[str, jax.Array]


class State(NamedTuple):
    """All that training carries from one step to the next.

    Where the layers are scanned it is as ``model.stack_layers`` has it; checkpoints are
    the same with and without.
    """

    step: jax.Array  # () batches taken
    params: Any
    opt_state: optax.ApplyIfFiniteState
    key: jax.Array  # () the seed that dropout is derived from, by step and place


def init_state(settings: Config, model: Transformer) -> State:
    """Draw the parameters of ``config.seed`` and start the optimiser."""
    params = init_params(model, jax.random.key(settings.seed))
    if scans_layers(settings.parallel.layers, model.kind):
        params = stack_layers(params)
    opt_state = optimizer.make_optimizer(
        settings.optimizer, settings.model.d_model
    ).init(params)
    return State(jnp.zeros((), jnp.int32), params, opt_state, jnp.uint32(settings.seed))


def dropout_key(seed: jax.Array, step: jax.Array) -> dropout.Key | None:
    """Return the dropout key of a step."""
    return dropout.fold_in(dropout.make_key(seed), step)


def gradients(
    settings: Config,
    model: Transformer,
    params: Any,
    batch: Batch,
    key: dropout.Key | None,
    axes: Sequence[str] = (),
    mean: bool = True,
) -> tuple[Any, losses.Sums]:
    """Differentiate the loss of a batch, in ``optimizer.accumulation`` parts.

    The sums of the parts are divided once, by the weight of the whole batch: the result
    is that of the batch in one piece.

    Args:
      settings: the configuration of the run.
      model: made from it.
      params: its parameters; on several devices this one's parts.
      batch: on several devices this one's rows.
      key: dropout key of the step, None for none.
      axes: of the mesh, that this function is mapped over; see ``parallel.over_rows``.
      mean: False leaves the division by the weight to the caller.

    Returns:
      The gradient of (sum of losses) / (sum of weights), or of the sum, cut like the
      parameters, and the sums, all of the global batch.
    """
    rows = batch["target"].shape[0]
    if key is not None:
        key = _from_row(key, parallel.first_row(rows, axes))
    weight: jax.Array | float = 1.0
    if mean:
        tokens = parallel.total((batch["target"] != PAD).sum(), axes)
        weight = jnp.maximum(tokens, 1).astype(jnp.float32)

    def part_gradients(part: Batch, part_key: dropout.Key | None):
        def loss(p):
            whole = parallel.gather(p, axes)
            sums = batch_sums(settings, model, whole, part, part_key)
            return sums.loss / weight, sums

        loss = parallel.gathering_again(loss, axes)
        return jax.grad(loss, has_aux=True)(params)

    parts = settings.optimizer.accumulation
    if parts == 1:
        grads, sums = part_gradients(batch, key)
    else:
        grads, sums = _accumulated(part_gradients, params, batch, key, parts)
    return parallel.add_gradients(grads, axes), parallel.total(sums, axes)


def _accumulated(part_gradients, params, batch, key, parts):
    """Add up the results of ``part_gradients`` for equal parts of a batch."""
    rows = batch["target"].shape[0] // parts

    def add(total, xs):
        index, part = xs
        part_key = None if key is None else _from_row(key, index * rows)
        return jax.tree.map(jnp.add, total, part_gradients(part, part_key)), None

    def cut(x):
        return x.reshape((parts, rows) + x.shape[1:])

    zeros = jax.tree.map(jnp.zeros_like, params), losses.Sums(*jnp.zeros(4))
    split = jnp.arange(parts), jax.tree.map(cut, dict(batch))
    return jax.lax.scan(add, zeros, split)[0]


def _from_row(key: dropout.Key, row: jax.Array | int) -> dropout.Key:
    """Return the key of a part of the rows of a key, by the part's first row."""
    return key._replace(row=key.row + jnp.asarray(row, jnp.uint32))


def make_train_step(
    settings: Config, model: Transformer, mesh: Mesh | None = None
) -> Callable[[State, Batch], tuple[State, Metrics]]:
    """Return the pure function that makes one update (section 5).

    Args:
      settings: the configuration of the run.
      model: made from it.
      mesh: of the devices that it is spread over, None = one device.

    Returns:
      ``train_step(state, batch) -> (state, metrics)``; metrics are scalars: loss and
      nll in nats a token, accuracy, grad_norm, learning_rate, real tokens of both
      sides, and how many steps were skipped for a gradient that was not finite, in all
      and in a row.
    """
    differentiate, update = _halves(settings, model, mesh)

    def train_step(state: State, batch: Batch) -> tuple[State, Metrics]:
        return update(state, differentiate(state, batch))

    return train_step


class _Gradient(NamedTuple):
    """What the pairs of a step, or of one of its batches, ask for."""

    grads: Any
    sums: losses.Sums
    source_tokens: jax.Array
    target_tokens: jax.Array


def _halves(settings: Config, model: Transformer, mesh: Mesh | None):
    """Return the two halves of a step: the gradient, and the update by it.

    Of a step of several batches the gradients are those of sums, to be added up, and
    the update divides by the weight of all.
    """
    rule = optimizer.make_optimizer(settings.optimizer, settings.model.d_model)
    one = settings.batch.lengths == 1
    # pmap maps the whole step over devices, jit the gradients alone.
    pmapped = parallel.PMAPPED if settings.parallel.how == "pmap" and mesh else ()
    axes = pmapped or parallel.row_axes(mesh)
    gradients_of = functools.partial(gradients, settings, model, axes=axes, mean=one)
    rule_update = jax.jit(rule.update)  # traced once for all shapes of batches

    def count(ids: jax.Array) -> jax.Array:
        return parallel.total((ids != PAD).sum(), pmapped)

    def differentiate(
        state: State, batch: Batch, number: jax.Array | None = None
    ) -> _Gradient:
        key = dropout_key(state.key, state.step)
        if number is not None:
            key = dropout.fold_in(key, number)
        cut = parallel.fsdp_specs(state.params)
        mapped = parallel.over_rows(
            None if pmapped else mesh, gradients_of, cut, (cut, parallel.REPLICATED)
        )
        grads, sums = mapped(state.params, batch, key=key)
        return _Gradient(grads, sums, count(batch["source"]), count(batch["target"]))

    def update(state: State, gradient: _Gradient) -> tuple[State, Metrics]:
        grads, sums, source_tokens, target_tokens = gradient
        weight = jnp.maximum(sums.weight, 1.0)
        if not one:
            grads = jax.tree.map(lambda x: x / weight, grads)
        norm = optax.tree.norm(grads)
        updates, opt_state = rule_update(
            grads, state.opt_state, state.params, norm=norm
        )
        params = optax.apply_updates(state.params, updates)
        metrics = {
            "loss": sums.loss / weight,
            "nll": sums.nll / weight,
            "accuracy": sums.correct / weight,
            "grad_norm": norm,
            "learning_rate": optimizer.learning_rate(
                state.step
                + 1
                + settings.optimizer.step_offset
                - state.opt_state.total_notfinite,
                settings.model.d_model,
                settings.optimizer.warmup,
                settings.optimizer.scale,
            ),
            "source_tokens": source_tokens,
            "target_tokens": target_tokens,
            "skipped": opt_state.total_notfinite,
            "skipped_in_a_row": opt_state.notfinite_count,
        }
        return State(state.step + 1, params, opt_state, state.key), metrics

    return differentiate, update


class CompiledStep:
    """A train step as compiled programs, each of which is made once, in a thread.

    One batch is one program; of several the gradients, their sum and the update are
    programs of their own, so that there are as many as shapes and not as pairs of
    shapes.

    Args:
      compiler: makes them.
      of_shape: of a batch of each shape (R, S, T) the step, or its gradient where a
        step has several batches.
      shared: of several batches the sum of two gradients, and the update.
      laid: brings a batch into the form that ``of_shape`` takes.
    """

    def __init__(
        self,
        compiler: ahead.Compiler,
        of_shape: ahead.Program,
        shared: Sequence[ahead.Program] = (),
        laid: Callable[[Batch], Batch] = dict,
    ) -> None:
        self._compiler, self._of_shape = compiler, of_shape
        self._shared, self._laid = shared, laid
        self.accelerator = compiler.accelerator

    def __call__(self, state: State, *given: Batch) -> tuple[State, Metrics]:
        """Make a step; what is not compiled yet is waited for."""
        programs = [self._of_shape[_shape(batch)].result() for batch in given]
        each = zip(programs, map(self._laid, given), strict=True)
        if not self._shared:
            ((program, batch),) = each
            return program(state, batch)
        add, update = (program[()].result() for program in self._shared)
        parts = (program(state, x, i) for i, (program, x) in enumerate(each))
        return update(state, functools.reduce(add, parts))

    def begin(self, shapes: Iterable[batches.Shape]) -> list[ahead.Future]:
        """Compile all that batches of such shapes need and nobody asked for yet."""
        shared = [(program, ()) for program in self._shared]
        needed = ([(self._of_shape, shape), *shared] for shape in shapes)
        return [program[key] for each in needed for program, key in each]

    def wait(self, given: Sequence[Batch], stopped: Callable[[], bool]) -> bool:
        """Wait until the programs of a step are there.

        Args:
          given: its batches.
          stopped: asked now and then whether to wait no longer.

        Returns:
          Whether they are there.
        """
        begun = self.begin(map(_shape, given))
        while concurrent.futures.wait(begun, _GLANCE).not_done:
            if stopped():
                return False
        return True

    def trace(self, *arguments: Any) -> jax.stages.Traced:
        """Trace the program of one batch for arguments or their shapes."""
        return self._of_shape.jitted.trace(*arguments)

    def lower(self, *arguments: Any) -> jax.stages.Lowered:
        """Trace and lower the program of one batch for the devices of the mesh."""
        return self.trace(*arguments).lower()

    def close(self) -> None:
        """Begin no other program, and do not wait for those under way."""
        self._compiler.close()


_GLANCE = 0.2  # seconds between two looks whether to stop


def _shape(batch: Batch) -> batches.Shape:
    rows, length = batch["source"].shape
    return rows, length, batch["target"].shape[1]


def compile_step(
    settings: Config, model: Transformer, mesh: Mesh, abstract: State
) -> CompiledStep:
    """Prepare the train step for the devices of a mesh, to be compiled once a shape.

    Args:
      settings: the configuration of the run.
      model: made from it.
      mesh: of the devices, see ``parallel.make_mesh``.
      abstract: the shapes of the state.

    Returns:
      The step of ``make_train_step`` for global arrays, which takes the state, that
      lies on the mesh as ``parallel.shardings`` has it and is donated, and the
      ``batch.lengths`` batches of the step.
    """
    abstract = parallel.placed(mesh, abstract)
    compiler = ahead.Compiler(mesh.devices.flat[0].platform != "cpu")
    if settings.batch.lengths > 1:
        return _step_of_several(settings, model, mesh, abstract, compiler)
    step = make_train_step(settings, model, mesh)
    laid: Callable[[Batch], Batch] = dict
    if settings.parallel.how == "pmap":
        laid = functools.partial(parallel.split_rows, mesh)
        jitted = parallel.pmapped(step, mesh)
    else:
        places, rows, whole = _places(mesh, abstract)
        jitted = jax.jit(
            step,
            in_shardings=(places, rows),
            out_shardings=(places, whole),
            donate_argnums=0,
        )

    def arguments(shape: batches.Shape) -> tuple[State, Batch]:
        return abstract, jax.eval_shape(laid, _abstract_batch(shape))

    of_shape = ahead.Program(compiler, jitted, arguments)
    return CompiledStep(compiler, of_shape, laid=laid)


def _step_of_several(
    settings: Config,
    model: Transformer,
    mesh: Mesh,
    abstract: State,
    compiler: ahead.Compiler,
) -> CompiledStep:
    """Return the step of ``compile_step`` where it has several batches."""
    places, rows, whole = _places(mesh, abstract)

    def scalar(dtype: Any) -> Any:
        return jax.ShapeDtypeStruct((), dtype, sharding=whole)

    def add(one: _Gradient, other: _Gradient) -> _Gradient:
        return jax.tree.map(jnp.add, one, other)

    sums = losses.Sums(*[scalar(jnp.float32)] * 4)
    gradient = _Gradient(abstract.params, sums, *[scalar(jnp.int32)] * 2)
    cut = jax.tree.map(lambda x: x.sharding, gradient)
    halves = _halves(settings, model, mesh)
    differentiate = jax.jit(
        halves[0], in_shardings=(places, rows, whole), out_shardings=cut
    )
    added = jax.jit(add, out_shardings=cut, donate_argnums=0)
    update = jax.jit(halves[1], out_shardings=(places, whole), donate_argnums=0)
    program = functools.partial(ahead.Program, compiler)
    return CompiledStep(
        compiler,
        program(differentiate, lambda shape: (abstract, _abstract_batch(shape), 0)),
        [
            program(added, lambda _: (gradient, gradient)),
            program(update, lambda _: (abstract, gradient)),
        ],
    )


def _places(mesh: Mesh, abstract: State) -> tuple[State, NamedSharding, NamedSharding]:
    """Return where a state, what is cut by rows, and what is whole lie on a mesh."""
    rows, whole = (
        NamedSharding(mesh, x) for x in (parallel.BY_ROWS, parallel.REPLICATED)
    )
    return parallel.shardings(mesh, abstract), rows, whole


def _abstract_batch(shape: batches.Shape) -> dict[str, jax.ShapeDtypeStruct]:
    rows, s, t = shape
    lengths = {"source": s, "target": t}.items()
    return {x: jax.ShapeDtypeStruct((rows, n), jnp.int32) for x, n in lengths}


# --------------------------------------------------------------------------- the loop


def train(
    settings: Config,
    workdir: Path,
    say: Callable[[str], None] = announce,
    feed: Callable[..., Iterator[tuple[int, list[batches.Batch]]]] = batches.prefetch,
) -> Path | None:
    """Train a run to its end, or go on where it stopped.

    Prepares the data if needed, trains, evaluates on the validation pairs at intervals,
    keeps checkpoints, and ends with an evaluation on the test pairs. SIGTERM and Ctrl-C
    save a checkpoint first.

    Args:
      settings: the resolved configuration.
      workdir: folder of the run; exists and can be written.
      say: is told what happens, one line at a time.
      feed: makes the batches of the steps, ahead of their use.

    Returns:
      The path of results.json, or None where the run was stopped by SIGTERM.

    Raises:
      UserError: if the workdir belongs to another configuration, the data cannot be
        used, or ``optimizer.nonfinite_limit`` steps in a row were not finite.
    """
    say = hosts.once(say)
    mesh = parallel.make_mesh(settings.parallel, jax.devices())
    parallel.check(settings, mesh.shape)
    adopt_config(settings, workdir)
    try:
        with handled([signal.SIGTERM], _terminate):
            prepared = prepare(settings, workdir, say)
        plan = batches.Batches(prepared.corpora["train"], settings.batch, settings.seed)
        _introduce(settings, mesh, plan, say)
        sized = sizes.here(settings, prepared.vocabulary.target.size)
        say(sizes.line(sized))
        if not _run(sized, settings, workdir, mesh, prepared, plan, say, feed):
            return None
        with handled([signal.SIGTERM], _terminate):
            return evaluate(workdir, say=say)
    except _Terminated:
        say("stopped; the same command goes on")
        return None


def adopt_config(settings: Config, workdir: Path) -> None:
    """Write config.json, or check that it holds the same where checkpoints are.

    A run may go on on other devices: ``device`` and ``parallel`` may change.
    Before the first checkpoint there is nothing that another configuration could spoil:
    a run that failed on its data, say, can be mended in the same workdir.
    """
    path = workdir / "config.json"
    with Checkpoints(workdir / "checkpoints", settings.train.keep) as checkpoints:
        begun = bool(checkpoints.steps())
    if begun and path.exists():
        old = config.resolve_saved(json.loads(path.read_bytes()))
        changes = config.other_run(old, settings)
        if changes:
            raise UserError(
                f"{workdir} belongs to another configuration; expected the same, got "
                f"{'; '.join(changes)}; choose another workdir or change it back"
            )
    if hosts.primary():
        write_json(path, dataclasses.asdict(settings))


def _introduce(
    settings: Config, mesh: Mesh, plan: batches.Batches, say: Callable[[str], None]
) -> None:
    figures, rule = plan.epoch, settings.optimizer
    schedule = jax.jit(optimizer.learning_rate)  # one program, not one an operation
    peak = schedule(rule.warmup, settings.model.d_model, rule.warmup, rule.scale)
    steps = plan.per_epoch / plan.lengths
    each = f"{plan.lengths} a step, " if plan.lengths > 1 else ""
    say(
        f"batches: {plan.per_epoch:,} an epoch in {len(plan.shapes)} shapes, {each}on "
        f"average {figures.source_tokens / steps:,.0f} source and "
        f"{figures.target_tokens / steps:,.0f} target tokens a step, "
        f"{figures.padding:.1%} padding"
    )
    say(f"learning rate: at most {float(peak):.3g}, at step {rule.warmup:,}")
    if mesh.size > 1:
        axes = " x ".join(f"{axis} {size}" for axis, size in mesh.shape.items())
        say(f"spread over {mesh.size} devices: {axes}, by {settings.parallel.how}")


def _run(settings, written, workdir, mesh, prepared, plan, say, feed) -> bool:
    """Train from the last checkpoint to the last step; False if stopped before.

    ``settings`` are those that were written, with the sizes of ``sizes.here``.
    """
    total, wishes = settings.train.steps, settings.train
    validation = prepared.corpora["validation"]
    model = model_of(settings, prepared.vocabulary)
    draw = functools.partial(init_state, settings, model)
    abstract = parallel.placed(mesh, jax.eval_shape(draw))
    parallel.check_divides(mesh.shape, abstract.params)
    with (
        _Signals() as signals,
        Checkpoints(workdir / "checkpoints", wishes.keep, say) as checkpoints,
        contextlib.closing(compile_step(settings, model, mesh, abstract)) as train_step,
    ):
        keeper = _Keeper(
            written,
            sizes.taken(settings),
            workdir,
            mesh,
            prepared,
            abstract,
            checkpoints,
        )
        # Beside the drawing or restoring of the parameters. On a CPU the other shapes
        # would only keep the first step from its cores.
        start = max(checkpoints.steps(), default=0)
        stop = total if train_step.accelerator else min(start + 1, total)
        train_step.begin(_shapes(plan, start, stop))
        state, seen = keeper.begin(draw, say)
        first = done = int(state.step)
        keeper.record(seen)
        records = Records(workdir, total, done, say) if hosts.primary() else NoRecords()
        rows = functools.partial(parallel.local_rows, mesh)
        clocks, stops = hosts.Votes(mesh), hosts.Votes(mesh)
        with records:
            meter = _Meter(settings, records)
            saved, saved_step = time.monotonic(), done
            stop = False
            for step, parts in feed(plan, done, total, rows):
                placed = [parallel.place_rows(mesh, part) for part in parts]
                if not train_step.wait(placed, signals.decisive):
                    break
                state, metrics = train_step(state, *placed)
                # The numbers of the step before are read while this one is computed.
                seen += meter.read()
                done = step + 1
                meter.add(done, metrics)
                if step == first:  # seen at once, not after the next shape's compiling
                    seen += meter.read()
                    train_step.begin(_shapes(plan, first, total))
                by_step = _due(done, wishes.checkpoint_every) or done == total
                by_time = clocks.cast(_minutes_passed(saved, wishes.checkpoint_minutes))
                planned = by_step or _due(done, wishes.evaluate_every)
                if planned or by_time:
                    seen += meter.read()
                    sums = corpus_sums(settings, model, state.params, validation, mesh)
                    nll = sums["nll"] / sums["weight"]
                    if planned:  # what the clock decides has no place among metrics
                        meter.validated(done, nll)
                    if by_step or by_time:
                        keeper.save(state, done, seen, nll)
                        saved, saved_step = time.monotonic(), done
                        clocks.discard()
                    meter.restart()
                stop = stops.cast(bool(signals.received))
                if stop:
                    break
            if stop or stops.cast(bool(signals.received)):
                seen += meter.read()
                if saved_step != done:  # one that is kept must not become temporary
                    keeper.save(state, done, seen, None, temporary=True)
                checkpoints.wait()
                say(f"stopped at step {done:,}; the same command goes on from there")
                signals.interrupt_if_asked()
                return False
        checkpoints.wait()
        keeper.record(seen, ended=True)
    return True


def _shapes(plan: batches.Batches, start: int, stop: int) -> list[batches.Shape]:
    """Return the shapes of the batches of steps start .. stop - 1, each once."""
    return plan.shapes_between(start * plan.lengths, stop * plan.lengths)


class _Keeper:
    """Keeps a run's state on disk, and with it the record of the run."""

    def __init__(
        self,
        settings: Config,
        sizes_taken: Mapping[str, int],
        workdir: Path,
        mesh: Mesh,
        prepared: Prepared,
        abstract: State,
        checkpoints: Checkpoints,
    ) -> None:
        self._settings, self._workdir, self._prepared = settings, workdir, prepared
        self._sizes = sizes_taken
        self._checkpoints = checkpoints
        # The state as the loop has it, and as checkpoints hold it.
        self._abstract = self._kept = abstract
        if is_stacked(abstract.params):
            self._kept = parallel.placed(mesh, jax.eval_shape(unstack_layers, abstract))
        self._apart = _put(unstack_layers, self._kept)

    def begin(
        self, draw: Callable[[], State], say: Callable[[str], None]
    ) -> tuple[State, int]:
        """Return the state to go on from and the target tokens seen so far."""
        if not self._checkpoints.steps():
            # Each device draws what it holds, placed like a restored state.
            return _put(draw, self._abstract)(), 0
        step, tree, metadata = self._checkpoints.restore(self._kept._asdict())
        digest = self._prepared.vocabulary.digest
        if metadata["vocabulary"] != digest:
            raise UserError(
                f"checkpoint of step {step}: expected vocabulary {digest[:12]}, got "
                f"{metadata['vocabulary'][:12]}; the corpus was prepared anew: choose "
                "another workdir"
            )
        say(f"resuming from step {step:,}")
        state = State(**tree)
        if is_stacked(self._abstract.params):
            state = _put(stack_layers, self._abstract)(state)
        return state, metadata["tokens"]

    def save(
        self,
        state: State,
        step: int,
        tokens: int,
        metric: float | None,
        temporary: bool = False,
    ) -> None:
        """Save the state after so many steps and target tokens."""
        metadata = {
            "config": dataclasses.asdict(self._settings),
            "vocabulary": self._prepared.vocabulary.digest,
            "batches_taken": step,
            "tokens": tokens,
        }
        tree = self._apart(state) if is_stacked(state.params) else state
        self._checkpoints.save(step, tree._asdict(), metadata, metric, temporary)
        self.record(tokens)

    def record(self, tokens: int, ended: bool = False) -> None:
        """Write the record of the run."""
        if hosts.primary():
            write_run_record(
                self._workdir,
                self._settings,
                self._prepared.vocabulary.digest,
                self._prepared.checksums,
                tokens,
                sizes=self._sizes,
                ended=ended,
            )


def _put(function: Callable[..., State], abstract: State) -> Callable[..., State]:
    """Compile a function whose results lie as ``abstract`` has them."""
    places = jax.tree.map(lambda x: x.sharding, abstract)
    return jax.jit(function, out_shardings=places)


def _due(step: int, every: int) -> bool:
    return bool(every) and step % every == 0


def _minutes_passed(since: float, minutes: float) -> bool:
    return bool(minutes) and time.monotonic() - since >= 60 * minutes


class _Meter:
    """Reads a step's metrics one step later, and writes down those that are due."""

    def __init__(self, settings: Config, records: Records):
        self._settings, self._records = settings, records
        self._unread: tuple[int, Metrics] | None = None
        self.restart()

    def restart(self) -> None:
        """Start the clock anew: what came between is no training."""
        self._tokens, self._since = 0, time.monotonic()

    def add(self, step: int, metrics: Metrics) -> None:
        self._unread = step, metrics

    def read(self) -> int:
        """Return the target tokens of the unread step."""
        if self._unread is None:
            return 0
        (step, arrays), self._unread = self._unread, None
        metrics = {name: x.item() for name, x in jax.device_get(arrays).items()}
        self._check_finite(step, metrics)
        self._tokens += metrics["target_tokens"]
        wishes = self._settings.train
        if step % wishes.log_every == 0 or step == wishes.steps:
            seconds = time.monotonic() - self._since
            speed = self._tokens / seconds
            timing = {"seconds": seconds, "tokens_per_second": speed}
            self._records.show(step, metrics["loss"], speed)
            self._records.log(step, metrics, timing)
            self.restart()
        return metrics["target_tokens"]

    def validated(self, step: int, nll: float) -> None:
        """Write down a validation."""
        perplexity = float(np.exp(nll))
        self._records.log(
            step, {"validation_nll": nll, "validation_perplexity": perplexity}
        )
        self._records.log_line(f"step {step:,}: validation perplexity {perplexity:.3f}")

    def _check_finite(self, step: int, metrics: dict[str, float]) -> None:
        limit = self._settings.optimizer.nonfinite_limit
        if metrics["skipped_in_a_row"] >= limit:
            raise UserError(
                f"step {step}: expected finite gradients, got {limit} steps in a row "
                "that were not; lower optimizer.scale, raise optimizer.warmup, set "
                "optimizer.clip_norm, or try model.dtype=float32"
            )


class _Terminated(BaseException):
    """SIGTERM where nothing has to be saved: all on disk is whole at any time."""


def _terminate(number: int, frame: Any) -> None:
    raise _Terminated


class _Signals:
    """Turns SIGTERM and Ctrl-C into a wish that the loop reads between two steps."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._handled = handled((signal.SIGTERM, signal.SIGINT), self._receive)

    def __enter__(self) -> _Signals:
        self._handled.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._handled.__exit__(*error)

    def decisive(self) -> bool:
        """Say whether one came and no other process has to agree."""
        return bool(self.received) and not hosts.several()

    def _receive(self, number: int, frame: Any) -> None:
        if self.received == signal.SIGINT == number:
            raise KeyboardInterrupt  # asked twice: at once
        self.received = number

    def interrupt_if_asked(self) -> None:
        if self.received == signal.SIGINT:
            raise KeyboardInterrupt
