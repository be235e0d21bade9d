"""Runs of an ablation: small programs that do to a workdir what training does."""

import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from support.configs import base
from support.paths import EXPERIMENTS
from transformer.tools.ablate import runs as planned
from transformer.tools.ablate import watch
from transformer.tools.ablate.launchers import Local
from transformer.tools.ablate.runs import Run

STEPS = 8
TABLE3 = f"--config={EXPERIMENTS / 'table3.py'}"

# What the program of every run begins with.
FAKE = f"""
import json, os, pathlib, signal, sys, time
workdir = pathlib.Path(sys.argv[1])
workdir.mkdir(parents=True, exist_ok=True)

def log(**line):
    with (workdir / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\\n")

def finish():
    results = {{"split": "test", "step": {STEPS}}}
    (workdir / "results.json").write_text(json.dumps(results))

def wait_for(moment):
    since = time.monotonic()
    while not moment():
        assert time.monotonic() - since < 60, "waited too long"
        time.sleep(0.01)
"""
TRAIN = "print('trained')\nfinish()"
SAVE_WHEN_TOLD = """
def save(number, frame):
    (workdir / "saved").touch()
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
(workdir / "ready").touch()
wait_for(lambda: False)
"""


def run_of(folder: Path, row: str, code: str, seed: int = 0) -> Run:
    """Return a run of a row that executes ``FAKE`` and then the code."""
    settings = base(**{"train.steps": STEPS, "train.log_every": 2, "seed": seed})
    workdir = planned.workdir_of(folder, row, seed)
    command = (sys.executable, "-c", FAKE + code, str(workdir))
    return Run(row, seed, settings, folder, folder, command)


def go(runs: Sequence[Run], jobs: int = 1) -> tuple[int, list[str]]:
    """Run what is not finished; return exit code and lines."""
    said: list[str] = []
    return watch.ablate(runs, Local("cpu", jobs), said.append), said


def write_results(workdir: Path, split: str = "test", step: int = STEPS) -> None:
    """Write what a finished run leaves."""
    workdir.mkdir(parents=True, exist_ok=True)
    results = json.dumps({"split": split, "step": step})
    (workdir / "results.json").write_text(results)


def signal_when(moment, *numbers: int) -> threading.Thread:
    """Send this process signals, each as soon as ``moment(index)`` is true."""

    def send():
        for index, number in enumerate(numbers):
            while not moment(index):
                time.sleep(0.005)
            os.kill(os.getpid(), number)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread
