"""Runs side by side: scores, p-values, and the sentences that differ most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from transformer.config import UserError
from transformer.metrics import chrf_ter, measures, significance
from transformer.pictures.tables import Table
from transformer.run import folder, measured
from transformer.run.measured import Measured


def read(paths: Sequence[Path]) -> dict[str, Measured]:
    """Read the results of runs, by the names that tell them apart.

    Args:
      paths: workdirs, or files of results in them.

    Raises:
      UserError: for one that is given twice, is not measured by BLEU, has no results,
        or those of another test set.
    """
    places = [path.resolve() for path in paths]
    if len(set(places)) < len(places):
        twice = next(x for x in paths if places.count(x.resolve()) > 1)
        raise UserError(f"expected each run once, got {twice} twice; leave one out")
    runs = [measured.read_any(path) for path in paths]
    for run in runs:
        if (measure := run.settings.data.measure) not in measures.BESIDE:
            raise UserError(
                f"{run.folder}: expected a run with data.measure = "
                f"{' or '.join(measures.BESIDE)}, got {measure}; leave it out"
            )
    measured.check_same_test_set(runs)
    given = folder.names(paths)
    # A folder that contains all others goes by its name, if none of them has it.
    names = [
        place.name if name == "." and place.name not in given else name
        for name, place in zip(given, places, strict=True)
    ]
    return dict(zip(names, runs, strict=True))


def scores(
    runs: Mapping[str, Measured],
    variant: str = "13a",
    seed: int = 12345,
    resamples: int = 1000,
    trials: int = 10_000,
) -> Table:
    """Return BLEU, chrF2 and TER of runs, each beside the first by two tests.

    Args:
      runs: by name; the first is what the others are compared with.
      variant: of BLEU.
      seed: of the tests; the others as ``significance.paired``.
      resamples: see there.
      trials: see there.
    """
    first = next(iter(runs.values()))
    found = significance.paired(
        {name: run.translations for name, run in runs.items()},
        first.references,
        variant=variant,
        language=first.settings.data.target_language,
        seed=seed,
        resamples=resamples,
        trials=trials,
    )
    names = list(runs)
    columns = ("run", "checkpoint", "measure", "score", "mean and 95 % interval")
    rows = []
    for one in found:
        for name in names:
            tested = one.systems[name]
            rows.append(
                (
                    name,
                    runs[name].checkpoint,
                    one.measure,
                    f"{tested.score:.2f}",
                    f"{tested.mean:.2f} ± {tested.interval:.2f}",
                    _p(tested.bootstrap),
                    _p(tested.randomisation),
                )
            )
    note = (
        f"{len(first.references):,} sentences. The p-values compare each run with "
        f"{names[0]}: how often chance alone makes such a difference; below 0.05 it "
        "is commonly called significant. TER: lower is better. "
        + "; ".join(f"{one.measure} {one.signature}" for one in found)
    )
    tests = ("p, bootstrap", "p, randomisation")
    return Table("Scores", columns + tests, tuple(rows), note)


def _p(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def sentences(runs: Mapping[str, Measured], most: int = 100) -> list[Table]:
    """Return for each run but the first what it gains and loses, the largest first.

    A sentence's gain is its chrF2 less that of the first run.

    Args:
      runs: by name.
      most: rows of a table.
    """
    (name, first), *others = runs.items()
    before = chrf_ter.sentence_chrf(first.translations, first.references)
    tables = []
    for other, run in others:
        after = chrf_ter.sentence_chrf(run.translations, run.references)
        gains = [b - a for a, b in zip(before, after, strict=True)]
        rows = range(len(gains))
        better = sorted((i for i in rows if gains[i] > 0), key=lambda i: -gains[i])
        worse = sorted((i for i in rows if gains[i] < 0), key=lambda i: gains[i])
        same = sum(
            a == b for a, b in zip(first.translations, run.translations, strict=True)
        )
        for title, chosen in (("better", better), ("worse", worse)):
            shown = min(most, len(chosen))
            tables.append(
                Table(
                    f"{other} is {title} than {name}",
                    ("chrF2", "line", "source", "reference", name, other),
                    tuple(
                        (
                            f"{gains[i]:+.1f}",
                            str(i + 1),
                            first.sources[i],
                            first.references[i],
                            first.translations[i],
                            run.translations[i],
                        )
                        for i in chosen[:most]
                    ),
                    f"{shown:,} of {len(chosen):,} sentences, the largest difference "
                    f"of sentence chrF2 first; {same:,} of {len(gains):,} translations "
                    "are identical.",
                )
            )
    return tables
