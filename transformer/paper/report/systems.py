"""The second half of Table 2: systems that were trained on the same data here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from transformer import config
from transformer.config import UserError
from transformer.metrics import measures
from transformer.paper.report.costs import (
    cost_text,
    per_target_token,
    size_text,
    steps_per_sentence,
)
from transformer.paper.runs import PATHS, difference, inputs, workdirs
from transformer.paper.statistics import summary
from transformer.pictures.tables import Table, digits, scientific
from transformer.run import folder as run_folder
from transformer.run import measured
from transformer.run.measured import Measured

_DATA = ("source", "name", "train", "train_pairs", "digits")


def systems_table(folders: Sequence[Path], variant: str | None = None) -> Table:
    """Return a line for each system whose runs are in or below folders.

    Args:
      folders: workdirs, or folders with workdirs below.
      variant: of ``data.measure``; None is the one that reports use.

    Raises:
      UserError: if a folder has no run, none is finished, or runs have other data,
        vocabularies or test sets.
    """
    finished, unfinished = _read(folders)
    for run in finished:
        _refuse(finished[0], run)
    measured.check_same_test_set(finished)
    data = finished[0].settings.data
    variant = measures.variant_of(data, variant)
    systems = _systems(finished)
    rows = tuple(
        (name, *_cells(runs, variant))
        for name, runs in zip(_names(systems), systems, strict=True)
    )
    heads = [
        "system",
        "model",
        "seeds",
        f"{data.measure.upper()} {variant}",
        "PPL",
        "params, M",
    ]
    heads += ["operations per target token", "FLOPs of training"]
    heads += ["s per 1,000 target tokens", "steps per sentence, trained"]
    heads += ["steps per sentence, translated", "beam"]
    pair = f"{data.source_language}-{data.target_language}"
    title = f"Table 2, measured here: {pair}, {data.train} of {data.source}"
    return Table(title, tuple(heads), rows, _note(finished, unfinished, variant))


def _read(folders: Sequence[Path]) -> tuple[list[Measured], list[Path]]:
    """Return the finished runs and the workdirs of the others, each once."""
    found: dict[Path, Path] = {}
    for folder in folders:
        below = list(workdirs(folder))
        if not below:
            raise UserError(
                f"--systems: expected folders of runs, got {folder}, without any; "
                "leave it out"
            )
        found |= {path.resolve(): path for path in below}
    paths = list(found.values())
    unfinished = [path for path in paths if not _has_ended(path)]
    finished = [measured.read(path) for path in paths if path not in unfinished]
    if not finished:
        raise UserError(
            f"--systems: expected a finished run, found {len(unfinished)} without "
            "results of its end; let it end"
        )
    return finished, unfinished


def _has_ended(workdir: Path) -> bool:
    settings = run_folder.read_settings(workdir)
    return bool(run_folder.results_of_the_end(workdir, settings))


def _refuse(first: Measured, run: Measured) -> None:
    """See that two runs had the same data and the same vocabulary."""
    chosen = [
        {key: getattr(one.settings.data, key) for key in _DATA} for one in (first, run)
    ]
    found = difference(*chosen) + difference(inputs(first), inputs(run))
    if found:
        raise UserError(
            f"--systems: expected runs on the same data, got {first.folder} and "
            f"{run.folder}, which differ in {'; '.join(found)}; leave one of them out"
        )


def _systems(runs: Sequence[Measured]) -> list[list[Measured]]:
    """Return the runs of each system: they differ in the seed only."""
    systems: list[list[Measured]] = []
    for run in runs:
        for system in systems:
            if _is_another_seed(system[0], run):
                _check_seed(system, run)
                system.append(run)
                break
        else:
            systems.append([run])
    return systems


def _is_another_seed(first: Measured, run: Measured) -> bool:
    lines = config.other_run(first.settings, run.settings)
    return {line.split(":")[0] for line in lines} <= {"seed", *PATHS}


def _check_seed(system: Sequence[Measured], run: Measured) -> None:
    for other in system:
        if other.settings.seed == run.settings.seed:
            raise UserError(
                f"--systems: expected one run of a system with seed "
                f"{run.settings.seed}, got {other.folder} and {run.folder}; leave one "
                "of them out"
            )


def _names(systems: Sequence[Sequence[Measured]]) -> list[str]:
    """Return the names of systems, with the folder where two have the same."""
    names = [runs[0].settings.name for runs in systems]
    folders = run_folder.names([runs[0].folder for runs in systems])
    return [
        f"{name} ({folder})" if names.count(name) > 1 else name
        for name, folder in zip(names, folders, strict=True)
    ]


def _cells(runs: Sequence[Measured], variant: str) -> list[str]:
    first = runs[0]
    try:
        measure = first.settings.data.measure
        scores = [run.scores[measure][variant]["value"] for run in runs]
        perplexities = [run.scores["perplexity"] for run in runs]
        seconds = [
            1000 * run.scores["seconds_to_translate"] / run.scores["tokens"]
            for run in runs
        ]
        split, beams = first.results["split"], [run.results["beam"] for run in runs]
    except KeyError as error:
        raise UserError(
            f"{first.folder / 'results.json'}: expected the key {error}, which "
            "transformer evaluate writes; run it again"
        ) from None
    each, steps = per_target_token(first), steps_per_sentence(first, split)
    return [
        _kind(first.settings.model),
        str(len(runs)),
        _mean(scores, 2),
        _mean(perplexities, 3),
        size_text(first),
        scientific(each),
        cost_text(runs),
        digits(summary(seconds).mean),
        *(["", ""] if steps is None else [f"{one:.1f}" for one in steps]),
        ", ".join(map(str, dict.fromkeys(beams))),
    ]


def _kind(model: config.Model) -> str:
    """Name the kind of a model, and its member where it has some."""
    member = getattr(model, "member", "")
    return f"{model.kind}, {member}" if member else model.kind


def _mean(values: Sequence[float], decimals: int) -> str:
    found = summary(values)
    text = f"{found.mean:.{decimals}f}"
    return text + (f" ± {found.deviation:.{decimals}f}" if found.count > 1 else "")


def _note(
    finished: Sequence[Measured], unfinished: Iterable[Path], variant: str
) -> str:
    first = finished[0]
    measure = first.settings.data.measure
    signature = first.scores[measure][variant]["signature"]
    devices = sorted({d for run in finished for d in run.record.get("devices", ())})
    averaged = [run for run in finished if run.checkpoint == "average"]
    parts = [
        f"All on the {first.results['split']} pairs, of averaged checkpoints where a "
        f"run has some ({len(averaged)} of {len(finished)} runs), mean ± standard "
        f"deviation over seeds. {measure.upper()}: {signature}. PPL: per token of the "
        "vocabulary that all share. Operations: products of matrices of a forward pass "
        "over the training pairs, all words given, 2 per multiply-add; of training "
        "three times as many, on the real tokens seen. Seconds: search of all test "
        "sentences over the tokens of the references, compilation included. Steps that "
        "have to wait for one another in a test sentence of mean length: a layer of a "
        "Transformer once for all positions that it can take at once, a recurrent cell "
        "once for each. Blank: the prepared corpus is gone. "
        f"Trained on {', '.join(devices) or 'unknown devices'}."
    ]
    if names := [str(path) for path in unfinished]:
        parts.append(f"Not finished, left out: {', '.join(names)}.")
    return " ".join(parts)
