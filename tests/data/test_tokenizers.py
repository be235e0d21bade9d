"""Tokenizers: sentencepiece, whitespace, bytes, and the vocabularies of two."""

import dataclasses
import io
import json
import pathlib
import random
import subprocess
import sys
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
import sentencepiece

from transformer.config import Tokenizer, UserError
from transformer.data import tokenizers
from transformer.data.tokenizers import sentence_piece
from transformer.data.tokenizers.sentence_piece import Sampling, SentencePiece, segment
from transformer.ids import BOS, EOS, PAD, UNK

PAIRS = [
    (f"the {a} {b} sleeps on a {c}", f"der {a}e {b} schläft auf einem {c}")
    for a in ("old", "young", "green", "tired")
    for b in ("dog", "horse", "sailor")
    for c in ("bench", "roof", "cliff", "boat")
]


def make_settings(**changes: Any) -> Tokenizer:
    values: dict[str, Any] = {
        "kind": "sentencepiece",
        "target_kind": "same",
        "vocab_size": 60,
        "joint": True,
        "source_model": "",
        "target_model": "",
        "symbols": "",
        "dropout": 0.0,
        "samples": 1,
    }
    return Tokenizer(**(values | changes))


def build(folder: pathlib.Path, **changes: Any) -> tokenizers.Vocabulary:
    pairs = changes.pop("pairs", PAIRS)
    settings = make_settings(**changes)
    return tokenizers.build_vocabulary(settings, lambda: iter(pairs), folder)


def foreign_model(**options: Any) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(source for source, _ in PAIRS),
        model_writer=model,
        vocab_size=40,
        model_type="bpe",
        minloglevel=3,
        **options,
    )
    return model.getvalue()


ALL: list[dict[str, Any]] = [
    {},
    {"joint": False, "vocab_size": 50},
    {"kind": "whitespace", "vocab_size": 0},
    {"kind": "whitespace", "vocab_size": 0, "joint": False},
    {"kind": "bytes"},
    {"kind": "indexed_words"},
]


@pytest.mark.parametrize("changes", ALL)
def test_text_comes_back_and_specials_say_nothing(
    tmp_path: pathlib.Path, changes: dict[str, Any]
) -> None:
    vocabulary = build(tmp_path, **changes)
    for tokenizer, text in zip(
        (vocabulary.source, vocabulary.target), PAIRS[17], strict=True
    ):
        ids = tokenizer.encode(text)
        assert min(ids) > EOS and max(ids) < tokenizer.size
        assert tokenizer.decode([BOS, *ids, EOS, PAD]) == text
        assert tokenizer.encode_many([text, "", text]) == [ids, [], ids]
        assert tokenizer.encode("") == [] and tokenizer.decode([EOS]) == ""
        names = tokenizer.pieces([PAD, UNK, BOS, EOS])
        assert names == ["<pad>", "<unk>", "<s>", "</s>"]
        assert len(tokenizer.pieces(range(tokenizer.size))) == tokenizer.size
        assert tokenizer.pieces([tokenizer.size]) == ["<unk>"]
        # A model may have more rows than its tokenizer has pieces.
        assert tokenizer.decode([tokenizer.size]) == tokenizer.decode([UNK])


def test_each_word_of_a_treebank_has_its_index_before_it(
    tmp_path: pathlib.Path,
) -> None:
    source = build(tmp_path, kind="indexed_words", joint=False).source
    # A no-break space parts no words of a treebank, but pieces of sentencepiece.
    sentence = "the\u00a0dog  sees " + "dog " * 70
    ids = source.encode(sentence)
    pieces, words = source.pieces(ids), source.words(ids)
    begins = [place for place in range(len(ids)) if words[place] > words[place - 1]]
    assert [pieces[place] for place in [0, *begins]] == [
        *map(str, [*range(1, 65), *range(1, 9)])
    ]
    assert source.decode(ids).split() == ["the", "dog", "sees", *["dog"] * 70]
    (model,) = tmp_path.glob("source.*")
    own = tokenizers.SentencePiece.load(model)
    again = [i + 64 for i in own.encode("sees")]
    assert [i for i, word in zip(ids, words, strict=True) if word == 1][1:] == again
    assert source.labels(ids)[:1] == ["1"]


@pytest.mark.parametrize("changes", ALL)
def test_saved_vocabulary_is_the_same(
    tmp_path: pathlib.Path, changes: dict[str, Any]
) -> None:
    vocabulary = build(tmp_path, **changes)
    loaded = tokenizers.load_vocabulary(tmp_path)
    assert loaded.digest == vocabulary.digest
    assert loaded.joint == vocabulary.joint == changes.get("joint", True)
    for side in ("source", "target"):
        before, after = getattr(vocabulary, side), getattr(loaded, side)
        everything = range(before.size)
        assert after.pieces(everything) == before.pieces(everything)
        assert after.encode("the dog schläft") == before.encode("the dog schläft")


@pytest.mark.parametrize("changes", ALL)
def test_building_twice_gives_the_same_bytes(
    tmp_path: pathlib.Path, changes: dict[str, Any]
) -> None:
    build(tmp_path / "a", **changes)
    build(tmp_path / "b", **changes)
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "b").iterdir())
    for name in files:
        first, second = tmp_path / "a" / name, tmp_path / "b" / name
        assert first.read_bytes() == second.read_bytes()


def test_joint_and_separate_see_the_languages_they_should(
    tmp_path: pathlib.Path,
) -> None:
    separate = build(tmp_path, joint=False, vocab_size=40)
    assert UNK in separate.source.encode("ä")
    assert UNK not in separate.target.encode("ä")
    joint = build(tmp_path / "joint")
    assert joint.source is joint.target and UNK not in joint.source.encode("ä")


def test_given_size_is_the_size(tmp_path: pathlib.Path) -> None:
    for size in (50, 60):
        assert build(tmp_path, vocab_size=size).source.size == size


def test_named_limits_of_the_size_are_the_limits(tmp_path: pathlib.Path) -> None:
    with pytest.raises(UserError, match="at most") as error:
        build(tmp_path, vocab_size=5000)
    largest = int(str(error.value).split("at most ")[1].split(",")[0])
    built = build(tmp_path, vocab_size=largest)
    assert built.source.size == largest
    with pytest.raises(UserError, match="at most"):
        build(tmp_path, vocab_size=largest + 1)


def test_size_below_the_characters(tmp_path: pathlib.Path) -> None:
    with pytest.raises(UserError, match="at least") as error:
        build(tmp_path, vocab_size=10)
    smallest = int(str(error.value).split("at least ")[1].split(",")[0])
    assert build(tmp_path, vocab_size=smallest).source.size == smallest
    with pytest.raises(UserError, match="at least"):
        build(tmp_path, vocab_size=smallest - 1)


def test_no_size_and_no_text(tmp_path: pathlib.Path) -> None:
    with pytest.raises(UserError, match="vocab_size"):
        build(tmp_path, vocab_size=0)
    with pytest.raises(UserError, match="got none"):
        build(tmp_path, pairs=[("", "")])


def test_every_character_of_the_text_has_an_id(tmp_path: pathlib.Path) -> None:
    rare = [*PAIRS * 50, ("the ʘ", "das ʘ")]
    assert UNK not in build(tmp_path, pairs=rare).source.encode("ʘ")


@pytest.mark.parametrize(
    "options",
    [
        {},  # sentencepiece's own: unknown 0, <s> 1, </s> 2, no padding
        {"pad_id": 3, "unk_id": 0, "bos_id": -1, "eos_id": 1},
        {"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3},
    ],
)
def test_foreign_model_is_renumbered(
    tmp_path: pathlib.Path, options: dict[str, int]
) -> None:
    model = foreign_model(**options)
    (tmp_path / "foreign.model").write_bytes(model)
    given = str(tmp_path / "foreign.model")
    tokenizer = build(tmp_path, source_model=given, vocab_size=0).source
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model)

    text = "the green horse"
    ids = tokenizer.encode(text)
    assert min(ids) > EOS
    assert tokenizer.pieces(ids) == theirs.encode(text, out_type=str)
    assert tokenizer.decode([*ids, EOS]) == text
    assert UNK in tokenizer.encode("ж")
    ordinary = [tokenizer.pieces([i])[0] for i in range(4, tokenizer.size)]
    special = {theirs.pad_id(), theirs.unk_id(), theirs.bos_id(), theirs.eos_id()}
    assert ordinary == [
        theirs.id_to_piece(i)
        for i in range(theirs.get_piece_size())
        if i not in special
    ]


def test_bpe_dropout_cuts_the_same_text_in_other_ways(tmp_path: pathlib.Path) -> None:
    vocabulary = build(tmp_path, vocab_size=60)
    plain, texts = vocabulary.source, [one for pair in PAIRS for one in pair] * 20
    usual = plain.encode_many(texts)

    def pieces(rate: float, side: int = 0) -> list[list[int]]:
        sampling = vocabulary.sampling(make_settings(dropout=rate))
        tokenizer = getattr(sampling, ("source", "target")[side])
        # However a corpus is cut into calls.
        return tokenizer.encode_many(texts[:7]) + tokenizer.encode_many(texts[7:])

    tenth = pieces(0.1)
    assert [plain.decode(ids) for ids in tenth] == [plain.decode(x) for x in usual]
    assert tenth == pieces(0.1) != pieces(0.1, side=1)
    ways = {tuple(ids) for ids in tenth[:: 2 * len(PAIRS)]}  # of one text
    # Nor are those of one side the next ones of the other.
    both, same = vocabulary.sampling(make_settings(dropout=0.5)), texts[:1] * 9
    one, other = both.source.encode_many(same), both.target.encode_many(same)
    assert one[1:] != other[:-1] and other[1:] != one[:-1]
    assert 1 < len(ways) <= 20
    # No merge is left at nearly 1: pieces of a character; none is missing at nearly 0.
    characters = pieces(1 - 1e-6)
    assert {len(piece) for ids in characters for piece in plain.pieces(ids)} == {1}
    assert pieces(1e-6) == usual
    total = [sum(map(len, x)) for x in (usual, tenth, pieces(0.5), characters)]
    assert total == sorted(total) and len(set(total)) == 4
    assert vocabulary.sampling(make_settings()) is vocabulary


def test_bpe_dropout_parts_no_symbol_and_keeps_what_is_unknown() -> None:
    settings = make_settings(symbols="<ep>,__x", dropout=1 - 1e-6)
    plain = SentencePiece.build(PAIRS, settings, "")
    sampling = Sampling(plain, settings, side=0)
    texts = ["<ep> the жжж dog__x<ep>", "", "__x"]
    first, *others = sampling.encode_many(texts)
    assert sampling.pieces(first) == [
        *("\u2581", "<ep>", "\u2581", "t", "h", "e", "\u2581", "<unk>"),
        *("\u2581", "d", "o", "g", "__x", "<ep>"),
    ]
    assert others == [[], plain.encode("__x")]
    # With next to no dropout, as sentencepiece cuts them.
    settings = make_settings(symbols="<ep>,__x", dropout=1e-6)
    again = Sampling(plain, settings, side=1).encode_many(texts)
    assert again == plain.encode_many(texts)


def test_bpe_dropout_is_the_same_in_each_process(tmp_path: pathlib.Path) -> None:
    vocabulary = build(tmp_path)
    texts = [source for source, _ in PAIRS]
    sampling = vocabulary.sampling(make_settings(dropout=0.2))
    code = (
        "import json, pathlib, sys\n"
        "from transformer.config import Tokenizer\n"
        "from transformer.data import tokenizers\n"
        "folder, settings, texts = json.load(sys.stdin)\n"
        "vocabulary = tokenizers.load_vocabulary(pathlib.Path(folder))\n"
        "sampling = vocabulary.sampling(Tokenizer(**settings))\n"
        "print(json.dumps(sampling.source.encode_many(texts)))\n"
    )
    settings = dataclasses.asdict(make_settings(dropout=0.2))
    given = json.dumps([str(tmp_path), settings, texts])
    ran = subprocess.check_output([sys.executable, "-c", code], input=given, text=True)
    assert json.loads(ran) == sampling.source.encode_many(texts)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_bpe_dropout_of_a_word_by_hand(rate: float) -> None:
    # Both pairs of "abab" may merge. Both are left out with p^2: four symbols. Else one
    # is made, and the other has its chance anew: three with p, two with 1 - p.
    draw = random.Random(1).random
    draws = 20_000
    sizes = [len(segment("abab", {"ab": -1.0}, rate, draw)) for _ in range(draws)]
    expected = 4 * rate**2 + (1 - rate**2) * (3 * rate + 2 * (1 - rate))
    # Lengths are 2 to 4, so that their deviation is at most 1; four times the mean's.
    assert sum(sizes) / draws == pytest.approx(expected, abs=4 / draws**0.5)


def test_the_better_merge_is_made_first_and_then_the_left_one() -> None:
    scores = {"ab": -1.0, "bc": -0.0, "aa": -2.0}
    assert segment("abc", scores, 0.0, random.random) == ["a", "bc"]
    assert segment("aaa", scores, 0.0, random.random) == ["aa", "a"]
    assert segment("abc", scores, 1.0, random.random) == ["a", "b", "c"]


def test_given_model_errors(tmp_path: pathlib.Path) -> None:
    with pytest.raises(UserError, match="absent.model"):
        build(tmp_path, source_model=str(tmp_path / "absent.model"))
    for content in ("no model\n", ""):
        (tmp_path / "text.model").write_text(content)
        with pytest.raises(UserError, match=r"text\.model.*something else"):
            build(tmp_path, source_model=str(tmp_path / "text.model"))
    (tmp_path / "m.model").write_bytes(foreign_model())
    given = str(tmp_path / "m.model")
    with pytest.raises(UserError, match=r"vocab_size: expected at least 41"):
        build(tmp_path, source_model=given, vocab_size=40)
    with pytest.raises(UserError, match="target_model"):
        build(tmp_path, source_model=given, target_model="other", vocab_size=0)


@pytest.mark.parametrize(
    "size, text, expected",
    [
        (1, "a b c", "vocab_size: expected at least 5, as 4 pieces are special, got 1"),
        (4, "a b c", "vocab_size: expected at least 8, one for each.*to 8 or more"),
        (50, "a" * 4193, "expected lines of at most 4,192 bytes to train"),
        (
            50,
            "  ",
            "expected lines of text to train sentencepiece, got nothing but",
        ),
    ],
)
def test_what_sentencepiece_cannot_train(size, text, expected) -> None:
    with pytest.raises(UserError, match=expected):
        tokenizers.SentencePiece.build([(text,)], make_settings(vocab_size=size), "")


def test_the_least_size_is_told_with_special_pieces_and_symbols() -> None:
    def train(size: int) -> tokenizers.SentencePiece:
        settings = make_settings(vocab_size=size, symbols="<x>,<y>")
        return tokenizers.SentencePiece.build([("a b c",)], settings, "")

    with pytest.raises(UserError, match="expected at least 10, .*set it to 10 or more"):
        train(9)
    assert train(10).size == 10


def test_given_model_of_one_language_and_a_trained_one(tmp_path: pathlib.Path) -> None:
    (tmp_path / "m.model").write_bytes(foreign_model())
    given = str(tmp_path / "m.model")
    vocabulary = build(tmp_path, joint=False, target_model=given, vocab_size=50)
    assert (vocabulary.source.size, vocabulary.target.size) == (50, 41)


# ---- whitespace


def whitespace(*texts: str, size: int = 0) -> tokenizers.Tokenizer:
    settings = make_settings(kind="whitespace", vocab_size=size)
    return tokenizers.Whitespace.build(((text,) for text in texts), settings, "")


def test_words_by_frequency_then_code_point() -> None:
    tokenizer = whitespace("b z b", "ä a  z\tb")
    assert tokenizer.pieces(range(4, tokenizer.size)) == ["b", "z", "a", "ä"]
    assert tokenizer.encode(" z  unseen b") == [5, UNK, 4]


def test_joins_are_undone() -> None:
    tokenizer = whitespace("kara@@ te@@ an@@ zug @@ x@@y")
    ids = tokenizer.encode("kara@@ te@@ an@@ zug x@@y kara@@")
    assert tokenizer.decode(ids) == "karateanzug x@@y kara"
    assert tokenizer.plain("kara@@  te@@ an@@ zug kara@@") == "karateanzug kara"
    assert tokenizer.decode([*tokenizer.encode("kara@@"), UNK]) == "kara<unk>"


def test_more_words_than_asked() -> None:
    assert whitespace("a b c", size=7).size == 7
    with pytest.raises(UserError, match="at least 7.*got 6"):
        whitespace("a b c", size=6)


def test_special_pieces_in_the_text_are_unknown_words() -> None:
    tokenizer = whitespace("a <pad> </s> <unk>")
    assert tokenizer.size == 5
    assert tokenizer.encode("<pad> a </s> <unk>") == [UNK, 4, UNK, UNK]


def test_saved_words_are_one_a_line(tmp_path: pathlib.Path) -> None:
    # U+2028 splits words, as Python sees it; a zero-width space does not.
    build(tmp_path, kind="whitespace", vocab_size=0, pairs=[("b\u2028c\u200bd b", "a")])
    expected = "<pad>\n<unk>\n<s>\n</s>\nb\na\nc\u200bd\n"
    assert (tmp_path / "source.vocab").read_bytes() == expected.encode()


# ---- bytes


@hypothesis.given(st.text(st.characters(exclude_categories=["Cs"])))
def test_bytes_bring_any_text_back(text: str) -> None:
    ids = tokenizers.Bytes().encode(text)
    assert ids == [4 + byte for byte in text.encode()]
    assert tokenizers.Bytes().decode([BOS, *ids, EOS]) == text


def test_bytes_that_are_no_text() -> None:
    tokenizer = tokenizers.Bytes()
    assert tokenizer.size == 260
    assert tokenizer.decode([4 + 0xC3, 4 + 0x61, UNK]) == "\ufffda\ufffd"
    assert tokenizer.pieces([4 + 0x61, 4 + 0x20, 4 + 0xFF]) == ["a", "<0x20>", "<0xFF>"]


# ---- vocabularies on disk


def test_changed_or_absent_vocabulary(tmp_path: pathlib.Path) -> None:
    with pytest.raises(UserError, match="vocabulary.json: .* found none"):
        tokenizers.load_vocabulary(tmp_path)
    with pytest.raises(UserError, match="absent: .* found none; prepare"):
        tokenizers.load_vocabulary(tmp_path / "absent")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="file/vocabulary.json: .* Not a directory"):
        tokenizers.load_vocabulary(tmp_path / "file")
    build(tmp_path, kind="whitespace", vocab_size=0)
    path = tmp_path / "source.vocab"
    path.write_text(path.read_text().replace("dog", "cat"))
    with pytest.raises(UserError, match="changed"):
        tokenizers.load_vocabulary(tmp_path)
    path.unlink()
    with pytest.raises(UserError, match="source.vocab"):
        tokenizers.load_vocabulary(tmp_path)


def test_digest_tells_vocabularies_apart(tmp_path: pathlib.Path) -> None:
    digests = {build(tmp_path / str(i), **c).digest for i, c in enumerate(ALL)}
    assert len(digests) == len(ALL)


class Shouting(tokenizers.Bytes):
    """A tokenizer of a user's own: bytes of capitals."""

    suffix = ".shouting"
    digest = "shouting"

    def encode(self, text: str) -> list[int]:
        return super().encode(text.upper())


def test_a_tokenizer_is_a_class_and_a_line(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(tokenizers.TOKENIZERS, "shouting", Shouting)
    built = build(tmp_path, kind="shouting")
    loaded = tokenizers.load_vocabulary(tmp_path)
    assert built.digest == loaded.digest and (tmp_path / "source.shouting").exists()
    assert loaded.target.decode(loaded.source.encode("hear")) == "HEAR"


# ---- thinning out a huge corpus


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 20, 21, 100, 999])
def test_sample_is_even_and_bounded(count: int) -> None:
    pairs = [(str(i), "") for i in range(count)]
    kept = [int(source) for source, _ in sentence_piece._sample(iter(pairs), 10)]
    assert len(kept) == count if count <= 10 else 5 <= len(kept) <= 10
    steps = {b - a for a, b in zip(kept, kept[1:], strict=False)}
    assert len(steps) <= 1 and kept[:1] == [0][:count]
    if count:
        assert count - kept[-1] <= max(steps, default=1)


# ---- words and labels ----------------------------------------------------------------

PIECES = {  # of each kind: a text, the numbers of its pieces' words, their labels
    "whitespace": (
        "sl@@ ee@@ ps well",
        [0, 0, 0, 1],
        ["sl\u2026", "\u2026ee\u2026", "\u2026ps", "well"],
    ),
    "bytes": (
        "a \u00fc b",
        [0, 0, 1, 1, 1, 2],
        ["a", "\u2423", "<0xC3>", "<0xBC>", "\u2423", "b"],
    ),
}


@pytest.mark.parametrize("kind", PIECES)
def test_words_and_labels_by_hand(tmp_path, kind):
    text, words, labels = PIECES[kind]
    pairs = [(text, text)]
    tokenizer = build(tmp_path, kind=kind, vocab_size=0, pairs=pairs).source
    ids = tokenizer.encode(text)
    assert tokenizer.words(ids) == words
    assert tokenizer.labels(ids) == labels
    assert tokenizer.words([]) == tokenizer.labels([]) == []


def test_an_unknown_part_of_a_word_is_part_of_it_in_a_text(tmp_path):
    pairs = [("sl@@ ee@@ ps", "well")]
    tokenizer = build(tmp_path, kind="whitespace", vocab_size=0, pairs=pairs).source
    text = "w@@ ee@@ ps  xy well"
    ids = tokenizer.encode(text)
    assert [i == UNK for i in ids] == [True, False, False, True, False]
    assert tokenizer.words(ids, text) == [0, 0, 0, 1, 2]
    # "<unk> eeps <unk> well"
    assert tokenizer.words(ids) == [0, 1, 1, 2, 3]


def test_words_of_sentencepiece_are_those_between_spaces(tmp_path):
    tokenizer = build(tmp_path).source
    text = "a green cliff dog xz"
    ids = tokenizer.encode(text)
    words, labels = tokenizer.words(ids), tokenizer.labels(ids)
    assert max(words) == 4 and len(ids) > 5 and words == sorted(words)
    for number, word in enumerate(text.split()[:4]):
        parts = [x for x, w in zip(labels, words, strict=True) if w == number]
        whole = "".join(parts).replace("\u2026\u2026", "")
        assert whole.removeprefix("\u2423") == word  # a piece of its own at times
        assert all(part.endswith("\u2026") for part in parts[:-1])


def test_an_unknown_piece_is_written_as_a_word_but_is_part_of_one_in_a_text(tmp_path):
    own = build(tmp_path).source
    assert isinstance(own, tokenizers.SentencePiece)
    marian = tokenizers.Marian(own.model, own.numbered[::-1])
    for tokenizer in (own, marian):
        text = "gr\u4e2deen  \u4e2d dog"  # one piece unknown within a word, one alone
        ids = tokenizer.encode(text)
        assert ids.count(UNK) == 2
        words, read = tokenizer.words(ids), tokenizer.words(ids, text)
        # sentencepiece writes "gr \u2047 een \u2047 dog".
        assert tokenizer.decode(ids).split() == ["gr", "\u2047", "een", "\u2047", "dog"]
        assert [w for w, i in zip(words, ids, strict=True) if i == UNK] == [1, 3]
        assert [w for w, i in zip(read, ids, strict=True) if i == UNK] == [0, 1]
        assert (words[-1], read[-1]) == (4, 2)
        assert words == sorted(words) and read == sorted(read)


def test_the_first_piece_of_a_word_may_be_one_that_the_list_lacks(tmp_path):
    own = build(tmp_path).source
    assert isinstance(own, tokenizers.SentencePiece)
    text = "the old dog"
    first = own.pieces(own.encode("old"))[0]
    assert first.startswith("\u2581") and len(first) > 1
    tokenizer = tokenizers.Marian(own.model, [x for x in own.numbered if x != first])
    ids = tokenizer.encode(text)
    read = tokenizer.words(ids, text)
    assert read == own.words(own.encode(text)) and read[ids.index(UNK)] == 1


def test_spaces_alone_begin_no_word_of_bytes():
    words = tokenizers.Bytes().words(tokenizers.Bytes().encode("  a \t b\u00a0c "))
    assert words == [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1]


def test_marks_stand_alone(tmp_path):
    tokenizer = build(tmp_path, kind="whitespace", vocab_size=0).source
    labels = tokenizer.labels([BOS, *tokenizer.encode("the old"), EOS, PAD])
    assert labels == ["<s>", "the", "old", "</s>", "<pad>"]
