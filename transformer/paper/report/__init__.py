"""Our runs beside the paper's: Tables 2 to 4, and a verdict on every claim."""

from transformer.paper.report.contents import claims, tables, title
from transformer.paper.report.marks import figures
from transformer.paper.report.parsing import parsing_table
from transformer.paper.report.systems import systems_table

__all__ = ["claims", "figures", "parsing_table", "systems_table", "tables", "title"]
