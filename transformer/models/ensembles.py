"""Several models that search as one."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Ensemble:
    """Models with one target vocabulary, whose probabilities are averaged in a search.

    Attributes:
      members: the models, of any architectures.
    """

    members: tuple[Any, ...]

    @property
    def target_size(self) -> int:
        """Rows of the logits, the same for all members."""
        size: int = self.members[0].target_size
        return size
