"""The searches, over tables of logits that stand in for a model, and over a model."""

import functools
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.models import make
from support.reference import assert_close

from transformer import decode, models
from transformer.decode import Hypotheses, hypotheses
from transformer.models.transformer import Transformer

EOS, BOS = 1, 2
MARKS: dict[str, Any] = {"bos": BOS, "eos": EOS}
STATES = 97
PENALTY = decode.length_penalty("gnmt", 0.6)


# ---- language models without a model -------------------------------------------------


def follow(state, token):
    """Return the state after a token: a hash of the whole history."""
    return (7 * state + token + 1) % STATES


def table_step(table):
    """Return a step function over ``table`` (B, STATES, V)."""

    def step(cache, ids, parents):
        row, state = cache
        state = follow(jnp.take_along_axis(state, parents, axis=1), ids)
        return table[row[:, None], state], (row, state)

    return step


def table_cache(table, beams):
    """Return which table a sentence has (B,), and the states of its beams (B, J)."""
    return jnp.arange(len(table)), jnp.zeros((len(table), beams), jnp.int32)


def counter_step(rows):
    """Return a step function whose logits are ``rows[n]`` (V,) at the n-th step."""

    def step(count, ids, parents):
        return jnp.broadcast_to(rows[count], (*ids.shape, rows.shape[-1])), count + 1

    return step


def log_softmax(row: np.ndarray) -> np.ndarray:
    row = row.astype(np.float64)
    return row - row.max() - np.log(np.exp(row - row.max()).sum())


def divisor(kind: str, alpha: float, length: int) -> float:
    return ((5 + length) / 6) ** alpha if kind == "gnmt" else length**alpha


def log_probability(table: np.ndarray, ids: list[int]) -> float:
    state, total = follow(0, BOS), 0.0
    for token in ids:
        total += log_softmax(table[state])[token]
        state = follow(state, token)
    return total


def make_table(seed: int, batch: int, size: int, scale: float = 2.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (scale * rng.normal(size=(batch, STATES, size))).astype(np.float32)


def found_ids(found: Hypotheses, row: int) -> list[list[int]]:
    """Return the hypotheses of a sentence as lists, without the padding."""
    lengths = np.asarray(found.lengths[row])
    return [np.asarray(found.ids[row, j, :n]).tolist() for j, n in enumerate(lengths)]


@functools.partial(jax.jit, static_argnames=("length", "beams", "kind", "n_best"))
def beam(table, limits, alpha, *, length, beams, kind="gnmt", n_best=1):
    cache = table_cache(table, beams)
    penalty = decode.length_penalty(kind, alpha)
    step = table_step(table)
    return decode.beam(
        step, cache, limits, length, penalty, beams, n_best=n_best, **MARKS
    )


@functools.partial(jax.jit, static_argnames="length")
def greedy(table, limits, *, length):
    cache = table_cache(table, 1)
    return decode.greedy(table_step(table), cache, limits, length, PENALTY, **MARKS)


@functools.partial(jax.jit, static_argnames=("length", "top_k", "top_p"))
def sample(table, limits, keys, temperature, *, length, top_k=0, top_p=1.0):
    cache, step = table_cache(table, 1), table_step(table)
    how = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    return decode.sample(step, cache, limits, length, PENALTY, keys, **how, **MARKS)


def row_keys(count: int, seed: int = 0) -> jax.Array:
    return jax.vmap(lambda i: jax.random.fold_in(jax.random.key(seed), i))(
        jnp.arange(count)
    )


# ---- the length penalty --------------------------------------------------------------


@pytest.mark.parametrize(
    "kind, alpha, length, expected",
    [
        ("gnmt", 0.6, 1, 1.0),
        ("gnmt", 0.6, 7, 1.5157166),  # 2^0.6
        ("gnmt", 1.0, 13, 3.0),
        ("gnmt", 0.0, 40, 1.0),
        ("power", 0.6, 1, 1.0),
        ("power", 0.6, 32, 8.0),  # (2^5)^0.6 = 2^3
        ("power", 1.0, 13, 13.0),
        ("power", 0.0, 40, 1.0),
    ],
)
def test_length_penalty(kind, alpha, length, expected):
    penalty = decode.length_penalty(kind, alpha)
    for given_length in (length, jnp.array([length], jnp.int32)):
        assert_close(np.ravel(penalty(given_length)), [expected], 8)


# ---- beam search ---------------------------------------------------------------------


def exhaustive(table, limit, kind, alpha) -> list[tuple[float, list[int], float]]:
    """Return (score, ids, log-probability) of every hypothesis, the ended first."""
    ended, cut = [], []

    def grow(ids, state, total):
        for token, gain in enumerate(log_softmax(table[state])):
            longer, now = [*ids, token], total + gain
            one = (now / divisor(kind, alpha, len(longer)), longer, now)
            if token == EOS:
                ended.append(one)
            elif len(longer) == limit:
                cut.append(one)
            else:
                grow(longer, follow(state, token), now)

    grow([], follow(0, BOS), 0.0)
    return sorted(ended, reverse=True) + sorted(cut, reverse=True)


V, M = 3, 4
# All hypotheses of M tokens fit side by side: 2^3 that go on, times 3 tokens.
WIDE = 24


@pytest.mark.parametrize("kind, n_best", [("gnmt", 1), ("power", 3), ("power", WIDE)])
@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32 - 1),
    scale=st.sampled_from([0.0, 0.3, 2.0, 8.0]),
    alpha=st.floats(0, 1.5, width=32),
    limits=st.lists(st.integers(1, M), min_size=3, max_size=3),
)
def test_a_wide_beam_is_an_exhaustive_search(kind, n_best, seed, scale, alpha, limits):
    table = make_table(seed, 3, V, scale)
    found = beam(
        table,
        jnp.array(limits),
        alpha,
        length=M,
        beams=WIDE,
        kind=kind,
        n_best=n_best,
    )
    # M steps of a softmax over V, sums of M, a power and a division.
    rounding = {"roundings": M * (V + 5) + 8, "magnitude": M * 2 * abs(table).max() + 1}
    for row, limit in enumerate(limits):
        every = exhaustive(table[row], limit, kind, alpha)
        count = min(n_best, len(every))
        # By score, and each hypothesis by its own: equal ones may change places.
        scores = np.asarray(found.scores[row, :count])
        assert_close(scores, [score for score, _, _ in every[:count]], **rounding)
        by_ids = {tuple(ids): (score, total) for score, ids, total in every}
        ids = [tuple(x) for x in found_ids(found, row)[:count]]
        assert len(set(ids)) == count
        assert_close(scores, [by_ids[x][0] for x in ids], **rounding)
        totals = np.asarray(found.log_probabilities[row, :count])
        assert_close(totals, [by_ids[x][1] for x in ids], **rounding)
        # Padded with 0 behind its length; what does not exist has length 0.
        behind = np.arange(M) >= np.asarray(found.lengths[row])[:, None]
        assert not np.asarray(found.ids[row])[behind].any()
        if n_best == WIDE:
            exists = np.asarray(found.lengths[row]) > 0
            assert exists.sum() == min(len(every), WIDE)
            assert (np.asarray(found.scores[row])[~exists] == decode.NEVER).all()


def plain_beam(table, limit, beams, kind, alpha):
    """Beam search with lists: no early stop but the one at J ended hypotheses."""
    alive: list[tuple[float, list[int], int]] = [(0.0, [], follow(0, BOS))]
    ended: list[tuple[float, list[int]]] = []
    for length in range(1, limit + 1):
        candidates = sorted(
            (
                (total + gain, [*ids, token], follow(state, token))
                for total, ids, state in alive
                for token, gain in enumerate(log_softmax(table[state]))
            ),
            reverse=True,
        )
        for total, ids, _ in candidates[:beams]:
            if ids[-1] == EOS:
                ended.append((total / divisor(kind, alpha, length), ids))
        alive = [one for one in candidates if one[1][-1] != EOS][:beams]
        if len(ended) >= beams:
            break
    return [ids for _, ids in sorted(ended, reverse=True)] + [x for _, x, _ in alive]


@pytest.mark.parametrize("kind, alpha, n_best", [("gnmt", 0.6, 1), ("power", 1.0, 2)])
def test_a_narrow_beam_keeps_the_best_of_each_step(kind, alpha, n_best):
    batch, size, length, beams = 40, 7, 9, 3
    table = make_table(5, batch, size)
    limits = np.arange(batch) % length + 1
    found = beam(
        table, limits, alpha, length=length, beams=beams, kind=kind, n_best=n_best
    )
    for row in range(batch):
        expected = plain_beam(table[row], limits[row], beams, kind, alpha)
        assert found_ids(found, row)[:n_best] == expected[:n_best]


def test_a_beam_escapes_the_garden_path():
    #        pad  end  begin A    B
    first = [0.0, 0.0, 0.0, 0.6, 0.4]
    after_a = [0.0, 0.4, 0.0, 0.3, 0.3]
    after_b = [0.0, 0.9, 0.0, 0.05, 0.05]
    logits = jnp.log(jnp.array([first, after_a, after_b]) + 1e-30)

    def step(cache, ids, parents):
        return logits[jnp.maximum(ids - BOS, 0)], cache

    limits, alpha = jnp.array([5]), 0.6
    penalty = decode.length_penalty("gnmt", alpha)
    two = decode.beam(step, (), limits, 5, penalty, 2, n_best=2, **MARKS)
    assert found_ids(two, 0) == [[4, EOS], [3, EOS]]
    expected = np.log([0.4 * 0.9, 0.6 * 0.4])
    assert_close(two.log_probabilities[0], expected, 16)
    assert_close(two.scores[0], expected / (7 / 6) ** alpha, 24)
    # An A after an A is less likely than the end.
    assert found_ids(decode.greedy(step, (), limits, 5, penalty, **MARKS), 0) == [
        [3, EOS]
    ]


def test_an_early_stop_waits_for_what_long_hypotheses_may_gain():
    # Ends at once with 0.5, or after 7 tokens with 0.5 in all: equal but for the
    # penalty. The search may not stop at the first while the other can still win.
    rows = np.full((7, 4), -40.0, np.float32)
    rows[0, [EOS, 3]] = math.log(0.5)
    rows[1:6, 3] = rows[6, EOS] = 0.0
    step, limits, start = counter_step(jnp.array(rows)), jnp.array([7]), jnp.int32(0)
    best = {}
    for alpha in (0.0, 0.6):
        penalty = decode.length_penalty("gnmt", alpha)
        found = decode.beam(step, start, limits, 7, penalty, 2, **MARKS)
        best[alpha] = found_ids(found, 0)[0]
    assert best[0.6] == [3] * 6 + [EOS]
    assert best[0.0] == [EOS]


def test_beam_of_one_is_greedy():
    table = make_table(1, 32, 6, scale=1.0)
    limits = np.arange(32) % 12 + 1
    one = beam(table, limits, 0.6, length=12, beams=1)
    expected = greedy(table, limits, length=12)
    for name in ("ids", "lengths"):
        assert (getattr(one, name) == getattr(expected, name)).all()
    roundings = {"roundings": 12 * 10, "magnitude": 12 * abs(table).max()}
    assert_close(one.log_probabilities, expected.log_probabilities, **roundings)
    assert_close(one.scores, expected.scores, **roundings)
    penalty = ((5 + np.asarray(expected.lengths)) / 6) ** 0.6
    assert_close(one.scores * penalty, expected.log_probabilities, **roundings)


def test_greedy_takes_the_most_likely_token_up_to_the_limit():
    table, limits = make_table(2, 16, 6), np.arange(16) % 8 + 1
    found = greedy(table, limits, length=8)
    for row in range(16):
        ids: list[int] = []
        state = follow(0, BOS)
        while len(ids) < limits[row] and EOS not in ids:
            ids.append(int(table[row, state].argmax()))
            state = follow(state, ids[-1])
        assert found_ids(found, row) == [ids]
        assert not np.asarray(found.ids[row, 0, len(ids) :]).any()
    ends = [EOS in found_ids(found, row)[0] for row in range(16)]
    assert 0 < sum(ends) < 16  # some ended, some were cut


@pytest.mark.parametrize("how", ["beam", "greedy", "sample"])
def test_a_result_does_not_depend_on_the_batch(how):
    batch = 8
    table = make_table(3, batch, 6, scale=1.0)
    limits, keys = np.arange(batch) + 1, row_keys(batch)
    order = np.random.default_rng(0).permutation(batch)

    def search(rows):
        where = np.asarray(rows)
        if how == "beam":
            return beam(table[where], limits[where], 0.6, length=9, beams=3)
        if how == "greedy":
            return greedy(table[where], limits[where], length=9)
        return sample(table[where], limits[where], keys[where], 1.0, length=9)

    together, permuted = search(range(batch)), search(order)
    alone = [search([row]) for row in range(batch)]
    lengths = np.asarray(together.lengths[:, 0])
    assert len(set(lengths.tolist())) > 3, "rows should end at different steps"
    for name in Hypotheses._fields:
        whole = np.asarray(getattr(together, name))
        each = np.concatenate([getattr(x, name) for x in alone])
        assert (whole[order] == np.asarray(getattr(permuted, name))).all()
        assert (whole == each).all()


@pytest.mark.parametrize("beams", [1, 2])
def test_sentences_leave_the_batch_when_half_are_done(beams):
    """Count the rows of all steps: 64 sentences of which n end at step n."""
    batch, length = 64, 11
    lengths = np.random.default_rng(0).permutation(
        np.repeat(np.arange(1, length), [1, 40, 1, 1, 1, 1, 1, 1, 1, 16])
    )
    taken: list[int] = []

    def step(cache, ids, parents):
        now, ends = cache
        jax.debug.callback(functools.partial(taken.append, len(ids)))
        likely = jnp.where(now + 1 >= ends, EOS, 3)[:, None, None]
        # The second beam never ends, and is too unlikely ever to come first.
        logits = jnp.where(jnp.arange(5) == likely, 0.0, -50.0)
        return jnp.broadcast_to(logits, (*ids.shape, 5)), (now + 1, ends)

    @jax.jit
    def search(lengths):
        cache, limits = (jnp.int32(0), lengths), jnp.full(batch, length)
        if beams == 1:
            return decode.greedy(step, cache, limits, length, PENALTY, **MARKS)
        return decode.beam(step, cache, limits, length, PENALTY, beams, **MARKS)

    found = search(lengths)
    jax.effects_barrier()
    np.testing.assert_array_equal(found.lengths[:, 0], lengths)
    for row, end in enumerate(lengths):
        assert found_ids(found, row)[0] == [3] * (end - 1) + [EOS]
    # 41 are done after step 2, 48 after step 9; then 16 are left, and not halved again.
    assert taken == [64] * 2 + [32] * 7 + [16] * 1


def test_searches_need_no_more_of_a_model_than_a_counter():
    best = [4, 5, 3, EOS, 4]
    rows = jnp.asarray(3.0 * np.eye(6, dtype=np.float32)[best])
    limits, count = jnp.array([5, 2]), jnp.int32(0)
    penalty, keys = PENALTY, row_keys(2)
    step = counter_step(rows)
    results = [
        decode.greedy(step, count, limits, 5, penalty, **MARKS),
        decode.beam(step, count, limits, 5, penalty, 2, **MARKS),
        decode.sample(step, count, limits, 5, penalty, keys, temperature=1e-3, **MARKS),
    ]
    # Of 6 equally scaled logits, one is 3 and the others 0.
    each = 3 - math.log(math.exp(3) + 5)
    for found in results:
        assert found_ids(found, 0)[0] == [4, 5, 3, EOS]
        assert found_ids(found, 1)[0] == [4, 5]  # cut at its limit
        assert_close(found.log_probabilities[:, 0], [4 * each, 2 * each], 40)


# ---- sampling ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "how", [{"temperature": 1e-6}, {"top_k": 1}, {"top_p": 1e-6}], ids=str
)
def test_sampling_without_choice_is_greedy(how):
    table, limits = make_table(4, 16, 6), np.full(16, 8)
    arguments: dict[str, Any] = {"temperature": 1.0} | how
    found = sample(table, limits, row_keys(16), length=8, **arguments)
    expected = greedy(table, limits, length=8)
    for name in Hypotheses._fields:
        assert (getattr(found, name) == getattr(expected, name)).all()


LOGITS = np.log([0.02, 0.08, 0.15, 0.30, 0.45])
DRAWS = 4000
# 99.9 % quantiles of chi-square by degrees of freedom.
QUANTILES = {1: 10.83, 2: 13.82, 4: 18.47, 24: 51.18}


@pytest.mark.parametrize(
    "how, weights",
    [
        ({}, [0.02, 0.08, 0.15, 0.30, 0.45]),
        ({"temperature": 2.0}, np.sqrt([0.02, 0.08, 0.15, 0.30, 0.45])),
        ({"top_k": 2}, [0, 0, 0, 0.30, 0.45]),
        ({"top_k": 9}, [0.02, 0.08, 0.15, 0.30, 0.45]),  # more than there are
        ({"top_p": 0.74}, [0, 0, 0, 0.30, 0.45]),  # 0.45 + 0.30 reach it
        ({"top_p": 0.76}, [0, 0, 0.15, 0.30, 0.45]),  # they do not
        # Of the shares 0.07, 0.14, 0.19, 0.27, 0.33 after division two are not enough.
        ({"temperature": 2.0, "top_p": 0.65}, np.sqrt([0, 0, 0.15, 0.30, 0.45])),
    ],
    ids=str,
)
def test_draws_have_the_model_s_distribution(how, weights):
    table = np.tile(LOGITS.astype(np.float32), (DRAWS, STATES, 1))
    arguments: dict[str, Any] = {"temperature": 1.0} | how
    limits = np.ones(DRAWS, np.int32)
    found = sample(table, limits, row_keys(DRAWS), length=1, **arguments)
    drawn = np.asarray(found.ids).ravel()
    expected = DRAWS * np.asarray(weights) / np.sum(weights)
    counts = np.bincount(drawn, minlength=5)
    possible = expected > 0
    assert not counts[~possible].any()
    distance = ((counts - expected)[possible] ** 2 / expected[possible]).sum()
    assert distance < QUANTILES[possible.sum() - 1]
    # What is reported is the model's own, whatever was drawn from.
    assert_close(found.log_probabilities.ravel(), LOGITS[drawn], 16)


def test_the_draws_of_two_steps_are_independent():
    row = np.array([0.3, 0.1, 0.2, 0.15, 0.25])
    logits = np.append(np.log(row), -30.0)[[0, 5, 1, 2, 3, 4]].astype(np.float32)
    table = np.tile(logits, (DRAWS, STATES, 1))
    found = sample(table, np.full(DRAWS, 2), row_keys(DRAWS), 1.0, length=2)
    pairs = np.asarray(found.ids)[:, 0]
    row = np.insert(row, EOS, 0)
    expected = DRAWS * np.outer(row, row)
    counts = np.zeros((6, 6))
    np.add.at(counts, tuple(pairs.T), 1)
    possible = expected > 0
    distance = ((counts - expected)[possible] ** 2 / expected[possible]).sum()
    assert distance < QUANTILES[24]


def test_sampled_log_probabilities_are_the_model_s_own():
    table = make_table(6, 16, 6, scale=1.0)
    found = sample(table, np.full(16, 8), row_keys(16), 3.0, length=8, top_k=4)
    ids = [found_ids(found, row)[0] for row in range(16)]
    expected = [log_probability(table[row], ids[row]) for row in range(16)]
    assert_close(found.log_probabilities.ravel(), expected, 80, magnitude=40)
    assert len({tuple(x) for x in ids}) > 8
    again = sample(table, np.full(16, 8), row_keys(16), 3.0, length=8, top_k=4)
    other = sample(table, np.full(16, 8), row_keys(16, seed=1), 3.0, length=8, top_k=4)
    assert (again.ids == found.ids).all() and (other.ids != found.ids).any()


def test_samples_of_a_sentence_are_those_of_its_keys_alone():
    # Three at a time: the same as one at a time, each with its part of the key.
    table = jnp.array(make_table(8, 4, 6, scale=1.0))
    limits, keys = jnp.arange(4) + 3, row_keys(4)
    together = decode.sample(
        table_step(table),
        table_cache(table, 3),
        limits,
        8,
        PENALTY,
        keys,
        count=3,
        **MARKS,
    )
    each = decode.sample(
        table_step(table), table_cache(table, 1), limits, 8, PENALTY, keys, **MARKS
    )
    assert (np.diff(together.scores, axis=1) <= 0).all()
    for row in range(4):
        samples = found_ids(together, row)
        assert found_ids(each, row)[0] in samples
        totals = [log_probability(np.asarray(table[row]), ids) for ids in samples]
        assert_close(together.log_probabilities[row], totals, 80, magnitude=40)
    assert len({tuple(x) for row in range(4) for x in found_ids(together, row)}) > 6


def test_samples_are_ranked_by_score_and_not_by_log_probability():
    # A penalty that grows with the square of the length lifts long ones.
    table, limits = jnp.array(make_table(8, 4, 6, scale=1.0)), jnp.full(4, 8)
    found = decode.sample(
        *(table_step(table), table_cache(table, 6), limits, 8),
        *(decode.length_penalty("power", 2.0), row_keys(4)),
        count=6,
        **MARKS,
    )
    assert (np.diff(found.scores, axis=1) <= 0).all()
    assert (np.diff(found.log_probabilities, axis=1) > 0).any()


# ---- steps made of steps -------------------------------------------------------------


def test_an_ensemble_is_a_search_of_the_mean_probabilities():
    tables = [jnp.array(make_table(seed, 6, 7)) for seed in (11, 12, 13)]
    mean = np.log(np.mean([np.exp(jax.nn.log_softmax(x)) for x in tables], axis=0))
    limits = jnp.arange(6) + 4
    step = decode.ensemble([table_step(table) for table in tables])
    caches = tuple(table_cache(table, 3) for table in tables)
    found = decode.beam(step, caches, limits, 9, PENALTY, 3, n_best=3, **MARKS)
    expected = beam(mean, limits, 0.6, length=9, beams=3, n_best=3)
    alone = beam(tables[0], limits, 0.6, length=9, beams=3, n_best=3)
    assert (found.ids == expected.ids).all() and (found.ids != alone.ids).any()
    assert_close(found.scores, expected.scores, 9 * 30, magnitude=9 * 10)


def exhaustive_after(table, prefix, limit) -> list[tuple[float, list[int]]]:
    """Return every hypothesis that begins so, scored without its beginning."""
    state, every = follow(0, BOS), []
    for token in prefix:
        state = follow(state, token)

    def grow(ids, state, total):
        for token, gain in enumerate(log_softmax(table[state])):
            longer, now = [*ids, token], total + gain
            if token == EOS or len(longer) == limit:
                every.append(
                    (token == EOS, now / divisor("gnmt", 0.6, len(longer)), longer)
                )
            else:
                grow(longer, follow(state, token), now)

    grow(list(prefix), state, 0.0)
    return [(score, ids) for _, score, ids in sorted(every, reverse=True)]


@pytest.mark.parametrize("beams", [1, WIDE])
def test_an_output_begins_with_its_prefix_and_goes_on_as_well_as_it_can(beams):
    table, limits = make_table(14, 20, V), jnp.full(20, 5)
    prefixes = [[], [2], [2, 2], [2, 2, 2]] * 5
    padded = np.array([[*x, 0, 0, 0][:3] for x in prefixes])
    step, cache = decode.prefixed(
        table_step(jnp.array(table)), table_cache(table, beams), jnp.array(padded)
    )
    if beams == 1:
        found = decode.greedy(step, cache, limits, 5, PENALTY, **MARKS)
    else:
        found = decode.beam(step, cache, limits, 5, PENALTY, beams, **MARKS)
    for row, prefix in enumerate(prefixes):
        ids = found_ids(found, row)[0]
        assert ids[: len(prefix)] == prefix
        if beams == WIDE:
            score, best = exhaustive_after(table[row], prefix, 5)[0]
            assert ids == best
            assert_close(found.scores[row, 0], score, 60, magnitude=20)
        else:
            state = follow(0, BOS)
            for place, token in enumerate(ids):
                if place >= len(prefix):
                    assert token == table[row, state].argmax()
                state = follow(state, token)


# ---- the ranking of continuations ----------------------------------------------------

ranked = jax.jit(hypotheses.best_continuations, static_argnums=2)
largest = jax.jit(decode.largest, static_argnums=1)


@settings(max_examples=40)
@given(
    # One block, few and many blocks, of which the last one may be short.
    size=st.sampled_from([7, 262, 263, 509, 1_000, 1_542, 2_560]),
    count=st.sampled_from([1, 2, 7]),
    axes=st.sampled_from([(), (1,), (3,), (2, 3)]),
    grid=st.sampled_from([0.0, 1.0]),  # the coarse one gives ties
    seed=st.integers(0, 2**32 - 1),
)
def test_the_largest_are_those_of_top_k(size, count, axes, grid, seed):
    x = np.random.default_rng(seed).normal(size=(*axes, size)).astype(np.float32)
    x = np.round(x) + 0.0 if grid else x  # -0.0 would rank below 0.0
    values, ids = largest(x, count)
    order = np.argsort(-x, axis=-1, stable=True)[..., :count]
    np.testing.assert_array_equal(ids, order)
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, axis=-1))


@settings(max_examples=40)
@given(
    shape=st.sampled_from([(1, 5, 2), (3, 4, 6), (4, 9, 8), (3, 2, 6), (5, 2, 12)]),
    seed=st.integers(0, 2**32 - 1),
    grid=st.sampled_from([0.0, 1.0, 1e-3]),  # coarse ones give ties
)
def test_the_best_continuations_are_those_of_a_full_sort(shape, seed, grid):
    beams, size, count = shape
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(2, beams, size))
    totals = rng.normal(size=(2, beams)) * 3
    if grid:
        logits, totals = (np.round(x / grid) * grid for x in (logits, totals))
    best, parents, tokens = map(
        np.asarray, ranked(jnp.float32(totals), jnp.float32(logits), count)
    )
    for row in range(2):
        every = totals[row][:, None] + np.stack([log_softmax(x) for x in logits[row]])
        there = min(count, every.size)
        expected = np.sort(every.ravel())[::-1][:there]
        assert_close(best[row, :there], expected, size + 8, magnitude=20)
        places = list(zip(parents[row], tokens[row], strict=True))[:there]
        assert len(set(places)) == there
        own = [every[place] for place in places]
        assert_close(best[row, :there], own, size + 8, magnitude=20)
        # A candidate that does not exist ranks below every impossible one.
        assert (best[row, there:] < decode.NEVER).all()


def test_what_is_not_allowed_counts_in_the_softmax_however_likely_it_is():
    logits, mask = jnp.array([[[0.0, 200.0, 1.0]]]), jnp.array([[[True, False, True]]])
    best, _, tokens = hypotheses.best_continuations(jnp.zeros((1, 1)), logits, 2, mask)
    assert tokens.tolist() == [[2, 0]] and best.tolist() == [[-199.0, -200.0]]


# ---- a Transformer -------------------------------------------------------------------


# Of the vocabulary: more than any number of hypotheses here, and 11 blocks of 29.
SIZE = 319


@pytest.fixture(scope="module")
def tiny() -> tuple[Transformer, Any]:
    model, params = make(SIZE, layers=1)
    # Far from uniform, so that no two hypotheses are as good as equal.
    return model, params | {"source_embedding": 3 * params["source_embedding"]}


@functools.partial(jax.jit, static_argnums=0)
def search_with_model(model, params, source, limits):
    length = 12
    variables = models.search_variables(model, params)
    step, cache = models.start(model, variables, source, 3, length)
    return decode.beam(step, cache, limits, length, PENALTY, 3, n_best=3)


def test_a_transformer_s_results_do_not_depend_on_the_batch(tiny):
    model, params = tiny
    search = functools.partial(search_with_model, model, params)
    rng = np.random.default_rng(0)
    source = rng.integers(4, SIZE, (5, 9)).astype(np.int32)
    for row in range(5):
        source[row, 8 - row] = 3
        source[row, 9 - row :] = 0
    limits = np.array([12, 4, 9, 12, 2], np.int32)
    together = search(source, limits)
    assert len(set(np.asarray(together.lengths)[:, 0].tolist())) > 2
    order = np.array([3, 1, 4, 0, 2])
    permuted = search(source[order], limits[order])
    alone = [search(source[i : i + 1], limits[i : i + 1]) for i in range(5)]
    # Other shapes sum in another order: float32 over a depth of some hundred terms.
    others = [(permuted, order)]
    others += [(x, np.array([i])) for i, x in enumerate(alone)]
    for other, rows in others:
        for name in ("ids", "lengths"):
            expected = np.asarray(getattr(together, name))[rows]
            assert (getattr(other, name) == expected).all()
        for name in ("log_probabilities", "scores"):
            expected = np.asarray(getattr(together, name))[rows]
            assert_close(getattr(other, name), expected, 300)


def test_the_compiled_beam_search_sorts_no_vocabulary(tiny):
    model, params = tiny
    source, limits = np.ones((5, 9), np.int32), np.ones(5, np.int32)
    # The same program as in the test above: compiled once.
    text = search_with_model.lower(model, params, source, limits).compile().as_text()
    assert text and f",{SIZE}]" in text, "not the text of the search"
    for result in re.findall(r"= (.*?) sort\(", text):
        for shape in re.findall(r"\[([\d,]+)\]", result):
            assert math.prod(map(int, shape.split(","))) < SIZE, result


def test_a_step_reads_the_keys_of_the_source_as_they_are_stored(tiny):
    model, params = tiny
    source, limits = np.ones((5, 9), np.int32), np.ones(5, np.int32)
    text = search_with_model.lower(model, params, source, limits).compile().as_text()
    assert text
    inside = re.findall(r'op_name="([^"]*/while/body/[^"]*)"', text)
    assert any("/cross_attention/" in name for name in inside)
    assert not [name for name in inside if "/cross_attention/transpose" in name]
