"""Results of runs as small files, from which a report is made again without training.

A run becomes a folder ``ROW/seed_K`` that ``runs.find`` reads as it does a workdir: its
configuration, its record without paths, its validations, and its results with counts in
place of sentences, so that no line of the data is in them. A run that is no row, as
``measured.read_scores`` reads it, becomes ``NAME/seed_K`` by the name of its
configuration, with the scores of all variants of its measure.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformer.config import PATHS, Config, UserError, other_steps
from transformer.files import sealed
from transformer.files.whole import write_whole
from transformer.paper.report.costs import (
    per_target_token,
    steps_per_sentence,
    vocabulary_sizes,
)
from transformer.paper.runs import Run, cpu_model
from transformer.run import folder as run_folder
from transformer.run.history import read_metrics, validations
from transformer.run.measured import Measured

_RECORD = (
    *("vocabulary_digest", "tokens", "started", "ended", "versions", "devices"),
    "git_revision",
)
_RESULTS = (
    *("split", "step", "trained", "averaged_steps", "average_of"),
    *("beam", "alpha", "length_penalty", "extra_tokens", "constrained"),
)
_SCORES = ("perplexity", "nll", "accuracy", "tokens", "exact_match")


def save(finished: Sequence[Run | Measured], folder: Path) -> list[Path]:
    """Write runs into a folder, overwriting those of the same name and seed.

    Args:
      finished: as ``runs.find`` returns them, or ``measured.read_scores``.
      folder: is made if need be.

    Returns:
      The folder of each run.

    Raises:
      UserError: if it is a file, two runs would have the same folder, or a workdir or
        another configuration of that name and seed is there.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(
            f"--save: expected a folder, got {folder}, a file; name another"
        )
    places: dict[Path, Run | Measured] = {}
    for run in finished:
        name = run.row if isinstance(run, Run) else run.settings.name
        place = folder / name / f"seed_{run.settings.seed}"
        other = places.setdefault(place, run)
        if other.folder.resolve() != run.folder.resolve():
            raise UserError(
                f"--save: expected runs of different names or seeds, got "
                f"{other.folder} and {run.folder}, both {name}; save one of them "
                "elsewhere"
            )
    for place, run in places.items():
        _refuse_another(run, place, folder)
    for place, run in places.items():
        _save(run, place)
    return [*places]


def _refuse_another(run: Run | Measured, place: Path, folder: Path) -> None:
    """Check that what is there, if anything, is kept of the same configuration."""
    if not (place / "config.json").exists():
        return
    path = place / "results.json"
    if not path.exists() or "kept" not in sealed.read_json(path, "name another folder"):
        raise UserError(
            f"--save: expected a folder of its own, got {folder}, where {place} is the "
            "workdir of a run, whose files would be replaced; name another"
        )
    old, new = run_folder.read_settings(place), _without_paths(run.settings)
    changes = [x for x in other_steps(old, new) if not x.startswith(PATHS)]
    if changes:
        raise UserError(
            f"--save: expected the configuration of {place}, which is there already, "
            f"got that of {run.folder}, {'; '.join(changes)}; give the run another "
            "name by resuming it with --config.name, or name another folder"
        )


def _save(run: Run | Measured, place: Path) -> None:
    place.mkdir(parents=True, exist_ok=True)
    sealed.write_json(place / "record.json", _record(run))
    sealed.write_json(place / "results.json", _results(run))
    if isinstance(run, Run):
        curve = run.curve
    else:
        curve = validations(read_metrics(run.folder))
    lines = (
        json.dumps({"step": step, "validation_perplexity": value}) + "\n"
        for step, value in curve
    )
    write_whole(place / "metrics.jsonl", "".join(lines).encode())
    # Last: without it the folder is no run, and what a kill left is written again.
    run_folder.write_settings(place, _without_paths(run.settings))


def _without_paths(settings: Config) -> Config:
    """Return a configuration with the last part of each path."""
    for key in PATHS:
        group, name = key.split(".")
        values = getattr(settings, group)
        short = dataclasses.replace(values, **{name: Path(getattr(values, name)).name})
        settings = dataclasses.replace(settings, **{group: short})
    return settings


def _record(run: Run | Measured) -> dict[str, Any]:
    record = run.record
    found = {key: record[key] for key in _RECORD if key in record}
    found["data"] = {
        split: {Path(path).name: sums for path, sums in files.items()}
        for split, files in record["data"].items()
    }
    operands = record.get("machine", {}).get("operands")
    found["machine"] = {"operands": operands, "cpu": cpu_model(record)}
    return found


def _results(run: Run | Measured) -> dict[str, Any]:
    results = run.results
    found = {key: results[key] for key in _RESULTS if key in results}
    if isinstance(run, Measured):
        return found | _of_a_system(run)
    scores = {key: run.measured[key] for key in _SCORES if key in run.measured}
    scores[run.settings.data.measure] = {run.variant: run.scored}
    found[run.checkpoint] = scores
    found["kept"] = {
        "references": run.references,
        "counts": [" ".join(map(str, column)) for column in run.line_counts.T.tolist()],
        "vocabulary": vocabulary_sizes(run),
        "operations_per_target_token": per_target_token(run),
    }
    return found


def _of_a_system(run: Measured) -> dict[str, Any]:
    """Return what the reports about systems and parsers read."""
    measure = run.settings.data.measure
    wanted = (*_SCORES, "seconds_to_translate")
    scores = {key: run.scores[key] for key in wanted if key in run.scores}
    scores[measure] = {
        variant: {key: one[key] for key in ("value", "signature")}
        for variant, one in run.scores[measure].items()
    }
    kept = run.test_set | {
        "vocabulary": vocabulary_sizes(run),
        "operations_per_target_token": per_target_token(run),
        "steps_per_sentence": steps_per_sentence(run, run.results["split"]),
    }
    return {run.checkpoint: scores, "kept": kept}
