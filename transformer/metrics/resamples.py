"""Bootstrap resamples of a test set, the same ones for every system."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Value = Callable[[np.ndarray], float]  # of summed counts


class Resampler:
    """A measure on resamples of the lines, as numbers.

    The paired bootstrap (Koehn 2004), as in ``sacrebleu.significance``, which compares
    one run with one. This returns a run's scores, so that systems of several runs can
    be compared, resample by resample, by their means.

    Args:
      lines: of the test set.
      resamples: their number; each has as many lines as there are, drawn with
        replacement.
      seed: of the resamples.
    """

    def __init__(self, lines: int, resamples: int = 1000, seed: int = 0) -> None:
        generator = np.random.default_rng(seed)
        chances = np.full(lines, 1 / lines)
        self.times = generator.multinomial(lines, chances, resamples)

    def scores(self, counts: np.ndarray, value: Value) -> np.ndarray:
        """Return the measure on each of the resamples.

        Args:
          counts: (lines, k), what the measure counts in each line.
          value: the measure, from counts that are summed over lines, (k,).

        Returns:
          (resamples,).
        """
        return np.array([value(row) for row in self.times @ counts])
