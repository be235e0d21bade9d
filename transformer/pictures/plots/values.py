"""Values by name: marks with intervals, bars, labelled points."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from transformer.pictures.plots.picture import OURS, PAPER, Picture, even_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Mark(NamedTuple):
    """A value of ours with its interval, and the paper's on the same axis."""

    name: str
    value: float
    low: float
    high: float
    paper: float | None


def marks(panels: Sequence[tuple[str, bool, Sequence[Mark]]], paper: str) -> Picture:
    """Draw values by row, with intervals and the paper's values, side by side.

    Args:
      panels: what the axis is, whether it is logarithmic, and the rows from the top;
        all panels have the same ones.
      paper: how the paper's values are placed, for the legend.
    """

    def paint(figure: Figure) -> None:
        axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for one, (label, logarithmic, rows) in zip(axes, panels, strict=True):
            _paint_marks(one, rows, paper)
            if logarithmic:
                even_ticks(one, "x")
            one.set_xlabel(label)
        axes[0].invert_yaxis()
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=2)

    return Picture(paint, 11, 1.6 + 0.32 * len(panels[0][2]))


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


def bars(
    title: str,
    x_labels: Sequence[str],
    y_label: str,
    rows: Mapping[str, Sequence[float]],
) -> Picture:
    """Draw values by name, a colour for each row, with a number on every bar.

    Args:
      title: shown above.
      x_labels: below the groups of bars.
      y_label: what the vertical axis is.
      rows: text in the legend, to a value for each group.
    """

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        wide = 0.8 / len(rows)
        for i, (name, values) in enumerate(rows.items()):
            at = [j + (i - (len(rows) - 1) / 2) * wide for j in range(len(values))]
            drawn = axes.bar(at, values, wide * 0.92, label=name)
            axes.bar_label(
                drawn, fmt="{:.3g}", fontsize="x-small", rotation=90, padding=2
            )
        axes.set_xticks(range(len(x_labels)), x_labels)
        axes.set(title=title, ylabel=y_label)
        axes.grid(False, axis="x")
        axes.margins(y=0.2)
        figure.legend(loc="outside lower center", ncols=len(rows))

    return Picture(paint, 7, 4.6)


def points(
    title: str, labels: Sequence[str], places: Sequence[Sequence[float]], note: str
) -> Picture:
    """Draw labelled points of a plane.

    Args:
      title: shown above.
      labels: one per point.
      places: (x, y) of each.
      note: shown below.
    """

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        x, y = zip(*places, strict=True)
        axes.plot(x, y, "o", markersize=4, color=OURS)
        for label, place in zip(labels, places, strict=True):
            axes.annotate(
                label,
                (place[0], place[1]),
                (3, 3),
                textcoords="offset points",
                fontsize="small",
            )
        axes.margins(0.12)
        axes.set(title=title, xlabel=note)

    return Picture(paint, 8, 7)
