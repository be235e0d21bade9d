"""BLEU, F1 or exact translations, by the length of the source: runs side by side."""

from __future__ import annotations

import bisect
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformer.config import UserError
from transformer.metrics import measures
from transformer.pictures import plots
from transformer.pictures.tables import Table
from transformer.pictures.tables import page as tables_page
from transformer.run import folder, measured
from transformer.run.measured import Measured

EXACT = "exact"  # in place of a variant of the measure


class Bins(NamedTuple):
    """Scores of runs in bins of source length.

    Attributes:
      labels: of the bins that have sentences, "1-5", the last one "31+".
      counts: their sentences.
      measure: "BLEU", "F1", "WER", "PER", or "exact, %".
      scores: by that measure in each bin, by run.
      signature: of the scores, without the numbers of lines and symbols; "" for exact.
      checkpoints: which parameters of each run were measured.
    """

    labels: list[str]
    counts: list[int]
    measure: str
    scores: dict[str, list[float]]
    signature: str
    checkpoints: dict[str, str]


def show(
    workdirs: Sequence[Path], form: str, edges: Sequence[int], variant: str | None
) -> tuple[str | bytes, Table]:
    """Show BLEU or F1 by the length of the source (Bahdanau et al., Figure 2).

    Args:
      workdirs: see ``by_length``.
      form: "md", "csv", "html" or one of ``plots.FORMS``.
      edges: see ``by_length``.
      variant: see ``by_length``.

    Returns:
      What the file is to hold, and the table.
    """
    bins = by_length(workdirs, edges, variant)
    drawn, shown = picture(bins), table(bins)
    if form in plots.FORMS:
        return drawn.file(form), shown
    written: Any = {"md": "markdown"}.get(form, form)
    return tables_page(written, shown.title, [shown], [drawn.svg()]), shown


def by_length(
    workdirs: Sequence[Path], edges: Sequence[int], variant: str | None
) -> Bins:
    """Score the translations of each run in bins of source length.

    Args:
      workdirs: folders of runs with results on one test set.
      edges: the most words of each bin except the last, which has no end.
      variant: of ``data.measure``, of all sentences of a bin together (None: the one
        that reports use); or "exact", the share of exact translations.

    Raises:
      UserError: if a folder has no results, or those of another test set.
    """
    runs = [measured.read(workdir) for workdir in workdirs]
    for run in runs:
        if run.settings.data.vectors:
            raise UserError(
                f"{run.folder}: expected a run whose sources have words, got one with "
                "data.source = vectors; leave it out"
            )
    measured.check_same_test_set(runs)
    rows = _rows_by_bin(runs[0], edges)
    scores: dict[str, list[float]] = {}
    signature = ""
    for name, run in zip(folder.names(workdirs), runs, strict=True):
        scores[name], signature = _scores(run, [*rows.values()], variant)
    if variant == EXACT:
        measure = "exact, %"
    else:
        data = runs[0].settings.data
        measure = measures.name_of(data, measures.variant_of(data, variant))
    return Bins(
        measure=measure,
        labels=[_label(edges, number) for number in rows],
        counts=[len(inside) for inside in rows.values()],
        scores=scores,
        signature=signature,
        checkpoints={
            name: run.checkpoint for name, run in zip(scores, runs, strict=True)
        },
    )


def _rows_by_bin(run: Measured, edges: Sequence[int]) -> dict[int, list[int]]:
    """Return the numbers of the sentences in each bin that has any."""
    rows: dict[int, list[int]] = {}
    for row, source in enumerate(run.sources):
        words = _words(run, source)
        if words:
            rows.setdefault(bisect.bisect_left(edges, words), []).append(row)
    if not rows:
        raise UserError(
            f"{run.folder}: expected results with sources, got none with words; "
            "leave it out"
        )
    return dict(sorted(rows.items()))


def _words(run: Measured, source: str) -> int:
    """Count words; in a text in pieces, "@@ " joins a piece to the next."""
    pieces = source.split()
    if run.settings.tokenizer.kind != "whitespace":
        return len(pieces)
    return sum(not piece.endswith("@@") for piece in pieces)


def _scores(
    run: Measured, bins: Sequence[Sequence[int]], variant: str | None
) -> tuple[list[float], str]:
    """Return the scores of the sentences in each bin, and their signature."""
    data = run.settings.data
    translations = [[run.translations[row] for row in rows] for rows in bins]
    references = [[run.references[row] for row in rows] for rows in bins]
    if variant == EXACT:
        pairs = zip(translations, references, strict=True)
        shares = [100 * measures.exact_match(data, *pair) for pair in pairs]
        return shares, ""
    scores = measures.score_parts(data, translations, references, variant)
    signature = re.split("[|](symbols|lines):", scores[0].signature)[0]
    return [score.value for score in scores], signature


def _label(edges: Sequence[int], number: int) -> str:
    """Name a bin by its fewest and its most words.

    >>> [_label([5, 6], number) for number in range(3)]
    ['1-5', '6', '7+']
    """
    least = 1 + (edges[number - 1] if number else 0)
    if number == len(edges):
        return f"{least}+"
    return str(least) if edges[number] == least else f"{least}-{edges[number]}"


def table(bins: Bins) -> Table:
    """Return a row per bin, a column of scores per run."""
    columns = ("words of the source", "sentences", *bins.scores)
    every = zip(bins.labels, bins.counts, *bins.scores.values(), strict=True)
    rows = tuple(
        (label, str(count), *(f"{score:.2f}" for score in scores))
        for label, count, *scores in every
    )
    kinds = {
        "last": "the last checkpoint",
        "best": "the best checkpoint",
        "average": "averaged checkpoints",
    }
    used = ", ".join(f"{name}: {kinds[one]}" for name, one in bins.checkpoints.items())
    what = f"{bins.measure} of all sentences in a bin together, {bins.signature}"
    if not bins.signature:
        what = "Share of a bin's sentences that are translated exactly, in percent"
    note = (
        f"{what}; words are separated by white space, after pieces of segmented text "
        f"are joined. Checkpoints: {used}."
    )
    return Table(f"{bins.measure} by the length of the source", columns, rows, note)


def picture(bins: Bins) -> plots.Picture:
    """Return a line per run, the number of sentences below each bin."""
    ticks = [
        f"{label}\n{count:,}"
        for label, count in zip(bins.labels, bins.counts, strict=True)
    ]
    x_label = "words of the source; below, sentences"
    return plots.categories(x_label, bins.measure, ticks, bins.scores)
