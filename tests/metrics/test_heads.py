"""Statistics of attention weights and word alignments, by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer.metrics.heads import Statistics, align, pharaoh


def means(*maps: list[list[float]]) -> dict[str, float]:
    found = Statistics()
    for one in maps:
        found.add(np.array(one, np.float32)[None, None])
    return {name: float(value[0, 0]) for name, value in found.means().items()}


def test_statistics_by_hand():
    found = means([[1, 0, 0], [0.5, 0, 0.5], [0.25, 0.25, 0.5]])
    entropy = (0 + math.log(2) + 1.5 * math.log(2)) / 3
    assert found["entropy"] == pytest.approx(entropy)
    assert found["distance"] == pytest.approx((0 + 1 + 0.25 * 2 + 0.25) / 3)
    assert found["previous"] == pytest.approx((0.5 + 0.25) / 2)  # the first has none
    assert found["same"] == pytest.approx((1 + 0 + 0.5) / 3)
    assert found["next"] == pytest.approx((0 + 0.5) / 2)  # nor has the last


def test_a_mean_is_over_positions_not_over_sentences():
    one, three = [[1.0]], [[0.0, 1.0, 0.0]] * 3
    found = means(one, three)
    assert found["same"] == pytest.approx((1 + 0 + 1 + 0) / 4)
    assert found["distance"] == pytest.approx((0 + 1 + 0 + 1) / 4)
    assert found["previous"] == pytest.approx((0 + 1) / 2)


def test_maps_that_are_not_square():
    tall = means([[1, 0], [0, 1], [0.5, 0.5]])
    assert tall["same"] == pytest.approx(1.0)  # the third piece faces no source piece
    assert tall["previous"] == pytest.approx((0 + 0.5) / 2)
    assert tall["next"] == pytest.approx(0.0)
    assert tall["distance"] == pytest.approx((0 + 0 + 0.5 * 2 + 0.5) / 3)


def test_heads_are_measured_each_on_its_own():
    found = Statistics()
    found.add(np.array([[np.eye(2), 1 - np.eye(2)], [np.full((2, 2), 0.5)] * 2]))
    measured = found.means()
    assert measured["same"].tolist() == [[1, 0], [0.5, 0.5]]
    assert measured["entropy"].round(6).tolist() == [[0, 0], [0.693147, 0.693147]]


def test_an_alignment_sums_source_pieces_and_averages_target_pieces():
    # Word 1 of the source is two pieces of .3 each and beats the one of .4.
    assert align(np.array([[0.4, 0.3, 0.3]]), [0, 1, 1], [0]) == [(1, 0)]
    # The pieces of a target word vote together: .5 + .2 < .1 + .7.
    rows = np.array([[0.5, 0.1, 0.4], [0.2, 0.7, 0.1]])
    assert align(rows, [0, 1, 2], [0, 0]) == [(1, 0)]
    assert align(rows, [0, 1, 2], [0, 1]) == [(0, 0), (1, 1)]


def test_the_end_mark_is_aligned_to_nothing():
    weights = np.array([[0.1, 0.2, 0.7], [0.0, 0.0, 1.0], [0.9, 0.1, 0.0]])
    # Two source pieces and two target pieces; the rest are EOS.
    assert align(weights, [0, 1], [0, 1])[0] == (1, 0)
    assert align(weights, [], [0]) == align(weights, [0], []) == []


@given(st.data())
def test_every_target_word_is_aligned_once_to_a_source_word(data):
    steps = st.lists(st.booleans(), min_size=1, max_size=6)
    source, target = (
        np.cumsum([0, *data.draw(steps)]).tolist() for _ in ("source", "target")
    )
    seed = data.draw(st.integers(0, 99))
    weights = np.random.default_rng(seed).random((len(target) + 1, len(source) + 1))
    pairs = align(weights, source, target)
    assert [t for _, t in pairs] == list(range(target[-1] + 1))
    for s, t in pairs:

        def total(word, t=t):
            rows, columns = np.array(target) == t, np.array(source) == word
            return weights[:-1, :-1][np.ix_(rows, columns)].sum()

        assert total(s) == max(map(total, range(source[-1] + 1)))


def test_the_pharaoh_format():
    assert pharaoh([(1, 0), (0, 1), (0, 2)]) == "0-1 0-2 1-0"
    assert pharaoh([]) == ""
