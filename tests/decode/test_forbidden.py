"""Forbidden words against reading whole texts, and searches against enumeration."""

import itertools
import re

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies
from support.reference import assert_close

from transformer import decode
from transformer.data.tokenizers import Whitespace
from transformer.decode import Forbidden, forbid
from transformer.ids import BOS, EOS, PAD, UNK

# Ids 0 to 3 are special; " ab" may be one piece, two or three.
PIECES = ["", " ? ", "", "", " ", "a", "b", " a", "ab", " ab", ".", "b a", "c"]
FIRST = 4
WORDS = ["ab", "b", "aba"]


def text_of(ids) -> str:
    return "".join(PIECES[i] for i in ids)


def has_word(text: str) -> bool:
    return bool(set(re.findall(r"\w+", text)) & set(WORDS))


CONSTRAINT = forbid(PIECES, WORDS)
allowed = jax.jit(CONSTRAINT.allowed)


@hypothesis.settings(max_examples=60)
@hypothesis.given(
    strategies.lists(strategies.integers(FIRST, len(PIECES) - 1), max_size=9),
    strategies.booleans(),
)
@hypothesis.example([5, 6, 5], False)  # the longest word, a piece for each letter
@hypothesis.example([12, 10, 5, 6, 5], False)
def test_what_may_follow_is_what_can_be_read(ids, cut):
    # A prefix is good if no word of it that has an end is forbidden.
    if has_word(text_of(ids) + "c"):
        return
    limit = len(ids) + (1 if cut else 5)
    written = (
        jnp.zeros((1, 1, 16), jnp.int32).at[0, 0, : len(ids)].set(jnp.array(ids, int))
    )
    zero = jnp.zeros(1, jnp.int32)
    mask = np.asarray(allowed(written, len(ids), zero, jnp.array([limit])))[0, 0]
    for id_ in range(FIRST, len(PIECES)):
        longer = text_of([*ids, id_])
        expected = not has_word(longer if cut else longer + "c")
        assert mask[id_] == expected, (longer, cut)
        assert CONSTRAINT.accepts([*ids, id_]) == (not has_word(longer + "c"))
    assert mask[EOS] == (not has_word(text_of(ids)))
    assert not mask[[PAD, BOS]].any()  # they write nothing, and would hide a word


STATES = 11


def step(cache, ids, parents):
    """Score by the whole history, hashed to one of the states of a table."""
    table, row, state = cache
    state = (7 * jnp.take_along_axis(state, parents, axis=1) + ids + 1) % STATES
    return table[row[:, None], state], (table, row, state)


def best_of(table, limit: int, prefix: list[int]) -> tuple[float, list[int]]:
    """Return the best output that has no forbidden word, by trying all of them."""
    found = []

    def grow(ids, state, total):
        logits = table[state].astype(np.float64)
        gains = logits - np.log(np.exp(logits).sum())
        for id_ in (EOS, *range(FIRST, len(PIECES))):
            forced = len(ids) < len(prefix)
            if forced and id_ != prefix[len(ids)]:
                continue
            now, longer = total + (0 if forced else gains[id_]), [*ids, id_]
            if id_ == EOS:
                if not has_word(text_of(ids)):
                    found.append((now / ((5 + len(longer)) / 6) ** 0.6, longer))
            elif not has_word(text_of(longer) + "c"):
                if len(longer) < limit:
                    grow(longer, (7 * state + id_ + 1) % STATES, now)

    grow([], 3, 0.0)  # (7 * 0 + BOS + 1) % STATES
    return max(found)


@pytest.mark.parametrize("prefix", [[], [7, 8]])
def test_a_wide_beam_finds_what_enumeration_finds(prefix):
    limit, beams, rows = 4, 400, 2
    rng = np.random.default_rng(5)
    table = 2 * rng.normal(size=(rows, STATES, len(PIECES))).astype(np.float32)
    table[:, :, UNK] = -60.0  # is not enumerated
    cache = (
        jnp.broadcast_to(jnp.array(table), table.shape),
        jnp.arange(rows),
        jnp.zeros((rows, beams), jnp.int32),
    )

    def each(cache, ids, parents):
        row, state = cache
        logits, (_, row, state) = step((jnp.array(table), row, state), ids, parents)
        return logits, (row, state)

    search, start = each, cache[1:]
    if prefix:
        search, start = decode.prefixed(each, start, jnp.array([prefix] * rows))
    counts, limits = jnp.zeros(rows, jnp.int32), jnp.full(rows, limit)
    penalty = decode.length_penalty("gnmt", 0.6)
    found = decode.beam(
        *(search, start, limits, limit, penalty, beams),
        constraint=CONSTRAINT,
        counts=counts,
    )
    free = decode.beam(search, start, limits, limit, penalty, beams)
    changed = 0
    for row in range(rows):
        score, best = best_of(table[row], limit, prefix)
        length = int(found.lengths[row, 0])
        ids = np.asarray(found.ids[row, 0, :length]).tolist()
        assert ids == best
        assert_close([found.scores[row, 0]], [score], 60, magnitude=20)
        changed += ids != np.asarray(free.ids[row, 0, :length]).tolist()
    assert changed, "some best output should have a forbidden word"


def test_other_words_are_arguments_of_the_same_program():
    pieces = ["", "", "", "", "x", " ", "y"]
    traced = []

    @jax.jit
    def program(constraint: Forbidden, *arguments: jax.Array) -> jax.Array:
        traced.append(constraint.longest)
        return constraint.allowed(*arguments)

    written = jnp.full((1, 1, 4), 5, jnp.int32)
    one, zero, limit = jnp.array(1), jnp.zeros(1, jnp.int32), jnp.array([2])
    for word, other in (("x", "y"), ("y", "x")):
        mask = program(forbid(pieces, [word]), written, one, zero, limit)[0, 0]
        assert not mask[pieces.index(word)] and mask[pieces.index(other)]
        assert mask[EOS]
    assert len(traced) == 1


def test_spellings_are_what_ids_add_to_a_text():
    tokenizer = Whitespace(["der", "Hü@@", "nd", "nd@@", "in"])
    bad, good = "Hü@@ nd", "Hü@@ nd@@ in"
    spelled = tokenizer.spellings()
    assert len(spelled) == tokenizer.size
    constraint = forbid(spelled, [tokenizer.spelled("Hünd")])
    for text, fits in ((bad, False), (good, True)):
        joined = "".join(spelled[i] for i in tokenizer.encode(text))
        assert joined.strip() == tokenizer.spelled(tokenizer.plain(text))
        assert constraint.accepts(tokenizer.encode(text)) is fits


def test_words_of_one_letter_each_are_found_in_all_places():
    constraint = forbid(["", "", "", "", "x", " ", "y"], ["x"])
    for ids in itertools.product((4, 5, 6), repeat=4):
        text = "".join({4: "x", 5: " ", 6: "y"}[i] for i in ids)
        assert constraint.accepts(ids) == ("x" not in (text + "y").split())
