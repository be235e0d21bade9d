"""The table that `transformer plan --target` prints."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from transformer import models
from transformer.config import Config
from transformer.data.batches import in_order
from transformer.pictures.tables import digits, markdown
from transformer.run.records import announce
from transformer.tools import flops
from transformer.tools.plan.cuda import lower_all
from transformer.tools.plan.tpu import compile_all
from transformer.tools.plan.work import (
    TRACES,
    Request,
    Work,
    largest,
    shape_text,
    work_of,
)


def plan(
    settings: Config,
    target: str,
    what: str = "all",
    *,
    tokens: int | None = None,
    length: int | None = None,
    every: bool = False,
    progress: Callable[[str], None] = lambda line: None,
    log: Callable[[str], None] = announce,
) -> dict[str, Any]:
    """Compile the programs of a configuration for a machine, and print what they cost.

    Args:
      settings: the resolved configuration.
      target: of ``targets.TARGETS``, or "cuda", for which programs are lowered only.
      what: "all", or one of TRACES.
      tokens: padded tokens per side of a step's batch, None = the configuration's.
      length: of sentences on both sides, None = those of the data, see ``work_of``.
      every: compile the step for all batch shapes, not only for the largest.
      progress: called before each compilation, which may take minutes.
      log: takes the results, one line at a time.

    Returns:
      What is printed, by name.

    Raises:
      UserError: if libtpu is not here, or the vocabulary is known only once the data
        are prepared.
    """
    if tokens is not None:
        batch = dataclasses.replace(settings.batch, tokens=tokens)
        settings = dataclasses.replace(settings, batch=batch)
    work = work_of(settings, length, progress)
    on_paper = {"target": target} | _of_config(settings, work)
    find = lower_all if target == "cuda" else compile_all
    kinds = [*TRACES] if what == "all" else [what]
    request = Request(settings, target, work, kinds, every)
    rows, table = find(request, progress)
    rows = on_paper | rows
    width = max(len(name) for name in rows if name != "programs")
    for name, value in rows.items():
        if name != "programs":
            log(f"{name:{width}}  {_text(value)}")
    if table is not None:
        log("")
        log(markdown(table).rstrip())
    return rows


def _text(value: Any) -> str:
    if isinstance(value, float):
        return digits(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def _of_config(settings: Config, work: Work) -> dict[str, Any]:
    """Return what is known of a configuration without compiling it."""
    shape = largest(work.shapes)
    groups = in_order(range(1, work.longest + 1), work.longest)
    lengths = {group.length for group in groups}
    operations = flops.configured_step(settings, *shape, work.sizes[1])
    return {
        "configuration": settings.name,
        "largest batch, rows x source x target": f"{shape_text(shape)}, {work.origin}",
        "shapes of batches, a compiled program each": work.programs,
        "lengths of evaluation and search, a program each or more": len(lengths),
        "rows of the tables of embeddings": shape_text(work.sizes),
        "parameters": models.parameters(models.make(settings, *work.sizes)),
        "layers": settings.parallel.layers,
        "largest step, 10^12 operations by formula": operations / 1e12,
    }
