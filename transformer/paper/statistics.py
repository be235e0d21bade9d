"""What seeds and sentences allow us to conclude about a difference.

Two sources of chance are kept apart. *Seeds*: another run of the same row gives another
value; Welch's t-test over runs. *Sentences*: another test set gives another BLEU; the
paired bootstrap over sentences. A verdict on the BLEU of two rows needs both; one on a
printed BLEU, whose translations are not at hand, rests on seeds alone.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np

from transformer.paper.rows import Relation

LEVEL = 0.05  # of every test, two-sided
POWER = 0.8  # of the test with the number of seeds that a verdict asks for
MOST_SEEDS = 1000

Decision = Literal["confirmed", "contradicted", "open"]


@dataclasses.dataclass(frozen=True)
class Summary:
    """Figures of one row over seeds.

    Attributes:
      count: n.
      mean: of the values.
      deviation: with n - 1 in the denominator; nan for one seed.
      low, high: 95 % interval of the mean, ``mean -+ t(.975; n - 1) * deviation /
        sqrt(n)``; infinite for one seed.
    """

    count: int
    mean: float
    deviation: float
    low: float
    high: float


def summary(values: Sequence[float]) -> Summary:
    """Return mean, standard deviation and 95 % interval (Student) over seeds."""
    n, mean = len(values), float(np.mean(values))
    if n == 1:
        return Summary(1, mean, math.nan, -math.inf, math.inf)
    deviation = float(np.std(values, ddof=1))
    reach = _t(1 - LEVEL / 2, n - 1) * deviation / math.sqrt(n)
    return Summary(n, mean, deviation, mean - reach, mean + reach)


def _t(probability: float, freedom: float) -> float:
    """Return the quantile of Student's t distribution."""
    from scipy import stats

    return float(stats.t.ppf(probability, freedom))


# ---- differences ---------------------------------------------------------------------


class Difference(Protocol):
    """An observed difference of two rows and how far chance may have moved it."""

    @property
    def value(self) -> float:
        """The difference of the means."""

    @property
    def p(self) -> float:
        """The two-sided p-value of "there is no difference"."""

    def interval(self, level: float) -> tuple[float, float]:
        """Return the interval that holds the true difference with this confidence."""


@dataclasses.dataclass(frozen=True)
class OverSeeds:
    """A difference of means over seeds.

    The error of a single seed is infinite. Where no seed differs from another it is 0,
    and nothing can be tested.
    """

    value: float
    error: float  # standard error of ``value``
    freedom: float  # degrees of freedom

    @property
    def p(self) -> float:
        """Welch's t-test; nan where there is nothing to test by."""
        from scipy import stats

        if not 0 < self.error < math.inf:
            return math.nan
        return float(2 * stats.t.sf(abs(self.value) / self.error, self.freedom))

    def interval(self, level: float) -> tuple[float, float]:
        """Return ``value -+ t * error``, infinite ends where nothing can be tested."""
        if self.error == 0:
            return -math.inf, math.inf
        reach = _t((1 + level) / 2, self.freedom) * self.error
        return self.value - reach, self.value + reach


def welch(first: Sequence[float], second: Sequence[float]) -> OverSeeds:
    """Compare the means of two rows whose variances may differ.

    ``error^2 = s1^2 / n1 + s2^2 / n2``, and Welch and Satterthwaite's degrees of
    freedom ``error^4 / (sum over i of (si^2 / ni)^2 / (ni - 1))``.

    Args:
      first: a value per seed.
      second: a value per seed of the other row.

    Returns:
      The difference ``mean(first) - mean(second)``.

    Source: Welch (1947).
    """
    # Exact until they are rounded: numpy's mean and variance of equal values may differ
    # in the last bit, and a difference of that bit alone would be decided.
    value = float(statistics.mean(first) - statistics.mean(second))
    if min(len(first), len(second)) < 2:
        return OverSeeds(value, math.inf, 1)
    parts = [float(statistics.variance(one)) / len(one) for one in (first, second)]
    squares = sum(
        part**2 / (len(one) - 1)
        for part, one in zip(parts, (first, second), strict=True)
    )
    if squares == 0:
        return OverSeeds(value, 0.0, len(first) + len(second) - 2)
    return OverSeeds(value, math.sqrt(sum(parts)), sum(parts) ** 2 / squares)


@dataclasses.dataclass(frozen=True)
class OverSentences:
    """A difference, and its values on many bootstrap resamples of the sentences."""

    value: float
    resamples: np.ndarray

    @property
    def p(self) -> float:
        """Share of resamples that are as far from their mean as ``value`` is from 0."""
        far = np.abs(self.resamples - self.resamples.mean()) >= abs(self.value)
        return float(far.sum() + 1) / (len(self.resamples) + 1)

    def interval(self, level: float) -> tuple[float, float]:
        """Return the percentile interval."""
        ends = np.quantile(self.resamples, [(1 - level) / 2, (1 + level) / 2])
        return float(ends[0]), float(ends[1])


# ---- verdicts ------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What can be said, and what would decide."""

    word: Literal[
        "confirmed",
        "contradicted",
        "not enough seeds",
        "not enough sentences",
        "no variance",  # as where all runs have 0 BLEU: nothing can be tested
    ]
    seeds: int | None = None  # that each row needs; None for more than MOST_SEEDS
    least: bool = False  # ``seeds`` is what it takes to estimate a deviation

    def __str__(self) -> str:
        if self.word != "not enough seeds":
            return self.word
        if self.seeds is None:
            return f"{self.word} (over {MOST_SEEDS:,} per row needed)"
        about = "at least" if self.least else "about"
        return f"{self.word} ({about} {self.seeds} per row needed)"


def decide(
    difference: Difference,
    relation: Relation | Literal["reached"],
    margin: float,
    refute: float = LEVEL,
) -> Decision:
    """Decide a claim by one difference.

    "worse" is confirmed by a significant difference above 0, contradicted by one
    below 0. "same" is an equivalence test (two one-sided tests): confirmed if the
    90 % interval lies within the margin, contradicted if the 95 % interval lies
    outside it; "reached" is the half of it that bounds how much worse the first is.

    Args:
      difference: positive if the first row is the worse one.
      relation: what is claimed.
      margin: that "same" and "reached" allow.
      refute: level at which it is contradicted, ``LEVEL`` / k where any of k
        comparisons would do.

    Source: Schuirmann (1987) for "same".
    """
    if relation == "worse":
        if difference.value > 0:
            return "confirmed" if difference.p < LEVEL else "open"
        return "contradicted" if difference.p < refute else "open"
    either = relation == "same"
    low, high = difference.interval(1 - 2 * LEVEL)
    if high < margin and (low > -margin or not either):
        return "confirmed"
    low, high = difference.interval(1 - refute)
    outside = low > margin or (either and high < -margin)
    return "contradicted" if outside else "open"


def judge(
    first: Sequence[float],
    second: Sequence[float],
    relation: Relation,
    margin: float,
    sentences: Difference | None = None,
    refute: float = LEVEL,
) -> Verdict:
    """Judge a claim about two rows.

    Args:
      first: badness (``rows.badness``) of each run of the first row.
      second: of the second row.
      relation: what is claimed.
      margin: that "same" allows.
      sentences: the same difference over resamples of the sentences, if known.
      refute: as for ``decide``.

    Returns:
      The verdict; both sources of chance have to agree.
    """
    over = welch(first, second)
    if over.error == 0:
        return Verdict("no variance")
    over_seeds = decide(over, relation, margin, refute)
    if over_seeds == "open":
        return _too_few(first, second, relation, margin, refute)
    if sentences is None or decide(sentences, relation, margin, refute) == over_seeds:
        return Verdict(over_seeds)
    return Verdict("not enough sentences")


def _too_few(
    first: Sequence[float],
    second: Sequence[float],
    relation: Relation,
    margin: float,
    refute: float,
) -> Verdict:
    fewest = min(len(first), len(second))
    if fewest < 2:
        return Verdict("not enough seeds", 2, least=True)
    deviation = math.sqrt((np.var(first, ddof=1) + np.var(second, ddof=1)) / 2)
    value = float(np.mean(first) - np.mean(second))
    needed = seeds_needed(value, deviation, relation, margin, refute)
    return Verdict("not enough seeds", needed and max(needed, fewest + 1))


def judge_printed(values: Sequence[float], printed: float, margin: float) -> Verdict:
    """Judge whether a row reaches a printed value, which is taken as exact.

    Args:
      values: badness of each run.
      printed: badness of the paper's value.
      margin: by how much our mean may be worse.
    """
    n, value = len(values), float(np.mean(values)) - printed
    if n < 2:
        return Verdict("not enough seeds", 2, least=True)
    deviation = float(np.std(values, ddof=1))
    if min(values) == max(values):
        return Verdict("no variance")
    decision = decide(
        OverSeeds(value, deviation / math.sqrt(n), n - 1), "reached", margin
    )
    if decision != "open":
        return Verdict(decision)
    sizes = np.arange(2, MOST_SEEDS + 1)
    effect = abs(margin - value) / (max(deviation, 1e-12) / np.sqrt(sizes))
    tail = LEVEL if value < margin else LEVEL / 2
    needed = _least(sizes, _power(effect, sizes - 1, tail))
    return Verdict("not enough seeds", needed and max(needed, n + 1))


def seeds_needed(
    value: float,
    deviation: float,
    relation: Relation,
    margin: float,
    refute: float = LEVEL,
) -> int | None:
    """Return the least n of each row at which a test would decide.

    The power is that of the t-test with 2n - 2 degrees of freedom and error
    ``deviation * sqrt(2 / n)``, if difference and deviation are as observed. With t'
    the noncentral t distribution and c = t(.975), or t(1 - refute / 2) where the
    difference speaks against the claim:

    * worse: ``P(t'(|value| / error) > c)``;
    * same, and |value| beyond the margin: the same of ``|value| - margin``;
    * same, and |value| within it: ``P(t'((margin - |value|) / error) > t(.95)) +
      P(t'((margin + |value|) / error) > t(.95)) - 1``, the power of two one-sided
      tests or a little less.

    Args:
      value: the difference.
      deviation: over seeds, of one row.
      relation: what is claimed.
      margin: that "same" allows.
      refute: as for ``decide``.

    Returns:
      The least n from 2 with ``POWER``; None if it is above ``MOST_SEEDS``.

    Source: Cohen (1988), Statistical Power Analysis, section 2.
    """
    n = np.arange(2, MOST_SEEDS + 1)
    error = max(deviation, 1e-12) * np.sqrt(2 / n)
    freedom, size = 2 * n - 2, abs(value)
    if relation == "worse":
        level = LEVEL if value > 0 else refute
        power = _power(size / error, freedom, level / 2)
    elif size >= margin:
        power = _power((size - margin) / error, freedom, refute / 2)
    else:
        near, far = (margin - size) / error, (margin + size) / error
        power = _power(near, freedom, LEVEL) + _power(far, freedom, LEVEL) - 1
    return _least(n, power)


def _least(n: np.ndarray, power: np.ndarray) -> int | None:
    enough = power >= POWER
    return int(n[enough.argmax()]) if enough.any() else None


def _power(effect: np.ndarray, freedom: np.ndarray, tail: float) -> np.ndarray:
    """Return P(t' > c) for effects in units of the error; c has ``tail`` above it."""
    from scipy import stats

    # Beyond 30 errors the power is 1, and the series behind nct loses its digits.
    return stats.nct.sf(stats.t.isf(tail, freedom), freedom, np.minimum(effect, 30.0))


def together(verdicts: Sequence[Verdict]) -> Verdict:
    """Judge a claim by its comparisons: all have to hold, and one refutes it."""
    open_words = "not enough seeds", "not enough sentences", "no variance"
    for word in ("contradicted", *open_words):
        found = [one for one in verdicts if one.word == word]
        if word == "not enough seeds" and found:
            return max(found, key=lambda one: one.seeds or math.inf)
        if found:
            return found[0]
    return Verdict("confirmed")


def holm(p: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number, in their order.

    With the values sorted, ``p_(i)' = min(1, max over j <= i of (m - j + 1) p_(j))``:
    the chance that any true null hypothesis is rejected stays below the level.

    Args:
      p: of m tests; nan, a test that could not be made, counts and stays.

    Source: Holm (1979).

    >>> holm([0.03, 0.01, 0.5])
    [0.06, 0.03, 0.5]
    """
    m, found, least = len(p), list(p), 0.0
    order = sorted(range(m), key=lambda i: math.inf if math.isnan(p[i]) else p[i])
    for place, i in enumerate(order):
        if not math.isnan(p[i]):
            least = max(least, min(1.0, (m - place) * p[i]))
            found[i] = least
    return found


def rank_correlation(
    first: Sequence[float], second: Sequence[float]
) -> tuple[float, float]:
    """Return Spearman's coefficient and its two-sided p-value over permutations.

    Args:
      first: values.
      second: values of the same rows; equal values share their mean rank.

    Returns:
      ``(coefficient, p)``; (nan, nan) where one column has no order.
    """
    from scipy import stats

    a, b = (ranks - ranks.mean() for ranks in map(stats.rankdata, (first, second)))
    if not a.any() or not b.any():
        return math.nan, math.nan
    test = stats.permutation_test(
        (a,),
        lambda x, axis: (x * b).sum(axis) / np.linalg.norm(a) / np.linalg.norm(b),
        permutation_type="pairings",
        vectorized=True,
        n_resamples=9999,
        rng=0,
    )
    return float(test.statistic), float(test.pvalue)
