"""How much longer BPE dropout makes a text: sentencepiece's, and as it was published.

    python experiments/bench/bpe_dropout.py --text=multi30k/raw/train.en \\
        --model=runs/multi30k/corpus/source.model

In both, merges are left out by chance. In the published algorithm such a merge has
another chance after each other one of its word; in sentencepiece it has none until one
of its two pieces has grown. So the same rate cuts words into more pieces there.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from byte_ngram import read

from transformer.data.tokenizers.sentence_piece import (
    Sampling,
    SentencePiece,
    open_model,
)

_SPACE = "\u2581"  # begins a word


def segment(
    word: str, scores: Mapping[str, float], rate: float, draw: Callable[[], float]
) -> list[str]:
    """Segment a word with BPE dropout.

    Each of the merges that are possible is left out with probability ``rate``; the best
    of the others is made, and all are drawn anew, until none is left.

    Args:
      word: with what marks its beginning.
      scores: of the pieces; the merge whose piece has the highest is made first.
      rate: from 0, plain BPE, to 1, characters.
      draw: a random number in [0, 1).

    Source: Provilkov et al. 2020, BPE-Dropout, arXiv:1910.13267, Algorithm 1.
    """
    symbols = list(word)
    while True:
        kept = [
            (scores[a + b], -place)
            for place, (a, b) in enumerate(itertools.pairwise(symbols))
            if a + b in scores and draw() >= rate
        ]
        if not kept:
            return symbols
        place = -max(kept)[1]
        symbols[place : place + 2] = [symbols[place] + symbols[place + 1]]


def scores_of(tokenizer: SentencePiece) -> dict[str, float]:
    """Return the score of each piece."""
    model = open_model(tokenizer.model, "the model")
    size = range(model.get_piece_size())
    return {model.id_to_piece(i): model.get_score(i) for i in size}


def lengths(
    tokenizer: SentencePiece, lines: Sequence[str], rates: Iterable[float]
) -> Iterator[tuple[float, float, float]]:
    """Yield rates, each with pieces per plain piece: sentencepiece's, and published."""
    scores = scores_of(tokenizer)
    plain = [tokenizer.pieces(ids) for ids in tokenizer.encode_many(lines)]
    words = [
        _SPACE + word for pieces in plain for word in "".join(pieces).split(_SPACE)[1:]
    ]
    total = sum(map(len, plain))
    for rate in rates:
        sampled = sum(map(len, Sampling(tokenizer, rate, side=0).encode_many(lines)))
        draw = random.Random(0).random
        published = sum(len(segment(word, scores, rate, draw)) for word in words)
        yield rate, sampled / total, published / total


def main(arguments: Sequence[str]) -> None:
    """Print both for some rates."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True, help="a source.model")
    parser.add_argument("--lines", type=int, default=2000)
    parser.add_argument("--rates", default="0,0.02,0.05,0.1,0.2")
    flags = parser.parse_args(arguments)
    tokenizer = SentencePiece.load(flags.model)
    lines = [line.decode() for line in itertools.islice(read(flags.text), flags.lines)]
    print("| rate | sentencepiece | as published |\n|---:|---:|---:|")
    rates = map(float, flags.rates.split(","))
    for rate, sampled, published in lengths(tokenizer, lines, rates):
        print(f"| {rate:g} | {sampled:.3f} | {published:.3f} |")


if __name__ == "__main__":
    main(sys.argv[1:])
