"""Given beginnings and forbidden words, and a filter that answers."""

import io
import os
import shutil
import subprocess
import sys
import threading

import jax.numpy as jnp
import numpy as np
import pytest
from support.calls import error
from support.paths import ROOT, TESTS
from support.reference import assert_close
from support.texts import make_config
from support.translators import EXTRA, ROUNDINGS, SETTINGS, draw_params

from transformer import batch_search, demands, objective, stream
from transformer.cli import main as cli
from transformer.config import UserError
from transformer.data.tokenizers import Bytes, SentencePiece, Vocabulary
from transformer.decode import Forbidden
from transformer.ids import EOS
from transformer.translate import Translation, Translator

LINES = ["ab", "", "hello w"]


class Letters(Bytes):
    """Bytes that are letters by themselves, as those of any text are not."""

    def spellings(self):
        return ["", "\ufffd", "", "", *map(chr, range(256))]


@pytest.fixture(scope="module")
def warnings() -> list[str]:
    return []


@pytest.fixture(scope="module")
def translator(warnings) -> Translator:
    vocabulary = Vocabulary(*[Letters()] * 2)
    empty = Translator(SETTINGS, vocabulary, None, warnings.append)
    return Translator(SETTINGS, vocabulary, draw_params(empty), warnings.append)


@pytest.fixture(scope="module")
def free(translator):
    return [found[0] for found in translator.hypotheses(LINES, beam=1)]


def test_a_translation_begins_as_it_is_told_and_goes_on_from_there(translator, free):
    # One's own beginning is no demand: a greedy search goes on as it would have.
    own = free[2].text[:3]
    long = "xyz" * 9  # longer than outputs are without
    found = translator.hypotheses(LINES, beam=1, prefixes=[long, "q", own])
    assert found[0][0].text.startswith(long)
    assert len(found[0][0].ids) <= len(long) + EXTRA
    assert found[1][0].text == ""  # of nothing nothing is made
    assert found[2][0].text == free[2].text
    # What is given costs nothing, what follows costs what it did.
    source = jnp.array([[*Bytes().encode("hello w"), EOS]])
    target = jnp.array([Bytes().encode(own)])
    model, params = translator.model, translator.params
    cost = objective.token_log_probabilities(model, params, source, target).sum()
    rest = free[2].log_probability - float(cost)
    assert_close([found[2][0].log_probability], [rest], ROUNDINGS)


def test_a_beginning_makes_no_position_of_a_feature(translator, monkeypatch):
    lengths: list[int] = []

    def noted(*given):
        lengths.append(given[3])
        return ()

    monkeypatch.setattr(batch_search, "search", noted)
    monkeypatch.setattr(batch_search.BatchSearch, "_check", lambda *_: None)
    search = batch_search.BatchSearch(SETTINGS, translator.model, translator.mesh)
    frames = np.ones((1, 16, 100), np.float32)  # more features than frames
    for rows in (None, np.full((1, 8), 5, np.int32)):
        search({}, frames, [1], translator.search(), prefix=rows)
    assert lengths == [16 + EXTRA] * 2


def test_a_forbidden_word_is_in_no_translation(translator, free):
    text = free[2].text
    assert demands.forbidding(Letters(), (text,)) is not None
    (other,) = translator.hypotheses(LINES[2:], beam=1, forbid=[text])
    assert other[0].text.split() != [text]
    # A word that nothing was made of changes nothing.
    (same,) = translator.hypotheses(LINES[2:], beam=1, forbid=["Hund"])
    assert same[0].ids == free[2].ids
    assert_close([same[0].score], [free[2].score], ROUNDINGS)


def test_pieces_of_sentencepiece_spell_words():
    texts = [("der Hund und die Hunde", "the dog and the dogs")] * 5
    settings = make_config(tokenizer_vocab_size=40).tokenizer
    target = SentencePiece.build(texts, settings, "")
    constraint = demands.forbidding(target, ("Hund", "xylo"))
    assert isinstance(constraint, Forbidden)
    assert not constraint.accepts(target.encode("der Hund und"))
    assert constraint.accepts(target.encode("der Hunde und"))
    assert demands.forbidding(target, ("xylo",)) is None  # there is no x to write


def test_single_bytes_spell_any_word():
    with pytest.raises(UserError, match="got one with byte pieces, which can"):
        demands.forbidding(Bytes(), ("Hund",))


def test_demands_that_cannot_be_met(translator, warnings):
    for options, told in (
        ({"prefixes": ["a"]}, "as many lines as there are sentences, got 1 and 3"),
        (
            {"prefixes": ["", "", "a b c"], "forbid": ["b"]},
            "line 3: expected no forbid",
        ),
        ({"forbid": ["a b"]}, "expected words of letters and digits, got 'a b'"),
    ):
        with pytest.raises(UserError, match=told):
            translator.translate(LINES, **options)
    settings = make_config(tokenizer_vocab_size=24).tokenizer
    target = SentencePiece.build([("a b c d e f g h i", "j k l")] * 9, settings, "")
    demands.beginnings(target, 1, ["a X"], 7, None, warnings.append)
    assert "line 7: the vocabulary lacks a part of 'a X'" in warnings[-1]


# ---- streams -------------------------------------------------------------------------


class Echo(Translator):
    """Repeats what is demanded of each line."""

    chunks: list[int]

    def hypotheses(self, lines, first=1, *, prefixes=None, forbid=(), **search):
        self.chunks.append(len(lines))
        pairs = zip(prefixes or [""] * len(lines), lines, strict=True)
        texts = [f"{prefix}|{line}|{','.join(forbid)}" for prefix, line in pairs]
        return [[Translation(text, 0.0, 0.0, [])] for text in texts]


@pytest.fixture
def echo(translator, monkeypatch):
    made = Echo(SETTINGS, translator.vocabulary, translator.params)
    made.chunks = []
    monkeypatch.setattr(stream, "load", lambda workdir, step, beam=None: made)
    monkeypatch.setattr(stream, "_LINES_AT_A_TIME", 2)
    return made


def test_prefixes_go_with_their_lines_through_all_chunks(echo, tmp_path):
    output = io.StringIO()
    lines, prefixes = ["a", "b", "c"], ["x", "", "z"]

    def call(lines, output):
        stream.translate_stream(
            tmp_path, lines, output, prefixes=prefixes, forbid=["w"]
        )

    call(lines, output)
    assert output.getvalue() == "x|a|w\n|b|w\nz|c|w\n" and echo.chunks == [2, 1]
    for given, told in ((lines * 2, "got 3 and 4 or more"), (lines[:2], "got 3 and 2")):
        with pytest.raises(UserError, match=f"--prefix: .*{told}"):
            call(given, io.StringIO())


def test_a_stream_in_python_answers_when_its_lines_pause(echo):
    asked, answered = threading.Event(), []

    def lines():
        yield "a"
        assert asked.wait(20)
        yield "b"

    for text in echo.stream(lines()):
        answered.append(text)
        asked.set()
    assert answered == ["|a|", "|b|"] and echo.chunks == [1, 1]


@pytest.mark.usefixtures("started")
def test_files_of_demands_that_cannot_be_met(trained, tmp_path, capsys, monkeypatch):
    files = {"in": "a\nb\n", "one": "x\n", "none": "\n", "two": "a b\n"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    call = ["translate", f"--workdir={trained}", f"--input={tmp_path / 'in'}"]
    text = error(capsys, *call, f"--prefix={tmp_path / 'one'}")
    assert text.startswith("--prefix: expected as many lines as") and "1 and 2" in text
    text = error(capsys, *call, f"--forbid={tmp_path / 'none'}")
    assert text.startswith("--forbid: expected a file of words, got none in")
    assert "No such file" in error(capsys, *call, f"--prefix={tmp_path / 'absent'}")


@pytest.mark.usefixtures("started")
@pytest.mark.skipif(not os.path.isdir("/dev/fd"), reason="no names of descriptors")
def test_an_input_that_is_read_once_has_prefixes(echo, trained, capsys):
    (trained / "prefixes").write_text("x\ny\n")
    given, end = os.pipe()
    os.write(end, b"a\nb\n")
    os.close(end)
    call = ["translate", f"--workdir={trained}", f"--input=/dev/fd/{given}"]
    assert cli.main([*call, f"--prefix={trained / 'prefixes'}"]) == 0
    os.close(given)
    assert capsys.readouterr().out == "x|a|\ny|b|\n"


def test_a_process_answers_each_line_before_the_next_one_is_written(tmp_path):
    shutil.copytree(TESTS / "old_run", tmp_path / "run")
    command = [sys.executable, "-m", "transformer", "translate", "--workdir=run"]
    process = subprocess.Popen(
        [*command, "--beam=1"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        encoding="utf-8",
    )
    watch = threading.Timer(
        240, process.kill
    )  # a filter that waits would do so forever
    watch.start()
    with process:
        assert process.stdin is not None and process.stdout is not None
        for line, answer in (("five five", "fünf fünf"), ("two nine", "zwei neun")):
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
            assert process.stdout.readline() == f"{answer}\n"
        # The last line needs no end.
        assert process.communicate("two nine")[0] == "zwei neun\n"
        assert process.returncode == 0
    watch.cancel()
