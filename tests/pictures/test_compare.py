"""Runs beside each other: sacreBLEU's own figures, and a page of sentences."""

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.calls import error
from support.configs import base
from support.paths import SHARED

from transformer.cli import main as cli
from transformer.config import UserError
from transformer.metrics import chrf_ter, significance
from transformer.pictures import differences
from transformer.run.folder import write_settings

DATA = SHARED / "data" / "bleu-reference"
needs_data = pytest.mark.skipif(
    not DATA.is_dir(), reason=f"the WMT17 outputs are not at hand: no folder {DATA}"
)
SOURCES = ["a", "b <i>", "c", "d"]
REFERENCES = ["w x y z", "v w <b> y z", "v w x y", "u v w x"]
FIRST = ["w x y z", "v w <b> y u", "q", "u v x w"]
SECOND = ["w x y", "v w <b> y z", "v w x y", "u v x w"]


def write(folder: Path, lines: list[str], sources=SOURCES, **keys: str) -> Path:
    """Write the configuration and the results of a run."""
    folder.mkdir()
    write_settings(folder, base(**keys))
    texts = zip(sources, REFERENCES, lines, strict=True)
    sentences = [{"source": s, "reference": r, "last": x} for s, r, x in texts]
    results = {"last": {"perplexity": 2.0}, "sentences": sentences}
    (folder / "results.json").write_text(json.dumps(results))
    return folder


@pytest.fixture
def runs(tmp_path):
    return [write(tmp_path / "one", FIRST), write(tmp_path / "two", SECOND)]


def wmt(name: str, lines: int) -> list[str]:
    text = gzip.decompress((DATA / name).read_bytes()).decode()
    return text.split("\n")[:lines]


# ---- scores --------------------------------------------------------------------------


def test_chrf_by_hand():
    # "ab" against "abc": n = 1: P 2/2, R 2/3; n = 2: P 1/1, R 1/2; longer ones are in
    # neither or in the reference alone, and do not count.
    value = chrf_ter.chrf(["ab"], ["abc"]).value
    precision, recall = 1.0, (2 / 3 + 1 / 2) / 2
    assert value == pytest.approx(
        100 * 5 * precision * recall / (4 * precision + recall)
    )


def test_ter_by_hand():
    # One shift of "c d", and one word of two sentences with four and two words.
    found = chrf_ter.ter(["c d a b", "E G"], ["a b c d", "e f"])
    assert found.value == pytest.approx(100 * 2 / 6)
    assert found.signature.endswith("|lines:2") and "case:lc" in found.signature


def test_there_is_something_to_score():
    with pytest.raises(UserError, match="got 1 hypotheses and 2 references"):
        chrf_ter.chrf(["a"], ["a", "b"])
    with pytest.raises(UserError, match="expected at least one line"):
        chrf_ter.ter([], [])


@needs_data
@pytest.mark.parametrize("kind, count", [("bs", 200), ("ar", 300)])
def test_p_values_are_those_of_sacrebleu_s_own_command(tmp_path, kind, count):
    names = {"uedin": "hyp.uedin-nmt.de.gz", "lium": "hyp.lium-nmt.de.gz"}
    systems = {name: wmt(file, 150) for name, file in names.items()}
    references = wmt("ref.de.gz", 150)
    for name, lines in {**systems, "ref": references}.items():
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "sacrebleu", "ref", "-i", *systems, "-f", "text"]
    command += ["-m", "bleu", "chrf", "ter", f"--paired-{kind}", "-w", "4"]
    done = subprocess.run(
        [*command, f"--paired-{kind}-n", str(count)],
        cwd=tmp_path,
        env={**os.environ, "SACREBLEU_SEED": "7", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    plain = re.sub(r"\x1b\[\d*m", "", done.stdout)
    before = os.environ.get("SACREBLEU_SEED")
    found = significance.paired(
        systems, references, language="de", seed=7, resamples=200, trials=300
    )
    assert os.environ.get("SACREBLEU_SEED") == before
    values = re.findall(r"p = (\d\.\d{4})", plain)
    assert len(values) == 3
    by_test = {"bs": "bootstrap", "ar": "randomisation"}[kind]
    ours = [getattr(one.systems["lium"], by_test) for one in found]
    assert values == [f"{p:.4f}" for p in ours]
    for one in found:
        assert getattr(one.systems["uedin"], by_test) is None
        for tested in one.systems.values():
            assert f" {tested.score:.4f}" in plain
            if kind == "bs":
                assert f"({tested.mean:.4f} ± {tested.interval:.4f})" in plain


def test_a_system_beside_itself_is_not_better():
    lines = {"a": SECOND, "b": SECOND}
    for one in significance.paired(lines, REFERENCES, resamples=20, trials=20):
        # Every draw differs as much as the systems, which do not, or more.
        assert one.systems["b"].bootstrap == one.systems["b"].randomisation == 1
        assert one.systems["b"].score == one.systems["a"].score


def test_the_paper_s_bleu_is_tested_on_its_own_tokens():
    # A compound is one word to 13a, and several to the paper's measure.
    systems = {"a": ["ein a-b-Test hier da"], "b": ["ein a-c-Test hier da"]}
    plain, paper = (
        significance.paired(
            systems,
            systems["a"],
            variant=variant,
            language="de",
            resamples=2,
            trials=2,
        )
        for variant in ("13a", "paper")
    )
    assert "|tok:13a|" in plain[0].signature and "compounds" in paper[0].signature
    assert paper[0].systems["b"].score != pytest.approx(plain[0].systems["b"].score)
    assert paper[1:] == plain[1:]  # chrF and TER read the text as it is
    assert paper[0].systems["a"].score == pytest.approx(100)


def test_a_table_has_the_tests_that_were_asked_for(runs):
    asked = {"seed": 7, "resamples": 20, "trials": 30}
    table = differences.scores(differences.read(runs), "paper", **asked)
    lines = {"one": FIRST, "two": SECOND}
    found = significance.paired(
        lines, REFERENCES, variant="paper", language="de", **asked
    )
    assert table.note.endswith("; ".join(f"{x.measure} {x.signature}" for x in found))
    by_cells = {(row[0], row[2]): row[3:] for row in table.rows}
    for one in found:
        its = one.systems["two"]
        assert by_cells["two", one.measure] == (
            f"{its.score:.2f}",
            f"{its.mean:.2f} ± {its.interval:.2f}",
            f"{its.bootstrap:.4f}",
            f"{its.randomisation:.4f}",
        )
        assert by_cells["one", one.measure][2:] == ("", "")


# ---- sentences -----------------------------------------------------------------------


def test_gains_and_losses_are_sorted(runs):
    better, worse = differences.sentences(differences.read(runs))
    assert [row[1] for row in better.rows] == ["3", "2"]
    assert [row[1] for row in worse.rows] == ["1"]
    one = chrf_ter.chrf([FIRST[0]], [REFERENCES[0]]).value
    other = chrf_ter.chrf([SECOND[0]], [REFERENCES[0]]).value
    assert worse.rows[0][0] == f"{other - one:+.1f}"
    assert worse.rows[0][2:] == ("a", REFERENCES[0], FIRST[0], SECOND[0])
    assert "1 of 4 translations" in better.note
    assert len(differences.sentences(differences.read(runs), 1)[0].rows) == 1


def test_the_largest_loss_stands_first(tmp_path):
    lines = ["w x y", REFERENCES[1], "q", REFERENCES[3]]
    places = [
        write(tmp_path / name, texts)
        for name, texts in (("a", REFERENCES), ("b", lines))
    ]
    better, worse = differences.sentences(differences.read(places), most=1)
    assert [row[1] for row in worse.rows] == ["3"] and not better.rows
    assert worse.note.startswith("1 of 2 sentences, the largest difference")
    assert better.note.startswith("0 of 0 sentences")


def test_a_page_and_a_table_from_the_command(runs, tmp_path, capsys):
    page = tmp_path / "page.html"
    counts = ["--resamples=10", "--trials=10"]
    command = ["compare", *map(str, runs), *counts]
    assert cli.main([*command, f"--output={page}"]) == 0
    table = capsys.readouterr().out
    assert "| one | last | BLEU |" in table and "| two | last | TER |" in table
    text = page.read_text()
    assert "v w &lt;b&gt; y u" in text and "<b>" not in text and "<i>" not in text
    assert text.index("two is better than one") < text.index("two is worse than one")
    assert cli.main(command) == 0 and capsys.readouterr().out == table


def test_runs_inside_a_run_of_their_name_are_told_apart(tmp_path):
    outer = write(tmp_path / "one", FIRST)
    inner = [write(outer / "one", SECOND), write(outer / "three", SECOND)]
    found = differences.read([outer, *inner])
    assert list(found) == [".", "one", "three"]
    assert [run.translations for run in found.values()] == [FIRST, SECOND, SECOND]
    assert list(differences.read([outer, inner[1]])) == ["one", "three"]


def test_a_file_of_results_is_taken_as_its_run(runs, capsys):
    other = runs[0] / "results" / "validation_step5_average1.json"
    other.parent.mkdir()
    (runs[1] / "results.json").rename(other)
    found = differences.read([runs[0], other])
    assert [*found] == ["one", "results/validation_step5_average1.json"]
    assert [run.translations for run in found.values()] == [FIRST, SECOND]


# ---- mistakes ------------------------------------------------------------------------


def test_mistakes_are_told_in_one_line(runs, tmp_path, capsys):
    one, two = map(str, runs)
    assert error(capsys, "compare", one).startswith(
        "compare: expected RUN_A RUN_B [MORE ...]"
    )
    assert "expected each run once" in error(capsys, "compare", one, two, one + "/")
    other = write(tmp_path / "other", FIRST, ["a", "b <i>", "c", "e"])
    text = error(capsys, "compare", one, str(other))
    assert "the sources of line 4: 'd' and 'e'; leave one" in text
    french = write(tmp_path / "fr", FIRST, **{"data.target_language": "fr"})
    assert "data.target_language: de and fr" in error(
        capsys, "compare", one, str(french)
    )
    trees = write(tmp_path / "trees", FIRST, **{"data.measure": "f1"})
    assert "data.measure = bleu, got f1" in error(capsys, "compare", one, str(trees))
    assert "found no config.json" in error(capsys, "compare", one, str(tmp_path))
    stray = tmp_path / "stray.json"
    stray.write_text("{}")
    assert "a file elsewhere" in error(capsys, "compare", one, str(stray))
    (runs[1] / "results.json").write_text('{"last": {}}')
    assert "which transformer evaluate writes" in error(capsys, "compare", one, two)
    assert "--seed" in error(capsys, "compare", one, two, "--seed=0")
    text = error(capsys, "compare", one, two, "--output=x.txt")
    assert "ends in .html" in text
