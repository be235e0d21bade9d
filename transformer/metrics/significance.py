"""Tests of whether one translation of a test set is better than another or lucky."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from transformer.config import UserError
from transformer.metrics.bleu import check_counts, metric_of, order_of, preparation
from transformer.metrics.chrf_ter import chrf_metric, ter_metric

if TYPE_CHECKING:
    from sacrebleu.significance import Result

_SEED = "SACREBLEU_SEED"  # in the environment: sacreBLEU takes a seed from there alone


@dataclasses.dataclass(frozen=True)
class Tested:
    """A score of one system, compared with that of the first one.

    Attributes:
      score: of the whole test set.
      mean: of the score on the bootstrap resamples.
      interval: half of the 95 % interval around it.
      bootstrap: p-value of the paired bootstrap; None for the first system.
      randomisation: p-value of paired approximate randomisation; None for the first.
    """

    score: float
    mean: float
    interval: float
    bootstrap: float | None
    randomisation: float | None


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Systems compared with the first of them by one measure.

    Attributes:
      measure: "BLEU", "chrF2" or "TER".
      signature: sacreBLEU's, with the seed and the numbers of draws.
      systems: by name, the first one is what the others are compared with.
    """

    measure: str
    signature: str
    systems: Mapping[str, Tested]


def paired(
    systems: Mapping[str, Sequence[str]],
    references: Sequence[str],
    *,
    variant: str = "13a",
    language: str = "en",
    seed: int = 12345,
    resamples: int = 1000,
    trials: int = 10_000,
) -> list[Comparison]:
    """Compare systems with the first of them by BLEU, chrF and TER.

    The null hypothesis is that a system is as good as the first one. The paired
    bootstrap draws sentences with replacement; approximate randomisation swaps the two
    translations of each sentence at random. A p-value is ``(c + 1) / (n + 1)``, where c
    of n draws differ more than the systems do. Both are sacreBLEU's own, with its
    random numbers, except for systems of equal scores, whose p-value is 1: every draw
    differs as much or more.

    Args:
      systems: translations by name, a text per line.
      references: one text per line.
      variant: of BLEU, one of ``bleu.VARIANTS``.
      language: of the text, as ``bleu.corpus_bleu``.
      seed: of both tests, 1 or more: sacreBLEU takes 0 for "draw one".
      resamples: of the bootstrap.
      trials: of approximate randomisation.

    Returns:
      BLEU, chrF2 and TER.

    Raises:
      UserError: for fewer than two systems, or lines that have no reference.

    Source: Koehn (2004); Riezler and Maxwell (2005); ``sacrebleu --paired-bs`` and
      ``--paired-ar``.
    """
    if len(systems) < 2:
        raise UserError(
            f"expected two or more systems to compare, got {len(systems)}; add one"
        )
    for lines in systems.values():
        check_counts(lines, references)
    prepare, label = preparation(variant, language)
    prepared = [prepare(line) for line in references]
    texts = {name: [prepare(line) for line in lines] for name, lines in systems.items()}
    order = order_of(variant, [prepared])
    found = []
    with _seeded(seed):
        for metric, lines_of, wanted in (
            (metric_of(variant, order), texts, prepared),
            (chrf_metric(), systems, references),
            (ter_metric(), systems, references),
        ):
            found.append(_compared(metric, lines_of, wanted, resamples, trials))
    bleu = found[0].signature.replace("tok:none", f"tok:{label}")
    found[0] = dataclasses.replace(found[0], signature=f"{bleu}|order:{order}")
    return found


def _compared(
    metric: Any,
    systems: Mapping[str, Sequence[str]],
    references: Sequence[str],
    resamples: int,
    trials: int,
) -> Comparison:
    from sacrebleu.significance import PairedTest

    named: list[tuple[str, Sequence[str]]] = [*systems.items()]
    sets = [list(references)]
    results: dict[str, list[Any]] = {}
    for kind, count in (("bs", resamples), ("ar", trials)):
        test = PairedTest(named, {"it": metric}, sets, kind, count)
        _, scores = test()
        (name,) = scores.keys() - {"System"}
        results[kind] = scores[name]
    drawn = f"bs:{resamples}|ar:{trials}|seed:{os.environ[_SEED]}"
    first = results["bs"][0].score
    return Comparison(
        name,
        f"{metric.get_signature()}|{drawn}",
        {
            system: _tested(bootstrap, randomisation, first)
            for (system, _), bootstrap, randomisation in zip(
                named, results["bs"], results["ar"], strict=True
            )
        },
    )


def _tested(bootstrap: Result, randomisation: Result, first: float) -> Tested:
    assert bootstrap.mean is not None and bootstrap.ci is not None
    p_values = bootstrap.p_value, randomisation.p_value
    if bootstrap.score == first and None not in p_values:
        p_values = 1.0, 1.0
    return Tested(
        float(bootstrap.score), float(bootstrap.mean), float(bootstrap.ci), *p_values
    )


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Give sacreBLEU a seed for the duration of a block."""
    before = os.environ.get(_SEED)
    os.environ[_SEED] = str(seed)
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SEED]
        else:
            os.environ[_SEED] = before
