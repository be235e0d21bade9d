"""Reports from small files are those from the runs, and hold no line of the data."""

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.configs import experiment
from support.paths import EXPERIMENTS, ROOT

from transformer import config
from transformer.cli import main as cli
from transformer.files import sealed
from transformer.metrics import errors
from transformer.paper import kept, runs
from transformer.paper.report import marks
from transformer.paper.report.study import Study
from transformer.paper.statistics import holm
from transformer.run.folder import write_settings

DOCS = (ROOT / "docs" / "results.md").read_text()
REFERENCES = [f"h a l {i} o" for i in range(50)]


def outputs(wrong: int, seed: int) -> list[str]:
    """Return the references with the first symbol of so many lines changed."""
    changed = {(7 * i + seed) % 50 for i in range(wrong)}
    return [
        line.replace("h", "x") if i in changed else line
        for i, line in enumerate(REFERENCES)
    ]


def write(folder: Path, row: str, seed: int, perplexity: float, wrong: int) -> None:
    """Write the files of a finished run on words to phonemes."""
    values = experiment("table3", f"{row},data=dut")
    values.update_from_flattened_dict({"seed": seed, "data.dir": "/some/where/dut"})
    settings = config.resolve(values)
    place = folder / row / f"seed_{seed}"
    place.mkdir(parents=True)
    write_settings(place, settings)
    record = {
        "vocabulary_digest": "0123456789abcdef",
        "data": {"test": {"/some/where/dut/test.phonemes": {"sha256": "f" * 64}}},
        "tokens": 1000,
        "devices": ["cpu: cpu"],
        "machine": {"operands": "float32", "cpu": {"model": "A CPU", "features": "a"}},
        "git_revision": "a" * 40,
    }
    (place / "record.json").write_text(json.dumps(record))
    steps = settings.train.steps
    line = {"step": steps, "loss": 1.0, "validation_perplexity": perplexity}
    (place / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    lines = outputs(wrong, seed)
    scores: dict[str, Any] = {
        variant: {"value": score.value, "signature": score.signature}
        for variant, score in errors.score_all(lines, REFERENCES, "").items()
    }
    measured = {"perplexity": perplexity, "nll": math.log(perplexity), "tokens": 250}
    results = {
        "split": "test",
        "step": steps,
        "averaged_steps": [steps],
        "beam": 5,
        "alpha": 0.6,
        "length_penalty": "gnmt",
        "extra_tokens": 50,
        "last": measured | {"errors": scores},
        "sentences": [
            {"source": "secret", "reference": a, "last": b}
            for a, b in zip(REFERENCES, lines, strict=True)
        ],
    }
    (place / "results.json").write_text(json.dumps(results))


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "runs"
    for seed in range(3):
        write(place, "base", seed, 1.20 + 0.001 * seed, 6 + seed)
        write(place, "A_h1", seed, 1.30 + 0.001 * seed, 30 + seed)
        write(place, "E_learned", seed, 1.19 + 0.001 * seed, 2 + seed)
    return place


def command(capsys: pytest.CaptureFixture, *arguments: str) -> str:
    assert cli.main(["report", *arguments]) == 0
    return capsys.readouterr().out


def table(text: str, title: str) -> dict[str, list[str]]:
    """Return the rows of a table in Markdown by their first cell."""
    part = text.split(title, 1)[1].split("\n#")[0]
    lines = [line for line in part.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: row[1:] for row in cells}


def test_a_report_from_small_files_is_that_of_the_runs(folder, tmp_path, capsys):
    small = tmp_path / "small"
    from_runs = command(capsys, f"--workdir={folder}", f"--save={small}")
    from_small = command(capsys, f"--results={small}")
    assert from_small.endswith(from_runs.split("\n", 1)[1])
    assert "Trained on cpu: A CPU by code" in from_small
    # Saved again, over what is there, from the small files themselves.
    before = {path: path.read_bytes() for path in small.rglob("*.json*")}
    kept.save(runs.find(small)[0], small)
    assert {path: path.read_bytes() for path in small.rglob("*.json*")} == before
    assert len(before) == 9 * 4


def test_small_files_hold_no_line_and_no_path(folder, tmp_path):
    small = tmp_path / "small"
    kept.save(runs.find(folder)[0], small)
    text = "".join(path.read_text() for path in small.rglob("*") if path.is_file())
    for part in ("/some/where", "secret", *REFERENCES):
        assert part not in text
    assert {run.settings.data.dir for run in runs.find(small)[0]} == {"dut"}


def test_how_outputs_were_searched_is_kept(folder, tmp_path):
    path = folder / "base" / "seed_0" / "results.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"constrained": False}))
    kept.save(runs.find(folder)[0], tmp_path / "small")
    found = (tmp_path / "small" / "base" / "seed_0" / "results.json").read_text()
    assert json.loads(found)["constrained"] is False


def test_a_file_is_no_folder_to_save_in(folder, tmp_path, capsys):
    place = tmp_path / "file"
    place.write_text("mine")
    assert cli.main(["report", f"--workdir={folder}", f"--save={place}"]) == 2
    found = capsys.readouterr()
    assert "expected a folder, got" in found.err and found.err.count("\n") == 1
    assert place.read_text() == "mine" and found.out == ""


@pytest.mark.parametrize("finished", [True, False])
def test_workdirs_are_not_replaced_by_small_files(folder, capsys, finished):
    if not finished:
        (folder / "A_h1" / "seed_0" / "results.json").unlink()
        (folder / "base" / "seed_2" / "results.json").unlink()
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert cli.main(["report", f"--workdir={folder}", f"--save={folder}"]) == 2
    found = capsys.readouterr()
    assert "is the workdir of a run" in found.err and found.err.count("\n") == 1
    assert {path: path.read_bytes() for path in before} == before


def test_what_a_kill_left_is_saved_again(folder, tmp_path, monkeypatch):
    finished, _ = runs.find(folder)
    write_json = sealed.write_json

    def killed(path: Path, value: Any) -> None:
        if path.name == "results.json":
            raise KeyboardInterrupt
        write_json(path, value)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(sealed, "write_json", killed)
        kept.save(finished, tmp_path / "small")
    places = kept.save(finished, tmp_path / "small")
    assert len(places) == len(finished) == len(runs.find(tmp_path / "small")[0])


@pytest.mark.parametrize("flag", ["systems", "results", "parsing"])
def test_a_comma_names_no_folder(folder, monkeypatch, capsys, flag):
    monkeypatch.chdir(folder)
    assert cli.main(["report", f"--{flag}=base,"]) == 2
    found = capsys.readouterr()
    assert f"--{flag}: expected folders" in found.err and found.out == ""


def test_a_changed_file_is_refused(folder, tmp_path, capsys):
    small = tmp_path / "small"
    kept.save(runs.find(folder)[0], small)
    path = small / "base" / "seed_1" / "results.json"
    path.write_text(path.read_text().replace('"value": 14.0', '"value": 4.0'))
    assert cli.main(["report", f"--results={small}"]) == 2
    assert "the file was changed" in capsys.readouterr().err


def test_error_rates_are_worse_when_higher(folder, capsys):
    text = command(capsys, f"--workdir={folder}")
    heads = table(text, "rows against base")["row"]
    one_head = table(text, "rows against base")["A_h1"]
    found = dict(zip(heads, one_head, strict=True))
    # 30, 31, 32 of 50 lines against 6, 7, 8: 48 points more.
    assert found["WER ours"].startswith("+48.00 (")
    assert found["WER verdict"] == "worse: confirmed"
    assert found["BLEU paper"] == "-0.9"
    learned = table(text, "rows against base")["E_learned"]
    assert dict(zip(heads, learned, strict=True))["WER ours"].startswith("-8.00 (")
    claims = table(text, "claims")
    assert claims["learned and sinusoidal positions are nearly the same"][1] == "WER"
    # What "nearly the same" allows: .4 of 25.8, of base's 14 %.
    study = Study(runs.find(folder)[0])
    assert study.margin("bleu") == pytest.approx(0.4 / 25.8 * 14, rel=1e-6)
    # The best two of three, base and learned positions, change their places of the
    # paper: 1 - 6 * 2 / (3 * 8).
    assert table(text, "rank correlation")["WER"][:2] == ["3", "+0.50"]
    # A difference of BLEU has no place among error rates.
    assert marks._place_paper(study, "A_h1", "bleu") is None
    assert marks._place_paper(study, "A_h1", "perplexity") is not None


def test_the_overview_opens_with_claims_of_all_data(folder, capsys):
    text = command(capsys, f"--results={folder}")
    opening = text.split("\n##")[1]
    assert "The paper's claims" in opening and "2 of 11 claims are decided" in opening
    lines = [x for x in opening.splitlines() if "one head is worse" in x]
    of_perplexity, of_errors = (
        [cell.strip() for cell in line.strip("|").split("|")] for line in lines
    )
    assert of_perplexity[1:6] == ["§ 6.2 (A)", "+7.5 %", "PPL", "dut", "3, 3"]
    assert of_perplexity[6].startswith("A_h1 - base: +8.3 % (+")
    # Worse by less BLEU in the paper, and by more errors here.
    assert of_errors[2] == "-0.90 BLEU"
    assert of_errors[6].startswith("A_h1 - base: +48.00 WER (+")
    assert [cells[7] for cells in (of_perplexity, of_errors)] == ["confirmed"] * 2


def test_the_same_lines_are_drawn_for_all_rows(folder):
    study = Study(runs.find(folder)[0])
    over = study.sentences("A_h1", "base")
    assert over.value == pytest.approx(48) and over.p < 0.01
    itself = study.sentences("base", "base")
    assert np.all(itself.resamples == 0)


def test_holm_corrects_by_rank():
    # Sorted .01 .02 .03 times 3, 2, 1; never less than the one before.
    assert holm([0.03, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])
    assert holm([0.9, 0.6]) == [1.0, 1.0] and holm([]) == []
    assert math.isnan(holm([math.nan, 0.01])[0])
    assert holm([math.nan, 0.01])[1] == pytest.approx(0.02)


def test_the_committed_results_make_the_table_that_opens_the_docs(capsys):
    names = ("dut", "dut_higher_rate", "eng_us", "eng_us_higher_rate", "numbers")
    folders = [str(EXPERIMENTS / "results" / name) for name in names]
    text = command(capsys, f"--results={','.join(folders)}")
    claims = text.split("### The paper's claims\n\n")[1].split("\n\n")[0]
    assert claims.count("\n") > 2 and claims in DOCS
    assert DOCS.index(claims) < DOCS.index("\n## ")


def test_two_folders_on_the_same_data_are_told_apart(capsys):
    names = ("dut", "dut_higher_rate", "numbers")
    folders = [str(EXPERIMENTS / "results" / name) for name in names]
    text = command(capsys, f"--results={','.join(folders)}")
    for name in names[:2]:
        claims = [x for x in text.splitlines() if f"| {name} |" in x]
        assert any("one head is worse than 8" in line for line in claims)
        titles = re.findall(rf"^#+ Table 3, .* scale 0.25 \({name}\)", text, re.M)
        assert len(titles) == 4
        assert f"a replica on dut at scale 0.25 ({name})" in text.splitlines()[0]
    assert "| numbers |" in text


def test_a_folder_that_does_not_say_its_data_stands_behind_them(
    folder, tmp_path, capsys
):
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    text = command(capsys, f"--results={folder},{other}")
    for name in ("runs", "other"):
        claims = [x for x in text.splitlines() if f"| dut ({name}) |" in x]
        assert any("one head is worse than 8" in line for line in claims)
    assert "| dut |" not in text


@pytest.mark.parametrize(
    "folder",
    sorted(set(re.findall(r"--systems=(experiments/results/multi30k\w*)", DOCS))),
)
def test_the_systems_that_the_docs_name_are_in_one_report(folder, capsys):
    variant = "13a" if "raw" in folder else "tokens_lowercase"
    text = command(capsys, f"--systems={ROOT / folder}", f"--variant={variant}")
    names = [x.parent.name for x in (ROOT / folder).glob("*/seed_0")]
    assert names and all(f"| {name} |" in text for name in names)
