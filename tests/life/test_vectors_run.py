"""A run whose encoder reads vectors: trained, resumed, evaluated, translated with."""

import dataclasses
import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.calls import error
from support.runs import (
    compilations,
    compiling_once,
    metrics_of,
    state_of,
    tiny,
)

from transformer import parallel, train
from transformer.cli import main as cli
from transformer.config import Config, UserError
from transformer.evaluate import evaluate
from transformer.stream import score_stream, translate_stream
from transformer.tools import strips
from transformer.translate import load

STEPS = 8
SPLITS = {
    "train": strips.Made(60, 96, digits=2, least=1),
    "validation": strips.Made(40, 6, digits=2, least=1),
    "test": strips.Made(40, 5, digits=2, least=1),
}


@pytest.fixture(scope="module", autouse=True)
def compiled_once(tmp_path_factory):
    with compiling_once(tmp_path_factory.mktemp("xla")) as patch:
        patch.setattr(parallel, "start", lambda device: f"devices: {device}")
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "digits"
    strips.write(folder, SPLITS)
    return folder


@pytest.fixture(scope="module")
def settings(data) -> Config:
    return tiny(
        **{
            "data.source": "vectors",
            "data.dir": str(data),
            "data.name": "",
            "data.max_length": 28,
            "tokenizer.kind": "whitespace",
            "tokenizer.vocab_size": 0,
            "tokenizer.joint": False,
            "model.tying": "two",
            "model.window": 2,
            "model.attention_dropout": 0.0,
            "model.relu_dropout": 0.0,
            "batch.tokens": 256,
            "batch.shapes": 2,
            "batch.multiple": 4,
            "batch.length_multiple": 4,
            "train.steps": STEPS,
            "train.log_every": 1,
            "train.evaluate_every": 0,
            "train.checkpoint_every": 4,
            "train.checkpoint_minutes": 0.0,
            "train.keep": 2,
            "decode.beam": 2,
            "decode.average": 1,
            "decode.extra_tokens": 1,
        }
    )


@pytest.fixture(scope="module")
def run(settings, tmp_path_factory) -> tuple[Path, list[str], list[str]]:
    """A trained run, what it said, and what was compiled for it."""
    workdir = tmp_path_factory.mktemp("run")
    lines: list[str] = []
    with compilations() as logged:
        assert train.train(settings, workdir, lines.append)
    return workdir, lines, logged


def test_a_program_is_compiled_for_each_shape_as_for_tokens(run):
    _, lines, logged = run
    (said,) = (line for line in lines if line.startswith("batches: "))
    compiled = [line for line in logged if "Compiling jit(train_step)" in line]
    assert " in 2 shapes" in said
    assert len(compiled) == 2, [x[:200] for x in compiled]


def test_it_learns_and_counts_frames(run):
    workdir, *_ = run
    steps = [line for line in metrics_of(workdir) if "loss" in line]
    assert steps[-1]["loss"] < steps[0]["loss"]
    rows = 96 / steps[0]["source_tokens"]
    assert 0 < rows < 96 and all(8 <= x["source_tokens"] <= 256 for x in steps)


@pytest.mark.thorough
def test_resumed_it_ends_bit_for_bit_as_unbroken(run, settings, tmp_path):
    shutil.copytree(run[0] / "corpus", tmp_path / "corpus")
    shorter = dataclasses.replace(settings.train, steps=4)
    train.train(dataclasses.replace(settings, train=shorter), tmp_path, lambda _: None)
    train.train(settings, tmp_path, lambda _: None)
    for expected, found in zip(
        state_of(settings, run[0])[2].items(),
        state_of(settings, tmp_path)[2].items(),
        strict=True,
    ):
        assert expected[0] == found[0]
        np.testing.assert_array_equal(expected[1], found[1], expected[0])


def test_an_evaluation_needs_the_arrays_no_more(run, settings, data, tmp_path):
    workdir, moved = run[0], data.with_name("moved")
    before = json.loads((workdir / "results.json").read_text())
    data.rename(moved)
    try:
        after = json.loads(evaluate(workdir, log=lambda _: None).read_text())
    finally:
        moved.rename(data)
    assert after["sentences"] == before["sentences"]
    assert before["sentences"][0]["source"] == str(data / "test" / "00000.npy")


def test_translations_that_are_shown_need_the_arrays_no_more(
    run, settings, data, tmp_path
):
    workdir, moved = tmp_path / "run", data.with_name("moved")
    shutil.copytree(run[0], workdir)
    longer = dataclasses.replace(
        settings.train, steps=STEPS + 2, show=1, evaluate_every=1
    )
    said: list[str] = []
    data.rename(moved)
    try:
        c = dataclasses.replace(settings, train=longer)
        assert train.train(c, workdir, said.append)
    finally:
        moved.rename(data)
    shown = [line for line in said if line.startswith("  source ")]
    assert len(shown) == 2 and ".npy" in shown[0]


def test_outputs_are_as_long_as_inputs_and_what_is_allowed_beyond(run):
    translator = load(run[0])
    for frames in (2, 5):
        arrays: Any = [np.zeros((frames, strips.SIZE), np.float32)] * 20
        # Of so many that are drawn at random, some do not end by themselves.
        found = translator.hypotheses(arrays, sample=True, temperature=1e6)
        assert max(len(one.ids) for (one,) in found) == frames + 1  # extra_tokens


def test_a_folder_a_file_and_a_list_of_paths_are_translated(
    run, data, tmp_path, capsys
):
    workdir, folder = run[0], data / "test"
    results = json.loads((workdir / "results.json").read_text())
    expected = [one["last"] for one in results["sentences"]]
    call = ["translate", f"--workdir={workdir}", f"--output={tmp_path / 'out'}"]

    def translated(path: Path) -> list[str]:
        assert cli.main([*call, f"--input={path}"]) == 0
        return (tmp_path / "out").read_text().splitlines()

    assert translated(folder) == expected
    assert translated(folder / "00003.npy") == expected[3:4]
    paths = "".join(f"{folder}/0000{i}.npy\n" for i in (4, 3, 2, 1, 0))
    (tmp_path / "paths.txt").write_text(paths)
    assert translated(tmp_path / "paths.txt") == expected[::-1]
    # Arrays themselves, in Python.
    translator = load(workdir)
    arrays = [np.load(path) for path in sorted(folder.iterdir())]
    assert translator.translate(arrays) == expected
    assert [x.shape[0] for x in translator.encode(arrays)] == [*map(len, arrays)]
    weights = translator.attention(str(folder / "00001.npy"))
    assert weights.encoder.shape[-1] == len(arrays[1])
    far = np.abs(np.subtract.outer(*[np.arange(len(arrays[1]))] * 2)) > 2
    assert not weights.encoder[..., far].any()  # restricted self-attention
    # Scores are those of the search.
    best = translator.hypotheses(arrays, beam=1, alpha=0.0)
    full = [i for i, (one,) in enumerate(best) if len(one.ids) < len(arrays[i])]
    lines = [best[i][0].text for i in full]
    found = translator.score([arrays[i] for i in full], lines)
    expected_scores = [best[i][0].log_probability for i in full]
    np.testing.assert_allclose(found, expected_scores, rtol=1e-3)


def test_features_of_other_vectors_are_not_taken_for_pieces(run, settings, tmp_path):
    folder = tmp_path / "narrow"
    for split in SPLITS:  # six features, and the same words
        shutil.copytree(f"{settings.data.dir}/{split}", folder / split)
        shutil.copy(f"{settings.data.dir}/{split}.txt", folder)
        for path in (folder / split).glob("*.npy"):
            np.save(path, np.load(path)[:, :6])
    narrow = dataclasses.replace(
        settings, data=dataclasses.replace(settings.data, dir=str(folder))
    )
    said = "init_from: expected vectors with as many features as"
    (tmp_path / "new").mkdir()
    with pytest.raises(UserError, match=said):
        train.train(narrow, tmp_path / "new", lambda _: None, init_from=str(run[0]))


def test_what_is_no_array_is_refused_in_a_line(run, data, tmp_path, capsys):
    workdir, call = run[0], ["translate", f"--workdir={run[0]}"]
    assert "expected .npy arrays, found none" in error(
        capsys, *call, f"--input={tmp_path}"
    )
    (tmp_path / "text").write_text("three hundred\n")
    np.save(tmp_path / "other.npy", np.ones((3, 9)))
    for name, expected in (
        ("text", "error: three hundred: expected a .npy array of numbers"),
        ("other.npy", "other.npy: expected 8 features per frame"),
    ):
        assert cli.main([*call, f"--input={tmp_path / name}"]) == 2
        captured = capsys.readouterr()  # beside which device, and what fits
        assert expected in captured.err.splitlines()[-1] and not captured.out
    with pytest.raises(UserError, match="--alignments: expected a run whose sources"):
        translate_stream(workdir, [], io.StringIO(), alignments=True)
    with pytest.raises(UserError, match="one: expected a .npy array of numbers"):
        score_stream(workdir, ["one"], ["one"], io.StringIO())
    with pytest.raises(UserError, match="expected a .npy array of numbers"):
        flat: list[Any] = [np.ones(3)]
        load(workdir).translate(flat)
