"""What the heads of a trained model look at on average over many sentences."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from transformer.config import UserError
from transformer.metrics.heads import STATISTICS, Statistics
from transformer.pictures import plots
from transformer.pictures.heads import TITLES, sizes
from transformer.pictures.tables import Table
from transformer.pictures.tables import page as tables_page
from transformer.translate import Translator, load

_PAIRS_AT_A_TIME = 500  # of a file


def show(
    workdir: Path,
    form: str,
    sources: Iterable[str],
    targets: Iterable[str] | None = None,
    *,
    step: int | None = None,
) -> str | bytes:
    """Show ``statistics`` of a trained model.

    Args:
      workdir: folder of the run.
      form: "md", "csv", "html" or one of ``plots.FORMS``.
      sources: see ``statistics``.
      targets: see ``statistics``.
      step: of the checkpoint, see ``translate.load``.

    Returns:
      What the file is to hold.
    """
    measured = statistics(load(workdir, step=step), sources, targets)
    drawn = picture(measured)
    if form in plots.FORMS:
        return drawn.file(form)
    written: Any = {"md": "markdown"}.get(form, form)
    return tables_page(
        written, "What the heads attend to", tables(measured), [drawn.svg()]
    )


def statistics(
    translator: Translator,
    sources: Iterable[str],
    targets: Iterable[str] | None = None,
) -> dict[str, dict[str, np.ndarray]]:
    """Measure every head over many sentences.

    Args:
      translator: a trained model.
      sources: sentences; those without text do not count.
      targets: a translation of each, None for the model's own.

    Returns:
      For each kind that the model has the means of ``metrics.heads.STATISTICS``, each
      (N, H).

    Raises:
      UserError: if the model has no attention, there is no sentence, or not one target
        for each source.
    """
    measured = {kind: Statistics() for kind in sizes(translator)}
    count = 0
    for source_ids, target_ids in _encoded(translator, sources, targets):
        for _, found in translator.attentions(source_ids, target_ids):
            count += 1
            for kind, one in measured.items():
                one.add(found.weights[kind])
    if not count:
        raise UserError("expected sentences to measure, got none; give a file of them")
    return {kind: one.means() for kind, one in measured.items()}


def _encoded(
    translator: Translator, sources: Iterable[str], targets: Iterable[str] | None
) -> Iterator[tuple[list[list[int]], list[list[int]]]]:
    """Yield the ids of sources and of targets, some hundred pairs at a time."""
    given = itertools.repeat("") if targets is None else iter(targets)
    pairs, number = zip(sources, given, strict=targets is not None), 1
    while chunk := _next_pairs(pairs):
        left = [source for source, _ in chunk]
        source_ids = translator.source_ids(left, number)
        if targets is None:
            best = translator.hypotheses(left, number)
            target_ids = [found[0].ids for found in best]
        else:
            right = [target for _, target in chunk]
            target_ids = translator.target_ids(right, number)
        rows = [i for i, ids in enumerate(source_ids) if len(ids) > 1]
        yield [source_ids[i] for i in rows], [target_ids[i] for i in rows]
        number += len(chunk)


def _next_pairs(pairs: Iterator[tuple[str, str]]) -> list[tuple[str, str]]:
    try:
        return list(itertools.islice(pairs, _PAIRS_AT_A_TIME))
    except ValueError as error:
        if "zip()" not in str(error):
            raise
        raise UserError(
            "expected as many translations as sentences, got different numbers of "
            "lines; give one pair per line"
        ) from None


_NOTE = (
    "Means over all positions: entropy of the weights in nats; distance to what is "
    "attended to, in positions; share of the weight on the previous, the same and the "
    "next position."
)
_CROSS_NOTE = (
    " Position t of the decoder is the one that writes piece t of the target; the same "
    "position is piece t of the source."
)


def tables(measured: dict[str, dict[str, np.ndarray]]) -> list[Table]:
    """Return a table for each kind, a row per head."""
    found = []
    for kind, means in measured.items():
        layers, heads = means["entropy"].shape
        rows = [
            (
                str(i + 1),
                str(j + 1),
                *(f"{means[name][i, j]:.3f}" for name in STATISTICS),
            )
            for i in range(layers)
            for j in range(heads)
        ]
        columns = ("layer", "head", *STATISTICS)
        title = TITLES[kind].capitalize()
        note = _NOTE + (_CROSS_NOTE if kind == "cross" else "")
        found.append(Table(title, columns, tuple(rows), note))
    return found


def picture(measured: dict[str, dict[str, np.ndarray]]) -> plots.Picture:
    """Return the statistics as heat maps of layers by heads, a row of them a kind."""
    every = [
        plots.Map(f"{kind}: {name}", means[name].tolist(), "head", "layer")
        for kind, means in measured.items()
        for name in STATISTICS
    ]
    return plots.maps(every, wide=len(STATISTICS), first=1, signed=False)
