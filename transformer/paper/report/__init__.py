"""Our runs beside the paper's: Tables 2 and 3, and a verdict on every claim."""

from transformer.paper.report.contents import tables, title
from transformer.paper.report.marks import figures

__all__ = ["figures", "tables", "title"]
