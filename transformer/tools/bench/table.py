"""The table that `transformer bench` prints, whatever it measures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from transformer import fitting, models
from transformer.config import Config
from transformer.parallel import sizes
from transformer.run.records import announce
from transformer.tools.bench.feeding import measure_input
from transformer.tools.bench.loop import measure_loop
from transformer.tools.bench.memory import measure_memory, process_memory
from transformer.tools.bench.searching import measure_search
from transformer.tools.bench.startup import measure_startup
from transformer.tools.bench.training import measure_training


def bench(
    settings: Config,
    config_arguments: Sequence[str],
    what: str = "train",
    *,
    tokens: int | None = None,
    length: int = 32,
    rounds: int = 5,
    profile: Path | None = None,
    log: Callable[[str], None] = announce,
) -> dict[str, Any]:
    """Measure one kind of work, after a warm-up, and print a table.

    Args:
      settings: the resolved configuration.
      config_arguments: flags that give it, for ``startup``, which starts processes.
      what: "train", "loop", "greedy", "beam", "input", "startup" or "memory".
      tokens: padded tokens per side of a step, None = the configuration's; for "input"
        a step is one batch, whatever ``batch.lengths`` is.
      length: of the longest sentence; the shortest is half as long.
      rounds: measurements; their median is printed.
      profile: folder for a trace of one more step, for TensorBoard or Perfetto; its
        costliest operations are printed too.
      log: takes the results, one line at a time.

    Returns:
      What is printed, by name.

    Raises:
      UserError: if a sentence is longer than there is room for.
    """
    rows: dict[str, Any] = {"what": what, "device": jax.devices()[0].device_kind}
    fitting.check_sizes(settings)
    settings = sizes.here(settings, models.configured_vocabulary(settings))
    if what == "train":
        rows |= measure_training(
            settings, tokens or settings.batch.tokens, length, rounds, profile
        )
    elif what in ("greedy", "beam"):
        beams = settings.decode.beam if what == "beam" else 1
        padded = tokens or settings.decode.tokens
        rows |= measure_search(settings, beams, padded, length, rounds, profile)
    elif what == "loop":
        rows |= measure_loop(settings, rounds)
    elif what == "input":
        rows |= measure_input(settings, rounds)
    elif what == "memory":
        rows |= measure_memory(settings, tokens or settings.batch.tokens, length)
    else:
        rows |= measure_startup(config_arguments, rounds)
    rows |= process_memory()
    costliest = rows.pop("costliest", [])
    width = max(map(len, rows))
    for name, value in rows.items():
        log(f"{name:{width}}  {_text(value)}")
    for cost in costliest:
        log(f"{cost.milliseconds:10.2f} ms  {cost.calls:5} x  {cost.operation}")
    return rows


def _text(value: Any) -> str:
    if isinstance(value, float):
        # From 9,999.5 on, four digits would be written as 1e+04.
        return f"{value:,.4g}" if abs(value) < 9999.5 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
