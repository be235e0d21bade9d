"""The bench: that it measures the work it names; never how fast it is."""

import json
import re

import numpy as np
import pytest
from ml_collections import ConfigDict
from test_config import experiment

from transformer import bench, config
from transformer.data.tokenizers import EOS, PAD


@pytest.fixture
def tiny() -> config.Config:
    values: ConfigDict = experiment("base")
    values.model.update(
        {"layers": 1, "d_model": 16, "d_ff": 32, "heads": 2, "d_k": 8, "d_v": 8}
    )
    values.tokenizer.vocab_size = 50
    values.decode.tokens = 64
    return config.resolve(values)


def test_sentences_are_ragged_and_end_once():
    ids = bench.ragged_sentences(50, 9, 100)
    lengths = (ids != PAD).sum(1)
    assert lengths.max() == 9 and lengths.min() >= 5 and len(set(lengths)) > 2
    assert ((ids == EOS).sum(1) == 1).all()
    assert (ids[np.arange(50), lengths - 1] == EOS).all()


def test_training_is_counted_and_written_down(tiny, tmp_path):
    said: list[str] = []
    path = tmp_path / "bench.json"
    rows = bench.bench(
        tiny, [], "train", tokens=64, length=8, rounds=2, output=path, say=said.append
    )
    assert rows["batch"] == "8 x 8"
    assert rows["operations a step, traced"] == rows["operations a step, by formula"]
    real = (bench.ragged_sentences(8, 8, 50) != PAD).sum()
    seconds = rows["step, s (median)"]
    assert rows["real target tokens/s"] == pytest.approx(real / seconds)
    assert rows["target slots/s"] == pytest.approx(64 / seconds)
    assert rows["step, s (least)"] <= seconds <= rows["step, s (most)"]
    assert json.loads(path.read_text()) == rows
    assert len(said) == len(rows)


@pytest.mark.parametrize("what, beam", [("greedy", 1), ("beam", 4)])
def test_a_search_goes_to_the_limit_with_every_beam(tiny, what, beam):
    rows = bench.bench(tiny, [], what, length=8, rounds=1, say=lambda line: None)
    assert (rows["sentences"], rows["tokens a sentence"], rows["beam"]) == (8, 8, beam)
    assert rows["sentences/s"] == pytest.approx(8 / rows["batch, s (median)"])


def test_a_start_is_a_process_of_its_own_that_stops_after_a_step(monkeypatch):
    commands = []

    def start(command):
        commands.append(command)
        return 2.0 + len(commands)

    monkeypatch.setattr(bench, "_until_first_step", start)
    seconds = bench._startup(["--config=x.py", "--config.seed=3"], rounds=3)
    # The first start prepares the data and fills the cache; it does not count.
    assert seconds["start to first step, s (median)"] == 5.0
    workdirs = [re.findall(r"--workdir=(\S+)", " ".join(c)) for c in commands]
    assert len({tuple(found) for found in workdirs}) == 4
    assert all("--config.seed=3" in command for command in commands)


def test_the_costliest_operations_are_added_up_and_named():
    def event(name, microseconds, **changes):
        return {"ph": "X", "dur": microseconds, "args": {"hlo_op": name}} | changes

    events = [
        event("dot.1", 3000),
        event("while.2", 9000),
        event("add.3", 1000),
        event("dot.1", 2500),
        event("dot.1", 7, ph="B"),
        event("thread", 8000, args={}),
    ]
    program = """
      %dot.1 = f32[2]{0} dot(%a, %b), metadata={op_name="jit(step)/layers/dot"}
      %add.3 = f32[2]{0} add(%a, %b)"""
    assert bench.costliest(events, program) == [
        (5.5, 2, "dot.1  jit(step)/layers/dot"),
        (1.0, 1, "add.3"),
    ]
    assert len(bench.costliest(events, program, count=1)) == 1


def test_a_profile_is_written_and_its_costs_are_printed(tiny, tmp_path):
    said: list[str] = []
    rows = bench.bench(
        tiny, [], "greedy", length=8, rounds=1, profile=tmp_path, say=said.append
    )
    assert any(tmp_path.rglob("perfetto_trace.json.gz"))
    printed = said[len(rows) :]
    assert 1 <= len(printed) <= 10 and all(" ms " in line for line in printed)
    assert any("Transformer.step" in line for line in printed)


def test_input_is_measured_on_the_run_s_own_batches():
    values: ConfigDict = experiment("numbers")
    values.data.train_pairs = 2000
    values.model.update({"layers": 1, "d_model": 16, "d_ff": 32, "d_k": 8, "d_v": 8})
    rows = bench.bench(
        config.resolve(values), [], "input", rounds=1, say=lambda _: None
    )
    assert rows["batches"] == 200 and rows["batches/s"] > 0
    ready = rows["batches/s"] / rows["steps/s"]
    assert rows["batches ready when a step ends"] == pytest.approx(ready)
    assert 0 < rows["shapes, a program each"] <= values.batch.shapes


@pytest.mark.parametrize("what", ["input", "startup"])
def test_a_trace_of_what_no_device_does_is_an_error(tiny, what, tmp_path):
    with pytest.raises(config.UserError, match="--profile: expected --what=train"):
        bench.bench(tiny, [], what, profile=tmp_path)
