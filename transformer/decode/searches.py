"""Section 6.1: greedy search, beam search and sampling over a step function.

The searches know no architecture. They call ``step(cache, ids, parents)``, which takes
the last token of J hypotheses for each of B sentences, ids (B, J), and the index of the
hypothesis that each one continues, parents (B, J); it returns the logits of the next
token (B, J, V) and the new cache, whose arrays have the sentences on their first axis
or are scalars. Sentences are searched independently: a result does not depend on the
others in the batch, and a sentence leaves the batch some time after it is finished.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from transformer.decode.beam_search import beam
from transformer.decode.constraints import Constraint, allowed
from transformer.decode.hypotheses import (
    NEVER,
    Hypotheses,
    Penalty,
    largest,
    length_penalty,
    take,
)
from transformer.decode.loop import Step, until_done
from transformer.ids import BOS, EOS
from transformer.search import Search


def search(
    how: Search,
    step: Step,
    cache: Any,
    limits: jax.Array,
    length: int,
    keys: jax.Array,
    constraint: Constraint | None = None,
    counts: jax.Array | None = None,
) -> Hypotheses:
    """Search as configured: by sampling, greedily, or with a beam.

    Args:
      how: the settings; ``n_best`` samples, or a beam.
      step: see the module's text.
      cache: what the step function starts from, J = ``side_by_side(how)``.
      limits: maximum tokens of each sentence's output (B,).
      length: M, at least the largest limit; static.
      keys: a jax.random key for each sentence (B,), used only by sampling.
      constraint: on the outputs, None = any are allowed; ``how`` does not choose it.
      counts: for the constraint (B,).

    Returns:
      The hypotheses of each sentence, best score first.
    """
    penalty = length_penalty(how.length_penalty, how.alpha)
    within: dict[str, Any] = {"constraint": constraint, "counts": counts}
    if how.sample:
        return sample(
            step,
            cache,
            limits,
            length,
            penalty,
            keys,
            count=how.n_best,
            temperature=how.temperature,
            top_k=how.top_k,
            top_p=how.top_p,
            **within,
        )
    if how.beam == 1:
        return greedy(step, cache, limits, length, penalty, **within)
    return beam(
        step, cache, limits, length, penalty, how.beam, n_best=how.n_best, **within
    )


def side_by_side(how: Search) -> int:
    """Return J, how many hypotheses of a sentence a search extends at a time."""
    return how.n_best if how.sample else how.beam


def greedy(
    step: Step,
    cache: Any,
    limits: jax.Array,
    length: int,
    penalty: Penalty,
    *,
    constraint: Constraint | None = None,
    counts: jax.Array | None = None,
    bos: int = BOS,
    eos: int = EOS,
) -> Hypotheses:
    """Take the most likely token each time.

    Args:
      step: see the module's text; J is 1.
      cache: what the step function starts from.
      limits: maximum tokens of each sentence's output (B,).
      length: M, at least the largest limit; static.
      penalty: of a length, see ``length_penalty``.
      constraint: on the outputs, None = any are allowed.
      counts: for the constraint (B,).
      bos: the id of BOS.
      eos: the id of EOS.

    Returns:
      One hypothesis per sentence.
    """

    def choose(logits, position):
        return largest(logits, 1)[1][..., 0]

    return _follow(
        *(step, cache, limits, length, penalty, choose, 1, None),
        *(constraint, counts, bos, eos),
    )


def sample(
    step: Step,
    cache: Any,
    limits: jax.Array,
    length: int,
    penalty: Penalty,
    keys: jax.Array,
    *,
    count: int = 1,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    constraint: Constraint | None = None,
    counts: jax.Array | None = None,
    bos: int = BOS,
    eos: int = EOS,
) -> Hypotheses:
    """Draw each token from the model's distribution.

    Args:
      step: see the module's text.
      cache: what the step function starts from.
      limits: maximum tokens of each sentence's output (B,).
      length: M, at least the largest limit; static.
      penalty: of a length, see ``length_penalty``.
      keys: a jax.random key for each sentence (B,), so that a sample does not depend on
        the batch.
      count: J, samples of each sentence.
      temperature: divides the logits; near 0 this is greedy search.
      top_k: sample from this many most likely tokens, 0 = all.
      top_p: sample from the fewest most likely tokens whose probabilities reach this
        sum (Holtzman et al., arXiv:1904.09751).
      constraint: on the outputs, None = any are allowed; other tokens are excluded
        before ``top_k`` and ``top_p``.
      counts: for the constraint (B,).
      bos: the id of BOS.
      eos: the id of EOS.

    Returns:
      J hypotheses per sentence, best score first; log-probabilities are the model's
      own, before temperature and truncation.
    """

    def choose(logits, keys, position):
        scaled = jax.nn.log_softmax(logits / temperature)
        ranked = jnp.sort(scaled, axis=-1, descending=True)
        if top_k:
            kth = ranked[..., min(top_k, ranked.shape[-1]) - 1]
            scaled = jnp.where(scaled >= kth[..., None], scaled, NEVER)
        if top_p < 1.0:
            before = jnp.cumsum(jnp.exp(ranked), -1) - jnp.exp(ranked)
            last = jnp.maximum((before < top_p).sum(-1), 1) - 1
            least = jnp.take_along_axis(ranked, last[..., None], axis=-1)
            scaled = jnp.where(scaled >= least, scaled, NEVER)
        now = jax.vmap(jax.vmap(lambda key: jax.random.fold_in(key, position)))(keys)
        return jax.vmap(jax.vmap(jax.random.categorical))(now, scaled)

    numbers = jnp.arange(count)
    each = jax.vmap(lambda key: jax.vmap(lambda n: jax.random.fold_in(key, n))(numbers))
    found = _follow(
        *(step, cache, limits, length, penalty, choose, count, each(keys)),
        *(constraint, counts, bos, eos),
    )
    return take(found, jnp.argsort(-found.scores, axis=1))


class _Paths(NamedTuple):
    """Independent hypotheses, J for each of B sentences."""

    position: jax.Array
    ids: jax.Array  # (B, J, M)
    last: jax.Array  # (B, J)
    total: jax.Array  # (B, J)
    lengths: jax.Array  # (B, J)
    finished: jax.Array  # (B, J)
    done: jax.Array  # (B,)
    limits: jax.Array  # (B,)
    keys: jax.Array | None  # (B, J)
    counts: jax.Array | None  # (B,) of the constraint
    cache: Any


def _follow(
    step,
    cache,
    limits,
    length,
    penalty,
    choose,
    count,
    keys,
    constraint,
    counts,
    bos,
    eos,
) -> Hypotheses:
    """Extend each hypothesis by ``choose`` until all are finished."""
    each = limits.shape[0], count

    def extend(paths: _Paths) -> _Paths:
        parents = jnp.broadcast_to(jnp.arange(count), paths.last.shape)
        logits, cache = step(paths.cache, paths.last, parents)
        given = () if paths.keys is None else (paths.keys,)
        mask = allowed(
            *(constraint, paths.ids, paths.position, paths.counts, paths.limits),
            logits.shape[-1],
        )
        offered = logits if mask is None else jnp.where(mask, logits, NEVER)
        chosen = choose(offered, *given, paths.position).astype(jnp.int32)
        gain = jnp.take_along_axis(logits, chosen[..., None], -1)[..., 0]
        gain -= jax.nn.logsumexp(logits, axis=-1)
        chosen = jnp.where(paths.finished, 0, chosen)
        now, at = paths.position + 1, (0, 0, paths.position)
        finished = paths.finished | (chosen == eos) | (now >= paths.limits[:, None])
        return _Paths(
            now,
            lax.dynamic_update_slice(paths.ids, chosen[..., None], at),
            chosen,
            paths.total + jnp.where(paths.finished, 0.0, gain),
            jnp.where(paths.finished, paths.lengths, now),
            finished,
            finished.all(1),
            paths.limits,
            paths.keys,
            paths.counts,
            cache,
        )

    start = _Paths(
        position=jnp.zeros((), jnp.int32),
        ids=jnp.zeros((*each, length), jnp.int32),
        last=jnp.full(each, bos, jnp.int32),
        total=jnp.zeros(each),
        lengths=jnp.zeros(each, jnp.int32),
        finished=jnp.zeros(each, bool),
        done=jnp.zeros(each[:1], bool),
        limits=limits,
        keys=keys,
        counts=counts,
        cache=cache,
    )
    paths = until_done(extend, start)
    scores = paths.total / penalty(paths.lengths)
    return Hypotheses(paths.ids, paths.lengths, paths.total, scores)
