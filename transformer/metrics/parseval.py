"""PARSEVAL: labelled brackets of constituency trees, scored as EVALB does.

==========  ===========================================================================
evalb       F1 over all sentences that EVALB scores, with COLLINS.prm: sentences with
            errors and skipped ones do not count
honest      F1 where the gold brackets of such a sentence count as missed: the same
            wherever every output is a tree of the given words
complete    percent of scored sentences whose brackets are all right
evalb_40    ``evalb`` of the sentences of at most 40 words
==========  ===========================================================================

F1 = 2 P R / (P + R), with precision P = matched / test brackets and recall R = matched
/ gold brackets, sums over sentences. Where nothing matches, EVALB has no F; here it is
0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from transformer.config import UserError
from transformer.metrics.evalb import COLLINS, Counts, Line, Rules, count, read
from transformer.metrics.evalb import with_tags as given_tags
from transformer.metrics.scores import Score

VARIANTS = ("evalb", "honest", "complete", "evalb_40")
CUT_OFF = 40  # words of a sentence, COLLINS.prm's CUTOFF_LEN

# Whose tag a word gets that the test tree tags XX.
Tags = Literal["gold", "test"]


@dataclasses.dataclass(frozen=True)
class BracketScore(Score):
    """F1 of brackets, or of ``complete`` the share of sentences, 0 to 100.

    The signature names the rules, whose tags words have where the form writes none,
    what becomes of failed sentences, and the numbers of lines, errors and skips.

    Attributes:
      recall: percent of the gold brackets that were found.
      precision: percent of the test brackets that are right.
    """

    recall: float
    precision: float


@dataclasses.dataclass(frozen=True)
class Totals:
    """Sums over sentences; see ``evalb.Counts`` for what is counted in each.

    Attributes:
      sentences: all of them; the other sums are over the valid ones.
      errors: sentences whose words or brackets are wrong.
      skips: sentences without words in the test tree.
      matched: brackets.
      gold: brackets.
      test: brackets.
      complete: sentences whose brackets are all right.
      crossing: test brackets.
      no_crossing: sentences.
      few_crossing: sentences with two crossing brackets or fewer.
      words: without punctuation.
      tags: right ones.
      wanted: gold brackets of all sentences, the failed ones too.
    """

    sentences: int
    errors: int
    skips: int
    matched: int
    gold: int
    test: int
    complete: int
    crossing: int
    no_crossing: int
    few_crossing: int
    words: int
    tags: int
    wanted: int

    @property
    def valid(self) -> int:
        """Sentences that are scored."""
        return self.sentences - self.errors - self.skips

    @property
    def recall(self) -> float:
        """Percent of the gold brackets of valid sentences."""
        return percent(self.matched, self.gold)

    @property
    def honest_recall(self) -> float:
        """Percent of the gold brackets of all sentences."""
        return percent(self.matched, self.wanted)

    @property
    def precision(self) -> float:
        """Percent of the test brackets of valid sentences."""
        return percent(self.matched, self.test)

    def rates(self) -> dict[str, float]:
        """Return what EVALB's summary has, in percent but for the average crossing."""
        return {
            "recall": self.recall,
            "precision": self.precision,
            "f1": harmonic_mean(self.precision, self.recall),
            "complete_match": percent(self.complete, self.valid),
            "average_crossing": percent(self.crossing, self.valid) / 100,
            "no_crossing": percent(self.no_crossing, self.valid),
            "2_or_less_crossing": percent(self.few_crossing, self.valid),
            "tagging_accuracy": percent(self.tags, self.words),
            "honest_recall": self.honest_recall,
            "honest_f1": harmonic_mean(self.precision, self.honest_recall),
        }


def percent(part: int, whole: int) -> float:
    """Return a share in percent, 0 of nothing."""
    return 100.0 * part / whole if whole else 0.0


def harmonic_mean(precision: float, recall: float) -> float:
    """Return 2 P R / (P + R), 0 where both are."""
    both = precision + recall
    return 2 * precision * recall / both if both else 0.0


def total(counts: Iterable[Counts]) -> Totals:
    """Return the sums over sentences."""
    rows = list(counts)
    valid = [row for row in rows if row.status == "valid"]
    return Totals(
        sentences=len(rows),
        errors=sum(row.status == "error" for row in rows),
        skips=sum(row.status == "skip" for row in rows),
        matched=sum(row.matched for row in valid),
        gold=sum(row.gold for row in valid),
        test=sum(row.test for row in valid),
        complete=sum(row.complete for row in valid),
        crossing=sum(row.crossing for row in valid),
        no_crossing=sum(row.crossing == 0 for row in valid),
        few_crossing=sum(row.crossing <= 2 for row in valid),
        words=sum(row.words for row in valid),
        tags=sum(row.tags for row in valid),
        wanted=sum(row.wanted for row in rows),
    )


def short(counts: Iterable[Counts]) -> list[Counts]:
    """Return the rows of sentences of at most ``CUT_OFF`` words."""
    return [row for row in counts if row.length <= CUT_OFF]


def count_all(
    gold: Iterable[str],
    test: Iterable[str],
    tags: Tags = "gold",
    rules: Rules = COLLINS,
    name: object = "references",
) -> list[Counts]:
    """Count the brackets of each sentence.

    Args:
      gold: trees in brackets, one a line.
      test: as many lines; what is no tree in them is counted as an error.
      tags: "gold" puts the gold tag in place of a tag XX of the test tree (tags are
        input, not output); "test" leaves it, as EVALB does.
      rules: of EVALB.
      name: of the gold file, for messages.

    Raises:
      UserError: for a gold line that is no tree, and different numbers of lines.
    """
    gold, test = list(gold), list(test)
    if len(gold) != len(test):
        raise UserError(
            f"{name}: expected as many gold as test trees, got {len(gold):,} and "
            f"{len(test):,}; align the files"
        )
    if not gold:
        raise UserError(f"{name}: expected trees, got none; add some")
    rows = []
    for number, (one, other) in enumerate(zip(gold, test, strict=True), 1):
        right, found = _gold(one, f"{name}, line {number}"), read(other)
        if tags == "gold":
            found = given_tags(found, right)
        rows.append(count(right, found, rules))
    return rows


def _gold(line: str, place: str) -> Line:
    found = read(line)
    if found.fault or not found.words:
        got = found.fault or ("no words" if line.strip() else "an empty line")
        raise UserError(f"{place}: expected a tree in brackets, got {got}; correct it")
    return found


def score_all(
    hypotheses: Sequence[str], references: Sequence[str], language: str
) -> dict[str, BracketScore]:
    """Score trees by every variant.

    >>> scores = score_all(["(S (NP (XX a)) (XX b))"], ["(S (DT a) (NN b))"], "trees")
    >>> {variant: round(score.value, 2) for variant, score in scores.items()}
    {'evalb': 66.67, 'honest': 66.67, 'complete': 0.0, 'evalb_40': 66.67}

    Args:
      hypotheses: trees in brackets, one a line; a tag XX is taken for the gold tag.
      references: one tree per hypothesis.
      language: has no effect on trees.

    Returns:
      ``{variant: score}`` in the order of ``VARIANTS``.

    Raises:
      UserError: as ``count_all``.
    """
    rows = count_all(references, hypotheses)
    every, few = total(rows), total(short(rows))
    rates = every.rates()
    values = {
        "evalb": (rates["f1"], every, every.recall),
        "honest": (rates["honest_f1"], every, every.honest_recall),
        "complete": (rates["complete_match"], every, every.recall),
        "evalb_40": (few.rates()["f1"], few, few.recall),
    }
    return {
        variant: BracketScore(value, _signature(variant, of), recall, of.precision)
        for variant, (value, of, recall) in values.items()
    }


def _signature(variant: str, of: Totals) -> str:
    length = f"|length:{CUT_OFF}" if variant == "evalb_40" else ""
    failed = "missed" if variant == "honest" else "left_out"
    return (
        f"{COLLINS.name}|tags:gold{length}|failed:{failed}|lines:{of.sentences}"
        f"|errors:{of.errors}|skips:{of.skips}"
    )


def exact_match(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Return the share of trees that have all brackets and words of the reference.

    Punctuation counts, tags do not.

    >>> exact_match(["(S (XX a))", "(S (NP (XX a)))"], ["(S (DT a))", "(S (DT a))"])
    0.5
    """
    pairs = zip(map(read, hypotheses), map(read, references), strict=True)
    return sum(_untagged(one) == _untagged(other) for one, other in pairs) / len(
        references
    )


def _untagged(line: Line) -> Any:
    return line.brackets, [form for _, form in line.words], line.fault
