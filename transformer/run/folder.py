"""The files of a workdir: where they are, and one reader for all that use them.

What is written here carries its own digest, see ``files.sealed``; what an earlier
version wrote does not, and is taken as it is.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer import config
from transformer.config import Config, UserError
from transformer.files import sealed
from transformer.run.course import Course, may_end_early

FILES = ("config.json", "record.json", "metrics.jsonl", "results.json")
FOLDERS = ("checkpoints", "averaged", "results", "tensorboard", "vocabulary")
_SEARCH = ("beam", "alpha", "length_penalty", "extra_tokens", "constrained")


def check_writable(workdir: Path) -> None:
    """Check that what a run writes goes into its workdir and nowhere else.

    Raises:
      UserError: for a folder where a file should be, a file where a folder should be,
        and a folder that is a link.
    """
    for name in FILES:
        if (workdir / name).is_dir():
            raise UserError(
                f"{workdir / name}: expected a file, got a folder; move it away"
            )
    for name in FOLDERS:
        path = workdir / name
        if path.is_symlink():
            raise UserError(
                f"{path}: expected a folder, got a link to {path.readlink()}, which is "
                "not followed when writing; put the folder in its place"
            )
        if path.exists() and not path.is_dir():
            raise UserError(f"{path}: expected a folder, got a file; move it away")


def names(workdirs: Sequence[Path]) -> list[str]:
    """Return what tells folders apart: their paths below what all have in common."""
    paths = [str(workdir.resolve()) for workdir in workdirs]
    if len(set(paths)) < 2:
        return [workdir.resolve().name for workdir in workdirs]
    common = os.path.commonpath(paths)
    return [os.path.relpath(path, common) for path in paths]


# ---- config.json ---------------------------------------------------------------------


def read_settings(workdir: Path) -> Config:
    """Return the configuration of a run.

    Raises:
      UserError: if there is no run in the folder, or its config.json is damaged.
    """
    path = workdir / "config.json"
    if not path.exists():
        raise UserError(
            f"{workdir}: expected the folder of a training run, found no config.json; "
            "run transformer train first"
        )
    values = sealed.read_json(
        path,
        "restore it, or remove it and repeat the run's transformer train command, "
        "which writes it again",
    )
    try:
        return config.resolve_saved(values)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def write_settings(workdir: Path, settings: Config) -> None:
    """Write config.json."""
    sealed.write_json(workdir / "config.json", dataclasses.asdict(settings))


def check_same_run(
    workdir: Path, old: Config, new: Config, last: int, *, steps_may_change: bool = True
) -> None:
    """Check that a run may go on with a configuration.

    Args:
      workdir: of the run.
      old: the configuration it has.
      new: the one that is asked for.
      last: the step of its last checkpoint.
      steps_may_change: what ``config.other_steps`` leaves free may differ.

    Raises:
      UserError: if it is another run, or would end before its last checkpoint.
    """
    differs = config.other_steps if steps_may_change else config.other_run
    if changes := differs(old, new):
        raise UserError(
            f"{workdir} belongs to another configuration; expected the same, got "
            f"{'; '.join(changes)}; choose another workdir or change it back"
        )
    if new.train.steps < last:
        raise UserError(
            f"config: train.steps: expected {last} or more, the step of the last "
            f"checkpoint in {workdir}, got {new.train.steps}; raise it or choose "
            "another workdir"
        )


def check_unspoilt(workdir: Path, new: Config) -> None:
    """Check that a run without checkpoints, which starts over, replaces no other one.

    Raises:
      UserError: if there are results or a record of training by a configuration that
        differs at all.
    """
    trained = (workdir / "results.json").exists() or read_record(workdir).get("tokens")
    if trained and (workdir / "config.json").exists():
        old = read_settings(workdir)
        check_same_run(workdir, old, new, 0, steps_may_change=False)


# ---- record.json ---------------------------------------------------------------------


def read_record(workdir: Path) -> dict[str, Any]:
    """Return record.json, empty where there is none.

    Raises:
      UserError: if it is damaged.
    """
    path = workdir / "record.json"
    if not path.exists():
        return {}
    remedy = "restore it, or move it away to go on without its content"
    record = sealed.read_json(path, remedy)
    for key, fits in _RECORD.items():
        if key in record and not fits(record[key]):
            raise UserError(
                f"{path}: expected other content of {key!r}, got "
                f"{str(record[key])[:60]}; {remedy}"
            )
    return record


def _is_claim(value: Any) -> bool:
    kinds = {"bytes": int, "sha256": str}
    return isinstance(value, Mapping) and kinds == {k: type(value[k]) for k in value}


def _are_changes(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(one, Mapping) and type(one.get("step")) is int for one in value
    )


def _are_inputs(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(inputs, Mapping)
        and all(isinstance(one, Mapping) for one in inputs.values())
        for inputs in value.values()
    )


# What is read back from a record, and what it must be.
_RECORD = {
    "started": lambda value: isinstance(value, str),
    "metrics": _is_claim,
    "changes": _are_changes,
    "data": _are_inputs,
}


# ---- results -------------------------------------------------------------------------


def results_path(workdir: Path, split: str, averaged: Sequence[int]) -> Path:
    """Return where the results of a split are kept, by the averaged steps."""
    name = f"{split}_step{averaged[-1]}_average{len(averaged)}.json"
    return workdir / "results" / name


def write_results(workdir: Path, results: Mapping[str, Any]) -> None:
    """Write the results of an evaluation to its file in ``results``.

    Earlier results of the same checkpoints by another search are kept, under a name
    that says which.
    """
    path = results_path(workdir, results["split"], results["averaged_steps"])
    path.parent.mkdir(exist_ok=True)
    _keep_other_search(path, results)
    sealed.write_json(path, results)


def write_final_results(workdir: Path, results: Mapping[str, Any]) -> Path:
    """Write results.json, the results of the run's end; return the path."""
    path = workdir / "results.json"
    sealed.write_json(path, results)
    return path


def _keep_other_search(path: Path, results: Mapping[str, Any]) -> None:
    try:
        old = sealed.read_json(path, "")
    except UserError:  # none, or damaged
        return
    if _search(old) != _search(results):
        search = "_".join(f"{key}{value}" for key, value in _search(old).items())
        os.replace(path, path.with_name(f"{path.stem}_{search}.json"))


def _search(results: Mapping[str, Any]) -> dict[str, Any]:
    """Return the search by which results were made."""
    found = {key: results.get(key) for key in _SEARCH}
    if found["constrained"] is not False:  # earlier versions do not record it
        del found["constrained"]
    return found


def read_results(workdir: Path) -> dict[str, Any]:
    """Return results.json, the results of the run's end; empty if there is none.

    Raises:
      UserError: if it is damaged.
    """
    path = workdir / "results.json"
    if not path.exists():
        return {}
    return sealed.read_json(
        path, "restore it, or repeat transformer evaluate, which writes it again"
    )


def results_of_the_end(workdir: Path, settings: Config) -> dict[str, Any]:
    """Return results.json if it is of the run's end, otherwise nothing.

    Raises:
      UserError: if it is damaged.
    """
    found = read_results(workdir)
    return found if are_of_the_end(workdir, settings, found) else {}


def is_finished(workdir: Path, settings: Config) -> bool:
    """Return whether a run has its final results, measured as its settings say."""
    try:
        found = read_results(workdir)
    except UserError:
        return False  # they are measured again
    wanted = {
        "split": "test",
        "average_of": settings.decode.average,
        **{key: getattr(settings.decode, key) for key in _SEARCH},
    }
    earlier = wanted | {"constrained": True}  # where a version said nothing
    told = {key: found.get(key, earlier[key]) for key in wanted}
    name = settings.decode.checkpoint
    there = [x for x in ("last", "best") if found.get(x)]  # none in brief ones
    measured = not there or settings.data.measure in found.get(name, {})
    complete = are_of_the_end(workdir, settings, found)
    return bool(found) and told == wanted and complete and measured


def are_of_the_end(workdir: Path, settings: Config, results: Mapping[str, Any]) -> bool:
    """Return whether results are of a run's end, at its last step or before it."""
    trained = results.get("trained", results.get("step", settings.train.steps))
    if trained == settings.train.steps:
        return True
    record = read_record(workdir)
    if not (may_end_early(settings) and record.get("ended")):
        return False
    # Earlier versions do not record why it ended.
    course = record.get("course")
    return course is None or bool(Course(**course).over(settings))
