"""Our runs beside the paper's: Tables 2 and 3, and a verdict on every claim."""

from transformer.paper.report.contents import tables, title
from transformer.paper.report.marks import figures
from transformer.paper.report.systems import systems_table

__all__ = ["figures", "systems_table", "tables", "title"]
