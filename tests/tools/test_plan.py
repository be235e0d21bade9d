"""What a machine that is not here would do: by hand, and as its compiler says.

Tests that compile for a TPU need libtpu (the extra ``tpu``) and no TPU.
"""

import dataclasses
import json
import subprocess
import sys
from typing import Any

import jax
import pytest
from support.configs import base, experiment
from support.paths import EXPERIMENTS

from transformer import config, parallel
from transformer.cli import main as cli
from transformer.config import Config, UserError
from transformer.data.batches import Batches
from transformer.nn.hardware import Hardware
from transformer.parallel import sizes
from transformer.prepare import prepare
from transformer.tools import flops, targets, traces
from transformer.tools.plan import table, tpu
from transformer.tools.plan.table import plan
from transformer.tools.plan.tpu import Counts, Program
from transformer.tools.plan.work import TRACES, Work, work_of
from transformer.tools.traces import Case

needs_libtpu = pytest.mark.skipif(
    not targets.has_compiler(), reason="libtpu is not here: pip install -e '.[tpu]'"
)
V5E = targets.CHIPS["v5e"]
NUMBERS = f"--config={EXPERIMENTS / 'number_words.py'}"


def numbers(**changes: Any) -> Config:
    settings = config.resolve(experiment("number_words"))
    parts: dict[str, Any] = {}
    for key, value in changes.items():
        group, name = key.split("__")
        kept = parts.get(group, getattr(settings, group))
        parts[group] = dataclasses.replace(kept, **{name: value})
    return dataclasses.replace(settings, **parts)


def silent(line: str) -> None:
    pass


# ---- on paper ------------------------------------------------------------------------


def test_a_step_takes_the_longer_of_its_products_and_its_memory():
    # A v5e multiplies 197e12 per second and moves 819e9 bytes.
    assert tpu.bound(V5E, 9.47e12, 160e9) == (160e9 / 819e9, "memory")
    assert tpu.bound(V5E, 9.47e12, 30e9) == (9.47e12 / 197e12, "operations")


def fake_program(shape, operations: float, moved: float) -> Program:
    counts = Counts(int(operations), int(moved), sent=0)
    return Program("train", shape, 50.0, 1, 2, 3, 4, 2 * moved, counts)


def test_the_bound_of_a_run_is_the_mean_over_its_shapes(monkeypatch):
    short, long = (96, 8, 8), (24, 32, 32)
    costs = {short: (197e12, 1e9), long: (197e12, 3 * 819e9)}  # 1 s and 3 s
    work = Work((30, 30), {short: 0.75, long: 0.25}, 32, 2, "of the data")
    monkeypatch.setattr(table, "work_of", lambda *given: work)
    monkeypatch.setattr(targets, "devices", lambda name: jax.devices()[:1])
    monkeypatch.setitem(TRACES, "train", lambda *given: None)
    monkeypatch.setattr(
        tpu, "compiled", lambda kind, shape, _: fake_program(shape, *costs[shape])
    )
    c = numbers(train__steps=7200)
    rows = plan(c, "v5e-1", "train", every=True, log=silent)
    assert rows["a step takes at least, s (a bound, not measured)"] == 0.75 + 0.25 * 3
    assert rows["7,200 steps take at least, h (a bound, not measured)"] == 2 * 1.5
    assert rows["compilation of 2 train steps one by one here, s"] == 2 * 50
    assert [p["memory"] for p in rows["programs"]] == [1 + 2 + 3 + 4] * 2
    # Both sides have 768 padded tokens: the largest batch has the most rows.
    rows = plan(c, "v5e-1", "train", log=silent)
    assert rows["largest batch, rows x source x target"][:10] == "96 x 8 x 8"
    assert rows["the largest step takes at least, s (a bound, not measured)"] == 1
    assert "7,200 steps take at least, h (a bound, not measured)" not in rows
    assert rows["compilation of 2 train steps one by one here, s"] == 2 * 50


def test_the_work_is_that_of_the_data_where_they_are_known(tmp_path):
    c = numbers(data__train_pairs=2000, batch__lengths=2, batch__tokens=2048)
    prepared = prepare(c, tmp_path)
    batches = Batches(prepared.corpora["train"], c.batch, c.seed)
    expected = {(2 * rows, s, t) for rows, s, t in batches.shapes}
    generated = work_of(c, None, silent)
    assert generated.origin == "of the data"
    assert set(generated.shapes) == expected
    assert sum(generated.shapes.values()) == pytest.approx(1)
    assert generated.programs == len(expected)
    assert generated.longest == max(max(s, t) for _, s, t in expected)
    assert generated.sizes == (prepared.vocabulary.source.size,) * 2
    found = dataclasses.replace(c.data, prepared=str(tmp_path / "corpus"))
    assert work_of(dataclasses.replace(c, data=found), None, silent) == generated


def test_the_work_is_assumed_where_the_data_are_not_known():
    assumed = work_of(base(), None, silent)
    assert assumed.shapes == {(776, 32, 32): 1} and assumed.sizes == (37_000, 37_000)
    assert assumed.programs == 12  # batch.shapes
    assert assumed.origin == "assumed: the data are not prepared"
    given = work_of(base(), 100, silent)
    assert (given.shapes, given.origin) == ({(248, 100, 100): 1}, "given")
    unknown = base(**{"tokenizer.vocab_size": 0})
    with pytest.raises(UserError, match="expected model.vocab_size"):
        work_of(unknown, None, silent)


def error(capsys, *arguments: str) -> str:
    assert cli.main(["plan", *arguments]) == 2
    text = capsys.readouterr().err.splitlines()[-1]
    assert text.startswith("transformer: error: ")
    return text


def test_mistakes_are_told_in_one_line(capsys, monkeypatch):
    assert "one of v3-8, v4-8, " in error(capsys, NUMBERS, "--target=v9-1")
    text = error(capsys, NUMBERS, "--target=cuda", "--length=9", "--tokens=64")
    assert "expected room for batch.multiple = 8 rows in --tokens = 64" in text
    monkeypatch.setattr(targets, "has_compiler", lambda: False)
    monkeypatch.setattr(parallel, "start", lambda device: "devices")
    text = error(capsys, NUMBERS, "--target=v5e-1", "--length=32")
    assert "expected libtpu" in text and text.endswith('pip install -e ".[tpu]"')


def test_for_cuda_programs_are_lowered_and_the_rest_is_left_open():
    rows = plan(numbers(), "cuda", "evaluate", length=32, log=silent)
    assert rows["older"].startswith("float32 x float32 -> float32")
    assert rows["older"].endswith("evaluate lowered")
    newer = rows["compute capability 8.0 or newer"]
    assert newer.startswith(
        "bfloat16 x bfloat16 -> float32; attention one kernel, cudnn"
    )
    assert "time" in rows["not known without the card"] and "fits" not in rows
    formula = flops.train_step(numbers().model, 64, 32, 32, 300)
    assert rows["largest step, 10^12 operations by formula"] == formula / 1e12


@pytest.mark.parametrize(
    "dropout, kinds, expected",
    [
        (0.0, ["train"], "one kernel, cudnn"),
        (0.1, ["train"], "unfused"),
        (0.1, ["evaluate"], "one kernel, cudnn"),
        (0.1, ["search"], "one kernel, cudnn in the encoder"),
        (0.1, ["train", "evaluate"], "train: unfused, evaluate: one kernel, cudnn"),
    ],
)
def test_attention_is_told_of_each_program(dropout, kinds, expected):
    c = numbers(model__attention_dropout=dropout)
    card = Hardware("cuda", (9, 0))
    assert traces.choices(c, card, (32, 32), kinds)["attention"] == expected


@pytest.mark.parametrize(
    "key, value, card, expected",
    [
        ("parallel__tensor", 2, Hardware("tpu"), "unfused"),  # heads are on two devices
        (
            *("model__window", 4, Hardware("cuda", (9, 0))),
            "one kernel, cudnn in the decoder and cross-attention",
        ),
        (
            *("model__positions", "alibi", Hardware("cuda", (9, 0))),
            "one kernel, cudnn in the cross-attention",
        ),
    ],
)
def test_attention_is_told_of_each_place(key, value, card, expected):
    c = numbers(**{key: value}, model__attention_dropout=0.0)
    assert traces.choices(c, card, (32, 32))["attention"] == expected


@pytest.mark.parametrize("kind", TRACES)
def test_programs_that_read_vectors_are_traced_for_vectors(kind):
    c = sizes.here(config.resolve(experiment("digits")), 60)
    case = Case(c, (8, 60), (16, 24, 12), jax.devices()[:1])
    read = [x for x in jax.tree.leaves(TRACES[kind](case).in_avals) if x.ndim == 3]
    assert (16, 24, 1 + 8) in [x.shape for x in read]
    assert read[0].dtype == "float32"
    with pytest.raises(UserError, match="expected sources of tokens, got data.source"):
        work_of(c, 9, silent)


# ---- as compiled for a TPU -----------------------------------------------------------


@needs_libtpu
@pytest.mark.parametrize("target, count", [("v5e-1", 1), ("v5e-4", 4)])
def test_the_train_step_of_number_words_on_a_tpu(target, count):
    shape = (64, 32, 32)
    c = sizes.follow(numbers(), Hardware("tpu"), int(V5E.memory), 300)
    traced = traces.train_step(Case(c, (300, 300), shape, targets.devices(target)))
    found = tpu.compiled("train", shape, traced)
    assert found.counts is not None
    formula = flops.train_step(c.model, *shape, 300)
    # The kernel's backward pass makes the scores again, Q K^T.
    it = config.transformer(c.model)
    again = 64 * 3 * 32 * 32 * it.layers * 2 * it.heads * it.d_k
    expected = (formula + again) / count
    assert found.counts.operations == pytest.approx(expected, rel=0.002)
    # The parameters, their gradients' mean over the devices, and two moments.
    parameters = 4 * 964_096
    assert found.arguments == pytest.approx(3 * parameters, rel=0.01)
    if count == 1:
        assert found.counts.sent == 0
    else:  # gradients are reduced for all, 2 (n - 1) / n of their bytes
        assert found.counts.sent == pytest.approx(2 * 3 / 4 * parameters, rel=0.01)
    # Every parameter and both moments are read and written.
    assert 6 * parameters < found.counts.moved < found.accessed
    assert found.memory < 0.02 * V5E.memory


@needs_libtpu
def test_the_command_says_what_does_not_fit(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(parallel, "start", lambda device: "devices")
    arguments = [NUMBERS, "--target=v5e-1", "--what=evaluate", "--length=32"]
    file = tmp_path / "plan.json"
    assert cli.main(["plan", *arguments, f"--output={file}"]) == 0
    out = capsys.readouterr().out
    rows = json.loads(file.read_bytes())
    assert rows["fits"].startswith("yes: ") and rows["fits"] in out
    (program,) = rows["programs"]
    assert program["shape"] == [
        2048,
        32,
        32,
    ]  # 65,536 padded tokens: the model is small
    assert f"| evaluate | 2048 x 32 x 32 | {program['compile_seconds']:.3g}" in out
    rows = {}
    assert cli.main(["plan", *arguments, "--config.decode.tokens=200000000"]) == 0
    out = capsys.readouterr().out
    assert "fits" in out and "no: evaluate, 6250000 x 32 x 32: RESOURCE_EXHA" in out
    assert "a step takes" not in out


@needs_libtpu
def test_two_plans_at_once_load_the_compiler_and_say_nothing():
    code = "from transformer.tools import targets; import jax, time; "
    code += "print(len(targets.devices('v5e-8')), jax.devices()); time.sleep(1)"
    command = [sys.executable, "-W", "error", "-c", code]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    both = [subprocess.Popen(command, **pipes) for _ in range(2)]
    for process in both:
        assert process.communicate() == ("8 [CpuDevice(id=0)]\n", "")


@needs_libtpu
@pytest.mark.slow
def test_base_fits_on_one_chip():
    """Three minutes; figures of the whole table in the documentation."""
    rows = plan(base(), "v5e-1", "train", log=silent)
    assert rows["fits"].startswith("yes: ")
    (program,) = rows["programs"]
    formula = rows["largest step, 10^12 operations by formula"]
    assert program["operations"] == pytest.approx(formula * 1e12, rel=0.01)
