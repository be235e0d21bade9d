"""How fast batches are made, and how fast training takes them."""

from __future__ import annotations

import statistics
import tempfile
from typing import Any

from transformer import models
from transformer.config import Config
from transformer.data import batches
from transformer.prepare import prepare
from transformer.tools.bench.clock import spread, times
from transformer.tools.bench.training import Stepper

_INPUT_STEPS = 200


def measure_input(settings: Config, rounds: int) -> dict[str, Any]:
    """Make batches of the configuration's own data; then train on one of them."""
    with tempfile.TemporaryDirectory() as folder:
        prepared = prepare(settings, folder)
        stream = batches.Batches(
            prepared.corpora["train"], settings.batch, settings.seed
        )

        def work() -> int:
            return sum(1 for _ in batches.prefetch(stream, 0, _INPUT_STEPS))

        seconds = times(rounds, work)
        model = models.make(settings, *prepared.vocabulary.sizes)
        step = Stepper(settings, model, stream.batch_at(0))
    times(2, step)
    made = _INPUT_STEPS * stream.lengths / statistics.median(seconds)
    training = stream.lengths * statistics.median(times(rounds, step))
    return {
        "batches": _INPUT_STEPS * stream.lengths,
        **spread(seconds, "all of them"),
        "batches/s": made,
        "steps/s": 1 / training,
        "batches ready when a step ends": made * training,
        "padding": stream.epoch.padding,
        "shapes, a compiled program each": len(stream.shapes),
    }
