"""Evaluation: perplexity, the task's measure, and averaged checkpoints."""

from __future__ import annotations

import collections
import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from transformer import fitting, objective
from transformer.config import Config, UserError
from transformer.data.corpus import Corpus
from transformer.data.sources import Split
from transformer.data.tokenizers import Vocabulary
from transformer.metrics import measures
from transformer.parallel import hosts, memory, sizes
from transformer.prepare import Prepared, prepare
from transformer.run import checkpoints, folder, texts
from transformer.run.checkpoints import Checkpoints
from transformer.run.meter import LARGEST, diverged
from transformer.run.records import announce
from transformer.run.stop import unless_closed
from transformer.trained import abstract_params, chosen_step, open_run
from transformer.translate import Translator

_SAMPLES = 10


def evaluate(
    workdir: Path,
    split: Split = "test",
    step: int | None = None,
    average: int | None = None,
    log: Callable[[str], None] = announce,
    output: Path | None = None,
) -> Path:
    """Measure a trained model and write the results.

    Perplexity is per token (piece), without smoothing; if tokens are bytes, it is also
    logged as bits per byte, EOS included. Translations are found by the configured
    search. Both are measured for one checkpoint and for the average of the last K.

    Each evaluation has its own file in ``results``. The usual one, of the test pairs,
    the last checkpoint and the configured K, also writes results.json and saves the
    average for ``translate``.

    Args:
      workdir: folder of the run.
      split: "test" or "validation".
      step: of the checkpoint, None = the last, or the best if ``decode.checkpoint``
        says so.
      average: K, None = ``decode.average`` of the configuration.
      log: takes the results, one line at a time.
      output: folder to write the sentences to, see ``run.texts``.

    Returns:
      The path of results.json, or of the file in ``results`` of another evaluation.

    Raises:
      UserError: if there are no such checkpoints, another process works in the workdir,
        or the model predicts nothing finite.
    """
    folder.check_writable(workdir)
    with hosts.holding(workdir):
        once = hosts.once(log)
        return evaluate_held(workdir, split, step, average, once, output)


def evaluate_held(
    workdir: Path,
    split: Split = "test",
    step: int | None = None,
    average: int | None = None,
    log: Callable[[str], None] = announce,
    output: Path | None = None,
    prepared: Prepared | None = None,
) -> Path:
    """Evaluate in a workdir that this process holds; see ``evaluate``.

    Args:
      workdir: see there, like those that follow.
      prepared: its data, None = open them, and compare what they were made from.
    """
    closed: list[BrokenPipeError] = []
    log = unless_closed(log, closed.append)
    settings, vocabulary = open_run(workdir)
    measures.measure_of(settings.data)
    if prepared is None:
        _check_has_pairs(settings, workdir)
        prepared = prepare(settings, workdir, log, vocabulary)
    sized = sizes.here(settings, prepared.vocabulary.target.size)
    log(sizes.line(sized))
    it = _evaluated(workdir, settings, prepared, step, average, log)
    usual = split == "test" and it.usual
    sources, references = prepared.texts(split)[0], prepared.references(split)
    read = prepared.inputs(split)
    results, translations = _described(settings, split, it, average), {}
    for name, params in it.models.items():
        translator = Translator(sized, prepared.vocabulary, params, log)
        results[name], translations[name] = _measure(
            translator, prepared.corpora[split], read, references, split, name
        )
        steps = it.averaged if name == "average" else it.last
        _report(name, steps, split, settings, results[name], log)
    results["sentences"] = [
        {"source": source, "reference": reference}
        | {name: lines[i] for name, lines in translations.items()}
        for i, (source, reference) in enumerate(zip(sources, references, strict=True))
    ]
    path = folder.results_path(workdir, split, it.averaged)
    if hosts.primary():
        folder.write_results(workdir, results)
        if output is not None:
            texts.write(output, settings.data, sources, references, translations)
    if usual:  # the larger file second: where there is no room for it, results are kept
        mean = it.models.get("average")
        _keep_average(workdir, settings, prepared, it.averaged, mean, log)
        if hosts.primary():
            path = folder.write_final_results(workdir, results)
    hosts.barrier("results")
    # After the files, because what takes the log may refuse words.
    _show_samples(results["sentences"], list(translations)[-1], log)
    log(f"results: {path}")
    if closed:  # evaluate | head -1: the results are written anyway
        raise closed[0]
    return path


def _check_has_pairs(settings: Config, workdir: Path) -> None:
    with Checkpoints(workdir / "checkpoints", settings.train.keep) as saved:
        if saved.steps() and {"imported", "inference_only"} <= saved.metadata().keys():
            raise UserError(
                f"{workdir}: expected a model with pairs to evaluate it on, got one "
                "imported without; import it again with --config, into another workdir"
            )


class _Evaluated(NamedTuple):
    """The parts of a run that are evaluated."""

    models: dict[str, Any]  # parameters of "last" or "best", and perhaps of "average"
    last: int  # step of the checkpoint
    newest: int  # step that the run has reached
    averaged: list[int]  # steps
    usual: bool  # whether checkpoint and average are those that the run itself decides


def _evaluated(
    workdir: Path,
    settings: Config,
    prepared: Prepared,
    step: int | None,
    average: int | None,
    log: Callable[[str], None],
) -> _Evaluated:
    name: str = settings.decode.checkpoint if step is None else "last"
    with Checkpoints(workdir / "checkpoints", settings.train.keep, log) as saved:
        newest, chosen = max(saved.steps(), default=0), None
        if step is None or saved.best() is not None:
            chosen = chosen_step(settings, saved)
        abstract = abstract_params(settings, prepared.vocabulary)
        wished = chosen if step is None else step
        last, tree, metadata = saved.restore({"params": abstract}, wished)
    digest = prepared.vocabulary.digest
    checkpoints.check_vocabulary(saved.folder / str(last), metadata, digest)
    models = {name: tree["params"]}
    final = newest if settings.decode.checkpoint == "last" else chosen
    averaged, wanted = [last], [] if final is None else [final]
    if name == "last" or average is not None:
        averaged = steps_to_average(workdir, settings, average, last)
        wanted = steps_to_average(workdir, settings, None, newest)
    if average is None and settings.decode.average > settings.train.keep:
        log(
            f"warning: {settings.decode.average} checkpoints to average "
            f"(decode.average), but only {settings.train.keep} are kept (train.keep)"
        )
    if len(averaged) > 1:
        vocabulary = prepared.vocabulary
        mean = averaged_params(workdir, settings, vocabulary, averaged, log)
        models["average"] = mean
    usual = last == final and averaged == wanted
    return _Evaluated(models, last, newest, averaged, usual)


def _described(
    settings: Config, split: Split, it: _Evaluated, average: int | None
) -> dict[str, Any]:
    return {
        "split": split,
        "step": it.last,
        "trained": it.newest,
        "averaged_steps": it.averaged,
        "average_of": settings.decode.average if average is None else average,
        "beam": settings.decode.beam,
        "alpha": settings.decode.alpha,
        "length_penalty": settings.decode.length_penalty,
        "extra_tokens": settings.decode.extra_tokens,
        "constrained": settings.decode.constrained,
    }


def _measure(
    translator: Translator,
    corpus: Corpus,
    sources: Sequence[Any],
    references: Sequence[str],
    split: Split,
    name: str,
) -> tuple[dict[str, Any], list[str]]:
    settings = translator.settings
    with memory.enough(*fitting.measuring(split)):
        sums = objective.corpus_sums(
            settings, translator.model, translator.params, corpus, translator.mesh
        )
    nll = sums["nll"] / sums["weight"]
    if not nll < LARGEST:
        got = f"got {nll:.4g} nats per token"
        raise diverged(f"{split}, {name}: expected a finite loss, {got}")
    start = time.monotonic()
    found = [one[0] for one in translator.hypotheses(sources)]
    lines = [one.text for one in found]
    seconds = time.monotonic() - start
    measure = measures.measure_of(settings.data)
    scores = measure(lines, references, settings.data.target_language)
    return {
        "perplexity": math.exp(nll),
        "nll": nll,
        "accuracy": sums["correct"] / sums["weight"],
        "tokens": int(sums["weight"]),
        "exact_match": measures.exact_match(settings.data, lines, references),
        settings.data.measure: {
            name: dataclasses.asdict(score) for name, score in scores.items()
        },
        **{
            name: dataclasses.asdict(score(lines, references))
            for name, score in measures.BESIDE.get(settings.data.measure, {}).items()
        },
        "seconds_to_translate": seconds,
    } | _repaired(translator, sources, [one.ids for one in found]), lines


def _repaired(
    translator: Translator, sources: Sequence[Any], ids: Sequence[list[int]]
) -> dict[str, Any]:
    """Return how many outputs had to be repaired, and how often in each way, if any."""
    target = translator.vocabulary.target
    each = [target.repairs(x, line) for x, line in zip(ids, sources, strict=True)]
    if not any(each):
        return {}
    total = sum(each, collections.Counter[str]())
    return {"repaired": sum(map(bool, each)), "repairs": dict(total)}


def _report(
    name: str,
    steps: Any,
    split: Split,
    settings: Config,
    measured: dict[str, Any],
    log: Callable[[str], None],
) -> None:
    if name != "average":
        which = "best checkpoint, of" if name == "best" else "checkpoint of"
        log(f"--- {split}, {which} step {steps:,}")
    else:
        listed = ", ".join(f"{step:,}" for step in steps)
        log(f"--- {split}, average of {len(steps)} checkpoints: steps {listed}")
    log(f"perplexity {measured['perplexity']:.3f} per token")
    if settings.tokenizer.kind == "bytes" and settings.tokenizer.target_kind == "same":
        log(f"{measured['nll'] / math.log(2):.4f} bits per byte")
    if "repairs" in measured:
        kinds = ", ".join(f"{n:,} x {kind}" for kind, n in measured["repairs"].items())
        log(f"repaired {measured['repaired']:,} outputs: {kinds}")
    log(f"exact match {measured['exact_match']:.2%}")
    measure = settings.data.measure
    for variant, score in measured[measure].items():
        log(f"{measure.upper()} {score['value']:5.2f}  {variant}  {score['signature']}")
    for name in measures.BESIDE.get(measure, {}):
        log(f"{name} {measured[name]['value']:5.2f}  {measured[name]['signature']}")


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
    folder.check_writable(workdir)
    with hosts.holding(workdir):
        settings, vocabulary = open_run(workdir)
        steps = steps_to_average(workdir, settings, last, None)
        params = averaged_params(workdir, settings, vocabulary, steps, log)
        save_average(workdir, settings, vocabulary.digest, steps, params, asked=True)
    return f"average of steps {', '.join(map(str, steps))}: {workdir / 'averaged'}"


def steps_to_average(
    workdir: Path, settings: Config, count: int | None, last: int | None
) -> list[int]:
    """Return the last ``count`` steps up to ``last`` that have a checkpoint.

    An older best checkpoint that a run keeps is not among them, unless it is ``last``.

    Raises:
      UserError: if there are fewer, and ``count`` was asked for.
    """
    with Checkpoints(workdir / "checkpoints", settings.train.keep) as saved:
        regular = saved.steps()[-settings.train.keep :]
    steps = [s for s in regular if last is None or s <= last]
    if last is not None and last not in regular:
        steps = [last]  # that one alone
    if count is not None and len(steps) < count:
        raise UserError(
            f"expected {count} checkpoints to average in {workdir / 'checkpoints'}, "
            f"found {len(steps)}; ask for fewer"
        )
    return steps[-(count or settings.decode.average) :]


def averaged_params(
    workdir: Path,
    settings: Config,
    vocabulary: Vocabulary,
    steps: Sequence[int],
    log: Callable[[str], None],
) -> Any:
    """Return the mean of the parameters of some steps."""
    gaps = {b - a for a, b in zip(steps, steps[1:], strict=False)}
    if len(gaps) > 1:
        log(
            "warning: the averaged checkpoints are not evenly spaced "
            f"({', '.join(map(str, steps))})"
        )
    return checkpoints.average(
        workdir / "checkpoints",
        steps,
        abstract_params(settings, vocabulary),
        vocabulary.digest,
    )


def save_average(
    workdir: Path,
    settings: Config,
    vocabulary: str,
    steps: Sequence[int],
    params: Any,
    *,
    asked: bool,
) -> None:
    """Save the mean of the parameters of some steps in ``averaged``.

    ``asked``: by the command ``average``; evaluations may remove what they saved.
    """
    checkpoints.save_inference(
        workdir / "averaged",
        steps[-1],
        params,
        {
            "config": dataclasses.asdict(settings),
            "vocabulary": vocabulary,
            "averaged_steps": list(steps),
            "asked": asked,
        },
    )


def _keep_average(
    workdir: Path,
    settings: Config,
    prepared: Prepared,
    steps: Sequence[int],
    params: Any,
    log: Callable[[str], None],
) -> None:
    """Save the average of a run's end; if there is none, remove the earlier one.

    Otherwise ``translate`` would take the earlier one for the run's end after the run
    was extended, or after ``decode.average`` or ``decode.checkpoint`` was changed.
    """
    if params is not None:
        with Checkpoints(workdir / "averaged", 1) as averages:
            before = averages.metadata()
        if before.get("asked") and before["averaged_steps"] != list(steps):
            made = ", ".join(map(str, before["averaged_steps"]))
            log(f"averaged: replaces that of steps {made}, by transformer average")
        digest = prepared.vocabulary.digest
        save_average(workdir, settings, digest, steps, params, asked=False)
    elif hosts.primary():
        checkpoints.remove_averages(workdir / "averaged", steps[-1])
