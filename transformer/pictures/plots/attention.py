"""What heads attend to: heat maps, and lines from words to words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from transformer.pictures.plots.picture import Picture, legend_height

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class HeadMap(NamedTuple):
    """The attention weights of one head."""

    title: str
    weights: Sequence[Sequence[float]]  # (T, S)


def head_maps(
    title: str,
    grid: Sequence[Sequence[HeadMap]],
    rows: Sequence[str],
    columns: Sequence[str],
) -> Picture:
    """Draw the weights of heads as a grid of heat maps.

    Args:
      title: shown above.
      grid: layers of heads.
      rows: labels of the T positions that attend.
      columns: labels of the S positions that are attended to.
    """
    longest = max(len(rows), len(columns))
    side = min(max(1.5, 0.15 * longest), 3.4)  # inches of a map
    size = min(8.0, 0.9 * 72 * side / longest)  # points of a label

    def paint(figure: Figure) -> None:
        panels = figure.subplots(
            len(grid), len(grid[0]), sharex=True, sharey=True, squeeze=False
        )
        for axes, one in zip(panels.flat, sum(map(list, grid), []), strict=True):
            axes.imshow(one.weights, cmap="Blues", vmin=0, vmax=1, aspect="auto")
            axes.set_title(one.title, fontsize="small")
            axes.grid(False)
            axes.tick_params(length=0)
        for axes in panels[-1]:
            axes.set_xticks(range(len(columns)), columns, rotation=90, fontsize=size)
        for axes in panels[:, 0]:
            axes.set_yticks(range(len(rows)), rows, fontsize=size)
        figure.suptitle(title)

    margin = 0.08 * max(len(label) for label in [*rows, *columns]) + 0.3
    return Picture(
        paint, margin + side * len(grid[0]), margin + 0.5 + (side + 0.25) * len(grid)
    )


def alignment(
    title: str,
    weights: Sequence[Sequence[float]],
    rows: Sequence[str],
    columns: Sequence[str],
) -> Picture:
    """Draw what each written piece attends to, 0 black and 1 white.

    Args:
      title: shown above.
      weights: (T, S).
      rows: labels of the T pieces that are written.
      columns: labels of the S positions that are attended to; shown above.

    Source: Bahdanau et al., arXiv:1409.0473, Figure 3.
    """
    cell = 0.24 if max(len(rows), len(columns)) < 40 else 0.12  # inches
    letters = 0.08 * max(len(label) for label in [*rows, *columns])

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        axes.imshow(weights, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        axes.grid(False)
        axes.xaxis.tick_top()
        axes.tick_params(length=0, labelsize=min(8.0, 0.8 * 72 * cell))
        axes.set_xticks(range(len(columns)), columns, rotation=90)
        axes.set_yticks(range(len(rows)), rows)
        figure.suptitle(title, fontsize="medium")

    width = max(3.5, 0.5 + letters + cell * len(columns))
    return Picture(paint, width, 0.8 + letters + cell * len(rows))


class HeadLines(NamedTuple):
    """What chosen positions attend to, head by head, in one layer."""

    title: str
    chosen: Sequence[int]  # of the T positions
    weights: Sequence[Sequence[Sequence[float]]]  # (H, T, S)


def head_lines(
    every: Sequence[HeadLines],
    heads: Sequence[str],
    rows: Sequence[str],
    columns: Sequence[str],
) -> Picture:
    """Draw what words attend to, in the style of the paper's Figures 3 to 5.

    The positions that attend are above, those that are attended to are below; a line
    and a strip of the box below have the colour of a head, stronger for larger weights.

    Args:
      every: a panel each.
      heads: names of the H heads.
      rows: labels of the T positions that attend.
      columns: labels of the S positions that are attended to.
    """
    letters = max(len(label) for label in [*rows, *columns])
    width = max(5.0, 0.9 + 0.3 * max(len(rows), len(columns)))
    across = min(len(heads), int(width / 1.15))  # names side by side, in inches

    def paint(figure: Figure) -> None:
        panels = figure.subplots(len(every), 1, squeeze=False)[:, 0]
        for axes, one in zip(panels, every, strict=True):
            _paint_lines(axes, one, rows, columns)
            above = 10 + 6 * max(map(len, rows))  # points: room for the labels
            axes.set_title(one.title, fontsize="medium", loc="left", pad=above)
        for i, name in enumerate(heads):
            colour = _colour(i, len(heads))
            panels[0].plot([], [], color=colour, linewidth=4, label=name)
        figure.legend(loc="outside lower center", ncols=across)

    height = 0.7 + legend_height(len(heads), across)
    return Picture(paint, width, height + len(every) * (1.8 + 0.17 * letters))


def _colour(head: int, heads: int) -> Any:
    """Return the colour of a head; matplotlib's cycle has ten."""
    import matplotlib

    if heads <= 10:
        return f"C{head}"
    return matplotlib.colormaps["tab20"](head % 20)


def _paint_lines(
    axes: Axes, one: HeadLines, rows: Sequence[str], columns: Sequence[str]
) -> None:
    heads = len(one.weights)
    for h, weights in enumerate(one.weights):
        colour = _colour(h, heads)
        for t in one.chosen:
            for s, weight in enumerate(weights[t]):
                axes.plot([t, s], [1, 0], color=colour, alpha=weight, linewidth=2)
                low, high = -0.02 - 0.16 * (h + 1) / heads, -0.02 - 0.16 * h / heads
                strip = [low, low, high, high]
                axes.fill(
                    [s - 0.4, s + 0.4, s + 0.4, s - 0.4],
                    strip,
                    color=colour,
                    alpha=weight,
                    linewidth=0,
                )
    for t, label in enumerate(rows):
        axes.text(
            t,
            1.03,
            label,
            rotation=90,
            ha="center",
            va="bottom",
            fontsize="small",
            fontweight="bold" if t in one.chosen else "normal",
        )
    for s, label in enumerate(columns):
        axes.text(s, -0.21, label, rotation=90, ha="center", va="top", fontsize="small")
    axes.set_xlim(-0.7, max(len(rows), len(columns)) - 0.3)
    axes.set_ylim(-0.2, 1)
    axes.set_axis_off()
