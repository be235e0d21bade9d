"""A trained run and sentences to translate, for other systems.

    python experiments/bench/export.py --workdir=runs/multi30k --input=test.en \\
        --output=exported

writes what ``weights.py`` describes. ``peer_transformers.py`` and
``peer_ctranslate2.py`` build their own models from it, each in its own Python.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import weights
from sizes import EOS, Recurrent, Size

import transformer
from transformer import config, parallel
from transformer.data.sources.text import read_lines
from transformer.formats.arrays import by_name
from transformer.formats.outgoing import cannot, outgoing
from transformer.translate import Translator

# What a model must be, besides what ``formats`` requires of every exported model.
_COMMON = {
    "norm": "post",
    "tying": "three",
    "positions": ("sinusoidal", "sinusoidal_concat"),
    "target_space": False,
    "activation": "relu",
    "output_bias": False,
    "decoder_layers": 0,
}
_RECURRENT: dict[str, dict[str, Any]] = {
    "cgru": {"layers": 1, "reverse_source": False},
    "luong": {
        "reverse_source": False,
        "score": "general",
        "attention": "global",
        "feeding": True,
    },
}


def main() -> None:
    """Export the run that the arguments name."""
    parser = argparse.ArgumentParser(description="Export a run for other systems.")
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument(
        "--input", type=Path, required=True, help="one sentence per line"
    )
    parser.add_argument("--output", type=Path, required=True, help="folder to make")
    values = parser.parse_args()
    parallel.start("cpu")
    try:
        export(values.workdir, values.input, values.output)
    except config.UserError as error:
        parser.error(str(error))


def export(workdir: Path, source: Path, output: Path) -> None:
    """Write the parameters of a run, and a file of sentences, into a folder."""
    translator = open_run(workdir, "float32")
    task = make_task(translator, read_sentences(source))
    output.mkdir(parents=True, exist_ok=True)
    given: weights.Weights | weights.ComposedWeights
    if isinstance(translator.settings.model, config.Recurrent):
        given = take_recurrent(translator)
    else:
        given = take_weights(translator, longest(task))
    weights.save(output, given, task)


def open_run(workdir: Path, dtype: str) -> Translator:
    """Load a trained model, with matrix products in the given dtype."""
    translator = transformer.load(workdir)
    settings = translator.settings
    model = dataclasses.replace(settings.model, dtype=dtype)
    settings = dataclasses.replace(settings, model=model)
    return Translator(settings, translator.vocabulary, translator.params)


def read_sentences(path: Path) -> list[str]:
    """Return the lines of a text file.

    Raises:
      UserError: if one has no text: peers would translate it, this project does not.
    """
    lines = list(read_lines(path))
    for number, line in enumerate(lines, 1):
        if not line.strip():
            raise config.UserError(
                f"{path}, line {number}: expected a sentence, got none; take it out"
            )
    return lines


def make_task(translator: Translator, lines: Sequence[str]) -> weights.Task:
    """Return sentences as ids, in the translator's own batches, and how to search.

    Args:
      translator: in float32, for the scores.
      lines: source sentences.
    """
    settings, vocabulary = translator.settings.decode, translator.vocabulary
    translations = translator.translate(lines, beam=1)
    sources = translator.source_ids(lines)
    lengths = [len(ids) for ids in sources]
    targets = vocabulary.target.encode_many(translations)
    return weights.Task(
        sources=sources,
        groups=[group.rows.tolist() for group in translator.groups(lengths)],
        limit=max(lengths) - 1 + settings.extra_tokens,  # EOS is no part of an input
        alpha=settings.alpha,
        targets=[[*ids, EOS] for ids in targets],
        scores=translator.score(lines, translations),
    )


def longest(task: weights.Task) -> int:
    """Return how many positions a task may need."""
    lengths = [len(ids) for ids in [*task.sources, *task.targets]]
    return max(task.limit, *lengths) + 1


def take_weights(translator: Translator, positions: int) -> weights.Weights:
    """Return the parameters of a translator.

    Args:
      translator: a trained model.
      positions: how many position encodings to make.

    Raises:
      UserError: if the other systems have no such model.
    """
    it = outgoing(translator, positions)
    model, rows = it.model, len(it.arrays["source_embedding"])
    for name, wanted in _COMMON.items():
        held = wanted if isinstance(wanted, tuple) else (wanted,)
        if getattr(model, name) not in held:
            cannot(f"model.{name}", " or ".join(map(str, held)), getattr(model, name))
    return weights.Weights(
        Size(model.layers, model.d_model, model.d_ff, model.heads, rows),
        model.norm_epsilon,
        it.positions["source"],
        it.arrays,
    )


def take_recurrent(translator: Translator) -> weights.ComposedWeights:
    """Return the parameters of a translator whose model is recurrent.

    Raises:
      UserError: if ``torch_rnn.py`` has no such model.
    """
    model = translator.settings.model
    assert isinstance(model, config.Recurrent)
    wanted = _RECURRENT.get(model.member)
    if wanted is None:
        cannot("model.member", " or ".join(_RECURRENT), model.member)
    for name, value in wanted.items():
        if getattr(model, name) != value:
            cannot(f"model.{name}", value, getattr(model, name))
    size = Recurrent(
        model.member,
        model.embedding,
        model.units,
        model.layers,
        model.d_model,
        *translator.vocabulary.sizes,
        (model.dropout, model.context_dropout, model.readout_dropout),
        model.encoder_norm,
    )
    return weights.ComposedWeights(size, by_name(translator.params))


if __name__ == "__main__":
    main()
