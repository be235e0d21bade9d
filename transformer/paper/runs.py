"""Finding the runs of the paper's rows below a folder, and refusing a mixture."""

from __future__ import annotations

import collections
import dataclasses
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transformer import config
from transformer.config import Config, UserError
from transformer.metrics import measures
from transformer.paper.rows import BASE, KEYS, SHARED, TABLE3, WIDTHS, Measure
from transformer.run import folder as run_folder
from transformer.run.history import read_metrics, validations
from transformer.run.measured import Measured, digest

# The variant of a measure that is put beside the paper's BLEU.
_VARIANTS = {"bleu": "paper", "errors": "wer"}

_NAME = re.compile(
    r"(?P<table>table3)/(?P<row>[^/]+)/(?P<data>[^/]+)/x(?P<scale>\d+(?:\.\d+)?(?:e[+-]\d\d)?)"
    r"|(?P<table2>table2)/(?P<row2>(?:base|big)_(?P<pair>en_de|en_fr))"
)
_SEARCH = ("beam", "alpha", "length_penalty", "extra_tokens")
_NOT_PRINTED = {"big": ("train.keep", "decode.average")}
_LISTED = 5  # of many, in a message


@dataclasses.dataclass(frozen=True)
class Run:
    """A training run of a row.

    Attributes:
      folder: its workdir.
      place: the same as messages show it, below the folder of the report.
      table: 2 or 3.
      row: "A_h1", or "big_en_de" in Table 2.
      data: "numbers", or "en_de" in Table 2: runs on other data are another study.
      scale: of the widths, 1 = the paper's.
      settings: the resolved configuration.
      record: record.json.
      results: results.json; empty for a run that is not finished. Without sentences
        and with "kept" in their place where ``kept.save`` wrote it.
      curve: validation perplexity by step.
      step: the last one logged.
      among: the folder whose runs it is put beside, where a report has several with
        runs on the same data.
    """

    folder: Path
    place: str
    table: int
    row: str
    data: str
    scale: float
    settings: Config
    record: Mapping[str, Any]
    results: Mapping[str, Any]
    curve: tuple[tuple[int, float], ...]
    step: int
    among: str = ""

    @property
    def checkpoint(self) -> str:
        """Which parameters are measured, "last" or "average".

        Section 6.2: "we used beam search [...], but no checkpoint averaging" in
        Table 3; section 6.1: averages in Table 2.
        """
        return "last" if self.table == 3 else "average"

    @property
    def measured(self) -> Mapping[str, Any]:
        """The scores of that checkpoint."""
        return self.results[self.checkpoint]

    @property
    def variant(self) -> str:
        """The variant of the run's measure that is compared with the paper's BLEU."""
        return _VARIANTS[self.settings.data.measure]

    @property
    def scored(self) -> Mapping[str, Any]:
        """Value and signature of that variant."""
        return self.measured[self.settings.data.measure][self.variant]

    def score(self, measure: Measure) -> float:
        """Return perplexity, or the score in the place of the paper's BLEU."""
        if measure == "perplexity":
            return self.measured["perplexity"]
        return self.scored["value"]

    @property
    def kept(self) -> Mapping[str, Any] | None:
        """What is kept of sentences and corpus in small files; None in a workdir."""
        return self.results.get("kept")

    @property
    def references(self) -> str:
        """The SHA-256 of the references, one a line."""
        if self.kept is not None:
            return self.kept["references"]
        return digest([one["reference"] for one in self.results["sentences"]])

    @property
    def line_counts(self) -> np.ndarray:
        """What the variant counts in each line of that checkpoint, (lines, k)."""
        if self.kept is not None:
            columns = [column.split() for column in self.kept["counts"]]
            return np.array(columns, int).T
        sentences = self.results["sentences"]
        return measures.line_counts(
            self.settings.data,
            [one[self.checkpoint] for one in sentences],
            [one["reference"] for one in sentences],
            self.variant,
        )

    @property
    def overrides(self) -> dict[str, Any]:
        """What the row changes of the base model, by dotted key."""
        if self.table == 3:
            return TABLE3[self.row].overrides
        if self.row.startswith("base"):
            return {}
        return TABLE3["big"].overrides | (
            {"model.dropout": 0.1} if self.data == "en_fr" else {}
        )

    @property
    def printed(self) -> dict[str, Any]:
        """What the paper prints for the row, by dotted key; widths times the scale."""
        base = {KEYS[name]: value for name, value in BASE.items()}
        values = base | self.overrides
        # A scale is of a name's six digits.
        return values | {key: round(values[key] * self.scale) for key in WIDTHS}

    @property
    def departures(self) -> list[str]:
        """How it differs from what is printed: "model.layers = 2 instead of 6"."""
        values = config.flatten(self.settings)
        return [
            f"{key} = {values.get(key)} instead of {printed}"
            for key, printed in (self.printed | {**SHARED}).items()
            if values.get(key) != printed
        ]


def find(folder: Path) -> tuple[list[Run], list[Run]]:
    """Find the runs below a folder and check that they differ in their rows only.

    Args:
      folder: of an ablation, or any with runs below it.

    Returns:
      The finished runs and the others, in the order of the paper's rows, then by seed.

    Raises:
      UserError: if there is no finished run, or for a mixture.
    """
    runs = [_open(path, folder) for path in workdirs(folder)]
    runs.sort(key=lambda run: (run.table, run.data, _place(run), run.settings.seed))
    finished = [run for run in runs if run.results]
    unfinished = [run for run in runs if not run.results]
    if not finished:
        raise UserError(f"{folder}: expected a finished run, {_found(folder, runs)}")
    _check_one_study(runs)
    _check_once(runs)
    for study in studies(runs):
        _check_alike(study)
    return finished, unfinished


def studies(runs: Sequence[Run]) -> list[list[Run]]:
    """Return the runs that are compared with one another: of one table, on one data."""
    keys = dict.fromkeys((run.table, run.data) for run in runs)
    return [[run for run in runs if (run.table, run.data) == key] for key in keys]


def tell_apart(
    every: Sequence[Sequence[Run]], places: Sequence[Path]
) -> list[list[Run]]:
    """Name the folder of each study that would have the name of one in another folder.

    Args:
      every: finished runs by folder, as ``find`` returns them.
      places: the folders.

    Returns:
      The same runs; with ``among`` where another folder has runs on their data.
    """
    of = collections.Counter(
        key for one in every for key in {_study_key(run) for run in one}
    )
    return [
        [
            dataclasses.replace(run, among=name) if of[_study_key(run)] > 1 else run
            for run in one
        ]
        for one, name in zip(every, run_folder.names(places), strict=True)
    ]


def _study_key(run: Run) -> tuple[int, str]:
    return (run.table, run.data)


def _place(run: Run) -> int:
    return list(TABLE3).index(run.row if run.table == 3 else run.row.split("_")[0])


def workdirs(folder: Path) -> Iterator[Path]:
    """Yield the folders with a config.json, and look no deeper."""
    for place, inside, files in os.walk(folder, followlinks=False):
        inside.sort()
        if "config.json" in files:
            inside.clear()
            yield Path(place)


def _found(folder: Path, runs: Sequence[Run]) -> str:
    if runs:
        return (
            f"found {len(runs)} without results: "
            f"{_some(f'{run.place} ({state(run)})' for run in runs)}; resume with "
            "transformer ablate or train"
        )
    if not folder.is_dir():
        return "found no such folder; give that of transformer ablate"
    held = sorted(path.name for path in folder.iterdir())
    return (
        f"found {_some(held) if held else 'an empty folder'}; give that of "
        "transformer ablate"
    )


def _some(names: Any) -> str:
    names = list(names)
    rest = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {rest} more" if rest > 0 else "")


def state(run: Run) -> str:
    """Return how far an unfinished run has come."""
    steps = run.settings.train.steps
    if run.step < steps:
        return f"step {run.step:,} of {steps:,}"
    return "trained, not evaluated at its last step"


# ---- reading -------------------------------------------------------------------------


def _open(folder: Path, root: Path) -> Run:
    settings = run_folder.read_settings(folder)
    place = str(folder.relative_to(root) if folder != root else root)
    name = _NAME.fullmatch(settings.name)
    if name is None or (name["table"] and name["row"] not in TABLE3):
        raise UserError(
            f"{folder}: expected a run of experiments/table2.py or table3.py, got one "
            f"whose config.name is {settings.name!r}; report on another folder"
        )
    if settings.data.measure not in _VARIANTS:
        raise UserError(
            f"{folder}: expected data.measure = {' or '.join(_VARIANTS)} of a row, got "
            f"{settings.data.measure}; report on another folder"
        )
    lines = read_metrics(folder)
    return Run(
        folder,
        place,
        3 if name["table"] else 2,
        name["row"] or name["row2"],
        name["data"] or name["pair"],
        float(name["scale"] or 1),
        settings,
        run_folder.read_record(folder),
        run_folder.results_of_the_end(folder, settings),
        validations(lines),
        lines[-1]["step"] if lines else 0,
    )


# ---- refusing ------------------------------------------------------------------------


def _check_one_study(runs: Sequence[Run]) -> None:
    kinds = {(r.data, r.scale): r for r in reversed(runs) if r.table == 3}
    if len(kinds) > 1:
        found = (f"{data} at scale {x:g} ({r.place})" for (data, x), r in kinds.items())
        raise UserError(
            f"expected Table 3 on one data and scale, found {_some(found)}; report on "
            "one of them"
        )


def _check_once(runs: Sequence[Run]) -> None:
    seen: dict[tuple, Run] = {}
    for run in runs:
        other = seen.setdefault((run.table, run.row, run.settings.seed), run)
        if other is not run:
            raise UserError(
                f"expected one run of row {run.row} with seed {run.settings.seed}, "
                f"found {other.place} and {run.place}; report on one of them"
            )


def _check_alike(study: Sequence[Run]) -> None:
    changed = {key for run in study for key in run.overrides}
    for run in study:
        _check_row(run, changed)
    of_rows: dict[str, Run] = {}
    for run in study:
        for first in (study[0], of_rows.setdefault(run.row, run)):
            _refuse(first, run, _config_difference(first, run))
    done = [run for run in study if run.results]
    for run in done:
        _refuse(done[0], run, other_inputs(done[0], run))
        _refuse(done[0], run, difference(_measure(done[0]), _measure(run)))
        if done[0].references != run.references:
            _refuse(done[0], run, ["the references of results.json"])


def _refuse(first: Run, run: Run, differences: Sequence[str]) -> None:
    if not differences:
        return
    shown = "; ".join(differences[:3])
    if len(differences) > 3:
        shown += f" and {len(differences) - 3} more"
    raise UserError(
        f"expected runs that differ in their rows only, got {first.place} and "
        f"{run.place}, which differ in {shown}; report on folders of one kind"
    )


def _check_row(run: Run, changed: set[str]) -> None:
    """Check that a run is its row, in all keys that the other rows change."""
    values = config.flatten(run.settings)
    for key in sorted(changed - {"train.steps"}):
        if values[key] != (expected := run.printed[key]):
            raise UserError(
                f"{run.place}: expected {key} = {expected} of row {run.row}, got "
                f"{values[key]}; it is another row: report without it"
            )


def _config_difference(first: Run, run: Run) -> list[str]:
    free = {"name", "seed", *config.PATHS}
    for one in (first, run) if first.row != run.row else ():
        free |= one.overrides.keys() | set(_NOT_PRINTED.get(one.row.split("_")[0], ()))
    lines = config.other_run(first.settings, run.settings)
    return [line for line in lines if line.split(":")[0] not in free]


def difference(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Return a line for each key with different values."""
    keys = dict.fromkeys([*first, *second])
    return [
        f"{key}: {first.get(key)} -> {second.get(key)}"
        for key in keys
        if first.get(key) != second.get(key)
    ]


def cpu_model(record: Mapping[str, Any]) -> str | None:
    """Return the model of the CPU that a record names, its own or a kept one's."""
    found = record.get("machine", {}).get("cpu")
    return found.get("model") if isinstance(found, Mapping) else found


def trained_on(runs: Iterable[Run | Measured]) -> str:
    """Name the devices that runs were trained on, each once, a CPU by its model."""
    found = set()
    for run in runs:
        for device in run.record.get("devices", ()):
            model = cpu_model(run.record) if device.startswith("cpu") else None
            found.add(f"cpu: {model}" if model else device)
    return ", ".join(sorted(found)) or "unknown devices"


def other_inputs(first: Run | Measured, second: Run | Measured) -> list[str]:
    """Return a line for each input with different content: vocabulary, data.

    Where the files were and whether they were compressed does not matter: files that
    share a digest are the same. Older records have no digest of the text of a .gz.
    """
    one, two = _inputs(first), _inputs(second)
    pairs = {key: (one.get(key, [None]), two.get(key, [None])) for key in one | two}
    return [
        f"{key}: {old[0]} -> {new[0]}"
        for key, (old, new) in pairs.items()
        if not {*old} & {*new}
    ]


def _inputs(run: Run | Measured) -> dict[str, list[Any]]:
    """Return the digests of vocabulary and data; for a file, that of its text first."""
    try:
        found = {"vocabulary": [run.record["vocabulary_digest"][:12]]}
        for split, files in run.record["data"].items():
            for path, sums in files.items():
                keys = [key for key in ("text_sha256", "sha256") if key in sums]
                digests = [sums[key] for key in keys] or [sums]
                name = Path(path).name.removesuffix(".gz")
                found[f"{split} {name}"] = [str(digest)[:12] for digest in digests]
    except KeyError as error:
        raise UserError(
            f"{run.folder / 'record.json'}: expected the key {error}, which "
            "transformer train writes; report without this run"
        ) from None
    return found


def _measure(run: Run) -> dict[str, Any]:
    """Return how a run was measured."""
    asked = run.settings.decode
    if run.checkpoint == "last":
        remedy, measured = "decode.checkpoint=last", asked.checkpoint == "last"
    else:
        remedy, measured = "decode.average of 2 or more", asked.average > 1
    if not measured and run.checkpoint not in run.results:
        raise UserError(
            f"{run.place}: expected results of the checkpoint {run.checkpoint!r}, "
            f"which this table is about, got none; train its runs with {remedy}"
        )
    try:
        found = {key: run.results[key] for key in ("split", *_SEARCH)}
        found["tokens"] = run.measured["tokens"]
        name = measures.name_of(run.settings.data, run.variant)
        found[name] = run.scored["signature"]
        averaged = len(run.results["averaged_steps"])
        _ = run.score("perplexity"), run.score("bleu"), run.references
        if run.kept is None:  # counted later, if at all
            _ = [one[run.checkpoint] for one in run.results["sentences"]]
        else:
            _ = run.kept["counts"]
    except KeyError as error:
        raise UserError(
            f"{run.folder / 'results.json'}: expected the key {error}, which "
            "transformer evaluate writes; run it again"
        ) from None
    wanted = run.settings.decode.average
    if run.table == 2 and averaged != wanted:
        raise UserError(
            f"{run.place}: expected the average of {wanted} checkpoints, got that of "
            f"{averaged}; run transformer evaluate --average={wanted}"
        )
    return found
