"""Generated numbers as words of two languages, by num2words."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from transformer import config
from transformer.config import UserError
from transformer.data.sources.source import Checksums, Pair, Split

_NUMBER_PAIRS = {"train": 40_000, "validation": 500, "test": 1_000}


@dataclasses.dataclass(frozen=True)
class Numbers:
    """Number words of one language and of another.

    As many numbers of one digit as of nine, as far as there are: the short ones are
    the words that the long ones are made of. With ``data.test_digits`` those of the
    test are longer than the others, "seven million, two thousand and five", and no
    group of three digits is 000. Of their lengths others train, with a group of 000,
    "seven million and five": they teach the word, and are not longer than the rest.
    """

    data: config.Data

    def __post_init__(self) -> None:
        for language in (self.data.source_language, self.data.target_language):
            try:
                _words(0, language)
            except NotImplementedError:
                raise UserError(
                    "data: expected languages that num2words can write, got "
                    f"{language!r}; change data.source_language or target_language"
                ) from None

    def numbers(self, split: Split) -> Iterator[int]:
        """Stream the distinct numbers of a split, for ever the same ones."""
        count = _NUMBER_PAIRS[split]
        if split == "train":
            count = self.data.train_pairs or count
        own = (n for n in self._all_of(split) if number_split(n) == split)
        return itertools.islice(own, count)

    def _all_of(self, split: Split) -> Iterator[int]:
        """Stream the numbers that a split may have, among those of the others."""
        usual = _whole(range(1, self.data.digits + 1))
        longer = range(self.data.digits + 1, self.data.test_digits + 1)
        if split == "train":
            return _numbers(usual + _sparse(longer))
        if split == "test" and longer:
            return filter(_has_no_empty_group, _numbers(_whole(longer)))
        return _numbers(usual)

    def pairs(self, split: Split) -> Iterator[Pair]:
        languages = self.data.source_language, self.data.target_language
        for number in self.numbers(split):
            yield _words(number, languages[0]), _words(number, languages[1])

    def checksums(self, split: Split) -> Checksums:
        digest, lines = hashlib.sha256(), 0
        for number in self.numbers(split):
            digest.update(b"%d\n" % number)
            lines += 1
        name = f"numbers.{self.data.source_language}-{self.data.target_language}"
        return {f"{name}.{split}": {"lines": lines, "sha256": digest.hexdigest()}}


def number_split(number: int) -> Split:
    """Return the split that a number belongs to, decided by its hash alone.

    Numbers below 100 are the words of the language and always train.

    >>> [number_split(n) for n in (7, 421)]
    ['train', 'train']
    """
    if number < 100:
        return "train"
    bucket = hashlib.blake2b(b"%d" % number, digest_size=2).digest()[0] % 16
    return {0: "validation", 1: "test"}.get(bucket, "train")  # type: ignore[return-value]


class _Walk(NamedTuple):
    """Numbers of one length, and how many there are."""

    size: int
    number: Callable[[int], int]  # of an index less than that


def _whole(lengths: Iterable[int]) -> list[_Walk]:
    """Return all numbers of so many digits."""
    firsts = [(10 ** (d - 1) if d > 1 else 0, 10**d) for d in lengths]
    return [_Walk(end - first, first.__add__) for first, end in firsts]


def _sparse(lengths: Iterable[int]) -> list[_Walk]:
    """Return numbers of so many digits of which one group of three, or both, is 000.

    >>> walk, = _sparse([7])
    >>> [walk.number(i) for i in (0, 1, 1997, 1998)]
    [1000001, 1001000, 1999000, 2000001]
    """
    walks = []
    for digits in lengths:
        groups = (digits - 1) // 3
        first, end = (10 ** (digits - 1 - 3 * groups + more) for more in (0, 1))
        if groups == 1:
            walks.append(_Walk(end - first, functools.partial(_thousands, first)))
        elif groups == 2:
            walks.append(
                _Walk((end - first) * 1998, functools.partial(_millions, first))
            )
    return walks


def _thousands(first: int, index: int) -> int:
    return 1000 * (first + index)


def _millions(first: int, index: int) -> int:
    """Return millions and thousands, or millions and what is less than 1,000."""
    leading, rest = divmod(index, 1998)
    return (first + leading) * 10**6 + (1 + rest // 2) * (1000 if rest % 2 else 1)


def _has_no_empty_group(number: int) -> bool:
    """Return whether no group of three digits is 000.

    >>> [_has_no_empty_group(n) for n in (7_000_005, 7_005_000, 7_001_005)]
    [False, False, True]
    """
    while number % 1000 and number > 1000:
        number //= 1000
    return number % 1000 != 0


def _numbers(walks: Iterable[_Walk]) -> Iterator[int]:
    """Stream the numbers of several walks, one of each in turn.

    The k-th of a walk is at k * step mod size: a step of about the golden section
    spreads any first few evenly, and one coprime to the size visits every number.
    """
    steps = []
    for walk in walks:
        step = round(walk.size * 0.6180339887498949)
        while math.gcd(step, walk.size) != 1:
            step += 1
        steps.append((walk, step))
    for k in itertools.count():
        live = [one for one in steps if k < one[0].size]
        if not live:
            return
        for walk, step in live:
            yield walk.number(k * step % walk.size)


@functools.lru_cache(maxsize=1 << 17)  # the tokenizer and the corpus both read them
def _words(number: int, language: str) -> str:
    import num2words

    return num2words.num2words(number, lang=language)
