"""The grammars of trees, against all trees that there are, gold trees and random walks.

Trees here are nested: a label with its children, or the tag of a word.
"""

from __future__ import annotations

import dataclasses
import functools
import gzip
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.cases import leave
from support.paths import ROOT
from support.reference import assert_close

from transformer import decode
from transformer.decode.grammars import Grammar, of_symbols
from transformer.ids import BOS, EOS, SPECIAL
from transformer.trees import brackets, forms
from transformer.trees.forms import FORMS, Form, Symbol

Nested = tuple | str  # (label, *children), or the tag of a word

CRAFT = ROOT.parent / "shared/data/craft-treebank/train.clean.trees.gz"
LABELS, TAGS = ("A", "B"), ("x", "y")
STATES = 97
NEAR = ("tagged", "indexed", "in_order")  # to the other two forms
PENALTY = decode.length_penalty("gnmt", 0.6)


# ---- forms, written down a second time -----------------------------------------------


def linearise(form: str, tree: Nested, read: int = 0) -> list[Symbol]:
    if isinstance(tree, str):
        label = str(read + 1) if "indexed" in form else ""
        return [Symbol("word", tree if form == "tagged" else label)]
    label, *children = tree
    parts = []
    for child in children:
        parts.append(linearise(form, child, read))
        read += leaves(child)
    first, *others = parts
    begin, end = [Symbol("open", label)], [Symbol("close", label)]
    start = first + begin if "in_order" in form else begin + first
    return sum(others, start) + end


def symbols_of(form: str) -> list[Symbol]:
    indices = tuple(map(str, range(1, 65)))
    words = {"tagged": TAGS, "top_down": ("",), "in_order": ("",)}.get(form, indices)
    pairs = [Symbol(kind, label) for label in LABELS for kind in ("open", "close")]
    return [*pairs, *(Symbol("word", word) for word in words)]


def ids_of(form: str, tree: Nested) -> list[int]:
    symbols = symbols_of(form)
    return [len(SPECIAL) + symbols.index(x) for x in linearise(form, tree)]


def read(form: str, ids: list[int]) -> list[Nested]:
    """Return the trees that ids write, with a stack; all but a forest is an error."""
    symbols, words = symbols_of(form), 0
    stack: list[Any] = []  # trees, and lists of a label and what it has so far
    for id_ in ids:
        kind, label = symbols[id_ - len(SPECIAL)]
        if kind == "word":
            words += 1
            assert "indexed" not in form or label == str(words)
            stack.append(label if form == "tagged" else "")
        elif kind == "open":
            stack.append([label] if "in_order" not in form else [label, stack.pop()])
        else:
            children = []
            while not isinstance(stack[-1], list):
                children.append(stack.pop())
            assert stack[-1][0] == label
            assert (node := (*stack.pop(), *children[::-1]))[1:]
            stack.append(node)
    return stack


def leaves(tree: Nested) -> int:
    return 1 if isinstance(tree, str) else sum(map(leaves, tree[1:]))


# ---- all trees -----------------------------------------------------------------------


@functools.cache
def forests(words: int, labels: int, tags: tuple[str, ...]) -> list[tuple]:
    """Return all sequences of trees with so many words and labels in all."""
    if words == 0:
        return [()] if labels == 0 else []
    rests = [
        (first, rest)
        for n, k in itertools.product(range(1, words + 1), range(labels + 1))
        for first in roots(n, k, tags)
        for rest in forests(words - n, labels - k, tags)
    ]
    return [(first, *rest) for first, rest in rests]


def roots(words: int, labels: int, tags: tuple[str, ...]) -> list[Nested]:
    if labels == 0:
        return list(tags) if words == 1 else []
    inner = forests(words, labels - 1, tags)
    return [(label, *children) for label in LABELS for children in inner]


def outputs(form: str, words: int, limit: int) -> list[list[int]]:
    """Return the ids of all trees that fit, EOS included."""
    tags = TAGS if form == "tagged" else ("",)
    most = (limit - words - 1) // 2
    trees = [tree for k in range(1, most + 1) for tree in roots(words, k, tags)]
    return [[*ids_of(form, tree), EOS] for tree in trees]


@functools.partial(jax.jit, static_argnums=0)
def mask(grammar: Grammar, ids: Any, position: Any, counts: Any, limits: Any) -> Any:
    return grammar.allowed(ids, position, counts, limits)


def reached(grammar: Grammar, words: int, limit: int) -> list[list[int]]:
    """Return all outputs that the masks lead to, EOS included or cut at the limit."""
    live: list[list[int]] = [[]]
    found: list[list[int]] = []
    while live:
        position = len(live[0])
        ids = np.zeros((4096, 1, limit), np.int32)  # one shape for all: one program
        ids[: len(live), 0, :position] = live
        each = np.full(len(ids), words), np.full(len(ids), limit)
        may = np.asarray(mask(grammar, ids, np.int32(position), *each))[:, 0]
        assert may[: len(live)].any(1).all(), "a prefix without a continuation"
        longer = [
            [*prefix, int(id_)]
            for prefix, row in zip(live, may, strict=False)
            for id_ in np.flatnonzero(row)
        ]
        done = [x[-1] == EOS or len(x) == limit for x in longer]
        found += itertools.compress(longer, done)
        live = [x for x, end in zip(longer, done, strict=True) if not end]
    return found


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("words", "limit"), [(1, 8), (2, 9), (3, 8), (2, 5)])
def test_exactly_the_trees_that_fit_are_allowed(form, words, limit):
    found = reached(of_symbols(form, symbols_of(form)), words, limit)
    assert sorted(found) == sorted(outputs(form, words, limit))


@pytest.mark.parametrize("form", FORMS)
def test_labels_without_words_between_them_are_limited(form):
    tight = dataclasses.replace(of_symbols(form, symbols_of(form)), most_openers=2)

    def longest(ids: list[int]) -> int:
        kinds = "".join(symbols_of(form)[i - 4].kind[0] for i in ids[:-1])
        return max(part.count("o") for part in kinds.split("w"))

    every = outputs(form, 2, 9)
    few = [ids for ids in every if longest(ids) <= 2]
    assert sorted(reached(tight, 2, 9)) == sorted(few)
    assert 0 < len(few) < len(every)


@pytest.mark.parametrize("form", FORMS)
def test_a_limit_too_small_cuts_the_shortest_tree(form):
    grammar = of_symbols(form, symbols_of(form))
    shortest = {tuple(x) for x in outputs(form, 3, 6)}
    for limit in (1, 4, 5):
        found = {tuple(x) for x in reached(grammar, 3, limit)}
        assert found == {x[:limit] for x in shortest}


@pytest.mark.parametrize("form", FORMS)
def test_without_words_there_is_only_the_end(form):
    assert reached(of_symbols(form, symbols_of(form)), 0, 9) == [[EOS]]


@pytest.mark.parametrize("form", ["indexed", "indexed_in_order"])
def test_indices_begin_anew_in_long_sentences(form):
    symbols = symbols_of(form)
    grammar = of_symbols(form, symbols)
    flat = [f"{n % 64 + 1}" for n in range(130)]
    written = [symbols.index(Symbol("word", label)) + len(SPECIAL) for label in flat]
    begin = symbols.index(Symbol("open", "A")) + len(SPECIAL)
    ids = np.array([[[begin, *written, 0, 0]]], np.int32)
    each = np.array([130]), np.array([133])  # no constituent fits in beside A
    for number, id_ in enumerate(written):
        may = np.asarray(mask(grammar, ids, np.int32(1 + number), *each))[0, 0]
        assert np.flatnonzero(may).tolist() == [id_]


def test_a_label_with_one_bracket_only_is_never_written():
    symbols = [Symbol("open", "C"), *symbols_of("top_down"), Symbol("close", "D")]
    grammar = of_symbols("top_down", symbols)
    ids = {id_ for found in reached(grammar, 2, 7) for id_ in found}
    assert ids == {EOS, *range(5, 10)}  # neither 4 nor 10
    with pytest.raises(ValueError, match="no tree"):
        of_symbols("top_down", symbols[:1])


def test_words_are_those_that_ascii_white_space_parts():
    grammar = of_symbols("in_order", symbols_of("in_order"))
    assert grammar.count(" a\tb\u00a0c  d ") == 3
    assert grammar == of_symbols("in_order", symbols_of("in_order"))
    assert len({grammar, of_symbols("top_down", symbols_of("top_down"))}) == 2


# ---- gold trees ----------------------------------------------------------------------


@pytest.mark.skipif(not CRAFT.exists(), reason=f"{CRAFT} is not here")
@pytest.mark.parametrize("form", leave(FORMS, NEAR))
def test_gold_trees_are_allowed_with_no_room_to_spare(form):
    with gzip.open(CRAFT, "rt") as lines:
        trees = [tree for _, tree in brackets.read(itertools.islice(lines, 400), CRAFT)]
    trees = [tree for tree in trees if len(tree) < 120]
    written = [forms.linearise(form, tree) for tree in trees]
    symbols = sorted(set(itertools.chain(*written)))
    numbers = {symbol: id_ for id_, symbol in enumerate(symbols, len(SPECIAL))}
    grammar = of_symbols(form, symbols)
    lengths = np.array([len(x) for x in written])
    ids = np.full((len(trees), 1, max(lengths) + 1), EOS, np.int32)
    for row, x in zip(ids, written, strict=True):
        row[0, : len(x)] = [numbers[symbol] for symbol in x]
    counts = np.array([len(brackets.words(tree)) for tree in trees])
    for position in range(max(lengths) + 1):
        may = mask(grammar, ids, np.int32(position), counts, lengths + 1)
        here = np.take_along_axis(np.asarray(may), ids[..., position, None], 2)
        refused = np.flatnonzero(~here[:, 0, 0] & (position <= lengths))
        assert not refused.size, (position, brackets.write(trees[refused[0]]))
        ended = np.asarray(may)[lengths == position, 0]
        assert (ended.nonzero()[1] == EOS).all()


# ---- searches ------------------------------------------------------------------------


def step_of(table: Any) -> Any:
    """Return a step whose logits are a row of ``table`` (B, STATES, V) by history."""

    def step(cache, ids, parents):
        row, state = cache
        state = (7 * jnp.take_along_axis(state, parents, 1) + ids + 1) % STATES
        return table[row[:, None], state], (row, state)

    return step


def start_of(table: Any, beams: int) -> Any:
    return jnp.arange(len(table)), jnp.zeros((len(table), beams), jnp.int32)


def drawn(seed: int, batch: int, form: Form, scale: float = 2.0) -> np.ndarray:
    """Draw a table of logits; it has 3 rows more than the vocabulary has ids."""
    size = len(SPECIAL) + len(symbols_of(form)) + 3
    rng = np.random.default_rng(seed)
    return (scale * rng.normal(size=(batch, STATES, size))).astype(np.float32)


def log_probability(table: np.ndarray, ids: list[int]) -> float:
    """Return that of a table (STATES, V), over the whole vocabulary."""
    state, total, before = 0, 0.0, BOS
    for id_ in ids:
        state = (7 * state + before + 1) % STATES
        row = table[state].astype(np.float64)
        total += row[id_] - np.log(np.exp(row).sum())
        before = id_
    return total


@functools.partial(jax.jit, static_argnums=0, static_argnames=("length", "beams"))
def run(grammar, table, counts, limits, alpha=0.6, *, length, beams, n_best=1):
    penalty, step = decode.length_penalty("gnmt", alpha), step_of(table)
    how: Any = {"constraint": grammar, "counts": counts}
    cache = start_of(table, max(beams, 1))
    if beams == 0:
        return decode.greedy(step, cache, limits, length, penalty, **how)
    return decode.beam(step, cache, limits, length, penalty, beams, n_best=beams, **how)


def found_ids(found: decode.Hypotheses, row: int) -> list[list[int]]:
    lengths = np.asarray(found.lengths[row])
    return [np.asarray(found.ids[row, j, :n]).tolist() for j, n in enumerate(lengths)]


def arrays(*columns: Any) -> tuple[np.ndarray, ...]:
    return tuple(np.array(x, np.int32) for x in columns)


@pytest.mark.parametrize("form", FORMS)
def test_a_wide_beam_finds_all_trees_by_the_model_s_own_probability(form):
    grammar, table = of_symbols(form, symbols_of(form)), drawn(1, 3, form)
    counts, limits = arrays([2, 1, 2], [7, 7, 5])
    every = [outputs(form, n, limit) for n, limit in zip(counts, limits, strict=True)]
    widest = max(map(len, every))
    found = run(grammar, table, counts, limits, length=7, beams=widest)
    for row, expected in enumerate(every):
        ranked = [(log_probability(table[row], ids), ids) for ids in expected]
        ranked.sort(key=lambda x: -x[0] / float(PENALTY(len(x[1]))))
        count = len(ranked)
        assert found_ids(found, row) == [ids for _, ids in ranked] + [[]] * (
            widest - count
        )
        assert_close(found.log_probabilities[row, :count], [p for p, _ in ranked], 100)


@pytest.mark.parametrize("form", leave(FORMS, NEAR))
def test_random_walks_end_as_trees_of_the_words(form):
    batch, draws, grammar = 15, 80, of_symbols(form, symbols_of(form))
    counts = np.arange(batch) % 8 + 1
    limits = counts + 3 + np.arange(batch) ** 2 % 26
    table = drawn(2, 2, form)  # the second would rather open constituents without end
    table[1:, :, [i for i, kind in enumerate(grammar.kinds) if kind == 1]] += 6.0

    @jax.jit
    def walk(table, counts, limits, keys):
        start = jnp.arange(batch) % 2, jnp.zeros((batch, draws), jnp.int32)
        how: Any = {"constraint": grammar, "counts": counts, "count": draws}
        return decode.sample(
            *(step_of(table), start, limits, 39, PENALTY, keys), top_k=6, **how
        )

    keys = jax.random.split(jax.random.key(3), batch)
    found = walk(table, *arrays(counts, limits), keys)
    shapes = set()
    every = ((row, ids) for row in range(batch) for ids in found_ids(found, row))
    for row, ids in every:
        assert len(ids) <= limits[row] and ids[-1] == EOS
        (tree,) = read(form, ids[:-1])
        assert isinstance(tree, tuple) and leaves(tree) == counts[row]
        shapes.add(tree)
        kinds = "".join(symbols_of(form)[i - 4].kind[0] for i in ids[:-1])
        assert max(part.count("o") for part in kinds.split("w")) <= 8
    assert len(shapes) > batch * draws / 4


def test_greedy_search_is_a_beam_of_one():
    form: Form = "in_order"
    grammar, table = of_symbols(form, symbols_of(form)), drawn(4, 20, form)
    counts, limits = arrays([1, 2, 3, 5] * 5, [12, 9, 20, 8] * 5)
    one = run(grammar, table, counts, limits, length=20, beams=1)
    greedy = run(grammar, table, counts, limits, length=20, beams=0)
    np.testing.assert_array_equal(one.ids, greedy.ids)
    assert_close(one.log_probabilities, greedy.log_probabilities, 100)
    for row in range(20):
        (ids,) = found_ids(one, row)
        expected = log_probability(table[row], ids)
        assert_close(one.log_probabilities[row], [expected], 100)


def test_a_sentence_alone_is_as_in_a_batch_that_is_halved():
    form: Form = "top_down"
    batch = 40
    grammar, table = of_symbols(form, symbols_of(form)), drawn(5, batch, form)
    rng = np.random.default_rng(6)
    counts = rng.integers(0, 6, batch).astype(np.int32)
    limits = (counts + rng.integers(3, 15, batch)).astype(np.int32)
    together = run(grammar, table, counts, limits, length=20, beams=3)
    for row in range(0, batch, 5):
        here = slice(row, row + 1)
        alone = run(
            grammar, table[here], counts[here], limits[here], length=20, beams=3
        )
        assert found_ids(alone, 0) == found_ids(together, row)
        assert_close(alone.scores[0], together.scores[row], 100)


def test_a_search_ends_with_the_last_of_the_outputs_that_are_allowed():
    form: Form = "top_down"
    grammar, table = of_symbols(form, symbols_of(form)), jnp.array(drawn(8, 2, form))
    counts, limits = map(jnp.array, ([0, 1], [9, 4]))
    found, record = decode.recorded_beam(
        *(step_of(table), start_of(table, 3), limits, 9, PENALTY, 3),
        n_best=3,
        constraint=grammar,
        counts=counts,
    )
    assert found_ids(found, 0) == [[EOS], [], []]
    # Nothing goes on from the end; without the grammar three would be looked for.
    assert record.steps.tolist() == [1, 4]


class Anything:
    """Forbids nothing, but takes the way of a mask through the search."""

    def count(self, source: str) -> int:
        return 0

    def allowed(self, ids, position, counts, limits):
        return jnp.ones((*ids.shape[:2], 13), bool)


def test_what_forbids_nothing_changes_nothing():
    table, (counts, limits) = drawn(7, 6, "tagged"), arrays([2] * 6, [9] * 6)
    free = run(None, table, None, limits, length=9, beams=3)
    masked = run(Anything(), table, counts, limits, length=9, beams=3)
    for a, b in zip(free, masked, strict=True):
        np.testing.assert_array_equal(a, b)
