"""Every picture: matplotlib in, SVG text out.

Text stays text, nothing is loaded from elsewhere, and what would be black has the
colour of the text around the picture, so that a page is readable on light and on dark.
"""

from __future__ import annotations

import io
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OURS, PAPER, PLAIN = "#2f86d6", "#dd7a1f", "#8a8a8a"  # stand out from both
_INK = "#010203"  # stands for the colour of the surrounding text
_SETTINGS: Any = {  # matplotlib's type lists all its keys
    "font.family": "DejaVu Sans",  # comes with matplotlib: measures the text
    "svg.fonttype": "none",
    "svg.hashsalt": "transformer",  # the same picture is the same text
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#88888844",
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    **dict.fromkeys(
        "text.color axes.edgecolor axes.labelcolor axes.titlecolor xtick.color "
        "ytick.color".split(),
        _INK,
    ),
}


def draw(paint: Callable[[Figure], None], width: float, height: float) -> str:
    """Return what ``paint`` draws on an empty figure.

    Args:
      paint: draws.
      width: of the figure, inches of 72 points.
      height: of the figure.

    Returns:
      One ``<svg>`` element on a transparent ground.
    """
    import matplotlib
    from matplotlib.figure import Figure

    text = io.StringIO()
    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(figsize=(width, height))
        paint(figure)
        figure.savefig(
            text,
            format="svg",
            transparent=True,
            metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")),
        )
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :].replace(_INK, "currentColor")
    svg = re.sub(r" font-family: [^;\"]*;", "", svg)
    return svg.replace("<svg", '<svg font-family="system-ui, sans-serif"', 1)


def powers(
    title: str,
    x_label: str,
    y_label: str,
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]],
) -> str:
    """Draw measurements on logarithmic axes, where a power is a straight line.

    Args:
      title: stands above.
      x_label: what the horizontal axis is.
      y_label: what the vertical axis is.
      lines: what stands in the legend, to x and y of the points.

    Returns:
      SVG text.
    """

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        for (label, (x, y)), mark in zip(
            lines.items(), itertools.cycle("osD^vP"), strict=False
        ):
            axes.loglog(x, y, marker=mark, label=label)
        axes.set(title=title, xlabel=x_label, ylabel=y_label)
        figure.legend(loc="outside lower center")

    return draw(paint, 7, 5.5)


class Mark(NamedTuple):
    """A figure of ours with its interval, and the paper's on the same axis."""

    name: str
    value: float
    low: float
    high: float
    paper: float | None


def marks(panels: Sequence[tuple[str, bool, Sequence[Mark]]], paper: str) -> str:
    """Draw figures by row, with intervals and the paper's figures, side by side.

    Args:
      panels: what the axis is, whether it is logarithmic, and the rows from the top;
        all panels have the same ones.
      paper: how the paper's figures are placed, for the legend.

    Returns:
      SVG text.
    """

    def paint(figure: Figure) -> None:
        axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for one, (label, logarithmic, rows) in zip(axes, panels, strict=True):
            _paint_marks(one, rows, paper)
            if logarithmic:
                _even_ticks(one, "x")
            one.set_xlabel(label)
        axes[0].invert_yaxis()
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=2)

    return draw(paint, 11, 1.6 + 0.32 * len(panels[0][2]))


def _paint_marks(axes: Axes, rows: Sequence[Mark], paper: str) -> None:
    places = range(len(rows))
    for place, row in zip(places, rows, strict=True):
        if math.isfinite(row.low):
            axes.plot([row.low, row.high], [place, place], color=OURS, linewidth=2)
    ours = [row.value for row in rows]
    label = "ours, mean and 95 % interval"
    axes.plot(ours, places, "o", color=OURS, label=label)
    theirs = [(row.paper, n) for n, row in enumerate(rows) if row.paper is not None]
    if theirs:
        at = zip(*theirs, strict=True)
        axes.plot(*at, "D", color=PAPER, fillstyle="none", label=paper)
    axes.set_yticks(places, [row.name for row in rows])


def _even_ticks(axes: Axes, which: Literal["x", "y"]) -> None:
    """Make an axis logarithmic, with round numbers also where it is less than 10."""
    from matplotlib.ticker import (
        LogFormatter,
        MaxNLocator,
        NullLocator,
        ScalarFormatter,
    )

    axes.set(**{f"{which}scale": "log"})
    axis = axes.xaxis if which == "x" else axes.yaxis
    low, high = axis.get_view_interval()
    if high < 20 * low:
        axis.set_major_locator(MaxNLocator(5))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(ScalarFormatter())
    else:
        axis.set_major_formatter(LogFormatter())


def curves(
    label: str, rows: Mapping[str, Sequence[Sequence[tuple[int, float]]]]
) -> str:
    """Draw a figure by step, a small panel a row, the first row behind all others.

    Args:
      label: what the vertical axis is; it is logarithmic.
      rows: name to one line of (step, figure) a seed.

    Returns:
      SVG text.
    """
    wide = min(4, len(rows))
    high = -(-len(rows) // wide)
    (first, behind), *_ = rows.items()

    def paint(figure: Figure) -> None:
        panels = figure.subplots(high, wide, sharex=True, sharey=True, squeeze=False)
        for axes in panels.flat[len(rows) :]:
            axes.set_visible(False)
        for axes, (name, lines) in zip(panels.flat, rows.items(), strict=False):
            for line in behind:
                axes.plot(*zip(*line, strict=True), color=PLAIN, linewidth=1)
            for line in lines if lines is not behind else ():
                axes.plot(*zip(*line, strict=True), color=OURS, linewidth=1.2)
            axes.set_title(name)
        _even_ticks(panels[0, 0], "y")
        figure.suptitle(f"grey: {first}; a line a seed", fontsize="medium")
        figure.supxlabel("step")
        figure.supylabel(label)

    return draw(paint, 2.8 * wide + 0.4, 2.1 * high + 0.4)
