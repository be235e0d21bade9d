"""Models built from torch.nn's parts as a worker.

They are those of ``torch_rnn.py`` and ``torch_conv.py``.

    python experiments/bench/peer_torch_composed.py captions --size=cgru \\
        --dtype=float32 --beam=5
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import peer_torch
import sizes
import torch
import torch_conv
import torch_rnn
import torch_search
import weights
import worker

Ids = list[list[int]]


def train(size: str, dtype: str) -> worker.Work:
    """Make updates on one batch, from the parameters that this project starts from."""
    there = peer_torch.start("cpu")
    model = _make(weights.draw_composed(sizes.COMPOSED[size]))
    batch = sizes.composed_batch(size)
    step = peer_torch.make_step(
        model, model.parameters(), batch, dtype, compiled=False, smoothing=0.0
    )
    made = peer_torch.work(step, there, "torch")
    return made._replace(info=made.info | {"loss": _loss(model, batch)})


def _make(given: weights.ComposedWeights) -> torch_search.Model:
    if isinstance(given.size, sizes.Convolutional):
        return torch_conv.make(given)
    return torch_rnn.make(given)


@torch.inference_mode()
def _loss(model: torch_search.Model, batch: tuple) -> float:
    """Return the loss of a batch without dropout."""
    model.eval()
    source, target = (torch.from_numpy(ids).long() for ids in batch)
    inputs = torch.from_numpy(sizes.shift_right(batch[1])).long()
    each = model(source, inputs).log_softmax(-1).gather(-1, target[..., None])
    model.train()
    return float(-each[target != sizes.PAD].mean())


def captions(size: str, dtype: str, beam: int) -> worker.Work:
    """Translate sentences as long as captions, each into as many tokens."""
    shape = sizes.COMPOSED[size]
    sources = sizes.captions(shape.source, sizes.CAPTIONS)
    groups = sizes.in_groups([len(ids) for ids in sources])
    given = weights.draw_composed(shape)
    search = _searcher(given, dtype, sources, groups, beam, sizes.ALPHA, sizes.EXTRA)
    return _translations(search)


def translate(folder: Path, dtype: str, beam: int) -> worker.Work:
    """Translate the sentences of an export."""
    given, task = weights.load_recurrent(folder)
    extra = task.limit - max(len(ids) - 1 for ids in task.sources)
    sources, groups = task.sources, task.groups
    search = _searcher(given, dtype, sources, groups, beam, task.alpha, extra)
    return _translations(search)


def _searcher(
    given: weights.ComposedWeights,
    dtype: str,
    sources: Ids,
    groups: Ids,
    beam: int,
    alpha: float,
    extra: int,
) -> Callable[[], Ids]:
    """Return a function that searches for translations of all sources."""
    peer_torch.start("cpu")
    model = _make(given).eval().to(getattr(torch, dtype))
    if isinstance(model, torch_conv.ConvS2S):
        model = model.fixed()

    def search() -> Ids:
        found: Ids = [[] for _ in sources]
        for rows in groups:
            batch = [sources[row] for row in rows]
            outputs = torch_search.search(model, batch, beam, alpha, extra)
            for row, output in zip(rows, outputs, strict=True):
                found[row] = output
        return found

    return search


def _translations(search: Callable[[], Ids]) -> worker.Work:
    made = peer_torch.work(search, torch.device("cpu"), "torch")
    outputs = search()
    return made._replace(
        info=made.info | {"outputs": outputs, "sentences": len(outputs)}
    )


if __name__ == "__main__":
    worker.run(train, captions, translate)
