"""The train step as compiled programs, each made once per batch shape."""

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

    A step with one batch is one program. With several batches, the gradients, their sum
    and the update are separate programs, so there are as many as shapes, not as pairs
    of shapes.

    Args:
      compiler: compiles them.
      of_shape: for each batch shape (R, S, T) the step, or the gradient if a step has
        several batches.
      shared: for several batches the sum of two gradients, and the update.
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
        """Make a step; wait for what is not compiled yet."""
        programs = [self._of_shape[_shape(batch)].result() for batch in given]
        each = zip(programs, map(self._laid, given), strict=True)
        if not self._shared:
            ((program, batch),) = each
            return program(state, batch)
        add, update = (program[()].result() for program in self._shared)
        parts = (program(state, x, i) for i, (program, x) in enumerate(each))
        return update(state, functools.reduce(add, parts))

    def begin(self, shapes: Iterable[batches.Shape]) -> list[ahead.Future]:
        """Begin compiling what batches of such shapes need and nobody asked for yet."""
        shared = [(program, ()) for program in self._shared]
        needed = ([(self._of_shape, shape), *shared] for shape in shapes)
        return [program[key] for each in needed for program, key in each]

    def wait(self, given: Sequence[Batch], stopped: Callable[[], bool]) -> bool:
        """Wait until the programs of a step are ready.

        Args:
          given: its batches.
          stopped: asked now and then whether to stop waiting.

        Returns:
          Whether they are ready.
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
        """Begin no more programs, and do not wait for those under way."""
        self._compiler.close()


_GLANCE = 0.2  # seconds between two checks whether to stop


def _shape(batch: Batch) -> batches.Shape:
    rows, length = batch["source"].shape[:2]
    return rows, length, batch["target"].shape[1]


def compile_step(
    settings: Config, model: Model, mesh: Mesh, abstract: State
) -> CompiledStep:
    """Prepare the train step for the devices of a mesh, to be compiled once per shape.

    Args:
      settings: the configuration of the run.
      model: made from it.
      mesh: of the devices, see ``parallel.make_mesh``.
      abstract: the shapes of the state.

    Returns:
      The step of ``make_train_step`` for global arrays. It takes the state, which is
      sharded by ``parallel.shardings`` and is donated, and the ``batch.lengths``
      batches of the step.
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
    """Return the step of ``compile_step`` if it has several batches."""
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
    """Return the shardings on a mesh of a state, of rows, and of what is replicated."""
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
