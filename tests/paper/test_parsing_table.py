"""Table 4 as printed, beside parsers that were measured here: runs written by hand."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.configs import experiment
from support.paths import EXPERIMENTS, ROOT

from transformer import config
from transformer.cli import main as cli
from transformer.paper.rows import TABLE4
from transformer.run.folder import write_settings

TREE = "(TOP (S (XX a)))"
SIGNATURE = "COLLINS.prm|tags:gold|failed:left_out|lines:1200|errors:3|skips:0"


def write(folder: Path, variant: str, f1: float, seed: int = 0, **changes: Any) -> None:
    """Write the files of a parser that was evaluated."""
    values = experiment("parsing", variant).to_dict()
    values["seed"] = seed
    values["data"] |= {"dir": str(folder)} | changes.pop("data", {})
    settings = config.resolve(values)
    folder.mkdir(parents=True)
    write_settings(folder, settings)
    sums = {"lines": 4, "sha256": "f" * 64}
    record = {
        "vocabulary_digest": "0123456789abcdef",
        "data": {"train": {"a/train.trees": sums}},
    }
    (folder / "record.json").write_text(json.dumps(record | changes.pop("record", {})))
    scores = {"evalb": f1, "honest": f1 - 1, "complete": 20.0}
    last = {"f1": {k: {"value": v, "signature": SIGNATURE} for k, v in scores.items()}}
    results = {
        "split": "test",
        "beam": 4,
        "last": last,
        "sentences": [{"source": "a", "reference": TREE, "last": TREE}] * 1200,
    }
    (folder / "results.json").write_text(json.dumps(results | changes))


def rows_of(text: str) -> list[dict[str, str]]:
    """Return the rows of the last table of Markdown, by column."""
    table = text[text.rindex("### ") :]
    lines = [line for line in table.splitlines() if line.startswith("|")]
    cells = [[x.strip() for x in line.strip("|").split("|")] for line in lines]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


def report(capsys: Any, *arguments: str) -> str:
    assert cli.main(["report", *arguments]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def test_the_printed_rows_stand_above_the_measured_ones(tmp_path, capsys):
    write(tmp_path / "a", "craft", 80.0)
    write(tmp_path / "b" / "seed_0", "wsj", 91.0)
    write(tmp_path / "b" / "seed_1", "wsj", 92.0, seed=1)
    text = report(capsys, f"--parsing={tmp_path / 'a'},{tmp_path / 'b'}")
    rows = rows_of(text)
    printed = [(row["parser"], row["trained on"], row["F1 paper"]) for row in rows]
    assert printed[:12] == [(x.name, x.training, f"{x.f1:.1f}") for x in TABLE4]
    assert {row["F1 here"] for row in rows[:12]} == {""}
    assert {row["tested on"] for row in rows[:12]} == {"WSJ 23"}
    grammars, (craft, wsj) = rows[12:14], rows[14:]
    assert [row["F1 here"] for row in grammars] == ["70.15", "74.87"]
    assert craft["parser"] == "parsing_craft"
    assert craft["F1 paper"] == "" and craft["F1 here"] == "80.00"
    assert craft["failed as missed"] == "79.00" and craft["complete match"] == "20.00"
    assert craft["trained on"] == "train.clean"
    assert craft["tested on"] == "dev.clean, 1,200 trees"
    assert (wsj["F1 paper"], wsj["F1 here"]) == ("91.3", "91.50 ± 0.71")
    assert (wsj["seeds"], wsj["trained on"]) == ("2", "02-21")
    assert wsj["params, M"] == ""  # the corpus is gone
    assert (
        "Rules: COLLINS.prm\\|tags:gold. " in text
        and "not part of this project" in text
    )


def test_grammars_stand_beside_runs_on_their_trees_only(tmp_path, capsys):
    write(tmp_path / "a", "wsj_semi", 92.0)
    write(tmp_path / "b", "wsj_semi", 92.0)
    (tmp_path / "b" / "results.json").unlink()
    text = report(capsys, f"--parsing={tmp_path}")
    (ours,) = rows_of(text)[12:]
    assert ours["F1 paper"] == "92.7"
    assert "Treebank grammars" not in text
    assert f"Not finished, left out: {tmp_path / 'b'}" in text.replace("\\", "")


def test_the_paper_s_figure_stands_beside_its_own_test_set_only(tmp_path, capsys):
    for test in ("22", "23"):
        write(tmp_path / test, "wsj", 91.0, data={"test": test})
    found = rows_of(report(capsys, f"--parsing={tmp_path}"))[-2:]
    cells = [(row["tested on"].split(",")[0], row["F1 paper"]) for row in found]
    assert cells == [("22", ""), ("23", "91.3")]


@pytest.mark.parametrize(
    "changes, wanted",
    [
        ({"last": {"bleu": {}}}, "b/results.json: expected the key 'f1', which transf"),
        ({"record": {"vocabulary_digest": "9"}}, "differ in vocabulary: 01234567"),
        ({"sentences": [{"source": "a", "reference": "b", "last": "c"}]}, "1,200 and"),
    ],
)
def test_what_does_not_belong_is_refused(tmp_path, capsys, changes, wanted):
    write(tmp_path / "a", "craft", 80.0)
    write(tmp_path / "b", "craft", 81.0, seed=1, **changes)
    assert cli.main(["report", f"--parsing={tmp_path / 'a'},{tmp_path / 'b'}"]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert wanted in captured.err


def test_a_folder_without_runs_is_named_with_the_flag(tmp_path, capsys):
    assert cli.main(["report", f"--parsing={tmp_path}"]) == 2
    assert "--parsing: expected folders with runs, got" in capsys.readouterr().err


def test_small_files_of_parsers_make_the_same_line(tmp_path, capsys):
    write(tmp_path / "runs" / "a", "craft", 75.5)
    (tmp_path / "runs" / "a" / "metrics.jsonl").write_text("")
    small = tmp_path / "small"
    runs = report(capsys, f"--parsing={tmp_path / 'runs'}", f"--save={small}")
    assert report(capsys, f"--parsing={small}") == runs
    assert rows_of(runs)[-1]["tested on"] == "dev.clean, 1,200 trees"
    found = report(capsys, f"--parsing={EXPERIMENTS / 'results' / 'craft'}")
    docs = (ROOT / "docs" / "parsing.md").read_text()
    ours = [x for x in rows_of(found) if x["parser"].startswith("parsing_")]
    assert len(ours) == 2
    for row in ours:
        name = row["parser"].removeprefix("parsing_")
        line = rf"^\| `:{name}`, words alone, .* \| {row['F1 here']} \|$"
        assert re.search(line, docs, re.M), line
