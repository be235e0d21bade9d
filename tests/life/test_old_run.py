"""A small run of an earlier version, kept in old_run, still serves."""

import json
import shutil

import pytest
from support.paths import TESTS
from support.runs import lines_of

from transformer.evaluate import average, evaluate
from transformer.run.folder import read_settings
from transformer.train import train
from transformer.translate import load

SOURCES = ["zero four eight four four nine", "five five", "two nine"]
# What the version that trained it translated with the averaged checkpoint, beam 4, with
# the scores it printed; the first has a mistake that only these parameters make.
EXPECTED = [
    ("null vier acht acht vier neun", -0.7274),
    ("fünf fünf", -0.2131),
    ("zwei neun", -0.2145),
]


@pytest.fixture
def run(tmp_path, monkeypatch):
    shutil.copytree(TESTS / "old_run", tmp_path / "run")
    monkeypatch.chdir(tmp_path / "run")  # its texts are named from there
    return tmp_path / "run"


def test_it_translates_as_it_did(run):
    found = load(run).hypotheses(SOURCES)
    assert [one[0].text for one in found] == [text for text, _ in EXPECTED]
    scores = [one[0].score for one in found]
    assert scores == pytest.approx([score for _, score in EXPECTED], abs=6e-5)


def test_it_is_evaluated_and_averaged_as_it_was(run):
    before = json.loads((run / "results.json").read_text())
    assert "average of steps 280, 300" in average(run, log=lambda line: None)
    evaluate(run, log=lambda line: None)
    after = json.loads((run / "results.json").read_text())
    for name in ("last", "average"):
        assert after[name]["bleu"] == before[name]["bleu"]
        for measure in ("perplexity", "accuracy", "exact_match"):
            assert after[name][measure] == pytest.approx(before[name][measure], 1e-6)
    assert [x["average"] for x in after["sentences"]] == [
        x["average"] for x in before["sentences"]
    ]


def test_its_training_resumes(run):
    settings = read_settings(run)
    shutil.rmtree(run / "checkpoints" / "300")
    lines: list[str] = []
    assert train(settings, run, lines.append) is not None
    assert "resuming from step 280" in lines
    # The optimiser rounds otherwise than the one that trained it, for 20 steps.
    after, before = (
        {key: x for line in lines_of(folder)[-2:] for key, x in line.items()}
        for folder in (run, TESTS / "old_run")
    )
    assert after["step"] == before["step"] == 300
    for name in ("loss", "nll", "grad_norm", "validation_nll"):
        assert after[name] == pytest.approx(before[name], rel=1e-3)
