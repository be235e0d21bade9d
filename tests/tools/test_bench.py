"""The bench: that it measures the work it names; never how fast it is."""

import re
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict
from support.configs import experiment
from support.runs import compilations

from transformer import config, fitting
from transformer.config import UserError
from transformer.ids import EOS, PAD
from transformer.nn.hardware import Hardware
from transformer.parallel import memory as device_memory
from transformer.run.signals import Terminated
from transformer.tools import datasheets, traces
from transformer.tools.bench import clock, loop, memory, peaks, startup, table
from transformer.tools.bench.made_up import ragged_sentences
from transformer.tools.bench.profile import costliest
from transformer.tools.bench.table import bench


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
    ids = ragged_sentences(50, 9, 100)
    lengths = (ids != PAD).sum(1)
    assert lengths.max() == 9 and lengths.min() >= 5 and len(set(lengths)) > 2
    assert ((ids == EOS).sum(1) == 1).all()
    assert (ids[np.arange(50), lengths - 1] == EOS).all()


def test_numbers_have_no_powers_of_ten_where_they_are_rounded_up():
    numbers = (9999.4, 9999.7, -9999.7, 12345.6, 0.012345)
    written = ["9,999", "10,000", "-10,000", "12,346", "0.01235"]
    assert [table._text(x) for x in numbers] == written


def test_training_is_counted_and_written_down(tiny):
    logged: list[str] = []
    rows = bench(tiny, [], "train", tokens=64, length=8, rounds=2, log=logged.append)
    assert rows["batch"] == "8 x 8"
    assert (
        rows["operations per step, traced"] == rows["operations per step, by formula"]
    )
    real = (ragged_sentences(8, 8, 50) != PAD).sum()
    seconds = rows["step, s (median)"]
    assert rows["real target tokens/s"] == pytest.approx(real / seconds)
    assert rows["padded target tokens/s"] == pytest.approx(64 / seconds)
    assert rows["step, s (least)"] <= seconds <= rows["step, s (most)"]
    assert len(logged) == len(rows)
    assert rows["steps between two waits"] == 1  # on a CPU


@pytest.mark.parametrize(
    "what, there, expected",
    [
        ("train", 50_000, "model: expected parameters, moments and gradients that fit"),
        (
            "train",
            300_000,
            "batch.tokens: expected a step that fits into the 0.000",
        ),
        ("beam", 10_000, "beam: expected hypotheses that fit into the 1e-05 GB"),
    ],
)
def test_what_cannot_fit_into_memory_is_not_tried(
    tiny, monkeypatch, what, there, expected
):
    monkeypatch.setattr(device_memory, "here", lambda: there)
    monkeypatch.setattr(fitting, "check_sizes", lambda settings: None)
    with pytest.raises(config.UserError, match=re.escape(expected)):
        bench(tiny, [], what, tokens=640, length=8, rounds=1, log=lambda line: None)


@pytest.mark.parametrize("what, beam", [("greedy", 1), ("beam", 4)])
def test_a_search_goes_to_the_limit_with_every_beam(tiny, what, beam):
    rows = bench(tiny, [], what, length=8, rounds=1, log=lambda line: None)
    sizes = rows["sentences"], rows["tokens per sentence"], rows["beam"]
    assert sizes == (
        8,
        8,
        beam,
    )
    assert rows["sentences/s"] == pytest.approx(8 / rows["batch, s (median)"])


def test_a_round_is_as_many_calls_as_fill_it_and_waits_once(monkeypatch):
    now: list[float] = [0.0]
    waits: list[float] = []
    monkeypatch.setattr(clock.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(clock.jax, "block_until_ready", waits.append)

    def work():
        now[0] += 0.125
        return now[0]

    assert clock._calls(work, 0.5) == 4  # tried 1, 2 and 4
    assert waits == [0.125, 0.375, 0.875]
    assert clock._calls(work, 0.0) == 1 and len(waits) == 3
    assert clock.times(2, work, 3) == [0.125, 0.125]
    assert waits[3:] == [1.25, 1.625]


def test_the_peak_is_that_of_all_products_of_a_program(monkeypatch):
    monkeypatch.setattr(clock, "times", lambda *_: [4.0, 2.0, 3.0])
    monkeypatch.setattr(clock, "_calls", lambda *_: 1)
    assert peaks.matrix_peak("float32", 8, 5) == 2 * 8**3 * 5 / 2.0


def test_the_datasheet_s_peak_stands_beside_the_measured_one(monkeypatch):
    class H200:
        device_kind = "NVIDIA H200"

    monkeypatch.setattr(peaks.jax, "devices", lambda: [H200])
    monkeypatch.setattr(peaks, "matrix_peak", lambda *_: 600e12)
    monkeypatch.setattr(peaks.hardware, "here", lambda: Hardware("cuda", (9, 0)))
    rows = peaks.peaks("bfloat16", 300e12)
    assert "operations/s of a 8192 matrix product" in rows
    assert rows["share of that"] == 0.5
    assert rows["share of the datasheet's"] == pytest.approx(300 / 989)
    assert "operations/s in the datasheet" not in peaks.peaks("float32", 1e12)


@pytest.mark.parametrize("units, operands", [(True, "bfloat16"), (False, "float32")])
def test_the_peak_has_the_operands_that_products_have(monkeypatch, units, operands):
    asked: list[str] = []

    def peak(dtype: str, size: int, count: int) -> float:
        asked.append(dtype)
        return 1.0

    monkeypatch.setattr(peaks, "matrix_peak", peak)
    here = Hardware("cuda", (9, 0), bfloat16=units)
    monkeypatch.setattr(peaks.hardware, "here", lambda: here)
    peaks.peaks("bfloat16", 1.0)
    assert asked == [operands]


def test_datasheets_are_found_by_every_name():
    assert set(datasheets.TARGETS.values()) <= set(datasheets.DATASHEETS)
    assert datasheets.find("h200") is datasheets.find("NVIDIA H200")
    assert datasheets.find("TPU v5e") is datasheets.find("v5e") is not None
    assert datasheets.find("cpu") is None
    for sheet in datasheets.DATASHEETS.values():  # in units: 10^12/s, GB/s, GB
        assert 5e12 < sheet.operations < 5e15
        assert 2e11 < sheet.bandwidth < 1e13 and 7e9 < sheet.memory < 3e11


def test_a_device_s_memory_is_told_where_the_device_tells(monkeypatch):
    class Device:
        def memory_stats(self):
            return {"peak_bytes_in_use": 3e9, "bytes_limit": 8e9, "num_allocs": 5}

    assert memory.device_memory() == {}  # a CPU
    monkeypatch.setattr(memory.jax, "devices", lambda: [Device()])
    assert list(memory.device_memory().values()) == [3000, 8000]


def test_the_loop_is_that_of_training_and_its_shares_add_up(monkeypatch, capfd):
    monkeypatch.setattr(loop, "_LOOP_ROUND", 0.05)
    values: ConfigDict = experiment("number_words")
    values.data.train_pairs = 2000
    values.batch.shapes = 1
    values.train.steps = 1  # the loop is measured for as long as it takes
    values.optimizer.update({"schedule": "epochs", "rate": 0.001, "scale": 1.0})
    values.optimizer.update({"decay": 0.1, "decay_after": 0.1, "decay_every": 0.1})
    values.optimizer.least_rate = 0.0009  # and beyond what would end a run
    values.model.update({"layers": 1, "d_model": 16, "d_ff": 32, "d_k": 8, "d_v": 8})
    rows = bench(config.resolve(values), [], "loop", rounds=2, log=lambda _: None)
    assert rows["steps"] >= 2 and rows["steps left out, of new shapes"] >= 1
    assert rows["step, s (least)"] * rows["steps"] > 2 * 0.05 / 2
    whole, bare = rows["step, s (most)"], rows["step without the loop, s"]
    busy = rows["share of the loop's time in such steps"]
    assert busy >= bare / whole
    waited = rows["share in which the loop waited for a batch"]
    idle = rows["share in which the device did, at most"]
    assert idle == max(0, min(waited, 1 - busy)) and 0 < waited < 1
    assert capfd.readouterr().out == ""


def test_a_loop_that_is_stopped_measures_nothing(monkeypatch, tiny):
    monkeypatch.setattr(loop, "train", lambda *_: None)  # as after SIGTERM
    with pytest.raises(Terminated):
        loop.measure_loop(tiny, 3)


def test_a_feed_leaves_out_new_shapes_and_the_first_round(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(clock.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(loop, "_LOOP_ROUND", 1.0)
    widths = [4, 4, 4, 6, 6, 4, 4, 6, 4, 4]

    def prefetch(plan, start, stop):
        for step, width in enumerate(widths):
            now[0] += 0.125  # to make a batch
            ids = np.full((3, width), step + 4, np.int32)
            ids[:, -1] = PAD  # is no token
            yield step, [{"source": ids, "target": ids}]

    monkeypatch.setattr(loop.batches, "prefetch", prefetch)
    feed: Any = loop._Feed(rounds=2)
    taken = []
    with pytest.raises(loop._Enough):
        for step, _ in feed(None, 0, 99):
            now[0] += 8.0 if step in (0, 3) else 0.375  # the new ones are compiled
            taken.append(step)
    # 0 and 3 are new, 1 and 2 warm up; half a second each, two turns are a round.
    assert taken == [0, 1, 2, 3, 4, 5, 6, 7]
    assert feed.first == 8.125 and feed.left_out == 2 and len(feed.shapes) == 2
    assert [[t.tokens for t in turns] for turns in feed.rounds] == [[15, 9], [9, 15]]
    assert {(t.waited, t.seconds) for turns in feed.rounds for t in turns} == {
        (0.125, 0.5)
    }


def test_a_start_is_a_process_of_its_own_that_stops_after_a_step(monkeypatch):
    commands = []

    def start(command):
        commands.append(command)
        return 2.0 + len(commands)

    monkeypatch.setattr(startup, "_until_first_step", start)
    seconds = startup.measure_startup(["--config=x.py", "--config.seed=3"], rounds=3)
    # The first start prepares the data and fills the cache; it does not count.
    assert seconds["start to first step, s (median)"] == 5.0
    workdirs = [re.findall(r"--workdir=(\S+)", " ".join(c)) for c in commands]
    assert len({tuple(found) for found in workdirs}) == 4
    assert all("--config.seed=3" in command for command in commands)


def test_what_training_refuses_is_no_failure_of_the_benchmark():
    def ended(code):
        return [sys.executable, "-c", f"import sys; sys.exit({code})"]

    with pytest.raises(UserError, match="expected a configuration that trains"):
        startup._until_first_step(ended(2))
    with pytest.raises(RuntimeError, match="no step was made, exit code 3"):
        startup._until_first_step(ended(3))


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
    assert costliest(events, program) == [
        (5.5, 2, "dot.1  jit(step)/layers/dot"),
        (1.0, 1, "add.3"),
    ]
    assert len(costliest(events, program, count=1)) == 1


@pytest.mark.thorough
def test_a_profile_is_written_and_its_costs_are_printed(tiny, tmp_path):
    logged: list[str] = []
    rows = bench(
        tiny, [], "greedy", length=8, rounds=1, profile=tmp_path, log=logged.append
    )
    assert any(tmp_path.rglob("perfetto_trace.json.gz"))
    printed = logged[len(rows) :]
    assert 1 <= len(printed) <= 10 and all(" ms " in line for line in printed)
    assert any("Transformer.step" in line for line in printed)


def test_a_cached_program_is_compiled_anew(own_cache):
    def hits(compile_: Callable[[jax.stages.Traced], Any]) -> int:
        # Another function: what jax keeps of the same one needs no cache.
        traced = jax.jit(lambda x: jnp.sin(x) * 2.5).trace(jnp.ones(3))
        with compilations() as logged:
            compile_(traced)
        return sum("cache hit" in line for line in logged)

    def usually(traced: jax.stages.Traced) -> Any:
        return traced.lower().compile()

    assert hits(usually) == 0
    assert hits(usually) == 1
    # Twice: with the option alone jax would give its program an entry of its own.
    assert [hits(traces.compile_anew) for _ in range(2)] == [0, 0]
    assert hits(usually) == 1


def test_memory_is_compiled_in_the_ways_that_a_model_has(monkeypatch):
    def compiled(case):
        return case.settings.parallel

    monkeypatch.setattr(memory.traces, "train_step", compiled)
    monkeypatch.setattr(memory.traces, "compile_anew", lambda spread: spread)
    monkeypatch.setattr(memory, "temporaries", lambda spread: 1.0)
    values = experiment("number_words", "cgru")
    rows = memory.measure_memory(config.resolve(values.to_dict()), 64, 8)
    assert [x for x in rows if "temporaries" in x] == [
        "remat=none, layers=unrolled: temporaries, MB"
    ]
    values = experiment("number_words")
    forms = {
        optimizer: "layers=scanned" in str(measured(values, optimizer))
        for optimizer in ("adam", "lamb")
    }
    assert forms == {"adam": True, "lamb": False}  # lamb treats each array as a whole


def measured(values: ConfigDict, optimizer: str) -> dict[str, float]:
    values.optimizer.name = optimizer
    return memory.measure_memory(config.resolve(values.to_dict()), 64, 8)


@pytest.mark.thorough
def test_input_is_measured_on_the_run_s_own_batches():
    values: ConfigDict = experiment("number_words")
    values.data.train_pairs = 2000
    values.model.update({"layers": 1, "d_model": 16, "d_ff": 32, "d_k": 8, "d_v": 8})
    rows = bench(config.resolve(values), [], "input", rounds=1, log=lambda _: None)
    assert rows["batches"] == 200 and rows["batches/s"] > 0
    ready = rows["batches/s"] / rows["steps/s"]
    assert rows["batches ready when a step ends"] == pytest.approx(ready)
    assert 0 < rows["shapes, a compiled program each"] <= values.batch.shapes


@pytest.mark.parametrize(
    "what, tokens, length, most",
    [
        ("train", 63, 8, 7),
        ("memory", 64, 9, 8),
        ("greedy", 8, 9, 8),
        ("beam", 0, 65, 64),
    ],
)
def test_sentences_without_room_for_them_are_an_error(tiny, what, tokens, length, most):
    with pytest.raises(config.UserError, match=f"--length: .*{most}, got {length};"):
        bench(tiny, [], what, tokens=tokens or None, length=length)
