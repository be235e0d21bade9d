"""``transformer parseval``: files in, EVALB's table and JSON out."""

import gzip
import json

import pytest
from support.calls import error

from transformer.cli import main as cli
from transformer.metrics.evalb_table import table
from transformer.metrics.parseval import count_all

GOLD = ["(TOP (S (NP (DT a) (NN dog)) (. .)))", "(TOP (NP (NN cat)))"]
TEST = ["(TOP (S (XX a) (XX dog) (XX .)))", ""]


@pytest.fixture
def files(tmp_path):
    """Write both files, GOLD compressed, and return their names."""
    gold, test = tmp_path / "gold.gz", tmp_path / "test"
    gold.write_bytes(gzip.compress("".join(f"{x}\n" for x in GOLD).encode()))
    test.write_text("".join(f"{x}\n" for x in TEST))
    return [str(gold), str(test)]


def test_the_table_and_its_json(files, tmp_path, capsys):
    output = tmp_path / "found.json"
    assert cli.main(["parseval", *files, f"--output={output}"]) == 0
    assert capsys.readouterr().out == table(count_all(GOLD, TEST))
    found = json.loads(output.read_text())
    assert (found["rules"], found["tags"]) == ("COLLINS.prm", "gold")
    every = found["all"]
    assert (every["sentences"], every["skips"], every["recall"]) == (2, 1, 50)
    assert every["honest_recall"] == pytest.approx(100 / 3)
    assert found["len<=40"] == every
    assert [row["status"] for row in found["sentences"]] == ["valid", "skip"]


def test_a_line_for_each_sentence_and_tags_as_they_are(files, capsys):
    assert cli.main(["parseval", *files, "--sentences", "--tags=test"]) == 0
    text = capsys.readouterr().out
    assert text == table(count_all(GOLD, TEST, "test"), sentences=True)
    assert "\n   1    3    1    0.00   0.00     0      0    0" in text


def test_the_help_names_the_files(capsys):
    assert cli.main(["parseval", "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: transformer parseval GOLD TEST\n")
    assert "\n  GOLD\n      file of gold trees" in text


def test_mistakes_are_one_line(files, tmp_path, capsys):
    gold, test = files
    fewer, broken = tmp_path / "fewer", tmp_path / "broken"
    fewer.write_text(f"{TEST[0]}\n")
    broken.write_text(f"{GOLD[0]}\n(TOP (NP (NN cat))\n")
    for arguments, expected in [
        ([], "parseval: expected GOLD TEST, got none; see transformer parseval --help"),
        ([gold], f"expected GOLD TEST, got '{gold}'; see"),
        ([*files, "more"], "'more'; see transformer parseval --help"),
        ([gold, "none"], "none: expected a readable file, got: "),
        ([gold, str(fewer)], "expected as many gold as test trees, got 2 and 1; align"),
        ([str(broken), test], f"{broken}, line 2: expected a tree in brackets, got 1"),
        ([*files, f"--output={test}"], "--output: expected a file other than TEST,"),
        ([*files, "--tags=none"], "--tags: expected one of gold, test, got 'none'"),
        (["--gold=a", *files], "expected one of its flags, got --gold; see"),
    ]:
        assert expected in error(capsys, "parseval", *arguments)
    assert test.endswith("test") and (tmp_path / "test").read_text() == f"{TEST[0]}\n\n"
