"""Every picture: matplotlib in, SVG text out.

Text stays text, nothing is loaded from elsewhere, and what would be black has the
colour of the text around the picture, so that a page is readable on light and on dark.
"""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OURS, PAPER, PLAIN = "#2f86d6", "#dd7a1f", "#8a8a8a"  # stand out from both
_INK = "#010203"  # stands for the colour of the surrounding text
_SETTINGS: dict[str, Any] = {
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
