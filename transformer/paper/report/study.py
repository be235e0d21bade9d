"""Runs that differ in row and seed only, and what can be computed over them."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from transformer.metrics import measures
from transformer.metrics.resamples import Resampler
from transformer.paper import rows
from transformer.paper.rows import TABLE3, Comparison, Measure
from transformer.paper.runs import Run
from transformer.paper.statistics import (
    LEVEL,
    OverSentences,
    Summary,
    Verdict,
    judge,
    summary,
)
from transformer.run.meter import perplexity


class Study:
    """Runs that differ in row and seed only."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.first = runs[0]
        names = dict.fromkeys(run.row for run in runs)
        self.rows = {name: [r for r in runs if r.row == name] for name in names}
        self._scores: dict[str, np.ndarray] = {}

    def scores(self, row: str, measure: Measure) -> list[float]:
        """Return the score of each seed."""
        return [run.score(measure) for run in self.rows[row]]

    def summary(self, row: str, measure: Measure) -> Summary:
        """Return mean, deviation and interval over seeds.

        Perplexities are averaged as the tests compare them, by their logarithms: mean
        and interval are geometric, the deviation is that of the values.
        """
        found = summary(self.scores(row, measure))
        if measure != "perplexity" or found.count == 1:
            return found
        logs = summary(self.badness(row, measure))
        mean, low, high = map(perplexity, (logs.mean, logs.low, logs.high))
        return Summary(found.count, mean, found.deviation, low, high)

    @property
    def names(self) -> dict[Measure, str]:
        """What the two figures are called; WER may replace the paper's BLEU."""
        first = self.first
        name = measures.name_of(first.settings.data, first.variant)
        return {"perplexity": "PPL", "bleu": name}

    @property
    def higher_is_better(self) -> bool:
        """Whether the figure where the paper has BLEU is better if it is higher."""
        return measures.badness(self.first.settings.data, 1.0) < 0

    def badness(self, row: str, measure: Measure) -> list[float]:
        """Return the score of each seed so that less is better; log perplexity."""
        if measure == "perplexity":
            return [rows.badness(measure, one) for one in self.scores(row, measure)]
        data = self.first.settings.data
        return [measures.badness(data, one) for one in self.scores(row, measure)]

    def margin(self, measure: Measure) -> float:
        """Return the difference from which on two rows are no longer nearly the same.

        That of ``rows.margin``; for a measure other than BLEU, the same share of our
        base as 0.4 BLEU is of the paper's 25.8.
        """
        if measure == "perplexity" or self.higher_is_better:
            return rows.margin(measure)
        share = rows.margin("bleu") / (TABLE3["base"].bleu or 1.0)
        row = "base" if "base" in self.rows else next(iter(self.rows))
        return share * self.summary(row, "bleu").mean

    def sentences(self, first: str, second: str) -> OverSentences:
        """Return by how much ``first`` is worse than ``second``, over resamples."""
        value = np.mean(self.badness(first, "bleu")) - np.mean(
            self.badness(second, "bleu")
        )
        return OverSentences(
            float(value), self._resampled(first) - self._resampled(second)
        )

    def judge(self, claimed: Comparison, refute: float = LEVEL) -> Verdict:
        """Return the verdict on a comparison; ``refute`` is the level against it."""
        over_sentences = None
        if claimed.measure == "bleu":
            over_sentences = self.sentences(claimed.first, claimed.second)
        return judge(
            self.badness(claimed.first, claimed.measure),
            self.badness(claimed.second, claimed.measure),
            claimed.relation,
            self.margin(claimed.measure),
            over_sentences,
            refute,
        )

    def _resampled(self, row: str) -> np.ndarray:
        """Return the badness on every resample of the lines, mean over seeds, (n,)."""
        if row not in self._scores:
            scores = [
                self._resampler.scores(run.line_counts, self._badness_of_counts)
                for run in self.rows[row]
            ]
            self._scores[row] = np.mean(scores, axis=0)
        return self._scores[row]

    def _badness_of_counts(self, counts: np.ndarray) -> float:
        data = self.first.settings.data
        score = measures.of_counts(data, counts, self.first.variant)
        return measures.badness(data, score)

    @functools.cached_property
    def _resampler(self) -> Resampler:
        return Resampler(len(self.first.line_counts))


def study_name(run: Run) -> str:
    """Return what the study that a run belongs to is called."""
    if run.table == 2:
        name = f"Table 2, {PAIRS[run.data]}"
    elif is_faithful(run):
        name = "Table 3, English-German as in the paper"
    else:
        name = f"Table 3, a replica on {run.data} at scale {run.scale:g}"
    return name + (f" ({run.among})" if run.among else "")


def is_faithful(run: Run) -> bool:
    """Return whether the paper's values stand beside ours.

    Those of Table 2 always do, with a note on what differs; those of Table 3 only where
    data, sizes and steps are the paper's.
    """
    return run.table == 2 or (is_on_its_data(run) and not run.departures)


def is_on_its_data(run: Run) -> bool:
    """Return whether a run of Table 3 is on the paper's data, at its scale."""
    # Any folder may be called wmt14; the paper's data are those of TFDS.
    data = run.settings.data
    theirs = (data.source, data.name) == ("tfds", "wmt14_translate/de-en")
    return theirs and run.data == "wmt14" and run.scale == 1


PAIRS = {"en_de": "English-German", "en_fr": "English-French"}
DECIMALS = {"perplexity": 3, "bleu": 2}


def printed_text(measure: Measure, value: float) -> str:
    """Write a value with as many digits as the paper prints."""
    return f"{value:.2f}" if measure == "perplexity" else f"{value:.1f}"


def p_text(p: float) -> str:
    """Write a p-value, "" for one that cannot be computed."""
    if math.isnan(p):
        return ""
    return "<0.001" if p < 0.001 else f"{p:.3f}"
