"""The n-gram model of bytes: by hand, and as a distribution."""

import gzip
import math
import re
import sys

import pytest
from support.paths import BENCH

sys.path.append(str(BENCH))

import byte_ngram
from byte_ngram import ByteModel

TEXT = [b"abracadabra", b"abba", b"cab", b"", b"abracadabra"]
END = b"\xfe"


def test_bigrams_by_hand():
    # ^a a$ of "a", ^a ab b$ of "ab": ^a occurs twice, the other three once.
    model = ByteModel([b"a", b"ab"], order=2)
    begin = b"\xff"
    # Once 3, twice 1: D = 3 / 5. Different bytes before a: 1, before b: 1, before $: 2.
    # Of these two counts are 1 and one is 2: D' = 2 / 4, on 3 kinds of 4 in all.
    rest = 1 / 256
    shorter = {b"a": 0.5, b"b": 0.5, END: 1.5}
    shorter = {w: (x + 0.5 * 3 * rest) / 4 for w, x in shorter.items()}
    found = {w: model.probability(b"a", w) for w in shorter}
    assert found[b"a"] == pytest.approx(0.6 * 2 / 2 * shorter[b"a"])
    for word in (b"b", END):
        assert found[word] == pytest.approx(0.4 / 2 + 0.6 * shorter[word])
    assert model.probability(begin, b"a") == pytest.approx(
        1.4 / 2 + 0.6 / 2 * shorter[b"a"]
    )
    # Behind z nothing was seen: the shorter context decides.
    assert model.probability(b"z", b"b") == pytest.approx(shorter[b"b"])


@pytest.mark.parametrize("order", [1, 2, 5])
@pytest.mark.parametrize(
    "context", [b"\xff\xff\xff\xff", b"\xff\xffab", b"brac", b"zzzz"]
)
def test_what_may_come_next_has_probability_one(order, context):
    model = ByteModel(TEXT, order)
    bytes_ = (bytes([i]) for i in range(256))
    total = sum(model.probability(context[5 - order :], byte) for byte in bytes_)
    assert total == pytest.approx(1)


def test_what_was_seen_more_often_takes_fewer_bits():
    model = ByteModel(TEXT, 5)
    seen, unseen = model.bits(b"abracadabra"), model.bits(b"arbadacarba")
    assert seen < unseen / 3
    # All of a line counts, its end too, and every byte has a chance.
    assert math.isfinite(model.bits(bytes(range(254))))
    assert model.bits(b"") > 0


def test_the_program_reads_plain_and_compressed_text(tmp_path, monkeypatch, capsys):
    train, test = tmp_path / "train.de.gz", tmp_path / "test.de"
    train.write_bytes(gzip.compress(b"\n".join(TEXT) + b"\n"))
    test.write_bytes("abra\r\nkäb\n".encode())
    call = ["byte_ngram.py", f"--train={train}", f"--test={test}", "--order=3"]
    monkeypatch.setattr(sys, "argv", call)
    byte_ngram.main()
    model = ByteModel(TEXT, 3)
    bits = model.bits(b"abra") + model.bits("käb".encode())
    said = capsys.readouterr().out
    assert f"{bits / 10:.4f} bits per byte, {bits / 9:.4f} per character" in said


@pytest.mark.parametrize(
    "name, told",
    [
        ("absent.de", "expected texts, plain or .gz, got: .*absent.de"),
        ("plain.gz", "expected texts, plain or .gz, got: Not a gzipped file"),
        ("cut.gz", "expected texts, plain or .gz, got: Compressed file ended"),
        ("empty.de", "--test: expected lines, got none in .*empty.de"),
    ],
)
def test_what_is_no_text_ends_with_one_line(name, told, tmp_path, monkeypatch, capsys):
    whole = gzip.compress(b"\n".join(TEXT))
    for path, data in (
        ("text.de", b"abra\n"),
        ("plain.gz", b"abra\n"),
        ("cut.gz", whole[:-9]),
        ("empty.de", b""),
    ):
        (tmp_path / path).write_bytes(data)
    call = ["byte_ngram.py", f"--train={tmp_path}/text.de", f"--test={tmp_path}/{name}"]
    monkeypatch.setattr(sys, "argv", call)
    with pytest.raises(SystemExit) as stopped:
        byte_ngram.main()
    assert stopped.value.code == 2
    assert re.search(told, capsys.readouterr().err.splitlines()[-1])
