"""A tree that grows to the right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from transformer.pictures.plots.picture import INK, OURS, PLAIN, Picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Branch(NamedTuple):
    """A node of a tree that grows to the right.

    Attributes:
      parent: the number of the node before it, -1 for the root; less than its own.
      depth: how far to the right it is.
      label: its text.
      note: small text below it.
      best: whether it is on the marked path.
      kept: if not, it is drawn pale.
    """

    parent: int
    depth: int
    label: str
    note: str
    best: bool
    kept: bool


def tree(title: str, branches: Sequence[Branch]) -> Picture:
    """Draw a tree, its root on the left, with a row for each leaf.

    Args:
      title: shown above.
      branches: the nodes; a parent before its children.
    """
    rows = _leaf_rows([branch.parent for branch in branches])

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        for branch, row in zip(branches, rows, strict=True):
            colour = OURS if branch.best else PLAIN
            if branch.parent >= 0:
                before = branches[branch.parent].depth, rows[branch.parent]
                bend = before[0] + 0.47  # between two columns of text
                axes.plot(
                    [before[0], bend, bend, branch.depth],
                    [before[1], before[1], row, row],
                    color=colour,
                    linewidth=2 if branch.best else 0.8,
                    zorder=2 if branch.best else 1,
                )
            text: Any = {"ha": "center", "zorder": 3}
            axes.text(
                branch.depth,
                row - 0.08,
                branch.label,
                va="bottom",
                fontsize="medium",
                fontweight="bold" if branch.best else "normal",
                color=INK if branch.kept else PLAIN,
                **text,
            )
            axes.text(
                branch.depth,
                row + 0.06,
                branch.note,
                va="top",
                fontsize=6.5,
                color=colour,
                **text,
            )
        axes.set_xlim(-0.5, max(branch.depth for branch in branches) + 0.7)
        axes.set_ylim(max(rows) + 0.8, -0.8)
        axes.set_title(title)
        axes.set_axis_off()

    letters = max(len(branch.label) for branch in branches)
    small = max(len(branch.note) for branch in branches)
    column = max(0.95, 0.15 + 0.1 * letters, 0.15 + 0.055 * small)
    width = 0.55 + column + column * max(branch.depth for branch in branches)
    return Picture(paint, width, 1 + 0.45 * (max(rows) + 1))


def _leaf_rows(parents: Sequence[int]) -> list[float]:
    """Return a row for each node: leaves one below the other, parents at the first."""
    children: list[list[int]] = [[] for _ in parents]
    for number, parent in enumerate(parents[1:], start=1):
        children[parent].append(number)
    rows, free = [0.0] * len(parents), 0
    waiting = [0]
    while waiting:
        number = waiting.pop()
        rows[number] = free
        waiting += children[number][::-1]
        free += not children[number]
    return rows
