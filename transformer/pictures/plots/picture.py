"""A picture: what is drawn on a matplotlib figure, in the form that is asked for.

In SVG, text stays text, nothing is loaded from elsewhere, and what would be black has
the colour of the text around the picture, so that a page is readable on light and dark.
Other files have a white background.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Sequence
from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


OURS, PAPER, PLAIN = "#2f86d6", "#dd7a1f", "#8a8a8a"  # stand out from both
INK = "#010203"  # placeholder for the colour of the surrounding text
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
        INK,
    ),
}
_NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
FORMS = ("png", "svg", "pdf")
_DPI = 160  # pixels per inch


def _in_page_style(tag: re.Match[str]) -> str:
    """Give a tag the colour and the font of the page; texts stay as they are."""
    coloured = tag[0].replace(INK, "currentColor")
    return re.sub(r" font-family: [^;\"]*;", "", coloured)


class Picture(NamedTuple):
    """What a function draws, in the form that is asked for.

    Attributes:
      paint: draws on an empty figure.
      width: of the figure, inches of 72 points.
      height: of the figure.
      mathematics: read $...$ in texts as formulas; only if no text is a user's.
    """

    paint: Callable[[Figure], None]
    width: float
    height: float
    mathematics: bool = False

    def svg(self) -> str:
        """Return one ``<svg>`` element on a transparent background."""
        text = io.StringIO()
        nothing = ("Creator", "Date", "Format", "Type")
        self._save(text, "svg", nothing, transparent=True)
        svg = _NOT_XML.sub("\ufffd", text.getvalue())
        svg = re.sub(r"<[^>]*>", _in_page_style, svg[svg.index("<svg") :])
        return svg.replace("<svg", '<svg font-family="system-ui, sans-serif"', 1)

    def file(self, form: str) -> bytes:
        """Return the bytes of a file; ``form`` is one of ``FORMS``."""
        if form == "svg":
            return self.svg().encode()
        data = io.BytesIO()
        nothing = ("Software",) if form == "png" else ("Creator", "CreationDate")
        self._save(data, form, nothing, dpi=_DPI)
        return data.getvalue()

    def _save(
        self, file: IO, form: str, nothing: Sequence[str], **options: Any
    ) -> None:
        """Draw into a file, with nothing in the named metadata."""
        import matplotlib
        from matplotlib.figure import Figure

        metadata: Any = dict.fromkeys(nothing)
        settings = _SETTINGS | {"text.parse_math": self.mathematics}
        with (
            matplotlib.rc_context(settings),
            warnings.catch_warnings(record=True) as caught,
        ):
            warnings.simplefilter("always")
            figure = Figure(figsize=(self.width, self.height))
            self.paint(figure)
            figure.savefig(file, format=form, metadata=metadata, **options)
        _pass_on(caught, form)


def _pass_on(caught: Sequence[warnings.WarningMessage], form: str) -> None:
    """Show warnings, one line for all characters that the font lacks.

    In SVG the reader's fonts draw the text; there the font only measures it.
    """
    absent = []
    for one in caught:
        if found := re.match(r"Glyph (\d+) .* missing from font", str(one.message)):
            absent.append(chr(int(found[1])))
        else:
            warnings.warn_explicit(
                one.message, one.category, one.filename, one.lineno, source=one.source
            )
    if absent and form != "svg":
        from transformer.trained import complain  # loads jax

        complain(
            f"the picture's font lacks {' '.join(dict.fromkeys(absent))}, drawn as "
            "boxes; write a .svg, which is shown with the fonts of its reader"
        )


def legend_height(names: int, columns: int) -> float:
    """Return the height of a legend below the axes, in inches."""
    return 0.22 * -(-names // columns)


def even_ticks(axes: Axes, which: Literal["x", "y"]) -> None:
    """Make an axis logarithmic, with round ticks even over a factor of less than 20."""
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
