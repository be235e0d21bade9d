"""What validations decide: the best checkpoint, the learning rate, an early end."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from transformer.config import Config, Optimizer


@dataclasses.dataclass(frozen=True)
class Course:
    """How the validations of a run went; it is part of each checkpoint.

    Attributes:
      best: the least value so far, None before the first validation.
      vain: validations since then, none of them better.
      waited: those of them since the learning rate was last lowered.
      factor: what the learning rate is multiplied by.
    """

    best: float | None = None
    vain: int = 0
    waited: int = 0
    factor: float = 1.0

    @classmethod
    def of_checkpoint(cls, metadata: Mapping[str, Any]) -> Course:
        """Return the course of a checkpoint, a new one if it has none."""
        return cls(**metadata.get("course", {}))

    def validated(self, value: float, rule: Optimizer) -> Course:
        """Return the course after a validation.

        With ``schedule="plateau"`` the rate is multiplied by ``decay`` after more than
        ``decay_patience`` validations in vain; then the count begins again.

        Args:
          value: lower is better; one that is not finite is never the best.
          rule: the optimiser's settings.
        """
        if math.isfinite(value) and (self.best is None or value < self.best):
            return dataclasses.replace(self, best=value, vain=0, waited=0)
        vain, waited, factor = self.vain + 1, self.waited + 1, self.factor
        if rule.schedule == "plateau" and waited > rule.decay_patience:
            waited, factor = 0, factor * rule.decay
        return Course(self.best, vain, waited, factor)

    def at(self, epochs: float, rule: Optimizer) -> Course:
        """Return the course of a step that begins after so many epochs.

        With ``schedule="epochs"`` the rate is multiplied by ``decay`` after
        ``decay_after`` epochs, and again every ``decay_every`` epochs.
        """
        if rule.schedule != "epochs":
            return self
        # 0.3 / 0.1 is a little less than 3.
        times = math.floor((epochs - rule.decay_after) / rule.decay_every + 1e-9) + 1
        return dataclasses.replace(self, factor=rule.decay ** max(times, 0))

    def over(self, settings: Config) -> str:
        """Return why the run ends here, "" where it goes on."""
        rule, patience = settings.optimizer, settings.train.patience
        if patience and self.vain >= patience:
            return f"no improvement in {self.vain} validations (train.patience)"
        rate = rule.rate * self.factor
        if rate < rule.least_rate:
            return f"the learning rate would be {rate:.3g} (optimizer.least_rate)"
        return ""


@dataclasses.dataclass(frozen=True)
class Mark:
    """What was done at the step of a checkpoint; it is part of that.

    Attributes:
      kept: whether it is one of those that an uninterrupted run has; if not, a run was
        stopped there.
      validated: whether the step was validated.
      value: of the validation, None where it is not finite.
      owed: whether the step was to be validated, which failed because of a user error.
    """

    kept: bool = True
    validated: bool = True
    value: float | None = None
    owed: bool = False

    @classmethod
    def of_checkpoint(cls, metadata: Mapping[str, Any]) -> Mark:
        """Return the mark of a checkpoint; if it has none, nothing is left to do."""
        return cls(**metadata.get("mark", {}))


def may_end_early(settings: Config) -> bool:
    """Return whether a run may end before ``train.steps``."""
    return bool(settings.train.patience or settings.optimizer.least_rate)
