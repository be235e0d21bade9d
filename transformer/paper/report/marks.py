"""Table 3 as marks with intervals, and the training curves of its runs."""

from __future__ import annotations

from collections.abc import Sequence

from transformer.paper.report.study import Study, is_faithful
from transformer.paper.rows import (
    MEASURES,
    TABLE3,
    Measure,
)
from transformer.paper.runs import Run, studies
from transformer.pictures import plots


def figures(finished: Sequence[Run]) -> list[str]:
    """Draw Table 3, and the training curves of all runs, as SVG."""
    found = []
    for runs in studies(finished):
        study = Study(runs)
        if runs[0].table == 3:
            found.append(_marks(study))
        curves = {
            row: [run.curve for run in study.rows[row] if run.curve]
            for row in study.rows
        }
        if any(curves.values()):
            found.append(plots.curves("validation perplexity", curves).svg())
    return found


def _marks(study: Study) -> str:
    """Draw each row's mean and interval, and the paper's figure, as SVG."""
    placed = "paper"
    if not is_faithful(study.first):
        placed = "paper's change from base, applied to our base"
    panels = []
    for measure in MEASURES:
        marks = []
        for row in study.rows:
            found = study.summary(row, measure)
            paper = _place_paper(study, row, measure)
            marks.append(plots.Mark(row, found.mean, found.low, found.high, paper))
        name = "perplexity" if measure == "perplexity" else study.names[measure]
        panels.append((name, measure == "perplexity", marks))
    return plots.marks(panels, placed).svg()


def _place_paper(study: Study, row: str, measure: Measure) -> float | None:
    """Return the paper's figure; on a replica, our base with its change from base."""
    paper, base = getattr(TABLE3[row], measure), getattr(TABLE3["base"], measure)
    if paper is None or is_faithful(study.first):
        return paper
    if "base" not in study.rows or study.names[measure] not in ("PPL", "BLEU"):
        return None
    ours = study.summary("base", measure).mean
    return ours * paper / base if measure == "perplexity" else ours + paper - base
