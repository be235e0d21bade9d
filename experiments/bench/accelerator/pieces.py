"""The pieces by name: how long each takes, what measures it, what reports it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from side_by_side import GPU_GROUPS

from accelerator import comparisons, lines, speeds, trainings
from accelerator.lines import Lines
from accelerator.place import Place


class Piece(NamedTuple):
    """One of the measurements.

    Attributes:
      minutes: estimated minutes on an H200.
      run: takes the measurements.
      lines: writes the measurements for the section.
    """

    minutes: float
    run: Callable[[Place], dict[str, Any]]
    lines: Lines


_BASE = lines.steps_lines("base", 100_000)
_BIG = lines.steps_lines("big", 300_000)
_TRAININGS = [name for name in GPU_GROUPS if "train" in name]
_SEARCHES = [name for name in GPU_GROUPS if "train" not in name]

PIECES = {
    "peaks": Piece(1, speeds.peaks, lines.peaks_lines),
    "attention": Piece(1, comparisons.fused, lines.attention_lines),
    "dropout": Piece(0.5, comparisons.dropout, lines.dropout_lines),
    "losses": Piece(1.5, comparisons.losses, lines.losses_lines),
    "check": Piece(1, comparisons.check, lines.check_lines),
    "numbers": Piece(2, trainings.number_words, lines.scores_lines),
    "multi30k": Piece(4, trainings.multi30k, lines.scores_lines),
    "resume": Piece(4, comparisons.resume, lines.resume_lines),
    "base-32": Piece(4, speeds.steps_of("base", 0), _BASE),
    "base-256": Piece(2, speeds.steps_of("base", 1), _BASE),
    "big-32": Piece(1.5, speeds.steps_of("big", 0), _BIG),
    "big-256": Piece(1.5, speeds.steps_of("big", 1), _BIG),
    "loop": Piece(3, speeds.loop, lines.loop_lines),
    "loop-multi30k": Piece(4, speeds.multi30k_loop, lines.loop_lines),
    "search": Piece(4, speeds.search, lines.search_lines),
    "beside-training": Piece(5, speeds.beside(*_TRAININGS), lines.beside_lines),
    "beside-search": Piece(4, speeds.beside(*_SEARCHES), lines.beside_lines),
}


def section(pieces: Mapping[str, Piece], found: Mapping[str, Mapping[str, Any]]) -> str:
    """Write the section about an accelerator.

    Args:
      pieces: in their order.
      found: the file of each piece, by its name.
    """
    parts = ["## On an accelerator"]
    for name, piece in pieces.items():
        one = found.get(name, {"skipped": "not tried yet"})
        if "skipped" in one:
            parts.append(f"{name}: not measured, {one['skipped']}.")
        elif "failed" in one:
            parts.append(f"{name}: **FAILED**, {one['failed'].splitlines()[0]}")
        else:
            if name == "peaks":
                parts.append(_where(one))
            parts.append("\n".join(piece.lines(one["found"])))
    return "\n\n".join(parts) + "\n"


def _where(piece: Mapping[str, Any]) -> str:
    """Say when, on what and with what it was measured."""
    machine = piece["found"]["machine"]
    versions = machine["versions"]
    names = ("jax", "jaxlib", "libtpu")
    used = [f"{name} {versions[name]}" for name in names if name in versions]
    used += [
        f"{name.removeprefix('nvidia-')} {version}"
        for name, version in versions.items()
        if name.startswith(("nvidia-cudnn", "nvidia-cuda-runtime"))
    ]
    if machine["driver"]:
        used.append(f"driver {machine['driver']}")
    flags = ", ".join(f"{k}={v}" for k, v in machine["flags"].items()) or "none"
    return (
        f"Measured on {piece['date']} on {len(machine['devices'])} x "
        f"{machine['devices'][0]} ({piece['host']}): {', '.join(used)}; flags: {flags}."
    )
