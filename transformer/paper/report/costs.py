"""What our runs cost: their parameters, and the operations that training took."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transformer.paper.runs import Run
from transformer.pictures.tables import scientific


def operations(run: Run) -> float | None:
    """Count the operations that training took, padding left out.

    The mean of ``flops.train_step`` over the pairs of the corpus, times the pairs that
    were seen: real target tokens seen / mean target length.

    Returns:
      Operations, 2 per multiply-add; None where the prepared corpus is gone.
    """
    sizes = _vocabulary(run)
    if sizes is None or not (_corpus(run) / "manifest.json").is_file():
        return None
    from transformer.data.corpus import Corpus
    from transformer.tools import flops

    corpus = Corpus(_corpus(run), "train")
    source, target = (
        side.lengths.astype(np.int64) for side in (corpus.source, corpus.target)
    )
    shapes, pairs = np.unique(source << 32 | target, return_counts=True)
    s: Any = shapes >> 32  # arrays, where the formula says int
    t: Any = shapes & 0xFFFFFFFF
    costs: Any = flops.train_step(run.settings.model, 1, s, t, sizes[1])
    seen = run.record["tokens"] / target.mean()
    return float(np.average(costs, weights=pairs) * seen)


def _vocabulary(run: Run) -> tuple[int, int] | None:
    """Return the rows of both embedding tables; None where the corpus is gone."""
    if run.settings.model.vocab_size:
        return run.settings.model.vocab_size, run.settings.model.vocab_size
    if not (_corpus(run) / "vocabulary.json").is_file():
        return None
    from transformer.data.tokenizers import load_vocabulary

    vocabulary = load_vocabulary(_corpus(run))
    return vocabulary.source.size, vocabulary.target.size


def _corpus(run: Run) -> Path:
    return Path(run.settings.data.prepared or run.folder / "corpus")


def size_text(run: Run) -> str:
    """Write millions of parameters, nothing where the corpus is gone."""
    sizes = _vocabulary(run)
    if sizes is None:
        return ""
    import jax

    from transformer import models

    tree = models.abstract(models.make(run.settings, *sizes))
    return f"{sum(leaf.size for leaf in jax.tree.leaves(tree)) / 1e6:.2f}"


def cost_text(runs: Sequence[Run]) -> str:
    """Write the mean operations of training, nothing where the corpora are gone."""
    found = [operations(run) for run in runs]
    known = [one for one in found if one is not None]
    return scientific(float(np.mean(known)), 2) if known else ""
