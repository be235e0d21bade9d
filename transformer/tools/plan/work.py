"""What there is to compile: batch shapes, and which programs are asked for."""

from __future__ import annotations

import collections
import dataclasses
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from transformer import models, parallel
from transformer.config import Config
from transformer.data.batches import Batches, Shape, in_order
from transformer.prepare import is_prepared, prepare
from transformer.tools import traces
from transformer.tools.bench.made_up import batch_rows

_LENGTH = 32  # of sentences, if nothing is known about them
TRACES = {
    "train": traces.train_step,
    "evaluate": traces.evaluation,
    "search": traces.search,
}


class Work(NamedTuple):
    """What the programs of a configuration work on."""

    sizes: tuple[int, int]  # rows of the source's and of the target's table
    shapes: Mapping[Shape, float]  # (R, S, T) of a step's batch -> share of the steps
    longest: int  # tokens of a side
    programs: int  # train steps to compile, one per shape
    origin: str  # where the shapes come from


@dataclasses.dataclass(frozen=True)
class Request:
    """Which programs are compiled, and for what.

    Attributes:
      settings: the configuration.
      target: of ``targets.TARGETS``, or "cuda".
      work: what the programs work on.
      kinds: of TRACES.
      every: a train step for all batch shapes, not only for the largest.
    """

    settings: Config
    target: str
    work: Work
    kinds: Sequence[str]
    every: bool

    def programs(self, devices: int) -> list[tuple[str, Shape]]:
        """Return kind and shape of each program, for this many devices."""
        decoding, longest = self.settings.decode, [self.work.longest]
        found: list[tuple[str, Shape]] = []
        if "train" in self.kinds:
            shapes = self.work.shapes
            chosen = sorted(shapes) if self.every else [largest(shapes)]
            found += [("train", shape) for shape in chosen]
        if "evaluate" in self.kinds:
            axes = parallel.axis_sizes(self.settings.parallel, devices)
            shards = parallel.row_shards(axes)
            (group,) = in_order(longest, decoding.tokens * shards, shards)
            found += [("evaluate", (group.height, group.length, group.length))]
        if "search" in self.kinds:
            (group,) = in_order(longest, decoding.tokens * devices, devices)
            limit = group.length + decoding.extra_tokens
            found += [("search", (group.height, group.length, limit))]
        return found


def work_of(settings: Config, length: int | None, log: Callable[[str], None]) -> Work:
    """Return what the programs of a configuration work on.

    The batch shapes are those of the data, if they are prepared or generated.
    Otherwise, or with a length given, all sentences have that length, or 32 tokens. A
    step of several batches is taken as one batch with the rows of all.

    Args:
      settings: the configuration.
      length: of sentences on both sides, None = as in the data.
      log: takes lines about the preparation of data.

    Raises:
      UserError: if the size of the vocabulary is not known, or a batch has no room for
        sentences of that length.
    """
    known = is_prepared(settings)
    if length is None and (known or settings.data.source == "numbers"):
        return _work_of_data(settings, known, log)
    origin = "given" if length else "assumed: the data are not prepared"
    padded, batch = length or _LENGTH, settings.batch
    rows = batch_rows(settings, batch.tokens, padded)
    both = models.configured_sizes(settings)
    shapes = {(rows, padded, padded): 1.0}
    return Work(both, shapes, padded, batch.shapes, origin)


def _work_of_data(settings: Config, known: bool, log: Callable[[str], None]) -> Work:
    data = settings.data if known else dataclasses.replace(settings.data, prepared="")
    with tempfile.TemporaryDirectory() as folder:
        prepared = prepare(dataclasses.replace(settings, data=data), folder, log)
        corpus = prepared.corpora["train"]
        batches = Batches(corpus, settings.batch, settings.seed)
        counts = collections.Counter(map(batches.shape_at, range(batches.per_epoch)))
    shares = {
        (rows * batches.lengths, s, t): count / batches.per_epoch
        for (rows, s, t), count in counts.items()
    }
    both = prepared.vocabulary.sizes
    longest = max(max(s, t) for _, s, t in shares)
    return Work(both, shares, longest, len(shares), "of the data")


def largest(shapes: Collection[Shape]) -> Shape:
    """Return the shape (R, S, T) with the most padded tokens."""
    return max(shapes, key=lambda shape: (shape[0] * (shape[1] + shape[2]), shape))


def shape_text(numbers: Sequence[int]) -> str:
    """Write sizes with an x between them, 8 x 32 x 32."""
    return " x ".join(map(str, numbers))
