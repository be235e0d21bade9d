"""Validation of a model during training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from jax.sharding import Mesh

from transformer import config, fitting, objective
from transformer.config import Config
from transformer.metrics import measures
from transformer.models import Model, stacks
from transformer.parallel import memory
from transformer.prepare import Prepared
from transformer.run.meter import perplexity
from transformer.translate import Translator

PERPLEXITY = "perplexity"


class Found(NamedTuple):
    """What a validation found.

    Attributes:
      metrics: for metrics.jsonl.
      value: what validations are compared by, lower is better.
    """

    metrics: dict[str, float]
    value: float


def check(settings: Config) -> None:
    """Check that ``data.measure`` and ``train.watch`` can be measured.

    Raises:
      UserError: if there is no such measure, if it is F1 but outputs are not trees, or
        if ``train.watch`` is neither the perplexity nor a variant of the measure.
    """
    data = settings.data
    measures.measure_of(data)
    if data.measure == "f1" and data.source != "trees":
        expected = f"a measure of text with data.source = {data.source}"
        config.refuse("data.measure", expected, data.measure)
    if settings.train.watch == PERPLEXITY:
        return
    variants = measures.VARIANTS[data.measure]
    if settings.train.watch not in variants:
        expected = f"{PERPLEXITY} or one of {', '.join(variants)}"
        config.refuse("train.watch", expected, settings.train.watch)


def measure(
    settings: Config,
    prepared: Prepared,
    model: Model,
    params: Any,
    mesh: Mesh,
) -> Found:
    """Measure a model on the validation pairs.

    Args:
      settings: the configuration of the run.
      prepared: its data.
      model: made from it.
      params: its parameters, as training has them.
      mesh: of the devices.
    """
    corpus, watch = prepared.corpora["validation"], settings.train.watch
    with memory.enough(*fitting.measuring("validation")):
        sums = objective.corpus_sums(settings, model, params, corpus, mesh)
    nll = sums["nll"] / sums["weight"]
    metrics = {"validation_nll": nll, "validation_perplexity": perplexity(nll)}
    if watch == PERPLEXITY:
        return Found(metrics, nll)
    score = _score(settings, prepared, model, params)
    return Found(
        metrics | {f"validation_{watch}": score},
        measures.badness(settings.data, score),
    )


def show(
    settings: Config,
    prepared: Prepared,
    model: Model,
    params: Any,
    log: Callable[[str], None],
) -> None:
    """Show ``train.show`` validation sentences, always the same, with translations.

    Args:
      settings: the configuration of the run.
      prepared: its data.
      model: made from it.
      params: its parameters, as training has them.
      log: takes the lines.
    """
    if not settings.train.show:
        return
    texts, read = prepared.texts("validation"), prepared.inputs("validation")
    pairs = list(zip(*texts, read, strict=True))
    full = [pair for pair in pairs if all(map(str.strip, pair[:2]))]
    chosen = full[:: max(len(full) // settings.train.show, 1)][: settings.train.show]
    lines = _translated(settings, prepared, model, params, [x for _, _, x in chosen])
    for (source, reference, _), line in zip(chosen, lines, strict=True):
        log(f"  source      {source}")
        log(f"  reference   {reference}")
        log(f"  translation {line}")


def _translated(
    settings: Config,
    prepared: Prepared,
    model: Model,
    params: Any,
    lines: Sequence[Any],
) -> list[str]:
    if stacks.is_stacked(model.stacks, params):
        params = stacks.unstack(model.stacks, params)
    return Translator(settings, prepared.vocabulary, params).translate(lines)


def _score(settings: Config, prepared: Prepared, model: Model, params: Any) -> float:
    """Translate validation sentences and return the watched variant of the measure."""
    count = settings.train.watch_pairs or None
    sources = prepared.inputs("validation")[:count]
    references = prepared.references("validation")[:count]
    lines = _translated(settings, prepared, model, params, sources)
    scores = measures.measure_of(settings.data)(
        lines, references, settings.data.target_language
    )
    return scores[settings.train.watch].value
