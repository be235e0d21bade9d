"""Statistics against figures of textbooks, scipy's own tests and hand counts."""

import functools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from transformer.paper import statistics
from transformer.paper.statistics import (
    OverSeeds,
    OverSentences,
    Verdict,
    decide,
    judge,
    judge_printed,
    rank_correlation,
    seeds_needed,
    summary,
    together,
    welch,
)


def test_a_summary_by_hand():
    # 1, 2, 6: mean 3, variance (4 + 1 + 9) / 2 = 7; t(.975; 2) = 4.303 in any table.
    found = summary([1.0, 2.0, 6.0])
    assert (found.count, found.mean) == (3, 3.0)
    assert found.deviation == pytest.approx(math.sqrt(7))
    assert found.high - 3 == pytest.approx(4.3027 * math.sqrt(7 / 3), rel=1e-4)
    assert 3 - found.low == pytest.approx(found.high - 3)


def test_one_seed_has_no_deviation_and_no_interval():
    found = summary([4.92])
    assert (found.mean, found.low, found.high) == (4.92, -math.inf, math.inf)
    assert math.isnan(found.deviation)


@pytest.mark.parametrize(
    "probability, freedom, quantile",  # tables of Student's t
    [(0.975, 1, 12.706), (0.975, 4, 2.776), (0.95, 10, 1.812), (0.975, 1e9, 1.960)],
)
def test_quantiles_of_t(probability, freedom, quantile):
    assert statistics._t(probability, freedom) == pytest.approx(quantile, abs=5e-4)


figures = st.lists(st.floats(-100, 100, width=16), min_size=2, max_size=6).filter(
    lambda values: np.var(values) > 1e-6
)


@given(figures, figures)
def test_welch_is_scipy_s(first, second):
    ours, theirs = welch(first, second), stats.ttest_ind(first, second, equal_var=False)
    assert ours.freedom == pytest.approx(theirs.df)
    assert ours.p == pytest.approx(theirs.pvalue, abs=1e-9)
    interval = theirs.confidence_interval(0.9)
    assert ours.interval(0.9) == pytest.approx(tuple(interval), rel=1e-6, abs=1e-9)


def test_welch_at_its_edges():
    single = welch([1.0], [2.0, 3.0])
    assert single.value == -1.5 and math.isnan(single.p)
    assert single.interval(0.95) == (-math.inf, math.inf)
    for other in (1.0, 2.0):  # no seed differs from another: nothing to test by
        alike = welch([1.0, 1.0], [other, other])
        assert alike.value == 1.0 - other and math.isnan(alike.p)
        assert alike.interval(0.95) == (-math.inf, math.inf)
    # numpy's mean of ten such values is not theirs in the last bit.
    value = 16.91741611206835
    assert np.mean([value] * 10) != value
    same = welch([value] * 10, [value] * 3)
    assert (same.value, same.error) == (0.0, 0.0) and math.isnan(same.p)


def test_sentences_count_the_resamples_that_are_as_far():
    # Around their mean, 2, the resamples are -2 -1 0 1 2: two of five as far as 1.5.
    over = OverSentences(1.5, np.array([0.0, 1.0, 2.0, 3.0, 4.0]))
    assert over.p == pytest.approx((2 + 1) / (5 + 1))
    assert over.interval(0.5) == (1.0, 3.0)
    exactly = OverSentences(2.0, over.resamples)
    assert exactly.p == pytest.approx((2 + 1) / (5 + 1))  # -2 and 2 are as far
    assert OverSentences(0.0, np.zeros(9)).p == 1.0


# ---- verdicts ------------------------------------------------------------------------


def over(value, error):
    """Return a difference with so many degrees of freedom that t is normal."""
    return OverSeeds(value, error, 1e9)


@pytest.mark.parametrize(
    "value, decision",
    [
        (2.0, "confirmed"),  # 2.0 > 1.96 errors
        (1.9, "open"),
        (-1.9, "open"),
        (-2.0, "contradicted"),
        (0.0, "open"),
    ],
)
def test_worse(value, decision):
    assert decide(over(value, 1.0), "worse", 0.0) == decision


@pytest.mark.parametrize(
    "value, decision",
    [
        (0.0, "confirmed"),  # 0 + 1.645 errors < 2
        (0.3, "confirmed"),
        (0.4, "open"),  # 0.4 + 1.645 > 2
        (-0.4, "open"),
        (3.9, "open"),
        (4.0, "contradicted"),  # 4.0 - 1.96 > 2
        (-4.0, "contradicted"),
    ],
)
def test_same(value, decision):
    assert decide(over(value, 1.0), "same", 2.0) == decision


@pytest.mark.parametrize(
    "value, decision",
    [
        (-9.0, "confirmed"),  # better than printed
        (0.3, "confirmed"),
        (0.4, "open"),
        (3.9, "open"),
        (4.0, "contradicted"),
    ],
)
def test_reached(value, decision):
    assert decide(over(value, 1.0), "reached", 2.0) == decision


def test_a_printed_figure_is_reached_or_not():
    # BLEU 27.3 printed; t(.975; 2) = 4.303, t(.95; 2) = 2.920, errors of .1 / sqrt(3).
    ours = [-27.0, -27.1, -27.2]
    assert judge_printed(ours, -27.3, 0.4) == Verdict("confirmed")  # .2 + .17 < .4
    # .25 + .17 > .4; 1.5 deviations, one-sided: 5 runs have power .8.
    assert judge_printed(ours, -27.35, 0.4) == Verdict("not enough seeds", 5)
    # .5 - .25 < .3; 2 deviations beyond the margin, two-sided: 5 runs.
    assert judge_printed(ours, -27.6, 0.3) == Verdict("not enough seeds", 5)
    assert judge_printed(ours, -27.7, 0.3) == Verdict("contradicted")  # .6 - .25 > .3
    assert judge_printed(ours[:1], -27.3, 0.4).least


def test_a_claim_of_many_comparisons_is_not_refuted_by_chance():
    assert decide(over(-2.2, 1.0), "worse", 0.0) == "contradicted"
    assert decide(over(-2.2, 1.0), "worse", 0.0, refute=0.05 / 8) == "open"
    assert decide(over(2.2, 1.0), "worse", 0.0, refute=0.05 / 8) == "confirmed"
    assert decide(over(4.2, 1.0), "same", 2.0, refute=0.05 / 8) == "open"


def test_bleu_needs_seeds_and_sentences():
    first, second = [1.0, 1.1, 0.9], [0.0, 0.1, -0.1]
    resamples = np.array([1.0] * 999)
    wide = OverSentences(1.0, np.linspace(-9, 11, 999))
    assert judge(first, second, "worse", 0.0).word == "confirmed"
    near = OverSentences(1.0, resamples)
    assert judge(first, second, "worse", 0.0, near).word == "confirmed"
    assert judge(first, second, "worse", 0.0, wide).word == "not enough sentences"
    assert judge(second, first, "worse", 0.0).word == "contradicted"
    # Sentences do not make up for seeds.
    assert judge([1.0], [0.0], "worse", 0.0, near).word == "not enough seeds"


def test_what_a_verdict_asks_for():
    few = judge([1.0, 1.3], [0.9, 1.1, 1.2], "worse", 0.0)
    deviation = math.sqrt((0.045 + 7 / 300) / 2)
    needed = seeds_needed(1.15 - 3.2 / 3, deviation, "worse", 0.0)
    assert needed is not None and few == Verdict("not enough seeds", needed)
    assert str(few) == f"not enough seeds (about {needed} per row needed)"
    single = judge([1.0], [0.9, 1.1], "worse", 0.0)
    assert str(single) == "not enough seeds (at least 2 per row needed)"
    equal = judge([1.0, 1.2], [1.2, 1.0], "worse", 0.0)
    assert str(equal) == "not enough seeds (over 1,000 per row needed)"


def test_nothing_is_decided_where_no_seed_differs():
    # All at 0 BLEU are not "the same", and two equal pairs are not certain.
    for first in ([0.0, 0.0], [0.1, 0.1]):
        for relation in ("same", "worse"):
            found = judge(first, [0.0, 0.0, 0.0], relation, 0.4)
            assert str(found) == "no variance"
    assert str(judge_printed([-0.1] * 3, -27.3, 0.4)) == "no variance"
    assert judge([0.0, 0.0], [0.0, 0.1], "same", 0.4).word != "no variance"


@pytest.mark.parametrize(
    "effect, needed",  # Cohen (1988): power .8, two-sided .05, two samples
    [(0.2, 394), (0.5, 64), (0.8, 26), (1.0, 17)],
)
def test_seeds_needed_are_cohen_s(effect, needed):
    assert seeds_needed(effect, 1.0, "worse", 0.0) == needed
    assert seeds_needed(-effect / 4, 0.25, "worse", 0.0) == needed
    # Beyond a margin of 1 the same of what is above it.
    assert seeds_needed(1 + effect, 1.0, "same", 1.0) == needed


def test_a_stricter_level_needs_more_seeds_only_to_contradict():
    def power(n):
        bound = stats.t.ppf(1 - 0.01 / 2, 2 * n - 2)
        return 1 - stats.nct.cdf(bound, 2 * n - 2, 0.8 * math.sqrt(n / 2))

    assert power(38) < statistics.POWER <= power(39)
    assert seeds_needed(-0.8, 1.0, "worse", 0.0, refute=0.01) == 39
    assert seeds_needed(1.8, 1.0, "same", 1.0, refute=0.01) == 39
    assert seeds_needed(0.8, 1.0, "worse", 0.0, refute=0.01) == 26
    near = functools.partial(seeds_needed, 0.1, 1.0, "same", 1.0)
    assert near(refute=0.01) == near()
    few = judge([1.0, 1.3], [1.9, 1.2], "worse", 0.0, refute=0.01)
    usual = judge([1.0, 1.3], [1.9, 1.2], "worse", 0.0)
    assert (few.seeds or 0) > (usual.seeds or 0) > 0


def test_seeds_needed_by_simulation():
    # At the n it returns, two one-sided tests decide in about POWER of the trials.
    generator = np.random.default_rng(0)
    for value, margin in ((0.0, 1.0), (0.3, 1.5)):
        n = seeds_needed(value, 1.0, "same", margin)
        assert n is not None
        trials = generator.normal(size=(2, 400, n)) + [[[value]], [[0.0]]]
        decided = [
            decide(welch(first, second), "same", margin) == "confirmed"
            for first, second in zip(*trials, strict=True)
        ]
        # 400 trials at .8: standard deviation .02; and n is rounded up.
        assert 0.74 < np.mean(decided) < 0.90


def test_seeds_needed_at_their_edges():
    assert seeds_needed(0.0, 1.0, "worse", 0.0) is None
    assert seeds_needed(1e9, 1.0, "worse", 0.0) == 2
    assert seeds_needed(1.0, 0.0, "worse", 0.0) == 2
    assert seeds_needed(1.0, 0.1, "same", 1.0) is None  # on the margin itself


def test_a_claim_needs_all_its_comparisons():
    yes, no = Verdict("confirmed"), Verdict("contradicted")
    few, fewer = Verdict("not enough seeds", 3), Verdict("not enough seeds", 7)
    never, lines = Verdict("not enough seeds"), Verdict("not enough sentences")
    alike = Verdict("no variance")
    assert together([yes, alike]) == alike and together([alike, lines]) == lines
    assert together([yes, yes]) == yes
    assert together([yes, few, no]) == no
    assert together([yes, few, fewer, lines]) == fewer
    assert together([fewer, never]) == never
    assert together([yes, lines]) == lines


# ---- ranks ---------------------------------------------------------------------------


def test_rank_correlation_by_hand():
    # Ranks 1 2 3 4 against 2 1 3 4: 1 - 6 * 2 / (4 * 15) = .8; of the 24 orders 4 are
    # as near to a straight one, and as many to its reverse.
    rho, p = rank_correlation([4.3, 4.7, 4.9, 5.3], [20.0, 10.0, 30.0, 40.0])
    assert rho == pytest.approx(0.8) and p == pytest.approx(8 / 24)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=3))
def test_rank_correlation_is_spearman_s(pairs):
    first, second = zip(*pairs[:5], strict=True)
    rho, p = rank_correlation(first, second)
    if len(set(first)) == 1 or len(set(second)) == 1:
        assert math.isnan(rho) and math.isnan(p)
    else:
        assert rho == pytest.approx(stats.spearmanr(first, second).statistic)
        assert 0 < p <= 1


def test_sentences_refute_at_the_level_of_one_comparison_of_several():
    """p = .028 is enough for one comparison, and not for one of eight."""
    first, second = [0.0, 0.1, -0.1], [1.0, 1.1, 0.9]
    sentences = OverSeeds(-2.2, 1.0, 1e9)
    assert judge(first, second, "worse", 0.0, sentences).word == "contradicted"
    found = judge(first, second, "worse", 0.0, sentences, refute=0.05 / 8)
    assert found.word == "not enough sentences"


def test_where_seeds_are_not_enough_one_more_is_the_least():
    """t = 10 at one degree of freedom is p = .064, though few seeds have that power."""
    found = judge([10.0, 11.0], [5.5, 5.5], "worse", 0.0)
    assert found == Verdict("not enough seeds", 3)
