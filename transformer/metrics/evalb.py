"""EVALB's rules for one sentence: what it reads in a line, and what it counts.

A line is read as EVALB reads it, not as a file of trees: it may hold several trees,
``(NP)`` is a constituent without words, ``(NP )`` a word without letters, and an error
in a line is counted and stops nothing. EVALB's limits (200 words, 200 brackets) do not
apply.

Source: Sekine and Collins, EVALB (2008), with the parameters of COLLINS.prm.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, NamedTuple

from transformer.trees.brackets import TRACE

UNKNOWN_TAG = "XX"  # of trees whose linearisation has no tags

Status = Literal["valid", "error", "skip"]
Bracket = tuple[int, int, str]  # first word, behind the last word, label


class Rules(NamedTuple):
    """A parameter file of EVALB.

    Attributes:
      name: of the file.
      deleted: tags whose words, and labels whose brackets are dropped.
      labels: labels and tags that count as another one.
      words: words that count as another one.
    """

    name: str
    deleted: frozenset[str]
    labels: Mapping[str, str]
    words: Mapping[str, str]


COLLINS = Rules(
    "COLLINS.prm",
    frozenset(["TOP", TRACE, ",", ":", "``", "''", "."]),
    MappingProxyType({"PRT": "ADVP"}),
    MappingProxyType({}),
)


class Line(NamedTuple):
    """What EVALB reads in a line.

    Attributes:
      words: (tag, word), punctuation and traces among them.
      brackets: constituents in the order of their opening, over ``words``; the end of
        one that is never closed is -1.
      fault: what is wrong with the line, "" where nothing is.
      readable: whether EVALB goes on counting after the fault.
    """

    words: list[tuple[str, str]]
    brackets: list[Bracket]
    fault: str = ""
    readable: bool = True


class Counts(NamedTuple):
    """A row of EVALB's table.

    Attributes:
      length: words of the gold tree, punctuation included.
      status: "error" and "skip" are left out of EVALB's totals.
      matched: brackets that both trees have.
      gold: brackets of the gold tree; 0 where the words differ.
      test: brackets of the test tree; 0 where the words differ.
      crossing: test brackets that cross a gold one.
      words: without punctuation; 0 where they differ.
      tags: words with the right tag.
      wanted: brackets of the gold tree, whatever the status.
    """

    length: int
    status: Status
    matched: int
    gold: int
    test: int
    crossing: int
    words: int
    tags: int
    wanted: int

    @property
    def complete(self) -> bool:
        """Whether all brackets match."""
        return self.gold == self.test == self.matched


# A constituent's beginning, which with white space, a word and ")" behind it is a word;
# an end; and what is neither. Only ASCII has white space here, as in EVALB's locale.
_TOKEN = re.compile(r"\(([^() \t-\r]*)([ \t-\r]+([^() \t-\r]*)\))?|(\))|([^() \t-\r]+)")


def read(line: str) -> Line:
    """Read a line as EVALB does.

    >>> read("(S (NP (NN dog)) (X))").brackets
    [(0, 1, 'S'), (0, 1, 'NP'), (1, 1, 'X')]
    """
    words: list[tuple[str, str]] = []
    brackets: list[Bracket] = []
    opened: list[int] = []  # places in brackets
    surplus = 0
    for label, has_word, word, closes, text in _TOKEN.findall(line):
        if has_word:
            words.append((label, word))
        elif text:
            fault = f"{text!r}, which is not a tagged word such as (NN word)"
            return Line(words, brackets, fault, readable=False)
        elif not closes:
            opened.append(len(brackets))
            brackets.append((len(words), -1, label))
        elif opened:
            place = opened.pop()
            start, _, label = brackets[place]
            brackets[place] = (start, len(words), label)
        else:
            surplus += 1
    fault = ""
    if opened or surplus:
        fault = f"{len(opened)} '(' without ')' and {surplus} ')' without '('"
    return Line(words, brackets, fault)


def with_tags(test: Line, gold: Line) -> Line:
    """Return the test line with gold tags in place of ``XX``.

    The tags of a test tree whose form has none are input: without them its punctuation
    would count. Only the same word at the same place, traces apart, gets its tag, so
    that a wrong word is never taken for punctuation.
    """
    spoken = [word for word in gold.words if word[0] != TRACE]
    places = [i for i, (tag, _) in enumerate(test.words) if tag != TRACE]
    if len(spoken) != len(places):
        return test
    words = list(test.words)
    for place, (tag, form) in zip(places, spoken, strict=True):
        if words[place] == (UNKNOWN_TAG, form):
            words[place] = (tag, form)
    return test._replace(words=words)


def count(gold: Line, test: Line, rules: Rules = COLLINS) -> Counts:
    """Count what two trees of a sentence have in common.

    Brackets match as multisets of (first word, last word, label). Takes O(n log n).
    """
    length = sum(tag != TRACE for tag, _ in gold.words)
    gold_words, gold_brackets = _kept(gold, rules)
    test_words, test_brackets = _kept(test, rules)
    wanted = len(gold_brackets)
    status: Status = "error" if test.fault else "valid"
    if test.readable and not test_words:
        status = "skip"
    elif not test.readable or _forms(gold_words) != _forms(test_words):
        status = "error"
    else:
        return Counts(
            length,
            status,
            matched=(Counter(gold_brackets) & Counter(test_brackets)).total(),
            gold=wanted,
            test=len(test_brackets),
            crossing=_crossing(gold_brackets, test_brackets, len(gold_words)),
            words=len(gold_words),
            tags=sum(a == b for a, b in zip(gold_words, test_words, strict=True)),
            wanted=wanted,
        )
    return Counts(length, status, 0, 0, 0, 0, 0, 0, wanted)


def _forms(words: Sequence[tuple[str, str]]) -> list[str]:
    return [form for _, form in words]


def _kept(line: Line, rules: Rules) -> tuple[list[tuple[str, str]], list[Bracket]]:
    """Return the words and brackets that count, spans over those words.

    Labels are cut, tags are not; what counts as another one is replaced by it.
    """
    labels, equal = rules.labels, rules.words
    words: list[tuple[str, str]] = []
    before = [0]  # how many words are kept before each, and before the end
    for tag, form in line.words:
        if tag not in rules.deleted:
            words.append((labels.get(tag, tag), equal.get(form, form)))
        before.append(len(words))
    brackets: list[Bracket] = []
    for start, end, label in line.brackets:
        start, end = before[start], -1 if end < 0 else before[end]
        label = label.partition("-")[0].partition("=")[0]
        if start != end and label not in rules.deleted:
            brackets.append((start, end, labels.get(label, label)))
    return words, brackets


def _crossing(gold: Sequence[Bracket], test: Sequence[Bracket], words: int) -> int:
    """Count test brackets that overlap a gold one with neither inside the other."""
    spans = {(start, end) for start, end, _ in gold}
    # The span of a gold bracket crosses none, nor does that of one word.
    others = [x for x in test if x[1] - x[0] > 1 and (x[0], x[1]) not in spans]
    if not others:
        return 0
    latest, earliest = [0] * (words + 1), [0] * (words + 1)
    for start, end in spans:
        latest[start] = max(latest[start], end)
        earliest[end] = max(earliest[end], words - start)
    furthest_right, furthest_left = _range_maximum(latest), _range_maximum(earliest)
    return sum(
        furthest_right(start + 1, end) > end
        or furthest_left(start + 1, end) > words - start
        for start, end, _ in others
    )


def _range_maximum(values: Sequence[int]) -> Callable[[int, int], int]:
    """Return a function of begin and end: the largest value from begin to before end.

    It knows the maxima of all ranges of 1, 2, 4, ... values, and takes two of them.
    """
    maxima, width = [values], 1
    while 2 * width <= len(values):
        maxima.append(list(map(max, maxima[-1], maxima[-1][width:])))
        width *= 2

    def maximum(begin: int, end: int) -> int:
        power = (end - begin).bit_length() - 1
        known = maxima[power]
        return max(known[begin], known[end - (1 << power)])

    return maximum
