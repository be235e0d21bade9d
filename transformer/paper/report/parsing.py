"""Table 4, English constituency parsing: as printed, and what was measured here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from transformer.config import UserError
from transformer.paper.report import groups
from transformer.paper.report.costs import size_text
from transformer.paper.rows import OURS_IN_TABLE4, TABLE4
from transformer.paper.runs import other_inputs
from transformer.pictures.tables import Table
from transformer.run import measured
from transformer.run.measured import Measured

_PRINTED = "WSJ 23"  # what the paper tests on
_FREE = "dev.clean"  # development trees of CRAFT, what the grammars were tested on
_GRAMMARS = (
    ("treebank grammar, horizontal order 1", 70.15),
    ("treebank grammar, the same, with parent labels", 74.87),
)
_VARIANTS = ("evalb", "honest", "complete")
_HEADS = (
    *("parser", "trained on", "tested on", "F1 paper", "F1 here", "failed as missed"),
    *("complete match", "seeds", "params, M", "beam"),
)


def parsing_table(folders: Sequence[Path]) -> Table:
    """Return Table 4 with a line for each parser whose runs are in or below folders.

    Args:
      folders: workdirs, or folders with workdirs below.

    Raises:
      UserError: if a folder has no run, none is finished, one was not scored by F1, or
        runs that differ in the seed alone have other data.
    """
    finished, unfinished = groups.read(folders, "parsing")
    parsers = groups.systems(finished, "parsing")
    blank = len(_HEADS) - 4
    rows = [
        (one.name, one.training, _PRINTED, f"{one.f1:.1f}", *[""] * blank)
        for one in TABLE4
    ]
    tests = {run.settings.data.test for run in finished}
    if _FREE in tests:
        rows += [
            (name, "train.clean", f"{_FREE}, 2,775 trees", "", f"{f1:.2f}")
            + ("",) * (blank - 1)
            for name, f1 in _GRAMMARS
        ]
    for name, runs in zip(groups.names(parsers), parsers, strict=True):
        rows.append((name, *_cells(runs)))
    note = _note(finished, unfinished, _FREE in tests)
    title = "Table 4: English constituency parsing, F1"
    return Table(title, _HEADS, tuple(rows), note)


def _cells(runs: Sequence[Measured]) -> list[str]:
    first = runs[0]
    for run in runs:
        _refuse(first, run)
    measured.check_same_test_set(runs)
    values = [_values(run) for run in runs]
    scores = zip(*(of_variants for of_variants, _ in values), strict=True)
    beams = dict.fromkeys(beam for _, beam in values)
    data = first.settings.data
    return [
        data.train,
        f"{data.test}, {first.test_set['lines']:,} trees",
        _printed(first),
        *(groups.mean(of_runs, 2) for of_runs in scores),
        str(len(runs)),
        size_text(first),
        ", ".join(map(str, beams)),
    ]


def _values(run: Measured) -> tuple[list[float], int]:
    """Return F1 of a run by each variant, and its beam."""
    try:
        found = [run.scores["f1"][variant]["value"] for variant in _VARIANTS]
        return found, run.results["beam"]
    except KeyError as error:
        raise UserError(
            f"{run.folder / 'results.json'}: expected the key {error}, which "
            "transformer evaluate writes for a run with data.measure=f1; report "
            "without this run"
        ) from None


def _printed(run: Measured) -> str:
    """Return the paper's F1 of a run's row, "" where it has none."""
    name, test = run.settings.name, run.settings.data.test
    for one in TABLE4:
        ours = OURS_IN_TABLE4.get((one.name, one.training))
        if (ours, "23") == (name, test):
            return f"{one.f1:.1f}"
    return ""


def _refuse(first: Measured, run: Measured) -> None:
    """Check that two runs of a parser had the same trees and the same vocabulary."""
    if found := other_inputs(first, run):
        raise UserError(
            f"--parsing: expected runs that differ in the seed only, got "
            f"{first.folder} and {run.folder}, which differ in {'; '.join(found)}; "
            "leave one of them out"
        )


def _note(
    finished: Sequence[Measured], unfinished: Sequence[Path], grammars: bool
) -> str:
    # The rules and whose tags; what follows is of one run: lines, errors.
    rules = finished[0].scores["f1"]["evalb"]["signature"].split("|failed")[0]
    averaged = sum(run.checkpoint == "average" for run in finished)
    parts = [
        "F1 paper: as printed, on section 23 of the Wall Street Journal. F1 here: as "
        "computed by EVALB, which leaves out failed sentences; then with all their "
        "gold brackets counted as missed; mean ± standard deviation over seeds, of "
        f"averaged checkpoints where a run has some ({averaged} of {len(finished)} "
        f"runs). Rules: {rules}. F1 on different test sets is not comparable."
    ]
    if grammars:
        parts.append(
            "Treebank grammars: read off the training trees, gold tags as input, on "
            "the sentences of at most 100 words; the second failed on 3. They were "
            "measured once, by a program that is not part of this project."
        )
    if names := [str(path) for path in unfinished]:
        parts.append(f"Not finished, left out: {', '.join(names)}.")
    return " ".join(parts)
