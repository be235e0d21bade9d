"""Matrices as heat maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from transformer.pictures.plots.picture import Picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Map(NamedTuple):
    """A matrix as a heat map."""

    title: str
    values: Sequence[Sequence[float]]
    x_label: str
    y_label: str


def maps(
    every: Sequence[Map], wide: int = 2, first: int = 0, signed: bool = True
) -> Picture:
    """Draw matrices side by side, each with its own scale of colours.

    Args:
      every: the matrices.
      wide: how many side by side.
      first: the number of the first row and column.
      signed: colours for both signs, white for 0; else from 0 up.
    """
    wide = min(wide, len(every))
    high = -(-len(every) // wide)
    small = max(len(every[0].values), len(every[0].values[0])) < 20

    def paint(figure: Figure) -> None:
        from matplotlib.ticker import MaxNLocator

        panels = figure.subplots(high, wide, squeeze=False)
        for axes in panels.flat[len(every) :]:
            axes.set_visible(False)
        for axes, one in zip(panels.flat, every, strict=False):
            most = max(abs(x) for row in one.values for x in row) or 1.0
            rows, columns = len(one.values), len(one.values[0])
            drawn = axes.imshow(
                one.values,
                cmap="RdBu_r" if signed else "Blues",
                vmin=-most if signed else 0,
                vmax=most,
                aspect="auto",
                interpolation="nearest",
                extent=(first - 0.5, first + columns - 0.5)
                + (first + rows - 0.5, first - 0.5),
            )
            axes.grid(False)
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_locator(MaxNLocator(6, integer=True))
            axes.set(xlabel=one.x_label, ylabel=one.y_label)
            axes.set_title(one.title, fontsize="medium")
            figure.colorbar(drawn, ax=axes)

    size = (2.9, 2.2) if small else (5.4, 4.2)
    return Picture(paint, size[0] * wide, size[1] * high)
