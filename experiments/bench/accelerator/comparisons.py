"""Pieces that compare with a CPU, written-out attention, or an uninterrupted run."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

from side_by_side import HERE

from accelerator.place import Place, Skipped
from accelerator.scale import flags_of

LOSSES = HERE / "losses_cpu.json"
STEPS = 20  # whose losses are compared
# Nats per token, between two devices. Rounding to bfloat16 alone moves these losses by
# up to 1.3e-3 on a CPU; accelerators also round the operands of attention.
ALLOWED = {"float32": 1e-3, "bfloat16": 4e-3}
DETERMINISTIC = "--xla_gpu_deterministic_ops=true"  # reductions, scatters, cuDNN


def fused(place: Place) -> dict[str, Any]:
    """Compare the fused attention and its gradients with unfused attention."""
    cases = place.inside("attention")
    if "skipped" in cases:
        raise Skipped(cases["skipped"])
    passed = all(case["passed"] for case in cases.values())
    return {"cases": cases, "passed": passed}


def dropout(place: Place) -> dict[str, Any]:
    """Compare the masks of dropout with the CPU's."""
    same = place.inside("dropout")
    return {"passed": same}


def losses(place: Place) -> dict[str, Any]:
    """Compare the first losses of number words with a CPU's, in both forms."""
    expected = json.loads(LOSSES.read_text())
    found: dict[str, Any] = {}
    for dtype, allowed in ALLOWED.items():
        made = first_losses(place, dtype)
        pairs = zip(made, expected[dtype], strict=True)
        most = max(abs(a - b) for a, b in pairs)
        found[dtype] = {"losses": made, "difference": most, "passed": most <= allowed}
    found["passed"] = all(found[dtype]["passed"] for dtype in ALLOWED)
    return found


def first_losses(place: Place, dtype: str, **environment: str) -> list[float]:
    """Train on number words for ``STEPS`` steps; return the loss of each."""
    workdir = place.workdir(f"losses_{dtype}")
    metrics = workdir / "metrics.jsonl"
    if not metrics.exists():
        place.stop(
            signal.SIGTERM,
            f"step {STEPS}/",
            *("-m", "transformer", "train", place.experiment("number_words.py")),
            f"--workdir={workdir}",
            *(place.corpus("losses"), f"--config.model.dtype={dtype}"),
            *flags_of(train__log_every=1, train__checkpoint_every=1000),
            "--config.train.evaluate_every=1000",
            **environment,
        )
    lines = map(json.loads, metrics.read_text().splitlines())
    return [line["loss"] for line in lines if "loss" in line][:STEPS]


def check(place: Place) -> dict[str, Any]:
    """Let ``transformer check`` look for leaks in base and in number words' model."""
    found = {}
    for name, flags in (
        ("base.py", place.scale.base),
        ("number_words.py", place.scale.numbers),
    ):
        found[name] = place.transformer("check", place.experiment(name), *flags)
    return {"said": found, "passed": True}  # else its exit code is 1


def resume(place: Place) -> dict[str, Any]:
    """Kill a run, resume it, and compare it with one that was not, in bits."""
    found = {"no flags": _resume(place, "default", {})}
    if place.platform() == "gpu":
        found[DETERMINISTIC] = _resume(place, "deterministic", deterministic())
    return {"runs": found}


def deterministic() -> dict[str, str]:
    """Return the environment in which XLA uses only deterministic kernels."""
    given = os.environ.get("XLA_FLAGS", "")
    return {"XLA_FLAGS": f"{given} {DETERMINISTIC}".strip()}


def _resume(place: Place, name: str, environment: dict[str, str]) -> dict[str, Any]:
    steps = place.scale.steps
    flags = (
        *(place.corpus("resume"), *place.scale.numbers),
        *flags_of(train__steps=steps, train__checkpoint_every=steps // 3),
        *flags_of(train__evaluate_every=steps // 3, train__log_every=steps // 6),
        *flags_of(decode__average=1, decode__beam=1),
    )
    command = ("train", place.experiment("number_words.py"), *flags)
    runs = [place.workdir(f"{how}_{name}") for how in ("unbroken", "killed")]
    unbroken, killed = (f"--workdir={run}" for run in runs)
    place.transformer(*command, unbroken, **environment)
    if not (runs[1] / "results.json").exists():
        mark = f"step {steps // 2}/"
        kill = signal.SIGKILL
        place.stop(kill, mark, "-m", "transformer", *command, killed, **environment)
    place.transformer(*command, killed, **environment)
    return place.inside("compare", "--runs", *map(str, runs))
