"""Section 5: the state of training, gradients, and the pure train step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from transformer import models, objective, parallel
from transformer.config import Config
from transformer.ids import PAD, marks
from transformer.models import Model, stacks
from transformer.nn import dropout, losses, optimizer

Batch = Mapping[str, jax.Array]
Metrics = dict[str, jax.Array]


class State(NamedTuple):
    """All that training carries from one step to the next.

    If the layers are scanned, it is as ``stacks.stack`` returns it; checkpoints are the
    same either way.
    """

    step: jax.Array  # () steps made
    params: Any
    opt_state: optax.ApplyIfFiniteState
    # () a seed, no JAX key: dropout masks are derived from it, by step and place
    key: jax.Array
    # () what updates are multiplied by; None if neither validations nor epochs change
    # the learning rate, see ``run.course``
    factor: jax.Array | None = None

    def parts(self) -> dict[str, Any]:
        """Return the parts that exist, by name, as checkpoints hold them."""
        return {name: x for name, x in self._asdict().items() if x is not None}


class Gradient(NamedTuple):
    """The gradient and sums of a batch; those of several batches are added up."""

    grads: Any  # of the sum of losses
    sums: losses.Sums
    source_tokens: jax.Array
    target_tokens: jax.Array


def init_state(settings: Config, model: Model, params: Any = None) -> State:
    """Start the optimiser on parameters, None: those that ``config.seed`` draws."""
    if params is None:
        params = models.init(model, jax.random.key(settings.seed))
    if models.scans_layers(settings, model):
        params = stacks.stack(model.stacks, params)
    rule = optimizer.make_optimizer(settings.optimizer, settings.model.d_model)
    seed = jnp.uint32(settings.seed)
    changes = settings.optimizer.schedule in ("plateau", "epochs")
    factor = jnp.ones(()) if changes else None
    return State(jnp.zeros((), jnp.int32), params, rule.init(params), seed, factor)


def dropout_key(seed: jax.Array, step: jax.Array) -> dropout.Key | None:
    """Return the dropout key of a step."""
    return dropout.fold_in(dropout.make_key(seed), step)


def gradients(
    settings: Config,
    model: Model,
    params: Any,
    batch: Batch,
    key: dropout.Key | None,
    axes: Sequence[str] = (),
) -> tuple[Any, losses.Sums]:
    """Differentiate the sum of the losses of a batch.

    It is computed in ``optimizer.accumulation`` microbatches, whose gradients are added
    up: the result is that of the whole batch.

    Args:
      settings: the configuration of the run.
      model: made from it.
      params: its parameters; on several devices this one's shards.
      batch: ids, "source" (B, S), with one more axis for vectors, and "target" (B, T);
        this device's rows.
      key: dropout key of the step, None for no dropout.
      axes: axes of the mesh that this function is mapped over; see
        ``parallel.over_rows``.

    Returns:
      The gradient of the sum of losses, sharded like the parameters, and the sums, both
      of the global batch.
    """
    rows, rules = batch["target"].shape[0], model.partition
    if key is not None:
        key = _from_row(key, parallel.first_row(rows, axes))

    def microbatch_gradients(part: Batch, part_key: dropout.Key | None) -> Any:
        def loss(params: Any) -> tuple[jax.Array, losses.Sums]:
            params = optimizer.without_gradient(settings.optimizer, params)
            gathered = parallel.gather(rules, params, axes)
            sums = objective.batch_sums(settings, model, gathered, part, part_key)
            return sums.loss, sums

        return jax.grad(parallel.gathering_again(loss, axes), has_aux=True)(params)

    count = settings.optimizer.accumulation
    if count == 1:
        grads, sums = microbatch_gradients(batch, key)
    else:
        grads, sums = _accumulated(microbatch_gradients, params, batch, key, count)
    return parallel.add_gradients(rules, grads, axes), parallel.total(sums, axes)


def _accumulated(microbatch_gradients, params, batch, key, count):
    """Add up the results of ``microbatch_gradients`` for equal parts of a batch."""
    rows = batch["target"].shape[0] // count

    def add(total, xs):
        index, part = xs
        part_key = None if key is None else _from_row(key, index * rows)
        new = microbatch_gradients(part, part_key)
        return jax.tree.map(jnp.add, total, new), None

    def split(x):
        return x.reshape((count, rows) + x.shape[1:])

    zeros = jax.tree.map(jnp.zeros_like, params), losses.Sums(*jnp.zeros(4))
    parts = jnp.arange(count), jax.tree.map(split, dict(batch))
    return jax.lax.scan(add, zeros, parts)[0]


def _from_row(key: dropout.Key, row: jax.Array | int) -> dropout.Key:
    """Return the key for a part of a key's rows, given the part's first row."""
    return key._replace(row=key.row + jnp.asarray(row, jnp.uint32))


class Halves(NamedTuple):
    """A step is the gradient of each of its batches, their sum, and one update."""

    differentiate: Callable[[State, Batch, jax.Array | None], Gradient]
    update: Callable[[State, Gradient], tuple[State, Metrics]]


def halves(settings: Config, model: Model, mesh: Mesh | None) -> Halves:
    """Return the two halves of a step; arguments as for ``make_train_step``."""
    rule = optimizer.make_optimizer(settings.optimizer, settings.model.d_model)
    schedule = optimizer.make_schedule(settings.optimizer, settings.model.d_model)
    # pmap maps the whole step over devices, jit only the gradients.
    pmapped = parallel.PMAPPED if settings.parallel.how == "pmap" and mesh else ()
    axes = pmapped or parallel.row_axes(mesh)
    gradients_of = functools.partial(gradients, settings, model, axes=axes)
    rule_update = jax.jit(rule.update)  # traced once for all shapes of batches

    def count(side: jax.Array) -> jax.Array:
        return parallel.total((marks(side) != PAD).sum(), pmapped)

    def differentiate(
        state: State, batch: Batch, number: jax.Array | None = None
    ) -> Gradient:
        key = dropout_key(state.key, state.step)
        if number is not None:
            key = dropout.fold_in(key, number)
        sharded = parallel.fsdp_specs(model.partition, state.params)
        mapped = parallel.over_rows(
            None if pmapped else mesh,
            gradients_of,
            sharded,
            (sharded, parallel.REPLICATED),
        )
        grads, sums = mapped(state.params, batch, key=key)
        return Gradient(grads, sums, count(batch["source"]), count(batch["target"]))

    def update(state: State, gradient: Gradient) -> tuple[State, Metrics]:
        weight = jnp.maximum(gradient.sums.weight, 1.0)
        grads = jax.tree.map(lambda x: x / weight, gradient.grads)
        loss = gradient.sums.loss / weight
        norm = optax.tree.norm(grads)
        # Where a loss overflows, its gradient, which is computed apart, can be finite.
        finite = jnp.isfinite(norm) & jnp.isfinite(loss)
        updates, opt_state = rule_update(
            grads, state.opt_state, state.params, finite=finite
        )
        # optax counts only the updates that it applied.
        rate = schedule(state.step - state.opt_state.total_notfinite)
        if state.factor is not None:
            rate *= state.factor
            updates = jax.tree.map(lambda x: x * state.factor, updates)
        metrics = {
            "loss": loss,
            "nll": gradient.sums.nll / weight,
            "accuracy": gradient.sums.correct / weight,
            "grad_norm": norm,
            "learning_rate": rate,
            "source_tokens": gradient.source_tokens,
            "target_tokens": gradient.target_tokens,
            "skipped": opt_state.total_notfinite,
            "skipped_in_a_row": opt_state.notfinite_count,
        }
        params = optimizer.apply(settings.optimizer, state.params, updates)
        new = state._replace(step=state.step + 1, params=params, opt_state=opt_state)
        return new, metrics

    return Halves(differentiate, update)


def add(one: Gradient, other: Gradient) -> Gradient:
    """Add the gradients of two batches."""
    return jax.tree.map(jnp.add, one, other)


def make_train_step(
    settings: Config, model: Model, mesh: Mesh | None = None
) -> Callable[..., tuple[State, Metrics]]:
    """Return the pure function that makes one update (section 5).

    Args:
      settings: the configuration of the run.
      model: made from it.
      mesh: of the devices that it is spread over, None = one device.

    Returns:
      ``train_step(state, *batches) -> (state, metrics)``; the gradient is that of all
      batches, (sum of losses) / (sum of weights). Metrics are scalars: loss and nll in
      nats per token, accuracy, grad_norm, learning_rate, real tokens of both sides, and
      how many steps were skipped because the loss or a gradient was not finite, in
      total and in a row.
    """
    differentiate, update = halves(settings, model, mesh)

    def train_step(state: State, *batches: Batch) -> tuple[State, Metrics]:
        if len(batches) == 1:
            return update(state, differentiate(state, batches[0], None))
        each = (differentiate(state, x, jnp.int32(i)) for i, x in enumerate(batches))
        return update(state, functools.reduce(add, each))

    return train_step
