"""Lines over steps or sizes: powers, training curves, panels."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from transformer.pictures.plots.picture import (
    OURS,
    PLAIN,
    Picture,
    even_ticks,
    legend_height,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def powers(
    title: str,
    x_label: str,
    y_label: str,
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]],
) -> Picture:
    """Draw measurements on logarithmic axes, where a power is a straight line.

    Args:
      title: shown above.
      x_label: what the horizontal axis is.
      y_label: what the vertical axis is.
      lines: text in the legend, to x and y of the points.
    """

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        for (label, (x, y)), mark in zip(
            lines.items(), itertools.cycle("osD^vP"), strict=False
        ):
            axes.loglog(x, y, marker=mark, label=label)
        axes.set(title=title, xlabel=x_label, ylabel=y_label)
        figure.legend(loc="outside lower center")

    return Picture(paint, 7, 5.5, mathematics=True)  # of the powers of ten


def curves(
    label: str, rows: Mapping[str, Sequence[Sequence[tuple[int, float]]]]
) -> Picture:
    """Draw values by step, a small panel per row, the first row behind all others.

    Args:
      label: what the vertical axis is; it is logarithmic.
      rows: name to one line of (step, value) per seed.
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
                _draw(axes, line, color=PLAIN, linewidth=1)
            for line in lines if lines is not behind else ():
                _draw(axes, line, color=OURS, linewidth=1.2)
            axes.set_title(name)
        even_ticks(panels[0, 0], "y")
        figure.suptitle(f"grey: {first}; one line per seed", fontsize="medium")
        figure.supxlabel("step")
        figure.supylabel(label)

    return Picture(paint, 2.8 * wide + 0.4, 2.1 * high + 0.4)


def panels(
    x_label: str,
    panels: Sequence[tuple[str, bool, Mapping[str, Sequence[tuple[float, float]]]]],
) -> Picture:
    """Draw values by step, panels one above the other with one legend.

    Args:
      x_label: what the horizontal axis is.
      panels: what the vertical axis is, whether it is logarithmic, and the points of
        each line by its text in the legend.
    """
    names = list(dict.fromkeys(name for *_, rows in panels for name in rows))
    styles: dict[str, dict[str, Any]] = {
        name: {"color": f"C{i % 10}", "linestyle": _STYLES[i // 10 % len(_STYLES)]}
        for i, name in enumerate(names)
    }
    fitting = int(_CURVES_WIDTH / (0.7 + 0.09 * max(map(len, names))))
    columns = min(max(fitting, 1), 4)

    def paint(figure: Figure) -> None:
        every = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
        for axes, (label, logarithmic, rows) in zip(every, panels, strict=True):
            for name, at in rows.items():
                _draw(axes, at, **styles[name], linewidth=1.3)
            axes.set_ylabel(label)
            if logarithmic:
                even_ticks(axes, "y")
        every[-1].set_xlabel(x_label)
        handles = [every[0].plot([], [], **styles[name])[0] for name in names]
        figure.legend(handles, names, loc="outside lower center", ncols=columns)

    height = 1.3 + legend_height(len(names), columns) + 2.4 * len(panels)
    return Picture(paint, _CURVES_WIDTH, height)


def _draw(axes: Axes, points: Sequence[tuple[float, float]], **how: Any) -> None:
    """Draw a line, or the dot that it is if it has one point."""
    mark = "o" if len(points) == 1 else None
    axes.plot(*zip(*points, strict=True), marker=mark, markersize=4, **how)


_CURVES_WIDTH = 7.5  # inches
_STYLES = ("-", "--", ":", "-.")  # of ten colours each


def categories(
    x_label: str,
    y_label: str,
    ticks: Sequence[str],
    lines: Mapping[str, Sequence[float]],
) -> Picture:
    """Draw values by category, in their order, a line for each series.

    Args:
      x_label: what the horizontal axis is.
      y_label: what the vertical axis is; it begins at 0.
      ticks: text below each category.
      lines: text in the legend, to a value per category.
    """

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        # Named here: matplotlib shows no label that begins with _.
        drawn = [
            axes.plot(range(len(ticks)), values, marker=mark)[0]
            for values, mark in zip(
                lines.values(), itertools.cycle("osD^vP"), strict=False
            )
        ]
        axes.set_xticks(range(len(ticks)), ticks)
        axes.set(xlabel=x_label, ylabel=y_label)
        axes.set_ylim(bottom=0)
        figure.legend(drawn, list(lines), loc="outside lower center")

    height = 4.2 + 0.25 * len(lines)
    return Picture(paint, max(5.0, 1.0 + 0.8 * len(ticks)), height)
