"""Memory: of a training step as compiled, of the device, of the process."""

from __future__ import annotations

import dataclasses
import resource
import sys
import time
from typing import Any, Literal

import jax

from transformer import config, models
from transformer.config import Config
from transformer.tools import traces
from transformer.tools.bench.made_up import batch_rows
from transformer.tools.traces import Case

_FORMS: tuple[Literal["unrolled", "scanned"], ...] = ("unrolled", "scanned")
_REMAT: tuple[Literal["none", "layers", "dots"], ...] = ("none", "layers", "dots")


def measure_memory(settings: Config, tokens: int, length: int) -> dict[str, Any]:
    """Compile the train step in each way there is to differentiate the layers.

    Args:
      settings: the configuration, except for these ways.
      tokens: padded tokens per side of the batch.
      length: of the sentences on both sides.

    Returns:
      Rows of the table.
    """
    height = batch_rows(settings, tokens, length)
    shape, both = (height, length, length), models.configured_sizes(settings)
    rows: dict[str, Any] = {"batch": f"{height} x {length}"}
    model, scanned = models.make(settings, *both), _with(settings, layers="scanned")
    scans = bool(model.stacks) and models.scans_layers(scanned, model)
    forms = _FORMS if scans else _FORMS[:1]
    kept = _REMAT[:1] if isinstance(settings.model, config.Recurrent) else _REMAT
    for form in forms:
        for remat in kept:
            one = _with(settings, remat=remat, layers=form)
            start = time.perf_counter()
            traced = traces.train_step(Case(one, both, shape, jax.devices()))
            compiled = traces.compile_anew(traced)
            seconds = time.perf_counter() - start
            name = f"remat={remat}, layers={form}"
            rows[f"{name}: temporaries, MB"] = temporaries(compiled)
            rows[f"{name}: compile, s"] = seconds
    return rows


def _with(settings: Config, **how: Any) -> Config:
    parallel = dataclasses.replace(settings.parallel, **how)
    return dataclasses.replace(settings, parallel=parallel)


def temporaries(compiled: Any) -> float:
    """Return the MB that live only while a compiled program runs."""
    return compiled.memory_analysis().temp_size_in_bytes / 1e6


def device_memory() -> dict[str, float]:
    """Return the most memory the device has used so far, if it reports that."""
    reported = jax.devices()[0].memory_stats() or {}
    names = {
        "peak_bytes_in_use": "peak memory of the device, MB",
        "bytes_limit": "memory of the device for JAX, MB",
    }
    return {names[key]: reported[key] / 1e6 for key in names if key in reported}


def process_memory() -> dict[str, float]:
    """Return the most memory that this process has used so far."""
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, kilobytes on Linux
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return {"peak memory of the process, MB": peak / 1e6}
