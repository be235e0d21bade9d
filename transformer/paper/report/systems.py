"""The second half of Table 2: systems that were trained on the same data here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from transformer import config
from transformer.config import UserError
from transformer.metrics import measures
from transformer.paper.report import groups
from transformer.paper.report.costs import (
    cost_text,
    per_target_token,
    size_text,
    steps_per_sentence,
)
from transformer.paper.runs import difference, other_inputs, trained_on
from transformer.paper.statistics import summary
from transformer.pictures.tables import Table, digits, scientific
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
    finished, unfinished = groups.read(folders, "systems")
    for run in finished:
        _refuse(finished[0], run)
    measured.check_same_test_set(finished)
    data = finished[0].settings.data
    variant = measures.variant_of(data, variant)
    systems = groups.systems(finished, "systems")
    rows = tuple(
        (name, *_cells(runs, variant))
        for name, runs in zip(groups.names(systems), systems, strict=True)
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


def _refuse(first: Measured, run: Measured) -> None:
    """Check that two runs had the same data and the same vocabulary."""
    chosen = [
        {key: getattr(one.settings.data, key) for key in _DATA} for one in (first, run)
    ]
    found = difference(*chosen) + other_inputs(first, run)
    if found:
        raise UserError(
            f"--systems: expected runs on the same data, got {first.folder} and "
            f"{run.folder}, which differ in {'; '.join(found)}; leave one of them out"
        )


def _cells(runs: Sequence[Measured], variant: str) -> list[str]:
    first = runs[0]
    read = [_values(run, variant) for run in runs]
    scores, perplexities, seconds, beams, splits = zip(*read, strict=True)
    each, steps = per_target_token(first), steps_per_sentence(first, splits[0])
    return [
        _kind(first.settings.model),
        str(len(runs)),
        groups.mean(scores, 2),
        groups.mean(perplexities, 3),
        size_text(first),
        scientific(each),
        cost_text(runs),
        digits(summary(seconds).mean),
        *(["", ""] if steps is None else [f"{one:.1f}" for one in steps]),
        ", ".join(map(str, dict.fromkeys(beams))),
    ]


def _values(run: Measured, variant: str) -> tuple[float, float, float, int, str]:
    """Return score, perplexity, milliseconds per token, beam and split of a run."""
    scores = run.scores
    try:
        return (
            scores[run.settings.data.measure][variant]["value"],
            scores["perplexity"],
            1000 * scores["seconds_to_translate"] / scores["tokens"],
            run.results["beam"],
            run.results["split"],
        )
    except KeyError as error:
        raise UserError(
            f"{run.folder / 'results.json'}: expected the key {error}, which "
            "transformer evaluate writes; run it again"
        ) from None


def _kind(model: config.Model) -> str:
    """Name the kind of a model, and its member where it has some."""
    member = getattr(model, "member", "")
    return f"{model.kind}, {member}" if member else model.kind


def _note(
    finished: Sequence[Measured], unfinished: Iterable[Path], variant: str
) -> str:
    first = finished[0]
    measure = first.settings.data.measure
    signature = first.scores[measure][variant]["signature"]
    averaged = [run for run in finished if run.checkpoint == "average"]
    parts = [
        f"All on the {first.results['split']} pairs, of averaged checkpoints where a "
        f"run has some ({len(averaged)} of {len(finished)} runs), mean ± standard "
        f"deviation over seeds. {measure.upper()}: {signature}. PPL: per token of the "
        "shared vocabulary. Operations: matrix products of a forward pass over the "
        "training pairs, all words given, 2 per multiply-add; for training three times "
        "as many, on the real tokens seen. Seconds: search of all test sentences "
        "divided by the reference tokens, with compilation for a last or best "
        "checkpoint, without for an average, which is searched second. Steps: how "
        "many must wait for one another in a test sentence of mean length; a "
        "Transformer layer counts once for all positions that it processes at once, a "
        "recurrent cell once for each. Blank: the prepared corpus is gone. "
        f"Trained on {trained_on(finished)}."
    ]
    if names := [str(path) for path in unfinished]:
        parts.append(f"Not finished, left out: {', '.join(names)}.")
    return " ".join(parts)
