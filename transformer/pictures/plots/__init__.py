"""Every kind of picture, drawn with matplotlib; each function returns a ``Picture``."""

from transformer.pictures.plots.attention import (
    HeadLines,
    HeadMap,
    alignment,
    head_lines,
    head_maps,
)
from transformer.pictures.plots.constituents import constituents
from transformer.pictures.plots.heat_maps import Map, maps
from transformer.pictures.plots.lines import categories, curves, panels, powers
from transformer.pictures.plots.picture import FORMS, Picture
from transformer.pictures.plots.trees import Branch, tree
from transformer.pictures.plots.values import Mark, bars, marks, points

__all__ = [
    "FORMS",
    "Branch",
    "HeadLines",
    "HeadMap",
    "Map",
    "Mark",
    "Picture",
    "alignment",
    "bars",
    "categories",
    "constituents",
    "curves",
    "head_lines",
    "head_maps",
    "maps",
    "marks",
    "panels",
    "points",
    "powers",
    "tree",
]
