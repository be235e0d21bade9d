"""What evaluation adds to perplexity: a line of ``MEASURES`` for each measure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from transformer import config
from transformer.metrics import bleu, chrf_ter
from transformer.metrics.bleu import Score

# (hypotheses, references, target language) -> the score of each variant
Measure = Callable[[Sequence[str], Sequence[str], str], Mapping[str, Score]]

MEASURES: dict[str, Measure] = {"bleu": bleu.score_all}

# (hypotheses, references) -> what the final evaluation adds to a measure, by name
Beside = Callable[[Sequence[str], Sequence[str]], chrf_ter.Value]
BESIDE: dict[str, Mapping[str, Beside]] = {"bleu": chrf_ter.BESIDE}


def measure_of(data: config.Data) -> Measure:
    """Return the measure that ``data.measure`` names.

    Raises:
      UserError: for a name that no measure has.
    """
    if data.measure not in MEASURES:
        config.refuse("data.measure", f"one of {', '.join(MEASURES)}", data.measure)
    return MEASURES[data.measure]
