"""BLEU by the length of the source: bins by hand, and runs that do not compare."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from support.calls import error
from support.configs import base

from transformer.cli import main as cli
from transformer.metrics.bleu import corpus_bleu
from transformer.pictures import by_length
from transformer.run.folder import write_settings

SOURCES = ["a b c", "a b c d", "a b c d e", "a b c d e f g", "", "h i j k l m n o p q"]
REFERENCES = ["w x y z", "v w x y z", "v w x y z", "u v w x y z", "", "r s t u v w x"]
GOOD = ["w x y z", "v w x y z", "v w x y u", "u v w x y z", "", "r s t u v w x"]
POOR = ["w x y z", "v w x y z", "v w x y z", "u v w z y x", "", "r s t u v"]


def write(
    folder: Path, lines: list[str], more: dict[str, Any] | None = None, **keys: Any
) -> Path:
    """Write the configuration and the results of a run."""
    folder.mkdir(parents=True)
    write_settings(folder, base(**keys))
    sentences = [
        {"source": s, "reference": r, "last": x}
        for s, r, x in zip(SOURCES, REFERENCES, lines, strict=True)
    ]
    results = {"last": {"perplexity": 2.0}, "sentences": sentences} | (more or {})
    (folder / "results.json").write_text(json.dumps(results))
    return folder


@pytest.fixture
def runs(tmp_path):
    return [write(tmp_path / "good", GOOD), write(tmp_path / "poor", POOR)]


def score(lines: list[str], rows: list[int]) -> float:
    references = [REFERENCES[row] for row in rows]
    return corpus_bleu([lines[row] for row in rows], [references], "13a", "de").value


def test_a_bin_is_scored_as_a_corpus_and_the_last_one_has_no_end(runs):
    found = by_length.by_length(runs, [4, 5, 6], "13a")
    # No sentence has 6 words; the one without any is in no bin.
    assert found.labels == ["1-4", "5", "7+"] and found.counts == [2, 1, 2]
    bins = [[0, 1], [2], [3, 5]]
    assert found.scores.keys() == {"good", "poor"}
    assert found.scores["good"] == [score(GOOD, rows) for rows in bins]
    assert found.scores["poor"] == [score(POOR, rows) for rows in bins]
    assert found.scores["good"][0] == pytest.approx(100)
    assert found.scores["good"][1] < found.scores["poor"][1] == pytest.approx(100)
    assert "tok:13a" in found.signature and "order:4" in found.signature
    assert "lines" not in found.signature


def test_bleu_of_all_bins_has_the_order_of_the_shortest(tmp_path):
    rows = [("a", "x", "x"), ("a b c d", "u v w x", "u v x w")]
    sentences = [{"source": s, "reference": r, "last": x} for s, r, x in rows]
    folder = write(tmp_path / "short", GOOD, {"sentences": sentences})
    found = by_length.by_length([folder], [1], "13a")
    # By single words both are right; with 2-grams the second would have less.
    assert found.scores["short"] == pytest.approx([100, 100])
    assert found.signature.endswith("|order:1")


def test_pieces_are_joined_before_words_are_counted(tmp_path):
    sentences = [{"source": "a b@@ c@@ d e", "reference": "x", "last": "x"}]
    for kind, words in (("whitespace", "3"), ("sentencepiece", "5")):
        more, keys = {"sentences": sentences}, {"tokenizer.kind": kind}
        folder = write(tmp_path / kind, GOOD, more, **keys)
        assert by_length.by_length([folder], [2, 3, 4, 5], "13a").labels == [words]


def test_the_best_checkpoint_is_taken_where_the_config_says_so(tmp_path, runs):
    pairs = zip(SOURCES, REFERENCES, POOR, strict=True)
    sentences = [{"source": s, "reference": r, "best": x} for s, r, x in pairs]
    more = {"best": {"perplexity": 2.0}, "sentences": sentences}
    keys = {"decode.checkpoint": "best", "decode.average": 1}
    best = write(tmp_path / "best", GOOD, more, **keys)
    found = by_length.by_length([best, *runs], [5, 10], "13a")
    assert found.scores["best"] == found.scores["poor"]
    assert "best: the best checkpoint" in by_length.table(found).note


def test_averaged_checkpoints_are_taken_where_there_are_some(tmp_path, runs):
    sentences = [
        {"source": s, "reference": r, "last": "q", "average": x}
        for s, r, x in zip(SOURCES, REFERENCES, POOR, strict=True)
    ]
    more = {"average": {"perplexity": 2.0}, "sentences": sentences}
    averaged = write(tmp_path / "averaged", GOOD, more)
    found = by_length.by_length([averaged, *runs], [5, 10], "13a")
    assert found.scores["averaged"] == found.scores["poor"]
    note = by_length.table(found).note
    assert "averaged: averaged checkpoints, good: the last checkpoint" in note


def test_the_command_draws_and_prints(runs, tmp_path, capsys):
    call = ["plot", "--what=length", f"--workdir={runs[0]},{runs[1]}", "--edges=5"]
    for form in ("svg", "csv", "html"):
        output = tmp_path / f"a.{form}"
        assert cli.main([*call, f"--output={output}"]) == 0, capsys.readouterr().err
    text = "".join(ElementTree.parse(tmp_path / "a.svg").getroot().itertext())
    assert "1-5" in text and "6+" in text and "poor" in text and "BLEU" in text
    assert (
        "| words of the source | sentences | good | poor |" in capsys.readouterr().out
    )
    lines = (tmp_path / "a.csv").read_text().splitlines()
    assert lines[1] == "words of the source,sentences,good,poor"
    assert lines[3].startswith("6+,2,100.00,") and len(lines) == 5
    page = (tmp_path / "a.html").read_text()
    assert "<svg" in page and "<td" in page


def test_a_picture_tells_thousands_of_sentences_below_a_bin():
    bins = by_length.Bins(["6+"], [1234], "BLEU", {"a": [50.0]}, "", {"a": "last"})
    drawn = by_length.picture(bins).svg()
    assert "6+" in drawn and "1,234" in drawn


def test_the_variant_of_bleu_is_chosen(runs, tmp_path):
    write(tmp_path / "loud", [line.upper() for line in GOOD])
    output = tmp_path / "a.csv"
    for variant, best in (("tokens", "0.00"), ("tokens_lowercase", "100.00")):
        call = ["plot", "--what=length", f"--workdir={tmp_path / 'loud'}"]
        call += ["--edges=4", f"--variant={variant}", f"--output={output}"]
        assert cli.main(call) == 0
        assert output.read_text().splitlines()[2] == f"1-4,2,{best}"


def test_exact_translations_are_counted(runs, tmp_path):
    output = tmp_path / "a.csv"
    folder = write(tmp_path / "half", [GOOD[0], *(f"{x} x" for x in GOOD[1:])])
    call = ["plot", "--what=length", f"--workdir={folder}", "--edges=100"]
    assert cli.main([*call, "--variant=exact", f"--output={output}"]) == 0
    found = output.read_text().splitlines()
    assert found[0] == '"exact, % by the length of the source"'
    assert found[2] == "1-100,5,20.00"  # an empty source is in no bin


def test_trees_are_scored_by_f1(tmp_path, monkeypatch, capsys):
    trees = ["(S (NP (DT a) (NN dog)))", "(S (NP (DT a)) (NN dog))"]
    monkeypatch.setitem(globals(), "SOURCES", ["a dog"] * 2)
    monkeypatch.setitem(globals(), "REFERENCES", [trees[0]] * 2)
    lines = [line.replace("NN", "XX") for line in trees]
    keys: dict[str, Any] = {"data.measure": "f1"}
    write(tmp_path / "a", lines, **keys)
    call = ["plot", "--what=length", f"--workdir={tmp_path / 'a'}"]
    call += ["--edges=4", f"--output={tmp_path / 'a.csv'}"]
    found = {}
    for variant in ("evalb", "complete", "exact"):
        assert cli.main([*call, f"--variant={variant}"]) == 0
        found[variant] = (tmp_path / "a.csv").read_text().splitlines()[2]
    assert set(found.values()) == {"1-4,2,75.00", "1-4,2,50.00"}
    assert cli.main(call) == 0
    head, _, row = (tmp_path / "a.csv").read_text().splitlines()[:3]
    assert head == "F1 by the length of the source" and row == found["evalb"]
    assert "--variant: expected one of evalb, honest, complete, evalb_40, which" in (
        error(capsys, *call, "--variant=13a")
    )


def test_rates_are_named_and_no_bin_s_count_is_told_of_all(tmp_path):
    keys: dict[str, Any] = {"data.measure": "errors"}
    folder = write(tmp_path / "a", GOOD, **keys)
    output = tmp_path / "a.md"
    call = ["plot", "--what=length", f"--workdir={folder}", "--edges=4"]
    for flags, name in (
        (["--variant=wer"], "WER"),
        (["--variant=per"], "PER"),
        ([], "WER"),
    ):
        assert cli.main([*call, *flags, f"--output={output}"]) == 0
        text = output.read_text()
        assert f"{name} by the length of the source" in text
        assert "symbols:" not in text and "lines:" not in text


@pytest.mark.parametrize(
    "flags, wanted",
    [
        (["--workdir=heard"], "whose sources have words, got one with data.source = v"),
        (["--workdir=good,untested"], "untested/results.json: expected the results of"),
        (["--workdir=good,none"], "none: expected the folder of a training run"),
        (["--workdir=good,old"], "old/results.json: expected the key 'sentences'"),
        (
            ["--workdir=good,poor,other"],
            "one test set, got good and other, which differ in the sources of line 2: "
            "'a b c d' and 'a b c'; leave one of them out",
        ),
        (
            ["--workdir=good,fewer"],
            "which differ in their lines: 6 and",
        ),
        (["--workdir=good,again"], "good and again, which differ in the refer"),
        (["--workdir=good,wrong"], "differ in data.measure: bleu and errors"),
        (["--workdir=good,french"], "differ in data.target_language: de and fr"),
        (
            ["--workdir=good,good"],
            "expected each folder once, got good,good",
        ),
        (["--workdir=good,good/"], "expected each folder once, got good,good/"),
        (["--workdir=good,"], "which has an empty one; leave out the comma"),
        (
            ["--workdir=empty"],
            "expected results with sources, got none with words",
        ),
        ([], "plot --what=length: expected --workdir; add it"),
        (["--workdir=good", "--edges=5,5"], "--edges: expected ascending numbers"),
        (["--workdir=good", "--edges=10,5"], "--edges: expected ascending numbers"),
        (["--workdir=good", "--edges=5,x"], "--edges: expected whole numbers such as"),
        (["--workdir=good", "--variant=14a"], "--variant: expected one of 13a,"),
        (["--workdir=good", "--device=cpu"], "--device: expected with --what="),
        (["--workdir=good", "--step=3"], "--step: expected with --what="),
    ],
)
def test_mistakes_are_one_line(runs, tmp_path, capsys, monkeypatch, flags, wanted):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "untested", GOOD)
    (tmp_path / "untested" / "results.json").unlink()

    def sentences(sources, references):
        pairs = zip(sources, references, strict=True)
        return {
            "sentences": [{"source": s, "reference": r, "last": "x"} for s, r in pairs]
        }

    (tmp_path / "old").mkdir()
    write_settings(tmp_path / "old", base())
    (tmp_path / "old" / "results.json").write_text('{"last": {}}')
    write(tmp_path / "other", GOOD, sentences(["a b c", *SOURCES[:5]], REFERENCES))
    write(tmp_path / "fewer", GOOD, sentences(SOURCES[:3], REFERENCES[:3]))
    write(tmp_path / "again", GOOD, sentences(SOURCES, ["x", *REFERENCES[1:]]))
    french: dict[str, Any] = {"data.target_language": "fr"}
    write(tmp_path / "french", GOOD, **french)
    wrong: dict[str, Any] = {"data.measure": "errors"}
    write(tmp_path / "wrong", GOOD, **wrong)
    heard: dict[str, Any] = {
        "data.source": "vectors",
        "tokenizer.joint": False,
        "model.tying": "two",
    }
    write(tmp_path / "heard", GOOD, **heard)
    write(tmp_path / "empty", GOOD, sentences(["", " "], ["", ""]))
    call = ["plot", "--what=length", "--output=a.svg", *flags]
    assert wanted in error(capsys, *call)
    assert not (tmp_path / "a.svg").exists()
