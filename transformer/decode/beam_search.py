"""Beam search, and the record of its candidates."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from transformer.decode.constraints import Constraint, allowed
from transformer.decode.hypotheses import (
    NEVER,
    Hypotheses,
    Penalty,
    best,
    best_continuations,
    join,
    take,
    where,
    with_unfinished,
)
from transformer.decode.loop import Step, until_done
from transformer.ids import BOS, EOS


class Candidates(NamedTuple):
    """The best 2 J continuations of each step of a beam search, best first."""

    log_probabilities: jax.Array  # (B, M, 2 J) nats; at most NEVER / 2 = none
    parents: jax.Array  # (B, M, 2 J) which of the live hypotheses each continues
    tokens: jax.Array  # (B, M, 2 J)
    steps: jax.Array  # (B,) number of steps made for a sentence


class _Beam(NamedTuple):
    position: jax.Array
    live: Hypotheses  # without EOS; scores are log-probabilities
    finished: Hypotheses
    parents: jax.Array  # (B, J) which hypotheses the live ones continue
    done: jax.Array  # (B,)
    limits: jax.Array  # (B,)
    counts: jax.Array | None  # (B,) of the constraint
    record: Candidates | None
    cache: Any


def beam(
    step: Step,
    cache: Any,
    limits: jax.Array,
    length: int,
    penalty: Penalty,
    beams: int,
    *,
    n_best: int = 1,
    constraint: Constraint | None = None,
    counts: jax.Array | None = None,
    bos: int = BOS,
    eos: int = EOS,
) -> Hypotheses:
    """Search with J hypotheses side by side.

    Each step ranks all continuations of a sentence's live hypotheses. Those among the
    best J that end in EOS are finished, with ``score = log P / penalty(length)``; the
    best J without EOS stay live. A sentence is done when J are finished, when its limit
    is reached, or as soon as no live hypothesis can still enter the ``n_best``: its
    log-probability can only fall and its penalty is at most that of the limit.

    Args:
      step: step function, see ``searches.py``.
      cache: what the step function starts from.
      limits: maximum tokens of each sentence's output (B,).
      length: M, at least the largest limit; static.
      penalty: of a length, see ``length_penalty``.
      beams: J; 1 is greedy search.
      n_best: how many of the J results have to be exact.
      constraint: on the outputs, None = any are allowed.
      counts: for the constraint (B,).
      bos: the id of BOS.
      eos: the id of EOS.

    Returns:
      J hypotheses per sentence. If fewer are finished at the limit, live ones follow,
      cut there.
    """
    search = _beam(
        *(step, cache, limits, length, penalty, beams, n_best),
        *(constraint, counts, bos, eos, False),
    )
    return search[0]


def recorded_beam(
    step: Step,
    cache: Any,
    limits: jax.Array,
    length: int,
    penalty: Penalty,
    beams: int,
    *,
    n_best: int = 1,
    constraint: Constraint | None = None,
    counts: jax.Array | None = None,
) -> tuple[Hypotheses, Candidates]:
    """Search as ``beam`` does and return the candidates of each step too."""
    found, record = _beam(
        *(step, cache, limits, length, penalty, beams, n_best),
        *(constraint, counts, BOS, EOS, True),
    )
    assert record is not None
    return found, record


def _beam(
    step,
    cache,
    limits,
    length,
    penalty,
    beams,
    n_best,
    constraint,
    counts,
    bos,
    eos,
    record,
):
    batch = limits.shape[0]

    def extend(state: _Beam) -> _Beam:
        live, now = state.live, state.position + 1
        before = jnp.where(now == 1, bos, _token(live.ids, state.position - 1))
        logits, cache = step(state.cache, before, state.parents)
        mask = allowed(
            *(constraint, live.ids, state.position, state.counts, state.limits),
            logits.shape[-1],
        )
        # Twice J candidates: even if the first J all end, J are left to go on.
        totals, parents, tokens = best_continuations(
            live.scores, logits, 2 * beams, mask
        )
        ids = jnp.take_along_axis(live.ids, parents[..., None], axis=1)
        ids = lax.dynamic_update_slice(ids, tokens[..., None], (0, 0, state.position))
        lengths = jnp.full_like(tokens, now)
        ends = tokens == eos
        counts = ends & (jnp.arange(2 * beams) < beams) & (totals > NEVER / 2)
        counts &= ~state.done[:, None]
        scores = jnp.where(counts, totals / penalty(now), NEVER)
        new = Hypotheses(ids, lengths, totals, scores)
        finished = best(join(state.finished, new), beams)
        going = Hypotheses(ids, lengths, totals, jnp.where(ends, NEVER, totals))
        scores, order = lax.top_k(going.scores, beams)
        going = take(going, order)._replace(scores=scores)
        highest = going.scores[:, 0] / penalty(state.limits)
        settled = highest <= finished.scores[:, n_best - 1]
        if mask is not None:  # where there are fewer outputs than n_best
            settled |= going.scores[:, 0] <= NEVER / 2
        full = (finished.scores > NEVER).all(-1)
        done = state.done | settled | full | (now >= state.limits)
        return _Beam(
            now,
            where(state.done, live, going),
            finished,
            jnp.take_along_axis(parents, order, axis=1),
            done,
            state.limits,
            state.counts,
            _recorded(state, totals, parents, tokens),
            cache,
        )

    empty = Hypotheses(
        ids=jnp.zeros((batch, beams, length), jnp.int32),
        lengths=jnp.zeros((batch, beams), jnp.int32),
        log_probabilities=jnp.zeros((batch, beams)),
        scores=jnp.full((batch, beams), NEVER),
    )
    # At first the J hypotheses are the same empty one: only the first may be continued.
    first = empty._replace(scores=empty.scores.at[:, 0].set(0.0))
    each = batch, length, 2 * beams
    state = _Beam(
        position=jnp.zeros((), jnp.int32),
        live=first,
        finished=empty,
        parents=jnp.zeros((batch, beams), jnp.int32),
        done=jnp.zeros((batch,), bool),
        limits=limits,
        counts=counts,
        record=Candidates(
            jnp.full(each, NEVER),
            jnp.zeros(each, jnp.int32),
            jnp.zeros(each, jnp.int32),
            jnp.zeros(batch, jnp.int32),
        )
        if record
        else None,
        cache=cache,
    )
    state = until_done(extend, state)
    return with_unfinished(state.finished, state.live, penalty), state.record


def _recorded(state: _Beam, *candidates: jax.Array) -> Candidates | None:
    """Record the candidates of a step, if a record is kept."""
    if state.record is None:
        return None
    at = (0, state.position, 0)
    written = (
        lax.dynamic_update_slice(old, new[:, None], at)
        for old, new in zip(state.record, candidates, strict=False)
    )
    totals, parents, tokens = written
    return Candidates(totals, parents, tokens, state.record.steps + ~state.done)


def _token(ids, position):
    return lax.dynamic_index_in_dim(ids, position, axis=2, keepdims=False)
