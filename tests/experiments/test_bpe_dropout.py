"""BPE dropout written out: its ends, a word by hand, and sentencepiece beside it."""

import random
import sys

import pytest
from support.configs import base
from support.paths import BENCH

from transformer.data.tokenizers.sentence_piece import SentencePiece

sys.path.append(str(BENCH))

import bpe_dropout
from bpe_dropout import lengths, scores_of, segment

TEXT = ["the lowest of the low", "lower than low, slower than the slowest"] * 3


@pytest.fixture
def tokenizer() -> SentencePiece:
    settings = base(**{"tokenizer.vocab_size": 40}).tokenizer
    return SentencePiece.build([tuple(TEXT)], settings, "")


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_a_word_by_hand(rate):
    # Both pairs of "abab" may merge. Both are left out with p^2: four symbols. Else one
    # is made, and the other has its chance anew: three with p, two with 1 - p.
    draw = random.Random(1).random
    draws = 20_000
    sizes = [len(segment("abab", {"ab": -1.0}, rate, draw)) for _ in range(draws)]
    expected = 4 * rate**2 + (1 - rate**2) * (3 * rate + 2 * (1 - rate))
    # Lengths are 2 to 4, so that their deviation is at most 1; four times the mean's.
    assert sum(sizes) / draws == pytest.approx(expected, abs=4 / draws**0.5)


def test_the_better_merge_is_made_first_and_then_the_left_one():
    scores = {"ab": -1.0, "bc": -0.0, "aa": -2.0}
    assert segment("abc", scores, 0.0, random.random) == ["a", "bc"]
    assert segment("aaa", scores, 0.0, random.random) == ["aa", "a"]
    assert segment("abc", scores, 1.0, random.random) == ["a", "b", "c"]


def test_without_dropout_it_is_sentencepiece_s(tokenizer):
    assert list(lengths(tokenizer, TEXT, [0.0])) == [(0.0, 1.0, 1.0)]
    scores = scores_of(tokenizer)
    for word in " ".join(TEXT).split():
        pieces = tokenizer.pieces(tokenizer.encode(word))
        assert segment("\u2581" + word, scores, 0.0, random.random) == pieces


def test_sentencepiece_cuts_more_at_the_same_rate(tokenizer, tmp_path, capsys):
    model, text = tmp_path / "source.model", tmp_path / "text"
    tokenizer.save(model)
    text.write_text("".join(f"{line}\n" for line in TEXT * 50))
    arguments = [f"--text={text}", f"--model={model}", "--rates=0,0.1,0.3"]
    bpe_dropout.main(arguments)
    rows = [
        line.strip("| ").split(" | ") for line in capsys.readouterr().out.split("\n")
    ]
    table = [[float(cell) for cell in row] for row in rows[2:-1]]
    assert table[0] == [0.0, 1.0, 1.0]
    assert [row[0] for row in table] == [0.0, 0.1, 0.3]
    for _, theirs, published in table[1:]:
        assert theirs > published > 1
