"""Section 5.3: the learning-rate schedule and Adam."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from transformer import config


def learning_rate(
    step: jax.Array | float, d_model: int, warmup: int, scale: float = 1.0
) -> jax.Array:
    """Return the learning rate of an update (equation 3).

    ``scale * d_model^-0.5 * min(step^-0.5, step * warmup^-1.5)``

    Args:
      step: the number of the update, 1 for the first.
      d_model: D.
      warmup: steps of linear growth; the rate is highest at this step.
      scale: 1.0 is the paper.

    Returns:
      The learning rate.

    >>> round(float(learning_rate(4000, d_model=512, warmup=4000)), 6)
    0.000699
    """
    step = jnp.asarray(step, jnp.float32)
    return scale * d_model**-0.5 * jnp.minimum(step**-0.5, step * warmup**-1.5)


def make_optimizer(
    settings: config.Optimizer, d_model: int
) -> optax.GradientTransformation:
    """Make the optimiser of section 5.3 with optax.

    Adam (or plain gradient descent) under the paper's schedule, after clipping by the
    global norm where ``clip_norm`` is not 0. An update with a number that is not finite
    leaves parameters and moments as they are and is counted.

    Args:
      settings: constants.
      d_model: D, which the schedule depends on.

    Returns:
      The transformation; its state is an ``optax.ApplyIfFiniteState``.
    """

    def schedule(count):  # optax counts finished updates: 0 at the first
        step = count + 1 + settings.step_offset
        return learning_rate(step, d_model, settings.warmup, settings.scale)

    parts = []
    if settings.clip_norm:
        parts.append(optax.clip_by_global_norm(settings.clip_norm))
    if settings.name == "adam":
        parts.append(optax.scale_by_adam(settings.b1, settings.b2, settings.epsilon))
    parts.append(optax.scale_by_learning_rate(schedule))
    # The run is stopped from outside, by nonfinite_limit: optax itself never gives in.
    never = int(jnp.iinfo(jnp.int32).max)
    return optax.apply_if_finite(optax.chain(*parts), max_consecutive_errors=never)
