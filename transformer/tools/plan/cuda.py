"""Programs lowered for CUDA, as far as that goes without a card."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from transformer.nn.hardware import Hardware
from transformer.parallel import sizes
from transformer.pictures.tables import Table
from transformer.tools import traces
from transformer.tools.plan.work import TRACES, Request, largest, shape_text
from transformer.tools.traces import Case

_CARDS = {
    "compute capability 8.0 or newer": Hardware("cuda", (8, 0)),
    "older": Hardware("cuda", (7, 5), bfloat16=False),
}


def lower_all(
    request: Request, log: Callable[[str], None]
) -> tuple[dict[str, Any], Table | None]:
    """Lower the programs of a request for CUDA.

    Args:
      request: what is lowered.
      log: called before each program.

    Returns:
      The results by name, and no table.
    """
    target, work = request.target, request.work
    devices, rows = jax.devices("cpu")[:1], {}
    settings = sizes.follow(request.settings, Hardware("cuda"), 0, work.sizes[1])
    request = dataclasses.replace(request, settings=settings)
    for cards, kind_of_card in _CARDS.items():
        chosen = traces.choices(
            settings, kind_of_card, largest(work.shapes)[1:], request.kinds
        )
        notes = [chosen["products"], f"attention {chosen['attention']}"]
        try:
            for kind, shape in request.programs(len(devices)):
                log(f"lowering {kind}, {shape_text(shape)}, for {target}, {cards}")
                case = Case(settings, work.sizes, shape, devices, kind_of_card)
                traced = TRACES[kind](case)
                text = traced.lower(lowering_platforms=(target,)).as_text()
                calls = text.count("@__cudnn$fmha")
                kernels = f" with {calls} calls of the kernel" if calls else ""
                notes.append(f"{kind} lowered{kernels}")
        except RuntimeError as error:
            if "cuDNN" not in str(error):
                raise
            notes.append(f"not lowered, as JAX needs cuDNN installed: {error}")
        rows[cards] = "; ".join(notes)
    rows["not known without the card"] = (
        "memory, seconds to compile, size of programs, bytes moved, time: the compiler "
        "tries kernels on the card"
    )
    return rows, None
