"""Seconds of a training step on one batch, and what it reaches of the machine."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from transformer import fitting, models
from transformer.config import Config
from transformer.ids import PAD
from transformer.models import Model
from transformer.nn import hardware
from transformer.step import init_state, make_train_step
from transformer.tools import flops, traces
from transformer.tools.bench.clock import measure, spread, times
from transformer.tools.bench.made_up import (
    batch_rows,
    make_sized_model,
    ragged_sentences,
)
from transformer.tools.bench.memory import device_memory, temporaries
from transformer.tools.bench.peaks import peaks
from transformer.tools.bench.profile import trace


class Stepper:
    """A compiled train step with its state; call it to make a step."""

    def __init__(
        self, settings: Config, model: Model, batch: Mapping[str, Any]
    ) -> None:
        """Compile a step; ``batch`` has "source" (B, S) and "target" (B, T)."""
        draw = jax.jit(lambda: init_state(settings, model))
        fitting.check_state(jax.eval_shape(draw))
        self.state = draw()
        self.batch = jax.tree.map(jnp.asarray, dict(batch))
        self.step = make_train_step(settings, model)
        start = time.perf_counter()
        jitted = jax.jit(self.step, donate_argnums=0)
        compiled = jitted.lower(self.state, self.batch).compile()
        sized = dataclasses.replace(settings.batch, tokens=batch["source"].size)
        settings = dataclasses.replace(settings, batch=sized)
        self.compiled = fitting.check_step(settings, self.state)(compiled)
        self.compile_seconds = time.perf_counter() - start

    def __call__(self) -> Any:
        self.state, metrics = self.compiled(self.state, self.batch)
        return metrics


def measure_training(
    settings: Config, tokens: int, length: int, rounds: int, profile: Path | None
) -> dict[str, Any]:
    """Measure training steps on a batch of random ids.

    Args:
      settings: the configuration.
      tokens: padded tokens per side of the batch.
      length: of the longest sentence; the shortest is half as long.
      rounds: measurements.
      profile: folder for a trace, None = none.

    Returns:
      Rows of the table; "costliest" are the operations of the trace.
    """
    vocabulary = models.configured_vocabulary(settings)
    height = batch_rows(settings, tokens, length)
    model = make_sized_model(settings)
    batch = dict.fromkeys(
        ("source", "target"), ragged_sentences(height, length, vocabulary)
    )
    step = Stepper(settings, model, batch)
    times(2, step)
    seconds, calls = measure(rounds, step)
    memory = device_memory()
    costliest = trace(profile, step, step.compiled) if profile is not None else []
    median = statistics.median(seconds)
    counted = flops.traced(step.step, step.state, step.batch)
    formula = flops.configured_step(settings, height, length, length, vocabulary)
    return {
        "batch": f"{height} x {length}",
        "steps between two waits": calls,
        **spread(seconds, "step"),
        "real target tokens/s": int((batch["target"] != PAD).sum()) / median,
        "padded target tokens/s": height * length / median,
        "compile, s": step.compile_seconds,
        "operations per step, traced": counted,
        "operations per step, by formula": formula,
        "operations/s": counted / median,
        **peaks(settings.model.dtype, counted / median),
        "temporaries of a step, MB": temporaries(step.compiled),
        **memory,
        **traces.choices(settings, hardware.here(), (length, length)),
        "costliest": costliest,
    }
