"""What every measure of a corpus returns."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Score:
    """A score of a corpus.

    Attributes:
      value: as the measure defines it, mostly in percent.
      signature: all that a comparison with another score must know: what was counted,
        by which rules, and of how many lines. Only equal signatures compare.
    """

    value: float
    signature: str
