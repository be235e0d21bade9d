"""What a search finds: hypotheses, their scores, and how they are ranked."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

Penalty = Callable[[jax.Array | int], jax.Array | float]

NEVER = -1e9  # score of a hypothesis that does not exist; finite, so sums stay finite


class Hypotheses(NamedTuple):
    """What a search found for each sentence, the best first."""

    ids: jax.Array  # (B, J, M) tokens, EOS included, then padding
    lengths: jax.Array  # (B, J) tokens, EOS included; 0 = no such hypothesis
    log_probabilities: jax.Array  # (B, J) of the whole hypothesis, nats
    scores: jax.Array  # (B, J) log-probability divided by the length penalty


def length_penalty(kind: str, alpha: float) -> Penalty:
    """Return the divisor of a hypothesis' log-probability as a function of its length.

    ``((5 + length) / 6)^alpha`` for "gnmt" (Wu et al., arXiv:1609.08144, equation 14;
    the paper's, with alpha 0.6), ``length^alpha`` for "power".

    Args:
      kind: "gnmt" or "power".
      alpha: 0 for none.

    Returns:
      A function of the length in tokens, EOS included.

    >>> round(float(length_penalty("gnmt", 0.6)(7)), 4)
    1.5157
    """
    if kind == "gnmt":
        return lambda length: ((5.0 + length) / 6.0) ** alpha
    return lambda length: jnp.asarray(length, jnp.float32) ** alpha


def join(a: Hypotheses, b: Hypotheses) -> Hypotheses:
    """Put the hypotheses of two sets side by side, (B, I) and (B, J) to (B, I + J)."""
    return jax.tree.map(lambda x, y: jnp.concatenate([x, y], axis=1), a, b)


def take(hypotheses: Hypotheses, order: jax.Array) -> Hypotheses:
    """Return the hypotheses of each sentence in another order, (B, n) of indices."""

    def reorder(x):
        return jnp.take_along_axis(
            x, order if x.ndim == 2 else order[..., None], axis=1
        )

    return jax.tree.map(reorder, hypotheses)


def best(hypotheses: Hypotheses, count: int) -> Hypotheses:
    """Return the hypotheses with the highest scores, (B, J) to (B, count)."""
    return take(hypotheses, lax.top_k(hypotheses.scores, count)[1])


def where(rows: jax.Array, a: Hypotheses, b: Hypotheses) -> Hypotheses:
    """Choose all hypotheses of each sentence from one of two sets by ``rows`` (B,)."""

    def choose(x, y):
        return jnp.where(rows.reshape(rows.shape + (1,) * (x.ndim - 1)), x, y)

    return jax.tree.map(choose, a, b)


def with_unfinished(
    finished: Hypotheses, live: Hypotheses, penalty: Penalty
) -> Hypotheses:
    """Put the hypotheses without EOS after those with it, J of each to J in all."""
    both = join(finished, live)
    exists = both.scores > NEVER / 2
    # Each half is already in order; a stable sort only closes the gaps.
    order = jnp.argsort(~exists, axis=1, stable=True)[:, : finished.scores.shape[1]]
    chosen, exists = take(both, order), jnp.take_along_axis(exists, order, axis=1)
    scores = chosen.log_probabilities / penalty(jnp.maximum(chosen.lengths, 1))
    return chosen._replace(
        scores=jnp.where(exists, scores, NEVER),
        lengths=jnp.where(exists, chosen.lengths, 0),
    )


def largest(x: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """Return the largest numbers of the last axis and their indices, as ``lax.top_k``.

    There are two stages, because few numbers can be among the largest: first the blocks
    with the largest maxima, then the numbers in these blocks.

    Args:
      x: (..., V).
      count: how many, at most V.

    Returns:
      Numbers and indices (..., count), the largest first, equal ones by index.

    >>> [y.tolist() for y in largest(jnp.array([3.0, 9.0, 4.0, 9.0]), 3)]
    [[9.0, 9.0, 4.0], [1, 3, 2]]
    """
    size, shape = x.shape[-1], (*x.shape[:-1], count)
    # This gives as many maxima as numbers in the chosen blocks.
    block = 1 << round(math.log2(size / count) / 2)
    blocks, rest = divmod(size, block)
    rows = x.reshape(-1, size)  # with three axes the CPU would do a full sort
    if blocks <= count:
        found, ids = lax.top_k(rows, count)
    else:
        maxima = rows[:, : blocks * block].reshape(len(rows), blocks, block).max(-1)
        if rest:
            last = rows[:, blocks * block :].max(-1, keepdims=True)
            maxima = jnp.concatenate([maxima, last], axis=1)
        best = jnp.sort(lax.top_k(maxima, count)[1])  # sorted: equal ones by index
        begin = best[..., None] * block
        ids = jnp.minimum(begin, size - block) + jnp.arange(block)
        # A short last block begins with numbers of the one before it.
        own = (ids >= begin).reshape(len(rows), -1)
        ids = ids.reshape(len(rows), -1)
        inside = jnp.take_along_axis(rows, ids, axis=1)
        found, order = lax.top_k(jnp.where(own, inside, -jnp.inf), count)
        ids = jnp.take_along_axis(ids, order, axis=1)
    return found.reshape(shape), ids.reshape(shape)


def best_continuations(
    totals: jax.Array, logits: jax.Array, count: int, allowed: jax.Array | None = None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the best ``totals[j] + log softmax(logits[j])[v]`` of each sentence.

    Continuations are ranked within each hypothesis, then among the survivors: a single
    top-k over J * V numbers has compiled to a full sort.

    Args:
      totals: (B, J).
      logits: (B, J, V).
      count: how many to return.
      allowed: which may be returned (B, J, V), None = all; the logits of others count
        as ``NEVER``, except in the sum of the softmax.

    Returns:
      Totals, hypotheses j and tokens v, each (B, count), the best first.
    """
    within = min(count, logits.shape[-1])
    if allowed is None:
        gains, tokens = largest(logits, within)
        highest = gains[..., :1]
    else:
        gains, tokens = largest(jnp.where(allowed, logits, NEVER), within)
        highest = logits.max(-1, keepdims=True)
    normaliser = jnp.log(jnp.exp(logits - highest).sum(-1, keepdims=True))
    longer = gains - highest - normaliser + totals[..., None]
    batch, beams = totals.shape
    longer, tokens = longer.reshape(batch, -1), tokens.reshape(batch, -1)
    short = count - longer.shape[1]  # tiny vocabularies have fewer continuations
    if short > 0:
        longer = jnp.pad(longer, ((0, 0), (0, short)), constant_values=2 * NEVER)
        tokens = jnp.pad(tokens, ((0, 0), (0, short)))
    longer, order = lax.top_k(longer, count)
    parents = jnp.minimum(order // within, beams - 1)
    return longer, parents, jnp.take_along_axis(tokens, order, axis=1)
