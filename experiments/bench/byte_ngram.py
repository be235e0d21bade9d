"""Bits per byte of a text by an n-gram model of another: what a network has to beat.

    python experiments/bench/byte_ngram.py --train=multi30k/raw/train.de \\
        --test=multi30k/raw/val.de

Lines are sentences; the end of each is predicted too, as a model of bytes predicts EOS.
It needs nothing but Python, and the texts may be .gz.
"""

from __future__ import annotations

import argparse
import collections
import gzip
import math
from collections.abc import Iterable, Iterator
from pathlib import Path

# Neither occurs in UTF-8.
_BEGIN, _END = b"\xff", b"\xfe"
SYMBOLS = 256  # possible next symbols: every byte but _BEGIN, and one to spare


class ByteModel:
    """Kneser-Ney smoothing, interpolated, with one discount for each length.

    ``P(w | h) = max(c(h w) - D, 0) / c(h) + D t(h) / c(h) P(w | h')``, where h' is h
    without its first byte, t(h) the number of different bytes that follow h, and
    ``D = n_1 / (n_1 + 2 n_2)`` with n_1 n-grams that occur once and n_2 that occur
    twice. Below the longest length, c counts the different bytes before ``h w``. The
    shortest falls back on 1 / 256.

    Source: Chen and Goodman, An Empirical Study of Smoothing Techniques for Language
    Modeling, TR-10-98, sections 2.7 and 3.1.
    """

    def __init__(self, lines: Iterable[bytes], order: int) -> None:
        """Count the n-grams of lines up to a length of ``order``."""
        self.order = order
        grams: collections.Counter[bytes] = collections.Counter()
        for line in lines:
            text = self._framed(line)
            grams.update(text[i : i + order] for i in range(len(text) - order + 1))
        self._levels = []  # of contexts of order - 1 bytes, order - 2, ..., 0
        for _ in range(order):
            self._levels.append(_Level(grams))
            grams = collections.Counter(gram[1:] for gram in grams)

    def _framed(self, line: bytes) -> bytes:
        return _BEGIN * (self.order - 1) + line + _END

    def probability(self, context: bytes, byte: bytes) -> float:
        """Return P of a byte after a context of ``order - 1`` bytes."""
        found = 1 / SYMBOLS
        for i in reversed(range(self.order)):
            found = self._levels[i].probability(context[i:], byte, found)
        return found

    def bits(self, line: bytes) -> float:
        """Return the bits of a line and its end."""
        text, before = self._framed(line), self.order - 1
        return -sum(
            math.log2(self.probability(text[i - before : i], text[i : i + 1]))
            for i in range(before, len(text))
        )


class _Level:
    """Counts of n-grams of one length."""

    def __init__(self, grams: collections.Counter[bytes]) -> None:
        self.grams = grams
        self.total: collections.Counter[bytes] = collections.Counter()
        self.kinds: collections.Counter[bytes] = collections.Counter()
        for gram, count in grams.items():
            self.total[gram[:-1]] += count
            self.kinds[gram[:-1]] += 1
        often = collections.Counter(grams.values())
        once, twice = often[1], often[2]
        # Without n-grams that occur once there is nothing to estimate it from.
        self.discount = once / (once + 2 * twice) if once else 0.5

    def probability(self, context: bytes, byte: bytes, shorter: float) -> float:
        """Return P, given that of the context without its first byte."""
        if not (total := self.total[context]):
            return shorter
        kept = max(self.grams[context + byte] - self.discount, 0)
        return (kept + self.discount * self.kinds[context] * shorter) / total


def read(path: Path) -> Iterator[bytes]:
    """Yield the lines of a text, plain or .gz."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
        for line in file:
            yield line.rstrip(b"\r\n")


def main() -> None:
    """Train on one text and measure another."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--test", type=Path, required=True)
    parser.add_argument("--order", type=int, default=5, help="n")
    flags = parser.parse_args()
    if flags.order < 1:
        parser.error(f"--order: expected 1 or more, got {flags.order}")
    try:
        model, lines = ByteModel(read(flags.train), flags.order), [*read(flags.test)]
    except (OSError, EOFError) as error:
        parser.error(f"--train, --test: expected texts, plain or .gz, got: {error}")
    if not lines:
        parser.error(f"--test: expected lines, got none in {flags.test}")
    bits = sum(map(model.bits, lines))
    size = sum(len(line) + 1 for line in lines)
    characters = sum(len(line.decode(errors="replace")) + 1 for line in lines)
    print(
        f"{flags.order}-grams of {flags.train}: {flags.test} has "
        f"{bits / size:.4f} bits per byte, {bits / characters:.4f} per character, "
        "ends of lines included"
    )


if __name__ == "__main__":
    main()
