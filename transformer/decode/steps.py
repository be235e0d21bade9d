"""Steps made from steps: several models as one, and outputs with a given beginning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from transformer.decode.hypotheses import NEVER
from transformer.decode.loop import Step
from transformer.ids import PAD


def ensemble(steps: Sequence[Step]) -> Step:
    """Score with several models, ``log mean_i softmax(z_i)``.

    Args:
      steps: steps of the models, which have one target vocabulary.

    Returns:
      The step, whose cache is the tuple of theirs; its logits are log-probabilities.
    """

    def step(caches: Any, ids: jax.Array, parents: jax.Array) -> tuple[jax.Array, Any]:
        results = [
            each(cache, ids, parents) for each, cache in zip(steps, caches, strict=True)
        ]
        each = jnp.stack([jax.nn.log_softmax(logits) for logits, _ in results])
        mean = jax.nn.logsumexp(each, axis=0) - jnp.log(len(steps))
        return mean, tuple(cache for _, cache in results)

    return step


def prefixed(step: Step, cache: Any, prefix: jax.Array) -> tuple[Step, Any]:
    """Begin each output with given tokens, each of log-probability 0.

    Args:
      step: scores what follows; it reads the given tokens like those it chose.
      cache: what it starts from.
      prefix: ids (B, P), padded after each sentence's tokens.

    Returns:
      The step, and the cache that it starts from.
    """

    def forced(cache: Any, ids: jax.Array, parents: jax.Array) -> tuple[jax.Array, Any]:
        inner, prefix, position = cache
        logits, inner = step(inner, ids, parents)
        length = prefix.shape[1]
        token = jnp.take(prefix, jnp.minimum(position, length - 1), axis=1)
        given = (token != PAD) & (position < length)  # (B,)
        alone = jnp.where(jnp.arange(logits.shape[-1]) == token[:, None], 0.0, NEVER)
        logits = jnp.where(given[:, None, None], alone[:, None], logits)
        return logits, (inner, prefix, position + 1)

    return forced, (cache, prefix, jnp.zeros((), jnp.int32))
