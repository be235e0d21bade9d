"""The second half of Table 2: systems on the same data, from runs written by hand."""

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import pytest
from support.calls import error
from support.configs import changed
from support.models import RNN
from support.paths import EXPERIMENTS, ROOT
from support.texts import text_config, write_texts

from transformer import config, models
from transformer.cli import main as cli
from transformer.config import Config
from transformer.data.corpus import Corpus
from transformer.prepare import prepare
from transformer.run.folder import write_settings
from transformer.tools import flops

RESULTS = EXPERIMENTS / "results"
SMALL = {"layers": 2, "d_model": 16, "d_ff": 32, "heads": 2, "d_k": 8, "d_v": 8}
RECORD = {
    "vocabulary_digest": "0123456789abcdef",
    "data": {"train": {"a/train.en": {"lines": 4, "sha256": "f" * 64}}},
    "tokens": 1000,
    "devices": ["cpu: cpu"],
}


def settings_of(name: str, seed: int = 0, member: str = "", **changes: Any) -> Config:
    values = changed({"name": name, "seed": seed} | changes)
    values["model"] |= SMALL | {"vocab_size": 0}
    if member:
        keys = {"kind": "rnn", "vocab_size": 0, "dropout": 0.1, "dtype": "float32"}
        values["model"] = keys | RNN | {"member": member}
    return config.resolve(values)


def write(folder: Path, settings: Config, bleu: float = 30.0, **changes: Any) -> Path:
    """Write the files of a run that was evaluated."""
    folder.mkdir(parents=True)
    write_settings(folder, settings)
    record = RECORD | changes.pop("record", {})
    (folder / "record.json").write_text(json.dumps(record))
    measured = {
        "perplexity": 5.0,
        "tokens": 400,
        "bleu": {
            "13a": {"value": bleu, "signature": "tok:13a"},
            "tokens": {"value": bleu + 1, "signature": "tok:none"},
        },
        "seconds_to_translate": 3.0,
    }
    results = {
        "split": "test",
        "beam": 4,
        "last": measured,
        "sentences": [{"source": "x", "reference": "y", "last": "z"}],
    }
    (folder / "results.json").write_text(json.dumps(results | changes))
    return folder


def report(capsys, *arguments: str) -> str:
    assert cli.main(["report", *arguments]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def lines_of(text: str) -> list[dict[str, str]]:
    """Return the rows of the first table of Markdown, by column."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[x.strip() for x in line.strip("|").split("|")] for line in lines]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


def test_systems_stand_side_by_side_with_what_they_cost(tmp_path, capsys):
    write_texts(tmp_path / "text")
    place = str(tmp_path / "corpus")
    prepared = prepare(text_config(tmp_path / "text", data_prepared=place), "")
    size = prepared.vocabulary.target.size
    data: dict[str, Any] = {"data.prepared": place}
    read = settings_of("at_once", **data)
    write(tmp_path / "a", read, 41.0, record={"tokens": 500})
    both = [settings_of("by_word", seed, "cgru", **data) for seed in (0, 1)]
    for settings, bleu in zip(both, (38.0, 39.0), strict=True):
        write(tmp_path / "b" / f"seed_{settings.seed}", settings, bleu)
    call = f"--systems={tmp_path / 'a'},{tmp_path / 'b'}"
    first, second = lines_of(report(capsys, call))
    assert (first["system"], first["model"]) == ("at_once", "transformer")
    assert (second["system"], second["model"]) == ("by_word", "rnn, cgru")
    assert first["seeds"] == "1" and second["seeds"] == "2"
    assert first["BLEU 13a"] == "41.00"
    assert second["BLEU 13a"] == "38.50 ± 0.71" and second["PPL"] == "5.000 ± 0.000"
    assert first["s per 1,000 target tokens"] == "7.5"  # 3 s for 400 tokens
    train, test = (Corpus(Path(place), split) for split in ("train", "test"))
    pairs = list(
        zip(train.source.lengths.tolist(), train.target.lengths.tolist(), strict=True)
    )
    written = sum(t for _, t in pairs)
    s, t = test.source.lengths.mean(), test.target.lengths.mean()
    for found, settings, seen in ((first, read, 500), (second, both[0], 1000)):
        total = sum(flops.forward(settings.model, a, b, size) for a, b in pairs)
        each = total / written
        assert found["operations per target token"] == f"{each:.2e}".replace("e+", "e")
        trained = f"{3 * each * seen:.2e}".replace("e+", "e")
        assert found["FLOPs of training"] == trained
        model = models.make(settings, size, size)
        count = sum(leaf.size for leaf in jax.tree.leaves(models.abstract(model)))
        assert found["params, M"] == f"{count / 1e6:.2f}"
    assert first["steps per sentence, trained"] == "4.0"
    assert first["steps per sentence, translated"] == f"{2 + 2 * t:.1f}"
    assert second["steps per sentence, trained"] == f"{s + 2 * t:.1f}"
    assert second["steps per sentence, translated"] == f"{s + 2 * t:.1f}"


def test_small_files_of_systems_make_the_same_table(tmp_path, capsys):
    write_texts(tmp_path / "text")
    place = str(tmp_path / "corpus")
    prepare(text_config(tmp_path / "text", data_prepared=place), "")
    sentences = [{"source": "secret", "reference": "y", "last": "z"}]
    for seed in (0, 1):
        settings = settings_of("by_word", seed, "cgru", **{"data.prepared": place})
        folder = tmp_path / "runs" / str(seed)
        write(folder, settings, 38.0 + seed, sentences=sentences)
        curve = {"step": 9, "loss": 1.0, "validation_perplexity": 5.5}
        (folder / "metrics.jsonl").write_text(json.dumps(curve) + "\n")
    small = tmp_path / "small"
    runs, chosen = f"--systems={tmp_path / 'runs'}", "--variant=tokens"
    first = report(capsys, runs, f"--save={small}")
    shutil.rmtree(place)  # what it cost is known without the corpus
    assert report(capsys, f"--systems={small}") == first
    assert lines_of(first)[0]["BLEU 13a"] == "38.50 ± 0.71"
    (line,) = lines_of(report(capsys, f"--systems={small}", chosen))
    assert line["BLEU tokens"] == "39.50 ± 0.71" and line["params, M"]
    files = [path for path in small.rglob("*") if path.is_file()]
    text = "".join(path.read_text() for path in files)
    assert "secret" not in text and str(tmp_path) not in text
    assert sorted({path.parent.relative_to(small) for path in files}) == [
        Path("by_word/seed_0"),
        Path("by_word/seed_1"),
    ]
    # Saved again from the small files; beside runs on other sentences they are refused.
    before = {path: path.read_bytes() for path in files}
    report(capsys, f"--systems={small}", f"--save={small}")
    assert {path: path.read_bytes() for path in files} == before
    # What is there by that name is not overwritten by another configuration.
    changed_member = settings_of("by_word", member="rnnsearch")
    member = write(tmp_path / "member", changed_member, sentences=sentences)
    wrong = ["report", f"--systems={member}", f"--save={small}"]
    assert "'cgru' -> 'rnnsearch'; give the run another" in error(capsys, *wrong)
    assert {path: path.read_bytes() for path in files} == before
    other = write(tmp_path / "other", settings_of("other", member="cgru"))
    wrong = ["report", f"--systems={small},{other}"]
    assert "differ in their sources; leave" in error(capsys, *wrong)
    beside = write(tmp_path / "twice", settings_of("by_word"), sentences=sentences)
    wrong = ["report", f"--systems={small},{beside}", f"--save={tmp_path / 'both'}"]
    assert "both by_word; save one of them" in error(capsys, *wrong)
    assert not (tmp_path / "both").exists()


def test_the_committed_results_make_the_table_of_the_docs(capsys):
    found = report(
        capsys, f"--systems={RESULTS / 'multi30k'}", "--variant=tokens_lowercase"
    )
    docs = (ROOT / "docs" / "results.md").read_text().splitlines()
    rows = [line for line in found.splitlines() if line.startswith("|")]
    assert len(rows) > 2 and set(rows) <= set(docs)


def test_what_is_not_known_or_not_run_is_not_invented(tmp_path, capsys):
    write(tmp_path / "a", settings_of("plain"))
    write(tmp_path / "b", settings_of("unfinished", member="encdec"))
    (tmp_path / "b" / "results.json").unlink()
    write(tmp_path / "c", settings_of("stopped"), step=7, trained=7)
    text = report(capsys, f"--systems={tmp_path}")
    (found,) = lines_of(text)
    assert found["system"] == "plain" and found["BLEU 13a"] == "30.00"
    for name in ("params, M", "operations per target token", "FLOPs of training"):
        assert found[name] == ""
    assert found["steps per sentence, trained"] == ""
    left_out = ", ".join(str(tmp_path / name) for name in "bc")
    assert (
        f"Not finished, left out: {left_out}." in text
        and "Trained on cpu: cpu." in text
    )


def test_averaged_checkpoints_and_the_chosen_variant_are_shown(tmp_path, capsys):
    bleu = {"tokens": {"value": 44.0, "signature": "tok:none"}}
    average = {"perplexity": 4.5, "tokens": 400, "bleu": bleu}
    average["seconds_to_translate"] = 1.0
    sentences = [{"source": "x", "reference": "y", "last": "z", "average": "w"}]
    write(tmp_path / "a", settings_of("a"), average=average, sentences=sentences)
    write(tmp_path / "b", settings_of("b"))
    text = report(capsys, f"--systems={tmp_path}", "--variant=tokens")
    first, second = lines_of(text)
    assert first["BLEU tokens"] == "44.00" and first["PPL"] == "4.500"
    assert second["BLEU tokens"] == "31.00" and second["PPL"] == "5.000"
    assert "(1 of 2 runs)" in text


def test_systems_that_write_trees_have_f1(tmp_path, capsys):
    scores = {
        "evalb": {"value": 81.5, "signature": "COLLINS.prm"},
        "honest": {"value": 80.5, "signature": "COLLINS.prm"},
    }
    last = {"perplexity": 1.2, "tokens": 400, "f1": scores, "seconds_to_translate": 1.0}
    keys: dict[str, Any] = {"data.measure": "f1"}
    for name in "ab":
        write(tmp_path / name, settings_of(name, **keys), last=last)
    text = report(capsys, f"--systems={tmp_path}")
    assert [row["F1 evalb"] for row in lines_of(text)] == ["81.50", "81.50"]
    assert "F1: COLLINS.prm." in text and "BLEU" not in text
    text = report(capsys, f"--systems={tmp_path}", "--variant=honest")
    assert lines_of(text)[0]["F1 honest"] == "80.50"
    wrong = ["report", f"--systems={tmp_path}", "--variant=tokens"]
    assert "one of evalb, honest, complete" in error(capsys, *wrong)


def test_two_systems_of_one_name_are_told_apart(tmp_path, capsys):
    write(tmp_path / "one", settings_of("same", member="cgru"))
    write(tmp_path / "two", settings_of("same", member="rnnsearch"))
    found = lines_of(report(capsys, f"--systems={tmp_path}"))
    assert [line["system"] for line in found] == ["same (one)", "same (two)"]


OTHER = {"sources": [("u", "y")], "references": [("x", "v")], "lines": [("x", "y")] * 2}


@pytest.mark.parametrize(
    "changes, keys, wanted",
    [
        ({}, {"data.train_pairs": 7}, "differ in train_pairs: 0 -> 7; leave one"),
        ({"record": {"vocabulary_digest": "9"}}, {}, "differ in vocabulary: 01234567"),
        ({"record": {"data": {}}}, {}, "differ in train train.en: ffffffffffff -> Non"),
        ({"sentences": "sources"}, {}, "in the sources of line 1: 'x' and 'u'; leave"),
        ({"sentences": "references"}, {}, "in the references of line 1: 'y' and 'v'"),
        ({"sentences": "lines"}, {}, "in their lines: 1 and 2; leave one of them out"),
        ({"last": {"perplexity": 2.0}}, {}, "b/results.json: expected the key 'bleu'"),
        (
            {"last": {"perplexity": 2.0}},
            {"name": "a", "seed": 1},
            "b/results.json: expected the key 'bleu'",
        ),
        ({}, {"name": "a"}, "one run of a system with seed 0, got a and b; leave one"),
    ],
)
def test_a_mixture_is_refused_by_name(
    tmp_path, capsys, monkeypatch, changes, keys, wanted
):
    monkeypatch.chdir(tmp_path)
    if "sentences" in changes:
        changes = changes | {
            "sentences": [
                {"source": s, "reference": r, "last": "z"}
                for s, r in OTHER[changes["sentences"]]
            ]
        }
    write(Path("a"), settings_of("a"))
    write(Path("b"), settings_of(**({"name": "b"} | keys)), **changes)
    assert cli.main(["report", "--systems=a,b"]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert wanted in captured.err


def test_the_same_text_may_have_been_compressed(tmp_path, capsys):
    text, packed = "f" * 64, {"lines": 4, "sha256": "0" * 64}
    data = {"train": {"z/train.en.gz": packed | {"text_sha256": text}}}
    write(tmp_path / "a", settings_of("a"))
    write(tmp_path / "b", settings_of("b"), record={"data": data})
    assert len(lines_of(report(capsys, f"--systems={tmp_path}"))) == 2
    data["train"]["z/train.en.gz"]["text_sha256"] = "e" * 64
    write(tmp_path / "c", settings_of("c"), record={"data": data})
    assert cli.main(["report", f"--systems={tmp_path}"]) == 2
    assert "differ in train train.en: ffffffffffff -> eee" in capsys.readouterr().err


def test_an_older_record_of_a_compressed_text_is_compared_by_what_it_has(
    tmp_path, capsys
):
    packed = {"lines": 4, "sha256": "0" * 64}
    newer = packed | {"text_sha256": "f" * 64}
    for name, sums in (("a", packed), ("b", newer)):
        record = {"data": {"train": {"z/train.en.gz": sums}}}
        write(tmp_path / name, settings_of(name), record=record)
    assert len(lines_of(report(capsys, f"--systems={tmp_path}"))) == 2
    record = {"data": {"train": {"z/train.en.gz": packed | {"sha256": "1" * 64}}}}
    write(tmp_path / "c", settings_of("c"), record=record)
    assert cli.main(["report", f"--systems={tmp_path}"]) == 2
    assert "differ in train train.en: 000000000000 -> 111" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, wanted",
    [
        (
            ["--systems=none"],
            "--systems: expected folders with runs, got none, which has none",
        ),
        (
            ["--systems=a"],
            "--systems: expected a finished run, found 1 without final results",
        ),
        (["--static", "--variant=13a"], "--variant: expected with --systems only; add"),
        (["--systems=a", "--variant=x"], "--variant: expected one of 13a,"),
    ],
)
def test_mistakes_are_one_line(tmp_path, capsys, monkeypatch, arguments, wanted):
    monkeypatch.chdir(tmp_path)
    write(Path("a"), settings_of("a"))
    Path("a/results.json").unlink()
    assert cli.main(["report", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert wanted in captured.err


def test_rows_that_are_kept_without_their_test_set_are_refused(capsys):
    row = RESULTS / "dut" / "C_N2"
    text = error(capsys, "report", f"--systems={row}", "--variant=wer")
    assert text.startswith(f"{row}/seed_0: expected results that name their test set")
    assert text.endswith("use --results for these")
