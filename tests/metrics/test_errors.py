"""Error rates of lines and of symbols."""

import functools
import random

import pytest

from transformer.config import UserError
from transformer.metrics.errors import edit_distance, line_counts, score_all


@pytest.mark.parametrize(
    ("a", "b", "edits"),
    [
        ("", "", 0),
        ("abc", "", 3),
        ("", "ab", 2),
        ("abc", "abc", 0),
        ("abc", "axc", 1),  # substitution
        ("abc", "ac", 1),  # deletion
        ("ac", "abc", 1),  # insertion
        ("ab", "ba", 2),  # a transposition is no edit of its own
        ("kitten", "sitting", 3),
        ("intention", "execution", 5),  # Jurafsky & Martin, chapter 2
    ],
)
def test_edits_of_known_pairs(a, b, edits):
    assert edit_distance(a, b) == edits


def test_edits_are_those_of_the_definition():
    @functools.cache
    def defined(a: str, b: str) -> int:
        if not a or not b:
            return len(a) + len(b)
        return min(
            defined(a[1:], b) + 1,
            defined(a, b[1:]) + 1,
            defined(a[1:], b[1:]) + (a[0] != b[0]),
        )

    draw = random.Random(0)
    for _ in range(300):
        a, b = ("".join(draw.choices("abc", k=draw.randrange(7))) for _ in range(2))
        assert edit_distance(a, b) == defined(a, b)


def test_rates_are_sums_over_all_lines():
    hypotheses = ["t\u02b0 \u026a p", "a b", "", "x x x x"]
    references = ["t\u02b0 \u026a p", "a c", "k", "x"]
    found = score_all(hypotheses, references, "")
    assert found["wer"].value == 75
    # 1 + 1 + 3 edits; 3 + 2 + 1 + 1 symbols, of which one has two code points
    assert found["per"].value == pytest.approx(100 * 5 / 7)
    assert found["per"].signature == "edits of symbols|symbols:7|lines:4"


def test_counts_that_differ_are_refused():
    with pytest.raises(UserError, match="got 1 hypotheses and 2 references"):
        score_all(["a"], ["a", "b"], "")
    with pytest.raises(UserError, match="expected at least one line, got none"):
        score_all([], [], "")
    with pytest.raises(UserError, match="got 2 hypotheses and 1 references"):
        line_counts(["a", "b"], ["a"], "per", "")
