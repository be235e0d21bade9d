"""Runs that differ in row and seed only, and what can be computed over them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from transformer.paper import rows
from transformer.paper.rows import (
    Comparison,
    Measure,
)
from transformer.paper.runs import BLEU, Run
from transformer.paper.statistics import (
    LEVEL,
    OverSentences,
    Summary,
    Verdict,
    judge,
    summary,
)


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
        """Return mean, deviation and interval over seeds."""
        return summary(self.scores(row, measure))

    def badness(self, row: str, measure: Measure) -> list[float]:
        """Return ``rows.badness`` of each seed."""
        return [rows.badness(measure, one) for one in self.scores(row, measure)]

    def sentences(self, first: str, second: str) -> OverSentences:
        """Return by how much BLEU of ``first`` is below that of ``second``."""
        value = np.mean(self.scores(second, "bleu")) - np.mean(
            self.scores(first, "bleu")
        )
        return OverSentences(
            float(value), self._resampled(second) - self._resampled(first)
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
            rows.margin(claimed.measure),
            over_sentences,
            refute,
        )

    def _resampled(self, row: str) -> np.ndarray:
        """Return BLEU on every resample of the sentences, mean over seeds, (n,)."""
        if row not in self._scores:
            lines = (run.translations for run in self.rows[row])
            scores = [self._resampler.scores(one) for one in lines]
            self._scores[row] = np.mean(scores, axis=0)
        return self._scores[row]

    @functools.cached_property
    def _resampler(self) -> Any:
        from transformer.metrics.bleu import Resampler

        language = self.first.settings.data.target_language
        return Resampler(self.first.references, BLEU, language)


def study_name(run: Run) -> str:
    """Return what the study that a run belongs to is called."""
    if run.table == 2:
        return f"Table 2, {PAIRS[run.data]}"
    if is_faithful(run):
        return "Table 3, English-German as in the paper"
    return f"Table 3, a replica on {run.data} at scale {run.scale:g}"


def is_faithful(run: Run) -> bool:
    """Tell whether the paper's values were measured on the same data and sizes."""
    return run.table == 2 or (run.data == "wmt14" and run.scale == 1)


PAIRS = {"en_de": "English-German", "en_fr": "English-French"}
NAMES = {"perplexity": "PPL", "bleu": "BLEU"}
DECIMALS = {"perplexity": 3, "bleu": 2}


def printed_text(measure: Measure, value: float) -> str:
    """Write a value with as many digits as the paper prints."""
    return f"{value:.2f}" if measure == "perplexity" else f"{value:.1f}"


def p_text(p: float) -> str:
    """Write a p-value."""
    return "<0.001" if p < 0.001 else f"{p:.3f}"
