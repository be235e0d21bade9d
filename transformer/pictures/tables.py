"""Tables as Markdown, CSV or one HTML file that needs no network."""

from __future__ import annotations

import csv
import dataclasses
import html as markup
import io
import re
from collections.abc import Iterable, Sequence
from typing import Literal

from transformer.files.markdown import plain

_NUMBER = re.compile(r"[<+-]?\d[\d,]*(\.\d+)?([eE][+-]?\d+)?")
_AT_THE_START = re.compile(r"^(?=[#>+=-]|\d+[.)])")


@dataclasses.dataclass(frozen=True)
class Table:
    """Text in rows and columns.

    Attributes:
      title: shown above.
      columns: heads, one per column.
      rows: cells; a row has as many as there are columns.
      note: shown below.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"expected {len(self.columns)} cells, got {row}")


def scientific(value: float | None, digits: int = 2) -> str:
    """Write a large number as the paper does, nothing for None.

    >>> scientific(2.298e19, 1)
    '2.3e19'
    """
    return "" if value is None else f"{value:.{digits}e}".replace("e+", "e")


def digits(value: float) -> str:
    """Write a number with three significant digits, never as a power.

    >>> [digits(x) for x in (0, 0.012345, 1.2345, 123.45, 12345.6)]
    ['0', '0.0123', '1.23', '123', '12,346']
    """
    if value >= 100:
        return f"{value:,.0f}"
    text = f"{value:.3g}"
    return f"{value:.6f}".rstrip("0").rstrip(".") if "e" in text else text


def page(
    form: Literal["markdown", "html", "csv"],
    title: str,
    tables: Sequence[Table],
    figures: Sequence[str],
) -> str:
    """Write tables in a form; only HTML has the figures, SVG texts, too."""
    if form == "html":
        return html(tables, figures, title)
    if form == "csv":
        return csv_text(tables)
    return "\n".join([f"# {plain(title)}\n", *map(markdown, tables)])


def markdown(table: Table) -> str:
    """Write a table as GitHub Markdown, columns of numbers right-aligned.

    >>> print(markdown(Table("Rows", ("row", "PPL"), (("base", "4.92"),))))
    ### Rows
    <BLANKLINE>
    | row | PPL |
    |---|---:|
    | base | 4.92 |
    <BLANKLINE>
    """
    rules = "".join("---:|" if n else "---|" for n in _numeric(table))
    lines = [f"### {plain(table.title)}", "", _line(table.columns), f"|{rules}"]
    lines += map(_line, table.rows)
    return "\n".join(
        [*lines, "", *([_paragraph(table.note), ""] if table.note else [])]
    )


def _line(cells: Iterable[str]) -> str:
    return "|" + "".join(f" {plain(cell)} |" for cell in cells)


def _paragraph(text: str) -> str:
    return _AT_THE_START.sub("&#8203;", plain(text), count=1)


def _numeric(table: Table) -> list[bool]:
    """Return for each column whether all its cells begin with a number."""
    columns = zip(*table.rows, strict=True) if table.rows else [()] * len(table.columns)
    filled = [[cell for cell in column if cell] for column in columns]
    return [bool(cells) and all(map(_NUMBER.match, cells)) for cells in filled]


def csv_text(tables: Iterable[Table]) -> str:
    """Write tables as CSV (RFC 4180): title, heads, rows, note; a blank line between.

    >>> print(csv_text([Table("Rows", ("row", "PPL"), (("base, ours", "4.92"),))]))
    Rows
    row,PPL
    "base, ours",4.92
    <BLANKLINE>
    """
    return "\n".join(map(_csv_block, tables))


def _csv_block(table: Table) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([[table.title], table.columns, *table.rows])
    if table.note:
        writer.writerow([table.note])
    return text.getvalue()


def html(
    tables: Iterable[Table], figures: Sequence[str] = (), title: str = "Report"
) -> str:
    """Write one self-contained page, light or dark like the reader's system.

    Args:
      tables: each with its title and note.
      figures: SVG texts; black in them should be ``currentColor``.
      title: of the page.

    Returns:
      HTML that loads nothing.
    """
    body = [_html_table(table) for table in tables]
    body += [f"<figure>{figure}</figure>" for figure in figures]
    name = markup.escape(title)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{name}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{name}</h1>\n" + "\n".join(body) + "\n</body>\n</html>\n"
    )


_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 80rem;
  padding: 0 1rem; background: Canvas; color: CanvasText; }
div { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .7rem; text-align: left; vertical-align: top;
  border-bottom: 1px solid #8885; }
thead th { border-bottom: 2px solid #888a; vertical-align: bottom; }
tbody tr:hover { background: #8882; }
.number { text-align: right; white-space: nowrap; }
td:not(.number, :first-child) { min-width: 10em; }
.note { max-width: 60rem; opacity: .85; }
figure { margin: 2rem 0; }
svg { max-width: 100%; height: auto; }
"""


def _html_table(table: Table) -> str:
    marks = [' class="number"' if n else "" for n in _numeric(table)]
    head = _cells("th", table.columns, marks)
    rows = "\n".join(f"<tr>{_cells('td', row, marks)}</tr>" for row in table.rows)
    note = f'\n<p class="note">{markup.escape(table.note)}</p>' if table.note else ""
    return (
        f"<section>\n<h2>{markup.escape(table.title)}</h2>\n<div><table>\n"
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table></div>"
        f"{note}\n</section>"
    )


def _cells(tag: str, cells: Iterable[str], marks: Iterable[str]) -> str:
    return "".join(
        f"<{tag}{mark}>{markup.escape(cell)}</{tag}>"
        for cell, mark in zip(cells, marks, strict=True)
    )
