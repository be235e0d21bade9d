"""Generated numbers as words of two languages, by num2words."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import math
from collections.abc import Iterable, Iterator

from transformer import config
from transformer.config import UserError
from transformer.data.sources.source import Checksums, Pair, Split

_NUMBER_PAIRS = {"train": 40_000, "validation": 500, "test": 1_000}


@dataclasses.dataclass(frozen=True)
class Numbers:
    """Number words of one language and of another.

    As many numbers of one digit as of nine, as far as there are: the short ones are
    the words that the long ones are made of. With ``data.test_digits`` those of the
    test are longer than the others, but for the round ones of that length, "seven
    million", which train: else nothing would have taught the word.
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
        usual, longer = range(1, self.data.digits + 1), self._longer()
        lengths = longer if split == "test" and longer else usual
        own: Iterator[int]
        own = (n for n in _all_numbers(lengths) if number_split(n) == split)
        if split == "test" and longer:
            own = (n for n in own if not _is_round(n))
        if split == "train":
            count = self.data.train_pairs or count
            own = itertools.chain(_round_numbers(longer), own)
        return itertools.islice(own, count)

    def _longer(self) -> range:
        """Return the lengths in digits that only the test has."""
        return range(self.data.digits + 1, self.data.test_digits + 1)

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


def _round_numbers(lengths: range) -> Iterator[int]:
    """Stream the numbers of at most three digits of a power of 1,000."""
    for exponent in range(1, 3):
        for leading in range(1, 1000):
            number = leading * 1000**exponent
            if len(str(number)) in lengths:
                yield number


def _is_round(number: int) -> bool:
    """Return whether at most the first three digits are other than 0.

    >>> [_is_round(n) for n in (12_000, 712_000_000, 1_700_000)]
    [True, True, False]
    """
    while number >= 1000 and number % 1000 == 0:
        number //= 1000
    return number < 1000


def _all_numbers(lengths: Iterable[int]) -> Iterator[int]:
    """Stream all numbers of so many digits, one of every length in turn.

    Within d digits the k-th is k * step mod size: a step of about the golden section
    spreads any first few evenly, and one coprime to the size visits every number.
    """
    walks = []
    for digits in lengths:
        first = 10 ** (digits - 1) if digits > 1 else 0
        size = 10**digits - first
        step = round(size * 0.6180339887498949)
        while math.gcd(step, size) != 1:
            step += 1
        walks.append((first, size, step))
    for k in itertools.count():
        live = [walk for walk in walks if k < walk[1]]
        if not live:
            return
        for first, size, step in live:
            yield first + k * step % size


@functools.lru_cache(maxsize=1 << 17)  # the tokenizer and the corpus both read them
def _words(number: int, language: str) -> str:
    import num2words

    return num2words.num2words(number, lang=language)
