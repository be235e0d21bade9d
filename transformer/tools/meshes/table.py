"""The table that `transformer plan` prints: four model sizes on meshes of devices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from transformer import config, models
from transformer.config import Config
from transformer.parallel import sizes
from transformer.pictures.tables import Table, digits
from transformer.tools import hlo, traces
from transformer.tools.meshes.cost import Load, Mesh, cost
from transformer.tools.traces import Case

_MOST_DEVICES = 512  # of the largest mesh


class Figures(NamedTuple):
    """What a step costs each device, by formula or as compiled."""

    held: float  # bytes, from step to step: parameters and moments
    within: float  # bytes, within a step: gradients, activations and all else
    sent: float  # bytes
    operations: float  # 2 per multiply-add


MESHES = [
    Mesh(1, 1, 1),
    *(Mesh(8, 1, 1), Mesh(1, 8, 1), Mesh(1, 1, 8), Mesh(1, 4, 2)),
    *(Mesh(64, 1, 1), Mesh(1, 64, 1), Mesh(8, 8, 1), Mesh(8, 1, 8), Mesh(1, 8, 8)),
    *(Mesh(512, 1, 1), Mesh(1, 512, 1), Mesh(64, 8, 1), Mesh(64, 1, 8)),
    *(Mesh(1, 64, 8), Mesh(8, 8, 8)),
]


def _size(layers: int, d_model: int) -> dict[str, Any]:
    """Widths in the paper's proportions: d_ff = 4 d_model, heads of 64."""
    wide = {"d_ff": 4 * d_model, "heads": d_model // 64, "d_k": 64, "d_v": 64}
    return {"layers": layers, "d_model": d_model, **wide}


SIZES = {
    "base": _size(6, 512),
    "big": _size(6, 1024),
    "1 B": _size(8, 2048),
    "10 B": _size(21, 4096),
}


def table(
    settings: Config,
    tokens: int,
    length: int,
    devices: Sequence[jax.Device] = (),
    log: Callable[[str], None] = lambda line: None,
) -> Table:
    """Put four sizes of model on each mesh.

    Args:
      settings: all but the sizes.
      tokens: padded tokens per side of the global batch; rounded to what all meshes can
        shard and ``optimizer.accumulation`` can split.
      length: of the sentences on both sides.
      devices: real or simulated; for meshes of at most this many a step is compiled;
        for larger ones the formula is used.
      log: called before each compilation, which may take minutes.

    Raises:
      UserError: for a model that is not a Transformer, or without configured sizes.
    """
    config.transformer(settings.model)
    vocabulary, _ = models.configured_sizes(settings)
    settings = sizes.here(settings, vocabulary)
    multiple = _MOST_DEVICES * settings.optimizer.accumulation
    rows = max(round(tokens / length / multiple), 1) * multiple
    load = Load(rows, length, length, vocabulary)
    cells = []
    for name, size in SIZES.items():
        sized = _resized(settings, size)
        for mesh in MESHES:
            here, source = devices[: mesh.devices], "formula"
            if len(here) == mesh.devices:
                log(f"compiling {name} for {mesh} devices")
                found, source = as_compiled(sized, mesh, load, here), "compiled"
            else:
                found = by_formula(sized, mesh, load)
            cells.append((name, str(mesh.devices), str(mesh), *_cells(found), source))
    spread = settings.parallel
    return Table(
        f"One step of {rows:,} x {length} tokens per side, V = {vocabulary:,}, "
        f"{settings.model.dtype}, remat={spread.remat}, layers={spread.layers}",
        ("model", "devices", "data x fsdp x tensor", "parameters and moments, GB")
        + ("gradients and activations, GB", "sum, GB")
        + ("sent, GB", "operations, 10^12", "from"),
        tuple(cells),
        "All figures are per device; GB are 10^9 bytes; sent and operations are per "
        "step.",
    )


def by_formula(settings: Config, mesh: Mesh, load: Load) -> Figures:
    """Return what a step costs each device of a mesh, by ``cost.cost``."""
    found = cost(settings, mesh, load)
    return Figures(
        found.parameters + found.moments,
        found.gradients + found.activations,
        found.communication,
        found.operations,
    )


def as_compiled(
    settings: Config, mesh: Mesh, load: Load, devices: Sequence[jax.Device]
) -> Figures:
    """Compile a step for devices and read the program; nothing is computed.

    Args:
      settings: the model, and how it is trained.
      mesh: d, f and t.
      load: the global batch.
      devices: real or simulated, as many as the mesh has.
    """
    spread = dataclasses.replace(settings.parallel, **mesh._asdict())
    settings = dataclasses.replace(settings, parallel=spread)
    both = load.vocabulary, load.vocabulary
    traced = traces.train_step(Case(settings, both, load[:3], devices))
    program = traces.compile_anew(traced)
    memory, text = program.memory_analysis(), program.as_text()
    return Figures(
        memory.argument_size_in_bytes,
        memory.temp_size_in_bytes,
        hlo.sent(text),
        hlo.operations(text),
    )


def _resized(settings: Config, size: dict[str, Any]) -> Config:
    model = dataclasses.replace(settings.model, **size)
    return dataclasses.replace(settings, model=model)


def _cells(found: Figures) -> list[str]:
    gigabytes = [found.held, found.within, found.held + found.within, found.sent]
    values = [x / 1e9 for x in gigabytes] + [found.operations / 1e12]
    return [*map(digits, values)]
