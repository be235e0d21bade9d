"""Evaluation: perplexity, the task's measure, and averaged checkpoints."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transformer import objective
from transformer.config import Config, UserError
from transformer.data.corpus import Corpus
from transformer.data.sources import Split
from transformer.metrics import bleu, measures
from transformer.parallel import hosts, sizes
from transformer.prepare import Prepared, prepare
from transformer.run import checkpoints
from transformer.run.checkpoints import Checkpoints
from transformer.run.records import announce, write_json
from transformer.translate import Translator, abstract_params, open_run

_SAMPLES = 10


def evaluate(
    workdir: Path,
    split: Split = "test",
    step: int | None = None,
    average: int | None = None,
    log: Callable[[str], None] = announce,
) -> Path:
    """Measure a trained model and write results.json.

    Perplexity is per token (piece), without smoothing. Translations are found by the
    configured search. Both are measured for one checkpoint and for the average of the
    last K, which is saved for ``translate``.

    Args:
      workdir: folder of the run.
      split: "test" or "validation".
      step: of the checkpoint, None = the last.
      average: K, None = ``decode.average`` of the configuration.
      log: takes the results, one line at a time.

    Returns:
      The path of results.json.
    """
    log = hosts.once(log)
    settings, _ = open_run(workdir)
    measures.measure_of(settings.data)
    prepared = prepare(settings, workdir)
    sized = sizes.here(settings, prepared.vocabulary.target.size)
    log(sizes.line(sized))
    with Checkpoints(workdir / "checkpoints", settings.train.keep, log) as saved:
        abstract = abstract_params(settings, prepared.vocabulary)
        last, tree, _ = saved.restore({"params": abstract}, step)
    models = {"last": tree["params"]}
    averaged = steps_to_average(workdir, settings, average, last)
    if len(averaged) > 1:
        models["average"] = save_average(workdir, settings, prepared, averaged, log)
    results: dict[str, Any] = {
        "split": split,
        "step": last,
        "averaged_steps": averaged,
        "beam": settings.decode.beam,
        "alpha": settings.decode.alpha,
        "length_penalty": settings.decode.length_penalty,
        "extra_tokens": settings.decode.extra_tokens,
    }
    sources, references = prepared.texts(split)[0], prepared.references(split)
    translations = {}
    for name, params in models.items():
        translator = Translator(sized, prepared.vocabulary, params, log)
        measured, translations[name] = _measure(
            translator, prepared.corpora[split], sources, references
        )
        results[name] = measured
        _report(
            name,
            last if name == "last" else averaged,
            split,
            settings.data.measure,
            measured,
            log,
        )
    results["sentences"] = [
        {"source": source, "reference": reference}
        | {name: lines[i] for name, lines in translations.items()}
        for i, (source, reference) in enumerate(zip(sources, references, strict=True))
    ]
    _show_samples(results["sentences"], list(translations)[-1], log)
    path = workdir / "results.json"
    if hosts.primary():
        write_json(path, results)
    hosts.barrier("results")
    log(f"results: {path}")
    return path


def _measure(
    translator: Translator,
    corpus: Corpus,
    sources: Sequence[str],
    references: Sequence[str],
) -> tuple[dict[str, Any], list[str]]:
    settings = translator.settings
    sums = objective.corpus_sums(
        settings, translator.model, translator.params, corpus, translator.mesh
    )
    start = time.monotonic()
    lines = translator.translate(sources)
    seconds = time.monotonic() - start
    measure = measures.measure_of(settings.data)
    scores = measure(lines, references, settings.data.target_language)
    return {
        "perplexity": float(np.exp(sums["nll"] / sums["weight"])),
        "nll": sums["nll"] / sums["weight"],
        "accuracy": sums["correct"] / sums["weight"],
        "tokens": int(sums["weight"]),
        "exact_match": bleu.exact_match(lines, references),
        settings.data.measure: {
            name: dataclasses.asdict(score) for name, score in scores.items()
        },
        "seconds_to_translate": seconds,
    }, lines


def _report(
    name: str,
    steps: Any,
    split: Split,
    measure: str,
    measured: dict[str, Any],
    log: Callable[[str], None],
) -> None:
    if name == "last":
        log(f"--- {split}, checkpoint of step {steps:,}")
    else:
        listed = ", ".join(f"{step:,}" for step in steps)
        log(f"--- {split}, average of {len(steps)} checkpoints: steps {listed}")
    log(f"perplexity {measured['perplexity']:.3f} per token")
    log(f"exact match {measured['exact_match']:.2%}")
    for variant, score in measured[measure].items():
        log(f"{measure.upper()} {score['value']:5.2f}  {variant}  {score['signature']}")


def _show_samples(
    sentences: Sequence[dict[str, str]], name: str, log: Callable[[str], None]
) -> None:
    log(f"--- samples ({name})")
    for i in np.linspace(0, len(sentences) - 1, min(_SAMPLES, len(sentences))):
        one = sentences[int(i)]
        log(f"source      {one['source']}")
        log(f"reference   {one['reference']}")
        log(f"translation {one[name]}")


# --------------------------------------------------------------------------- averaging


def average(
    workdir: Path, last: int | None = None, log: Callable[[str], None] = announce
) -> str:
    """Average the last K checkpoints of a run for inference.

    Args:
      workdir: folder of the run.
      last: K, None = ``decode.average`` of the configuration.
      log: takes which checkpoints were averaged, in lines.

    Returns:
      A line that names the result.
    """
    settings, _ = open_run(workdir)
    prepared = prepare(settings, workdir)
    steps = steps_to_average(workdir, settings, last, None)
    save_average(workdir, settings, prepared, steps, log)
    return f"average of steps {', '.join(map(str, steps))}: {workdir / 'averaged'}"


def steps_to_average(
    workdir: Path, settings: Config, count: int | None, last: int | None
) -> list[int]:
    """Return the last ``count`` steps at most ``last`` that have a checkpoint.

    Where a run keeps an older best checkpoint, that one is not among them.

    Raises:
      UserError: if there are fewer, and ``count`` was asked for.
    """
    with Checkpoints(workdir / "checkpoints", settings.train.keep) as saved:
        regular = saved.steps()[-settings.train.keep :]
    steps = [s for s in regular if last is None or s <= last]
    if count is not None and len(steps) < count:
        raise UserError(
            f"expected {count} checkpoints to average in {workdir / 'checkpoints'}, "
            f"found {len(steps)}; ask for fewer"
        )
    return steps[-(count or settings.decode.average) :]


def save_average(
    workdir: Path,
    settings: Config,
    prepared: Prepared,
    steps: Sequence[int],
    log: Callable[[str], None],
) -> Any:
    """Save the mean of the parameters of some steps in ``averaged``; return it."""
    gaps = {b - a for a, b in zip(steps, steps[1:], strict=False)}
    if len(gaps) > 1:
        log(
            f"warning: the averaged checkpoints are not equally far apart "
            f"({', '.join(map(str, steps))})"
        )
    params = checkpoints.average(
        workdir / "checkpoints", steps, abstract_params(settings, prepared.vocabulary)
    )
    checkpoints.save_inference(
        workdir / "averaged",
        steps[-1],
        params,
        {
            "config": dataclasses.asdict(settings),
            "vocabulary": prepared.vocabulary.digest,
            "averaged_steps": list(steps),
        },
    )
    return params
