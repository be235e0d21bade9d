"""The train step as compiled programs, each made once per shape of batch."""

from __future__ import annotations

import concurrent.futures
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding

from transformer import fitting, parallel
from transformer.config import Config
from transformer.data import batches
from transformer.models import Model
from transformer.nn import losses
from transformer.parallel import ahead
from transformer.step import (
    Batch,
    Gradient,
    Metrics,
    State,
    add,
    halves,
    make_train_step,
)


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
    rows, length = batch["source"].shape[:2]
    return rows, length, batch["target"].shape[1]


def compile_step(
    settings: Config, model: Model, mesh: Mesh, abstract: State
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
    abstract = parallel.placed(mesh, model.partition, abstract)
    checked = fitting.check_step(settings, abstract)
    compiler = ahead.Compiler(mesh.devices.flat[0].platform != "cpu", checked)
    if settings.batch.lengths > 1:
        return _step_of_several(settings, model, mesh, abstract, compiler)
    step = make_train_step(settings, model, mesh)
    laid: Callable[[Batch], Batch] = dict
    if settings.parallel.how == "pmap":
        laid = functools.partial(parallel.split_rows, mesh)
        jitted = parallel.pmapped(step, mesh)
    else:
        places, rows, whole = _places(mesh, model, abstract)
        jitted = jax.jit(
            step,
            in_shardings=(places, rows),
            out_shardings=(places, whole),
            donate_argnums=0,
        )

    abstract_batch = functools.partial(_abstract_batch, settings, model)

    def arguments(shape: batches.Shape) -> tuple[State, Batch]:
        return abstract, jax.eval_shape(laid, abstract_batch(shape))

    of_shape = ahead.Program(compiler, jitted, arguments)
    return CompiledStep(compiler, of_shape, laid=laid)


def _step_of_several(
    settings: Config,
    model: Model,
    mesh: Mesh,
    abstract: State,
    compiler: ahead.Compiler,
) -> CompiledStep:
    """Return the step of ``compile_step`` where it has several batches."""
    places, rows, whole = _places(mesh, model, abstract)

    def scalar(dtype: Any) -> Any:
        return jax.ShapeDtypeStruct((), dtype, sharding=whole)

    sums = losses.Sums(*[scalar(jnp.float32)] * 4)
    gradient = Gradient(abstract.params, sums, *[scalar(jnp.int32)] * 2)
    sharded = jax.tree.map(lambda x: x.sharding, gradient)
    differentiate, update = halves(settings, model, mesh)
    gradient_of = jax.jit(
        differentiate, in_shardings=(places, rows, whole), out_shardings=sharded
    )
    added = jax.jit(add, out_shardings=sharded, donate_argnums=0)
    updated = jax.jit(update, out_shardings=(places, whole), donate_argnums=0)
    program = functools.partial(ahead.Program, compiler)
    abstract_batch = functools.partial(_abstract_batch, settings, model)
    return CompiledStep(
        compiler,
        program(gradient_of, lambda shape: (abstract, abstract_batch(shape), 0)),
        [
            program(added, lambda _: (gradient, gradient)),
            program(updated, lambda _: (abstract, gradient)),
        ],
    )


def _places(
    mesh: Mesh, model: Model, abstract: State
) -> tuple[State, NamedSharding, NamedSharding]:
    """Return where a state, what is cut by rows, and what is whole lie on a mesh."""
    rows, whole = (
        NamedSharding(mesh, x) for x in (parallel.BY_ROWS, parallel.REPLICATED)
    )
    return parallel.shardings(mesh, model.partition, abstract), rows, whole


def _abstract_batch(
    settings: Config, model: Model, shape: batches.Shape
) -> dict[str, jax.ShapeDtypeStruct]:
    rows, s, t = shape
    source = jax.ShapeDtypeStruct((rows, s), jnp.int32)
    if settings.data.vectors:
        vectors = rows, s, 1 + model.source_size
        source = jax.ShapeDtypeStruct(vectors, jnp.float32)
    return {"source": source, "target": jax.ShapeDtypeStruct((rows, t), jnp.int32)}
