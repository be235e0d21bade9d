"""A constituency tree: words below, in order, and labels above what they span."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, NamedTuple

from transformer.pictures.plots.picture import INK, OURS, PLAIN, Picture
from transformer.trees import brackets, forms
from transformer.trees.brackets import Node, Open, Tree, Word

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SIZE = 10.0  # points of a letter, and of an em
_ROW = 2.4  # em from a row of labels to the next
_GAP = 1.0  # em between two words
_MARGIN = 1.0  # em
_LARGEST = 200.0  # inches of a side; PDF has no larger pages
_FULL = frozenset("mMwW@%\u2014\u2026")  # as wide as an em


class Place(NamedTuple):
    """Where a text of a tree is drawn.

    Attributes:
      text: a word, its tag or the label of a constituent.
      x: its middle, em from the left.
      row: from 0, that of the words; labels are a row above their highest child.
      children: the numbers of the places below it, none for a word.
    """

    text: str
    x: float
    row: int
    children: tuple[int, ...] = ()


def constituents(tree: Tree) -> Picture:
    """Draw a tree; edges have right angles. Large ones are scaled to fit a page.

    Tags are drawn above their words, except ``XX``, which says that there is none.
    ``TOP`` is left out if it has one constituent in it.

    Args:
      tree: at least one word.
    """
    places = layout(tree)
    across = max(place.x + _width(place.text) / 2 for place in places) + 2 * _MARGIN
    down = _ROW * (max(place.row for place in places) + 1) + 2 * _MARGIN
    size = min(_SIZE, 72 * _LARGEST / max(across, down))

    def paint(figure: Figure) -> None:
        from matplotlib.collections import LineCollection

        figure.set_layout_engine("none")
        axes = figure.add_axes((0, 0, 1, 1))
        lines = LineCollection(_edges(places), colors=PLAIN, linewidths=0.08 * size)
        lines.set_clip_on(False)
        axes.add_collection(lines)
        for place in places:
            axes.text(
                place.x,
                _ROW * place.row,
                place.text,
                ha="center",
                va="center",
                fontsize=size,
                color=OURS if place.row else INK,
            )
        axes.set_xlim(-_MARGIN, across - _MARGIN)
        axes.set_ylim(-_ROW / 2 - _MARGIN, down - _ROW / 2 - _MARGIN)
        axes.set_axis_off()

    return Picture(paint, across * size / 72, down * size / 72)


def layout(tree: Tree) -> list[Place]:
    """Return the place of every word, tag and label, children before parents.

    A label is above the middle between its first and its last child. The texts of a
    constituent stay to the right of everything before it, so that nothing overlaps.

    Args:
      tree: at least one word.
    """
    places: list[Place] = []
    # For each open constituent: its label, children, first place and left edge.
    outside: tuple[str, list[int], int, float] = ("", [], 0, 0.0)
    stack = [outside]
    free = 0.0  # where the next text may begin
    for node in _spelt(tree):
        if isinstance(node, Open):
            stack.append((node.label, [], len(places), free))
        elif isinstance(node, Word):
            half = _width(node.form) / 2
            stack[-1][1].append(len(places))
            places.append(Place(node.form, free + half, 0))
            free += 2 * half + _GAP
        else:
            label, children, first, left = stack.pop()
            half = _width(label) / 2
            middle = (places[children[0]].x + places[children[-1]].x) / 2
            if (short := left - (middle - half)) > 0:
                places[first:] = [p._replace(x=p.x + short) for p in places[first:]]
                middle, free = middle + short, free + short
            free = max(free, middle + half + _GAP)
            row = 1 + max(places[child].row for child in children)
            stack[-1][1].append(len(places))
            places.append(Place(label, middle, row, tuple(children)))
    return places


def _spelt(tree: Tree) -> list[Node]:
    """Return a tree with its tags as constituents, without a ``TOP`` around one."""
    nodes: list[Node] = []
    for node in tree[1:-1] if forms.is_rooted(tree) else tree:
        if isinstance(node, Word) and node.tag != forms.UNTAGGED:
            nodes += [Open(node.tag), node, brackets.CLOSE]
        else:
            nodes.append(node)
    return nodes


def _edges(places: list[Place]) -> list[list[tuple[float, float]]]:
    """Return the lines from labels to what is below them."""
    lines = []
    for place in places:
        above, bar = _ROW * place.row - 0.7, _ROW * (place.row - 0.5)
        for child in (places[number] for number in place.children):
            below = _ROW * child.row + 0.7
            bend = [(place.x, bar), (child.x, bar)]
            lines.append([(place.x, above), *bend, (child.x, below)])
    return lines


def _width(text: str) -> float:
    """Estimate the width of a text in em, rather too large than too small."""
    full = sum(x in _FULL or unicodedata.east_asian_width(x) in "FW" for x in text)
    low = sum(x not in _FULL and (x.islower() or x.isdigit()) for x in text)
    return full + 0.65 * low + 0.84 * (len(text) - full - low)
