"""What our runs cost: their parameters, and the operations that training took."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transformer.paper.runs import Run
from transformer.pictures.tables import scientific
from transformer.run.measured import Measured

Trained = Run | Measured


def operations(run: Trained) -> float | None:
    """Count the operations that training took, padding left out.

    Forward and backward: three times ``per_target_token`` for each real target token
    seen, in each pass (``loss.passes``).

    Returns:
      Operations, 2 per multiply-add; None where the prepared corpus is gone.
    """
    each = per_target_token(run)
    if each is None:
        return None
    return 3 * run.settings.loss.passes * each * run.record["tokens"]


def per_target_token(run: Trained) -> float | None:
    """Count the operations of a forward pass for each real target token.

    ``flops.forward`` of all pairs of the training corpus over their target tokens.

    Returns:
      Operations, 2 per multiply-add; None where the prepared corpus is gone.
    """
    if "kept" in run.results:
        return run.results["kept"]["operations_per_target_token"]
    sizes = vocabulary_sizes(run)
    if sizes is None or (lengths := _lengths(run, "train")) is None:
        return None
    from transformer.tools import flops

    source, target = lengths
    shapes, pairs = np.unique(source << 32 | target, return_counts=True)
    s: Any = shapes >> 32  # arrays, where the formula says int
    t: Any = shapes & 0xFFFFFFFF
    costs: Any = flops.forward(run.settings.model, s, t, sizes[1])
    return float(costs @ pairs / target.sum())


def steps_per_sentence(run: Trained, split: str) -> tuple[float, float] | None:
    """Count the sequential steps of a mean sentence, in training and in translation.

    Returns:
      ``flops.sequential_steps`` at the mean lengths of a split, with the target given
      and without; None where the prepared corpus is gone.
    """
    if "kept" in run.results:
        return run.results["kept"]["steps_per_sentence"]
    if (lengths := _lengths(run, split)) is None:
        return None
    from transformer.tools import flops

    source, target = (float(side.mean()) for side in lengths)
    given, written = (
        flops.sequential_steps(run.settings.model, source, target, given=given)
        for given in (True, False)
    )
    return given, written


def _lengths(run: Trained, split: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the tokens of each pair of a split, EOS included; None without corpus."""
    if not (_corpus(run) / "manifest.json").is_file():
        return None
    from transformer.data.corpus import Corpus

    corpus = Corpus(_corpus(run), split)
    return corpus.source.lengths.astype(np.int64), corpus.target.lengths.astype(
        np.int64
    )


def vocabulary_sizes(run: Trained) -> tuple[int, int] | None:
    """Return the rows of both embedding tables; None where the corpus is gone."""
    if run.settings.model.vocab_size:
        return run.settings.model.vocab_size, run.settings.model.vocab_size
    if "kept" in run.results:
        return run.results["kept"]["vocabulary"]
    if not (_corpus(run) / "vocabulary.json").is_file():
        return None
    from transformer.data.tokenizers import load_vocabulary

    return load_vocabulary(_corpus(run)).sizes


def _corpus(run: Trained) -> Path:
    return Path(run.settings.data.prepared or run.folder / "corpus")


def size_text(run: Trained) -> str:
    """Write millions of parameters, nothing where the corpus is gone."""
    sizes = vocabulary_sizes(run)
    if sizes is None:
        return ""
    from transformer import models

    return f"{models.parameters(models.make(run.settings, *sizes)) / 1e6:.2f}"


def cost_text(runs: Sequence[Trained]) -> str:
    """Write the mean operations of training, nothing where the corpora are gone."""
    found = [operations(run) for run in runs]
    known = [one for one in found if one is not None]
    return scientific(float(np.mean(known)), 2) if known else ""
