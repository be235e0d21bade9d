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

    There are as many numbers of one digit as of nine, as far as they exist: the short
    ones are the words that the long ones are made of. With ``data.test_digits`` the
    test numbers have more digits, and a "hundred and one" or the like in both of their
    last two groups of three. Other numbers of the same lengths, which take no more
    words to say than six digits do, "seven million, two thousand and five", are
    trained on: otherwise nothing would teach what follows what.
    """

    data: config.Data

    def __post_init__(self) -> None:
        for language in (self.data.source_language, self.data.target_language):
            words(0, language)

    def numbers(self, split: Split) -> Iterator[int]:
        """Stream the distinct numbers of a split, always the same ones."""
        count = _NUMBER_PAIRS[split]
        if split == "train":
            count = self.data.train_pairs or count
        own = (n for n in self._all_of(split) if number_split(n) == split)
        return itertools.islice(own, count)

    def _all_of(self, split: Split) -> Iterator[int]:
        """Stream candidates for a split, still mixed with numbers of other splits."""
        usual = _whole(range(1, self.data.digits + 1))
        longer = range(self.data.digits + 1, self.data.test_digits + 1)
        if split == "train":
            return _numbers(usual + _short(longer))
        if split == "test" and longer:
            return filter(_is_long, _numbers(_whole(longer)))
        return _numbers(usual)

    def pairs(self, split: Split) -> Iterator[Pair]:
        languages = self.data.source_language, self.data.target_language
        for number in self.numbers(split):
            yield words(number, languages[0]), words(number, languages[1])

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
    """Return a walk over all numbers of each of these lengths."""
    firsts = [(10 ** (d - 1) if d > 1 else 0, 10**d) for d in lengths]
    return [_Walk(end - first, first.__add__) for first, end in firsts]


def _short(lengths: Iterable[int]) -> list[_Walk]:
    """Return numbers of seven to nine digits, one group of three at most above 99."""
    walks = []
    for digits in lengths:
        first, end = 10 ** (digits - 7), 10 ** (digits - 6)
        rests = 10_000 if digits == 9 else 190_000
        walks.append(
            _Walk((end - first) * rests, functools.partial(_in_groups, first, rests))
        )
    return walks


def _in_groups(first: int, rests: int, index: int) -> int:
    """Return the number made of millions, from ``first`` on, and of what follows them.

    >>> [_in_groups(7, 190_000, i) for i in (0, 99_999, 100_000, 189_999)]
    [7000000, 7999099, 7000100, 7099999]
    """
    millions, rest = divmod(index, rests)
    if rest < 100_000:
        thousands, ones = divmod(rest, 100)
    else:
        thousands, ones = divmod(rest - 100_000, 900)
        ones += 100
    return (first + millions) * 10**6 + thousands * 1000 + ones


def _is_long(number: int) -> bool:
    """Return whether both of the last two groups of three have hundreds and more."""
    groups = number // 1000 % 1000, number % 1000
    return all(group > 100 and group % 100 for group in groups)


def _numbers(walks: Iterable[_Walk]) -> Iterator[int]:
    """Stream the numbers of several walks, one of each in turn.

    The k-th of a walk is at k * step mod size: a step of about the golden section
    spreads the first few evenly, however many, and a step coprime to the size visits
    every number.
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
def words(number: int, language: str) -> str:
    """Return a number in words, "four hundred and twenty-one".

    Raises:
      UserError: for a language that num2words does not know, or in which it cannot
        write the number.
    """
    import num2words

    try:
        return num2words.num2words(number, lang=language)
    except Exception as error:  # many kinds, where it only half knows a language
        got = f"{language!r}"
        if not isinstance(error, NotImplementedError):
            got += f", in which it cannot write {number}"
        raise UserError(
            f"data: expected languages that num2words can write, got {got}; change "
            "data.source_language or target_language"
        ) from None
