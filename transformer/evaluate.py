"""Evaluation: perplexity, BLEU in every variant, and averaged checkpoints."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from transformer import parallel
from transformer.config import Config, UserError
from transformer.data.batches import in_order
from transformer.data.corpus import Corpus
from transformer.data.sources import Split
from transformer.ids import BOS, PAD
from transformer.metrics import bleu
from transformer.models.transformer import Transformer, abstract_params, shift_right
from transformer.nn import losses
from transformer.parallel import hosts, sizes
from transformer.prepare import Prepared, prepare
from transformer.run import checkpoints
from transformer.run.checkpoints import Checkpoints
from transformer.run.records import announce, write_json
from transformer.translate import Translator, model_of, open_run

_SAMPLES = 10


def evaluate(
    workdir: Path,
    split: Split = "test",
    step: int | None = None,
    average: int | None = None,
    say: Callable[[str], None] = announce,
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
      say: is told the results.

    Returns:
      The path of results.json.
    """
    say = hosts.once(say)
    settings, _ = open_run(workdir)
    prepared = prepare(settings, workdir)
    sized = sizes.here(settings, prepared.vocabulary.target.size)
    say(sizes.line(sized))
    with Checkpoints(workdir / "checkpoints", settings.train.keep, say) as saved:
        abstract = _abstract(settings, prepared)
        last, tree, _ = saved.restore({"params": abstract}, step)
    models = {"last": tree["params"]}
    averaged = steps_to_average(workdir, settings, average, last)
    if len(averaged) > 1:
        models["average"] = save_average(workdir, settings, prepared, averaged, say)
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
        translator = Translator(sized, prepared.vocabulary, params, say)
        measured, translations[name] = _measure(
            translator, prepared.corpora[split], sources, references
        )
        results[name] = measured
        _report(name, last if name == "last" else averaged, split, measured, say)
    results["sentences"] = [
        {"source": source, "reference": reference}
        | {name: lines[i] for name, lines in translations.items()}
        for i, (source, reference) in enumerate(zip(sources, references, strict=True))
    ]
    _show_samples(results["sentences"], list(translations)[-1], say)
    path = workdir / "results.json"
    if hosts.primary():
        write_json(path, results)
    hosts.barrier("results")
    say(f"results: {path}")
    return path


def _measure(
    translator: Translator,
    corpus: Corpus,
    sources: Sequence[str],
    references: Sequence[str],
) -> tuple[dict[str, Any], list[str]]:
    sums = corpus_sums(
        translator.settings,
        translator.model,
        translator.params,
        corpus,
        translator.mesh,
    )
    start = time.monotonic()
    lines = translator.translate(sources)
    seconds = time.monotonic() - start
    language = translator.settings.data.target_language
    scores = bleu.score_all(lines, references, language)
    return {
        "perplexity": float(np.exp(sums["nll"] / sums["weight"])),
        "nll": sums["nll"] / sums["weight"],
        "accuracy": sums["correct"] / sums["weight"],
        "tokens": int(sums["weight"]),
        "exact_match": bleu.exact_match(lines, references),
        "bleu": {name: dataclasses.asdict(score) for name, score in scores.items()},
        "seconds_to_translate": seconds,
    }, lines


def batch_sums(
    settings: Config,
    model: Transformer,
    params: Any,
    batch: Mapping[str, jax.Array],
    key=None,
) -> losses.Sums:
    """Sum loss, log-likelihood and hits of a batch over its real target tokens."""
    source, target = batch["source"], batch["target"]
    hidden, table = model.apply(
        {"params": params},
        source,
        shift_right(target, BOS),
        key,
        method="hidden_and_table",
    )
    return losses.blocked_cross_entropy(
        hidden,
        table,
        target,
        (target != PAD).astype(jnp.float32),
        settings.loss.smoothing,
        settings.loss.smoothing_over,
        settings.loss.block,
        model.operands,
    )


def corpus_sums(
    settings: Config,
    model: Transformer,
    params: Any,
    corpus: Corpus,
    mesh: Mesh | None = None,
) -> dict[str, float]:
    """Return ``losses.Sums`` over a corpus, every pair once, added up in float64.

    Args:
      settings: the configuration of the run.
      model: made from it.
      params: its parameters.
      corpus: the pairs.
      mesh: of the devices, each of which takes batches of ``decode.tokens``; None = one
        device.
    """
    lengths = np.maximum(corpus.source.lengths, corpus.target.lengths)
    parts = parallel.row_shards(mesh.shape) if mesh else 1
    total = np.zeros(4)
    for group in in_order(lengths, settings.decode.tokens * parts, parts):
        batch = {
            "source": group.padded(corpus.source),
            "target": group.padded(corpus.target),
        }
        total += np.array(
            jax.device_get(mesh_sums(settings, model, mesh, params, batch))
        )
    return dict(zip(losses.Sums._fields, total.tolist(), strict=True))


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def mesh_sums(settings, model, mesh, params, batch) -> losses.Sums:
    """Sum over a batch that lies on a mesh, ``batch_sums`` on each device."""
    axes = parallel.row_axes(mesh)

    def add(params, batch):
        whole = parallel.gather(params, axes)
        return parallel.total(batch_sums(settings, model, whole, batch), axes)

    cut = parallel.fsdp_specs(params)
    return parallel.over_rows(mesh, add, cut, parallel.REPLICATED)(params, batch)


def _report(name, steps, split, measured, say) -> None:
    if name == "last":
        say(f"--- {split}, checkpoint of step {steps:,}")
    else:
        listed = ", ".join(f"{step:,}" for step in steps)
        say(f"--- {split}, average of {len(steps)} checkpoints: steps {listed}")
    say(f"perplexity {measured['perplexity']:.3f} a token")
    say(f"exact match {measured['exact_match']:.2%}")
    for variant, score in measured["bleu"].items():
        say(f"BLEU {score['value']:5.2f}  {variant}  {score['signature']}")


def _show_samples(sentences, name, say) -> None:
    say(f"--- samples ({name})")
    for i in np.linspace(0, len(sentences) - 1, min(_SAMPLES, len(sentences))):
        one = sentences[int(i)]
        say(f"source      {one['source']}")
        say(f"reference   {one['reference']}")
        say(f"translation {one[name]}")


# --------------------------------------------------------------------------- averaging


def average(
    workdir: Path, last: int | None = None, say: Callable[[str], None] = announce
) -> str:
    """Average the last K checkpoints of a run for inference.

    Args:
      workdir: folder of the run.
      last: K, None = ``decode.average`` of the configuration.
      say: is told which checkpoints were averaged.

    Returns:
      A line that names the result.
    """
    settings, _ = open_run(workdir)
    prepared = prepare(settings, workdir)
    steps = steps_to_average(workdir, settings, last, None)
    save_average(workdir, settings, prepared, steps, say)
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
    say: Callable[[str], None],
) -> Any:
    """Save the mean of the parameters of some steps in ``averaged``; return it."""
    gaps = {b - a for a, b in zip(steps, steps[1:], strict=False)}
    if len(gaps) > 1:
        say(
            f"warning: the averaged checkpoints are not equally far apart "
            f"({', '.join(map(str, steps))})"
        )
    params = checkpoints.average(
        workdir / "checkpoints", steps, _abstract(settings, prepared)
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


def _abstract(settings: Config, prepared: Prepared) -> Any:
    """Return the parameters to restore, a copy on each device."""
    model = model_of(settings, prepared.vocabulary)
    return parallel.replicated(abstract_params(model))
