"""The columns of Tables 1 and 3 that need no training."""

from __future__ import annotations

from collections.abc import Mapping

from transformer.config import Config
from transformer.paper.tables import Table


def tables(rows: Mapping[str, Config], timed: bool = False) -> list[Table]:
    """Compare parameters, operations and Table 1 with the paper's.

    Args:
      rows: the rows of Table 3, name to configuration.
      timed: measure seconds by n too, which takes about a minute.

    Returns:
      Parameters, training cost, and Table 1 measured.
    """
    raise NotImplementedError


def figures(timed: bool = False) -> list[str]:
    """Draw Table 1: operations by n, and seconds by n if they are measured.

    Args:
      timed: as for ``tables``, whose measurement is used again.

    Returns:
      SVG texts.
    """
    raise NotImplementedError
