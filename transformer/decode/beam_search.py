"""Beam search, and the record of its candidates."""

from __future__ import annotations

import dataclasses
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
    search = _Search(step, penalty, beams, n_best, constraint, bos, eos)
    return search.run(search.start(cache, limits, length, counts))[0]


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
    search = _Search(step, penalty, beams, n_best, constraint, BOS, EOS)
    start = search.start(cache, limits, length, counts)
    each = len(limits), length, 2 * beams
    nothing = Candidates(
        jnp.full(each, NEVER),
        jnp.zeros(each, jnp.int32),
        jnp.zeros(each, jnp.int32),
        jnp.zeros(len(limits), jnp.int32),
    )
    found, record = search.run(start._replace(record=nothing))
    assert record is not None
    return found, record


@dataclasses.dataclass(frozen=True)
class _Search:
    """What is the same at each step of a search; see ``beam``."""

    step: Step
    penalty: Penalty
    beams: int
    n_best: int
    constraint: Constraint | None
    bos: int
    eos: int

    def start(
        self, cache: Any, limits: jax.Array, length: int, counts: jax.Array | None
    ) -> _Beam:
        """Return the state before the first step, without a record."""
        batch = len(limits)
        empty = Hypotheses(
            ids=jnp.zeros((batch, self.beams, length), jnp.int32),
            lengths=jnp.zeros((batch, self.beams), jnp.int32),
            log_probabilities=jnp.zeros((batch, self.beams)),
            scores=jnp.full((batch, self.beams), NEVER),
        )
        return _Beam(
            position=jnp.zeros((), jnp.int32),
            # The J hypotheses are the same empty one: only the first may be continued.
            live=empty._replace(scores=empty.scores.at[:, 0].set(0.0)),
            finished=empty,
            parents=jnp.zeros((batch, self.beams), jnp.int32),
            done=jnp.zeros((batch,), bool),
            limits=limits,
            counts=counts,
            record=None,
            cache=cache,
        )

    def run(self, state: _Beam) -> tuple[Hypotheses, Candidates | None]:
        """Search from a state to the end."""
        state = until_done(self._extend, state)
        found = with_unfinished(state.finished, state.live, self.penalty)
        return found, state.record

    def _extend(self, state: _Beam) -> _Beam:
        live, at, now = state.live, state.position, state.position + 1
        before = jnp.where(now == 1, self.bos, _token(live.ids, at - 1))
        logits, cache = self.step(state.cache, before, state.parents)
        mask = allowed(
            *(self.constraint, live.ids, at, state.counts, state.limits),
            logits.shape[-1],
        )
        # Twice J candidates: even if the first J all end, J are left to go on.
        totals, parents, tokens = best_continuations(
            live.scores, logits, 2 * self.beams, mask
        )
        ids = jnp.take_along_axis(live.ids, parents[..., None], axis=1)
        ids = lax.dynamic_update_slice(ids, tokens[..., None], (0, 0, at))
        new = Hypotheses(ids, jnp.full_like(tokens, now), totals, totals)
        ends = tokens == self.eos
        finished = self._with_ended(state, new, ends)
        going, order = _going(new, ends, self.beams)
        return _Beam(
            now,
            where(state.done, live, going),
            finished,
            jnp.take_along_axis(parents, order, axis=1),
            self._done(state, going, finished),
            state.limits,
            state.counts,
            _recorded(state, totals, parents, tokens),
            cache,
        )

    def _with_ended(self, state: _Beam, new: Hypotheses, ends: jax.Array) -> Hypotheses:
        """Return the best finished hypotheses, with those that end at this step."""
        end = ends & (jnp.arange(2 * self.beams) < self.beams)
        end &= (new.scores > NEVER / 2) & ~state.done[:, None]
        scores = new.log_probabilities / self.penalty(state.position + 1)
        new = new._replace(scores=jnp.where(end, scores, NEVER))
        return best(join(state.finished, new), self.beams)

    def _done(self, state: _Beam, live: Hypotheses, finished: Hypotheses) -> jax.Array:
        """Return which sentences need no further step (B,)."""
        highest = live.scores[:, 0] / self.penalty(state.limits)
        settled = highest <= finished.scores[:, self.n_best - 1]
        if self.constraint is not None:  # where there are fewer outputs than n_best
            settled |= live.scores[:, 0] <= NEVER / 2
        full = (finished.scores > NEVER).all(-1)
        return state.done | settled | full | (state.position + 1 >= state.limits)


def _going(
    new: Hypotheses, ends: jax.Array, count: int
) -> tuple[Hypotheses, jax.Array]:
    """Return the best hypotheses that do not end, and their indices (B, count)."""
    scores, order = lax.top_k(jnp.where(ends, NEVER, new.scores), count)
    return take(new, order)._replace(scores=scores), order


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
