"""EVALB's table, character for character, and the figures that it lacks."""

from __future__ import annotations

from collections.abc import Sequence

from transformer.metrics.evalb import Counts
from transformer.metrics.parseval import CUT_OFF, Totals, percent, short, total

_HEAD = """\
  Sent.                        Matched  Bracket   Cross        Correct Tag
 ID  Len.  Stat. Recal  Prec.  Bracket gold test Bracket Words  Tags Accracy"""
_RULE = "=" * 76
_STATUS = {"valid": 0, "error": 1, "skip": 2}
# Names of rates in the summary.
_SUMMARY = {
    "recall": "Bracketing Recall",
    "precision": "Bracketing Precision",
    "f1": "Bracketing FMeasure",
    "complete_match": "Complete match",
    "average_crossing": "Average crossing",
    "no_crossing": "No crossing",
    "2_or_less_crossing": "2 or less crossing",
    "tagging_accuracy": "Tagging accuracy",
}
_HONEST = {"honest_recall": "Bracketing Recall", "honest_f1": "Bracketing FMeasure"}


def table(rows: Sequence[Counts], sentences: bool = False) -> str:
    """Return what EVALB prints, and recall and F with failed sentences as missed.

    Args:
      rows: of the sentences.
      sentences: whether to begin with a line for each, as EVALB does.
    """
    every = total(rows)
    lines = sentence_lines(rows, every) if sentences else []
    lines += ["=== Summary ===", "", "-- All --", *_summary(every)]
    lines += ["", f"-- len<={CUT_OFF} --", *_summary(total(short(rows)))]
    lines += ["", "-- All, brackets of Error and Skip sentences as missed --"]
    lines += _rates(every, _HONEST)
    return "\n".join(lines) + "\n"


def sentence_lines(rows: Sequence[Counts], every: Totals) -> list[str]:
    """Return a line for each sentence and one for their sums."""
    return [*_HEAD.split("\n"), _RULE, *map(_line, range(1, len(rows) + 1), rows)] + [
        _RULE,
        _sums(every),
    ]


def _line(number: int, row: Counts) -> str:
    return (
        f"{number:4d}  {row.length:3d}    {_STATUS[row.status]}  "
        f"{percent(row.matched, row.gold):6.2f} {percent(row.matched, row.test):6.2f}"
        f"   {row.matched:3d}    {row.gold:3d}  {row.test:3d}    {row.crossing:3d}"
        f"   {row.words:4d}  {row.tags:4d}   {percent(row.tags, row.words):6.2f}"
    )


def _sums(every: Totals) -> str:
    brackets = (
        f"{'':16}{every.recall:6.2f} {every.precision:6.2f} {every.matched:6d} "
        f"{every.gold:5d} {every.test:5d}  {every.crossing:5d}"
    )
    return (brackets if every.gold and every.test else "") + (
        f"  {every.words:5d} {every.tags:5d}   {percent(every.tags, every.words):6.2f}"
    )


def _summary(of: Totals) -> list[str]:
    return [
        f"{'Number of sentence':26}= {of.sentences:6d}",
        f"{'Number of Error sentence':26}= {of.errors:6d}",
        f"{'Number of Skip  sentence':26}= {of.skips:6d}",
        f"{'Number of Valid sentence':26}= {of.valid:6d}",
        *_rates(of, _SUMMARY),
    ]


def _rates(of: Totals, names: dict[str, str]) -> list[str]:
    rates = of.rates()
    return [f"{name:26}= {rates[key]:6.2f}" for key, name in names.items()]
