"""What is measured on an accelerator, tried without one: the pieces, and what they say.

That the pieces run at all is tried by the slow test, in a tiny form.
"""

import dataclasses
import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.paths import BENCH

from transformer.nn import attention

sys.path.append(str(BENCH))

import on_accelerator
import on_device
from accelerator import comparisons
from accelerator.pieces import PIECES, Piece, section
from accelerator.place import Failed, Place, Skipped

# ---- on the device -------------------------------------------------------------------


@pytest.fixture
def few_cases(monkeypatch):
    cases = {
        "padded": (2, 6, 8, "padding", False),
        "causal": (2, 8, 8, "nothing", True),
        "empty rows": (2, 6, 8, "sentences", False),
    }
    monkeypatch.setattr(on_device, "CASES", cases)


def test_a_kernel_that_attends_rightly_passes(few_cases):
    found = on_device.compare_attention("xla")
    assert [case["passed"] for case in found.values()] == [True] * 3
    for case in found.values():
        assert 0 < max(case["fused"].values()) < 0.01  # bfloat16 was compared
        assert not case["taken"]  # on a CPU


@pytest.mark.parametrize(
    "lost, failing",
    [
        ({"keys": None}, ["padded", "empty rows"]),
        ({"causal": False}, ["causal"]),
    ],
)
def test_a_kernel_that_loses_its_mask_fails(few_cases, monkeypatch, lost, failing):
    whole = attention.fused_attention

    def careless(q, k, v, mask, **options):
        return whole(q, k, v, dataclasses.replace(mask, **lost), **options)

    monkeypatch.setattr(attention, "fused_attention", careless)
    found = on_device.compare_attention("xla")
    assert [name for name, case in found.items() if not case["passed"]] == failing
    for name in failing:
        assert max(found[name]["fused"].values()) > 0.1


def test_a_kernel_that_refuses_fails_only_where_it_would_be_taken(
    few_cases, monkeypatch
):
    def refuse(*args, **options):
        raise NotImplementedError("no such length\nand more")

    monkeypatch.setattr(attention, "fused_attention", refuse)
    case = on_device.compare_attention("cudnn")["padded"]
    assert case == {"taken": False, "refused": "no such length", "passed": True}
    monkeypatch.setattr(attention, "fused_kernel", lambda *args: "cudnn")
    assert not on_device.compare_attention("cudnn")["padded"]["passed"]


def test_masks_that_differ_from_the_cpu_s_are_told(monkeypatch):
    assert on_device.compare_dropout() is True
    real = on_device.dropout.make_key
    keys = iter([7, 8])
    monkeypatch.setattr(on_device.dropout, "make_key", lambda _: real(next(keys)))
    assert on_device.compare_dropout() is False


def test_two_runs_are_the_same_or_where_they_part_is_told(tmp_path, monkeypatch):
    states, metrics = {}, {}
    for name, weight, loss in (("a", 4.0, 0.5), ("b", 4.0, 0.5), ("c", 3.0, 0.25)):
        states[name] = {"step": np.array(2), "kernel": np.array([1.0, weight])}
        lines = [{"step": 1, "loss": 0.75}, {"step": 2, "loss": loss}]
        metrics[name] = [line | {"seconds": weight + 1} for line in lines]
    metrics["b"][1]["seconds"] = 99.0  # what the clock decides is no difference
    monkeypatch.setattr(on_device, "_last_state", lambda run: states[run.name])
    monkeypatch.setattr(on_device, "read_metrics", lambda run: metrics[run.name])
    same, other = (on_device.compare_runs(Path("a"), Path(x)) for x in "bc")
    assert same["same"] and same["arrays that differ"] == 0 and same["arrays"] == 2
    assert other == {
        "same": False,
        "arrays": 2,
        "arrays that differ": 1,
        "largest difference": 0.25,
        "first step that differs": 2,
    }


# ---- the pieces ----------------------------------------------------------------------


@pytest.fixture
def pieces(monkeypatch):
    """Three pieces that are told what to do, and the names of those that were run."""
    ran: list[str] = []
    results: dict[str, Any] = {"good": {"passed": True}}

    def piece(name: str):
        def run(place: Place) -> dict[str, Any]:
            """Do as told."""
            ran.append(name)
            if isinstance(results[name], Exception):
                raise results[name]
            return results[name]

        return run

    def lines(found):
        yield str(found)

    names = ("good", "absent", "broken")
    stubs = {name: Piece(1, piece(name), lines) for name in names}
    results |= {"absent": Skipped("no data"), "broken": Failed("exit code 1: x\nlast")}
    monkeypatch.setattr(on_accelerator, "PIECES", stubs)
    return results, ran


def test_what_is_measured_is_kept_and_the_rest_is_tried_again(pieces, tmp_path, capsys):
    results, ran = pieces
    command = [f"--folder={tmp_path}"]
    assert on_accelerator.main(command) == 1
    said = capsys.readouterr()
    assert "{'passed': True}" in said.out and "failed: broken" in said.err
    assert "absent: not measured, no data." in said.out
    assert "broken: **FAILED**, exit code 1: x\n" in said.out
    results |= {"absent": {}, "broken": {"passed": False}}
    assert on_accelerator.main(command) == 1  # measured, and found wanting
    assert on_accelerator.main([*command, "--report"]) == 1
    assert ran == ["good", "absent", "broken", "absent", "broken"]
    (tmp_path / "broken.json").unlink()
    results["broken"] = {}
    assert on_accelerator.main([*command, "--only=broken"]) == 0
    assert ran[5:] == ["broken"]
    capsys.readouterr()
    on_accelerator.main([*command, "--list"])
    assert capsys.readouterr().out.count("measured     Do as told.") == 3


def test_no_piece_starts_that_would_not_end_in_time(pieces, tmp_path):
    _, ran = pieces
    on_accelerator.main([f"--folder={tmp_path}", "--within=59"])
    assert ran == []
    on_accelerator.main([f"--folder={tmp_path}", "--within=61", "--only=good"])
    assert ran == ["good"]


def test_a_command_that_fails_or_never_ends_fails_its_piece(tmp_path):
    place = Place(tmp_path)
    with pytest.raises(Failed, match=r"exit code 3: -c .*\n.*\nlast words"):
        place.command("-c", "print('first\\nlast words'); raise SystemExit(3)")
    soon = dataclasses.replace(place, ends=time.monotonic() + 1)
    with pytest.raises(Failed, match="no end within"):
        soon.command("-c", "import time; time.sleep(60)")
    code = "print('so far', flush=True)\nwhile True: pass"
    with pytest.raises(Failed, match=r"no end at 'never' within \d s: (.*\n)+so far"):
        soon.stop(signal.SIGTERM, "never", "-c", code)


def test_a_run_is_stopped_at_its_mark(tmp_path):
    code = "for i in range(1000): print('step', i); import time; time.sleep(.1)"
    file = tmp_path / "after"
    code += f"\nopen({str(file)!r}, 'w')"
    Place(tmp_path).stop(signal.SIGKILL, "step 2", "-c", code)
    assert not file.exists()


@pytest.mark.parametrize("shift, passed", [(0.0009, True), (0.0011, False)])
def test_losses_are_compared_with_those_of_a_cpu(tmp_path, shift, passed):
    expected = json.loads(comparisons.LOSSES.read_text())
    for dtype in ("float32", "bfloat16"):
        values = expected[dtype]
        assert len(values) == comparisons.STEPS and values[0] > values[-1]
        run = tmp_path / "runs" / f"losses_{dtype}"
        run.mkdir(parents=True)
        values = [*values[:-1], values[-1] + shift * (dtype == "float32"), 99.0]
        lines = [json.dumps({"step": i, "loss": v}) for i, v in enumerate(values, 1)]
        (run / "metrics.jsonl").write_text("\n".join(lines))
    found = comparisons.losses(Place(tmp_path))
    assert found["passed"] is passed and found["bfloat16"]["difference"] == 0
    assert found["float32"]["difference"] == pytest.approx(shift)


def test_a_bench_is_read_where_it_has_been_written(tmp_path, monkeypatch):
    calls = []

    def run(place: Place, *arguments: str, **environment: str) -> str:
        calls.append(arguments)
        name = arguments[-1].removeprefix("--output=")
        Path(name).write_text(json.dumps({"number": len(calls)}))
        return ""

    monkeypatch.setattr(Place, "transformer", run)
    place = Place(tmp_path)
    assert [place.bench(name)["number"] for name in ("a", "b", "a")] == [1, 2, 1]


# ---- the section ---------------------------------------------------------------------


def test_the_section_says_what_was_measured():
    machine = {
        "devices": ["NVIDIA H200"],
        "driver": "580.1",
        "versions": {"jax": "0.10.2", "nvidia-cudnn-cu13": "9.15"},
        "flags": {"XLA_FLAGS": "--a=b"},
        "platform": "cuda 13000",
    }
    step = {
        "batch": "776 x 32",
        "step, s (median)": 0.036,
        "real target tokens/s": 500_000.0,
        "share of that": 0.5,
        "share of the datasheet's": 0.4,
        "peak memory of the device, MB": 20_000.0,
    }
    resumed = {"same": True}
    parted = {
        "same": False,
        "arrays": 9,
        "arrays that differ": 2,
        "largest difference": 1e-5,
        "first step that differs": 60,
    }
    found: dict[str, dict[str, Any]] = {
        "peaks": {
            "date": "2026-01-02",
            "host": "16 cores",
            "found": {
                "machine": machine,
                "size": 8192,
                "products": {"bfloat16": 800e12, "float32": 50e12},
                "bandwidth": 4.2e12,
                "datasheet": {"operations": 1000e12, "bandwidth": 4.8e12},
            },
        },
        "base-32": {"found": {"length": 32, "variants": {"configured": step}}},
        "resume": {"found": {"runs": {"no flags": parted, "flag": resumed}}},
        "multi30k": {"skipped": "no --data"},
    }
    text = section(PIECES, found)
    assert "2026-01-02 on 1 x NVIDIA H200 (16 cores): jax 0.10.2, cudnn-cu13 9" in text
    assert "driver 580.1; flags: XLA_FLAGS=--a=b." in text
    assert "bfloat16: 800.0 10^12/s, 80% of the datasheet's 1,000.0 10^12/s." in text
    # 100,000 steps of 36 ms are an hour.
    line = "| 776 x 32 | configured | 36.0 | 500,000 | 50% | 40% | 20.0 | 1.00 |"
    assert line in text
    assert "flag: the same bits as a run never stopped." in text
    assert "no flags: 2 of 9 arrays differ" in text and "from step 60 on." in text
    assert "multi30k: not measured, no --data." in text
    assert "search: not measured, not tried yet." in text


@pytest.mark.slow
def test_the_whole_in_a_tiny_form(tmp_path, capsys):
    """Takes three minutes on two cores."""
    assert on_accelerator.main([f"--folder={tmp_path}", "--tiny"]) == 0
    found = on_accelerator.read(tmp_path)
    assert set(found) == set(PIECES)
    skipped = {name for name, one in found.items() if "skipped" in one}
    skipped_here = {"attention", "multi30k", "loop-multi30k"}
    assert skipped == skipped_here | {"beside-training", "beside-search"}
    assert found["resume"]["found"]["runs"]["no flags"]["same"]  # as on any CPU
    text = capsys.readouterr().out
    assert text.count("| loss.block=16 |") == 1 and "**" not in text
