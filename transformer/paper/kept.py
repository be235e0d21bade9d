"""Results of runs as small files, from which a report is made again without training.

A run becomes a folder ``ROW/seed_K`` that ``runs.find`` reads as it does a workdir: its
configuration, its record without paths, its validations, and its results with counts in
place of sentences, so that no line of the data is in them.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer.config import PATHS, Config, UserError
from transformer.files import sealed
from transformer.files.whole import write_whole
from transformer.paper.report.costs import per_target_token, vocabulary_sizes
from transformer.paper.runs import Run
from transformer.run import folder as run_folder

_RECORD = (
    *("vocabulary_digest", "tokens", "started", "ended", "versions", "devices"),
    "git_revision",
)
_RESULTS = (
    *("split", "step", "trained", "averaged_steps", "average_of"),
    *("beam", "alpha", "length_penalty", "extra_tokens"),
)
_SCORES = ("perplexity", "nll", "accuracy", "tokens", "exact_match")


def save(finished: Sequence[Run], folder: Path) -> list[Path]:
    """Write runs into a folder, and over what is there of the same row and seed.

    Args:
      finished: as ``runs.find`` returns them.
      folder: is made if need be.

    Returns:
      The folder of each run.

    Raises:
      UserError: if it is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(
            f"--save: expected a folder, got {folder}, a file; name another"
        )
    return [_save(run, folder) for run in finished]


def _save(run: Run, folder: Path) -> Path:
    place = folder / run.row / f"seed_{run.settings.seed}"
    place.mkdir(parents=True, exist_ok=True)
    run_folder.write_settings(place, _without_paths(run.settings))
    sealed.write_json(place / "record.json", _record(run))
    sealed.write_json(place / "results.json", _results(run))
    curve = (
        json.dumps({"step": step, "validation_perplexity": value}) + "\n"
        for step, value in run.curve
    )
    write_whole(place / "metrics.jsonl", "".join(curve).encode())
    return place


def _without_paths(settings: Config) -> Config:
    """Return a configuration with the last part of each path."""
    for key in PATHS:
        group, name = key.split(".")
        values = getattr(settings, group)
        short = dataclasses.replace(values, **{name: Path(getattr(values, name)).name})
        settings = dataclasses.replace(settings, **{group: short})
    return settings


def _record(run: Run) -> dict[str, Any]:
    record = run.record
    found = {key: record[key] for key in _RECORD if key in record}
    found["data"] = {
        split: {Path(path).name: sums for path, sums in files.items()}
        for split, files in record["data"].items()
    }
    machine = record.get("machine", {})
    cpu: Mapping[str, Any] = machine.get("cpu") or {}
    found["machine"] = {"operands": machine.get("operands"), "cpu": cpu.get("model")}
    return found


def _results(run: Run) -> dict[str, Any]:
    results = run.results
    found = {key: results[key] for key in _RESULTS if key in results}
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
