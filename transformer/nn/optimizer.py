"""Section 5.3: the learning-rate schedule, and optax's optimisers under it."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import math
import re
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax

from transformer import config
from transformer.config import patterns


def learning_rate(
    step: jax.Array | float, d_model: int, warmup: int, scale: float = 1.0
) -> jax.Array:
    """Return the learning rate of an update (equation 3).

    ``scale * d_model^-0.5 * min(step^-0.5, step * warmup^-1.5)``

    Args:
      step: the number of the update, 1 for the first.
      d_model: D.
      warmup: warm-up steps, in which the rate grows linearly; it peaks at the last.
      scale: 1.0 in the paper.

    Returns:
      The learning rate.

    >>> round(float(learning_rate(4000, d_model=512, warmup=4000)), 6)
    0.000699
    """
    step = jnp.asarray(step, jnp.float32)
    return scale * d_model**-0.5 * jnp.minimum(step**-0.5, step * warmup**-1.5)


def make_schedule(settings: config.Optimizer, d_model: int) -> optax.Schedule:
    """Return the learning rate of the next update as a function of those finished.

    Equation 3, or a constant rate after a linear warm-up. Changes at a validation
    plateau or at the end of an epoch are a factor of the update, see ``step.State``.
    """

    def schedule(count: Any) -> jax.Array:
        if settings.schedule != "inverse_sqrt":
            return settings.rate * jnp.minimum(1.0, (count + 1) / settings.warmup)
        step = count + 1 + settings.step_offset
        return learning_rate(step, d_model, settings.warmup, settings.scale)

    return schedule


def _adam(
    settings: config.Optimizer, schedule: optax.Schedule, **options: Any
) -> optax.GradientTransformation:
    constants = _constants(settings)
    if options:
        return optax.adam(schedule, **(constants | options))
    return optax.chain(
        scale_by_adam(**constants), optax.scale_by_learning_rate(schedule)
    )


def _constants(settings: config.Optimizer) -> dict[str, float]:
    """Return the constants of Adam's family, as optax names them."""
    return {"b1": settings.b1, "b2": settings.b2, "eps": settings.epsilon}


class AdamState(optax.ScaleByAdamState):
    """Optax's state, of a rule that keeps it where the gradient is not finite."""


def scale_by_adam(
    b1: float, b2: float, eps: float
) -> optax.GradientTransformationExtraArgs:
    """Scale gradients as Adam does, in as few passes over memory as the formula needs.

    ``mu = b1 mu + (1 - b1) g``, ``nu = b2 nu + (1 - b2) g^2`` and
    ``mu / (1 - b1^n) / (sqrt(nu / (1 - b2^n)) + eps)`` for update n

    Like ``optax.scale_by_adam``, except that if the gradient is not finite, the moments
    are kept before the update is computed from them. Keeping them afterwards, as for
    any other rule, would compute them twice.

    Args:
      b1: decay of the mean of gradients.
      b2: decay of the mean of their squares.
      eps: keeps the quotient finite.

    Returns:
      The transformation; its update takes ``finite``, whether the gradient is.

    Source: Kingma and Ba, arXiv:1412.6980, algorithm 1.
    """
    once = functools.partial(jax.jit, inline=True)

    # Each is traced once for all arrays of a shape.
    @once
    def mean(mu, g, finite):
        return lax.select(finite, b1 * mu + (1 - b1) * g, mu)

    @once
    def mean_square(nu, g, finite):
        # Not g * g first: the norm has that too, and XLA would store it for both.
        return lax.select(finite, b2 * nu + (1 - b2) * g * g, nu)

    @once
    def quotient(mu, nu, c1, c2):
        return mu / c1 / (jnp.sqrt(nu / c2) + eps)

    def init(params: Any) -> AdamState:
        return AdamState(*optax.scale_by_adam().init(params))

    def update(grads, state, params=None, *, finite, **extra):
        count = state.count + finite
        mu = jax.tree.map(lambda m, g: mean(m, g, finite), state.mu, grads)
        nu = jax.tree.map(lambda v, g: mean_square(v, g, finite), state.nu, grads)
        # The count is 0 as long as no gradient was finite.
        c1, c2 = (1 - b ** jnp.maximum(count, 1) for b in (b1, b2))
        updates = jax.tree.map(lambda m, v: quotient(m, v, c1, c2), mu, nu)
        return updates, AdamState(count, mu, nu)

    return optax.GradientTransformationExtraArgs(init, update)


# Those whose constants are config keys; any other one goes by its name in optax.
OPTIMIZERS: dict[str, Callable[..., optax.GradientTransformation]] = {"adam": _adam}


def make_optimizer(
    settings: config.Optimizer, d_model: int
) -> optax.GradientTransformationExtraArgs:
    """Make the optimiser of section 5.3 with optax.

    Adam, or what ``settings.name`` says, with ``make_schedule``, after clipping by the
    global norm if ``clip_norm`` is not 0; see ``skip_nonfinite``. The gradient of
    ``l2 * sum of squares of the weights`` is added before that; biases and gains are
    not weights. Frozen parameters are left out of all this, and have no state.

    Args:
      settings: constants.
      d_model: D, which the schedule depends on.

    Returns:
      The transformation, whose update takes ``finite`` as that of ``skip_nonfinite``
      does.

    Raises:
      UserError: if optax has no such optimiser, or it has no such option.
    """
    rule = _named(settings, make_schedule(settings, d_model))
    if settings.clip_norm:
        rule = optax.chain(optax.clip_by_global_norm(settings.clip_norm), rule)
    if settings.l2:
        squares = optax.add_decayed_weights(2 * settings.l2, mask=_weights)
        rule = optax.chain(squares, rule)
    if settings.frozen:
        rule = optax.masked(rule, functools.partial(trainable, settings))
    return skip_nonfinite(rule)


def trainable(settings: config.Optimizer, params: Any) -> Any:
    """Return which parameters are not frozen by ``settings.frozen``, a bool each."""

    def is_trainable(path, _):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        return not patterns.matches(settings.frozen, name)

    return jax.tree_util.tree_map_with_path(is_trainable, params)


def without_gradient(settings: config.Optimizer, params: Any) -> Any:
    """Return the parameters, the frozen ones as constants: their gradient is 0."""
    if not settings.frozen:
        return params
    mask = trainable(settings, params)
    return jax.tree.map(lambda m, x: x if m else lax.stop_gradient(x), mask, params)


def apply(settings: config.Optimizer, params: Any, updates: Any) -> Any:
    """Add the updates to the parameters; frozen ones keep every bit."""
    new = optax.apply_updates(params, updates)
    if not settings.frozen:
        return new
    mask = trainable(settings, params)
    return jax.tree.map(lambda m, x, y: x if m else y, mask, new, params)


def _weights(params: Any) -> Any:
    """Return which parameters are neither biases nor gains, by their names."""

    def is_weight(path, _):
        name = jax.tree_util.keystr(path[-1:], simple=True)
        return not re.search("(^|_)(bias|scale|gain)", name)

    return jax.tree_util.tree_map_with_path(is_weight, params)


def moments(settings: config.Optimizer) -> float:
    """Return how many numbers the optimiser's state has per trained parameter."""
    params = jax.ShapeDtypeStruct((1024, 1024), jnp.float32)
    settings = dataclasses.replace(settings, frozen="")
    state = jax.eval_shape(make_optimizer(settings, d_model=1).init, params)
    return round(sum(x.size for x in jax.tree.leaves(state)) / params.size, 2)


def _named(
    settings: config.Optimizer, schedule: optax.Schedule
) -> optax.GradientTransformation:
    options, constants = _options(settings.options), dict[str, float]()
    make: Any
    arguments: tuple[Any, ...]
    if settings.name in OPTIMIZERS:
        make, arguments = OPTIMIZERS[settings.name], (settings, schedule)
        known = _parameters(optax.adam if make is _adam else make)
    else:
        make, arguments = getattr(optax, settings.name, None), (schedule,)
        functions = (types.FunctionType, functools.partial)  # nadam is one
        known = _parameters(make) if isinstance(make, functions) else []
        if known and _is_like_adam(make):
            constants = {k: x for k, x in _constants(settings).items() if k in known}
        if "learning_rate" not in known or settings.name.startswith(("_", "scale_")):
            config.refuse(
                "optimizer.name",
                f"{', '.join(OPTIMIZERS)} or an optimiser of optax such as adamw",
                settings.name,
            )
    if not options.keys() <= set(known[1:]):
        expected = f"options of {settings.name}, {', '.join(known[1:])}"
        config.refuse("optimizer.options", expected, settings.options)
    made = functools.partial(make, *arguments, **constants | options)
    return made() if made.func is _adam and not options else _tried(settings, made)


def _tried(
    settings: config.Optimizer, make: Callable[[], optax.GradientTransformation]
) -> optax.GradientTransformation:
    """Make an optimiser; refuse one that cannot use the schedule or a plain step.

    Some of optax's take no schedule, or need the loss.
    """
    tree = {"kernel": jnp.ones((2, 3)), "bias": jnp.ones(3)}
    try:
        rule = make()
        jax.eval_shape(lambda x: rule.update(x, rule.init(x), x), tree)
    except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        expected = "an optimiser and options that optax can take a step with"
        got = f"{settings.name}({settings.options})"
        config.refuse("optimizer.name", f"{expected} (it says: {why})", got)
    return rule


def _is_like_adam(function: Callable[..., Any]) -> bool:
    """Return whether an optimiser means by b1 and b2 what Adam does: by its defaults.

    lion, adan and novograd call other constants so.
    """
    given = inspect.signature(function).parameters
    adam = inspect.signature(optax.adam).parameters
    return all(x in given and given[x].default == adam[x].default for x in ("b1", "b2"))


def _parameters(function: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(function).parameters)


def _options(text: str) -> dict[str, Any]:
    """Read ``"weight_decay=0.01, nesterov=True"``.

    >>> _options("weight_decay=0.01, nesterov=True")
    {'weight_decay': 0.01, 'nesterov': True}
    """
    try:
        (call,) = ast.parse(f"options({text})").body
        keywords: Any = call.value.keywords  # type: ignore[attr-defined]
        if call.value.args:  # type: ignore[attr-defined]
            raise ValueError
        values = {x.arg: ast.literal_eval(x.value) for x in keywords}
        if not all(map(_is_finite, values.values())):
            raise ValueError
        return values
    except (SyntaxError, ValueError, AttributeError):
        expected = "NAME=VALUE, NAME=VALUE with plain, finite values"
        config.refuse("optimizer.options", expected, text)


def _is_finite(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def skip_nonfinite(
    rule: optax.GradientTransformation,
) -> optax.GradientTransformationExtraArgs:
    """Leave parameters and state unchanged if the gradient is not finite.

    Like ``optax.apply_if_finite``, but it selects numbers instead of branching, and
    tests the norm instead of every array, so XLA fuses it with the update. The run is
    stopped from outside, by ``nonfinite_limit``.

    Args:
      rule: any transformation of optax; ``finite`` is passed to its update if it takes
        it.

    Returns:
      The transformation, whose state counts skipped updates. Its update takes
      ``finite``, whether the step is, if that is already known.
    """
    start = optax.with_extra_args_support(rule)

    def init(params: Any) -> optax.ApplyIfFiniteState:
        none = jnp.zeros((), jnp.int32)
        return optax.ApplyIfFiniteState(
            none, jnp.ones((), bool), none, start.init(params)
        )

    def update(grads, state, params=None, *, finite=None, **extra):
        if finite is None:
            finite = jnp.isfinite(optax.tree.norm(grads))
        extra["finite"] = finite
        updates, inner = start.update(grads, state.inner_state, params, **extra)

        def choose(new, old):
            return new if _keeps_itself(new) else jnp.where(finite, new, old)

        inner = jax.tree.map(choose, inner, state.inner_state, is_leaf=_keeps_itself)
        updates = jax.tree.map(lambda x: jnp.where(finite, x, 0), updates)
        return updates, optax.ApplyIfFiniteState(
            notfinite_count=jnp.where(finite, 0, state.notfinite_count + 1),
            last_finite=finite,
            total_notfinite=state.total_notfinite + ~finite,
            inner_state=inner,
        )

    return optax.GradientTransformationExtraArgs(init, update)


def _keeps_itself(state: Any) -> bool:
    return isinstance(state, AdamState)
