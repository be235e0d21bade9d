"""Runs on a cluster; submitit starts them here, or programs named as Slurm's."""

import os
import re
import signal
import sys
import threading
import time

import pytest
from support.ablations import SAVE_WHEN_TOLD, TRAIN, run_of, signal_when
from support.paths import ROOT

from transformer.config import UserError
from transformer.tools.ablate import runs as planned
from transformer.tools.ablate import watch
from transformer.tools.ablate.slurm import Slurm, Task

pytestmark = pytest.mark.usefixtures("hasty")


@pytest.fixture
def importable(monkeypatch):
    """Let processes that submitit starts find the package."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def test_runs_through_submitit(tmp_path, unprepared, importable):
    runs = [
        run_of(tmp_path, "base", TRAIN),
        run_of(tmp_path, "A_h1", "raise ValueError('no such thing')"),
    ]
    options = {"partition": "gpu", "time": "30", "setup": "module load cuda"}
    launcher = Slurm(tmp_path / "slurm", options, None, cluster="local")
    said: list[str] = []
    assert watch.ablate(runs, launcher, said.append) == 1
    assert said[0].endswith("2 at a time")
    assert planned.finished(runs[0]) and "trained" in runs[0].log.read_text()
    assert said[-2].startswith("failed: A_h1 seed 0: ValueError: no such thing (log: ")


def test_stopped_runs_of_a_cluster_are_cancelled(
    tmp_path, unprepared, importable, monkeypatch
):
    import submitit

    run = run_of(tmp_path, "base", SAVE_WHEN_TOLD)
    launcher = Slurm(tmp_path / "slurm", {}, None, cluster="local")
    signal_when(lambda _: (run.workdir / "ready").exists(), signal.SIGTERM)
    # Of a cancelled job there is none, and submitit would wait for it.
    monkeypatch.setattr(submitit.core.core.Job, "exception", pytest.fail)
    assert watch.ablate([run], launcher, lambda line: None) == 130
    since = time.monotonic()
    while not (run.workdir / "saved").exists():
        assert time.monotonic() - since < 60, "waited too long"
        time.sleep(0.01)


def test_a_job_that_dies_says_so(tmp_path, unprepared, importable, monkeypatch):
    import submitit

    monkeypatch.setattr(submitit.core.core.Job, "_results_timeout_s", 0)
    run = run_of(tmp_path, "base", "os.kill(os.getppid(), signal.SIGKILL)")
    launcher = Slurm(tmp_path / "slurm", {}, None, cluster="local")
    said: list[str] = []
    assert watch.ablate([run], launcher, said.append) == 1
    assert re.search(r"failed: base seed 0: Slurm job \d+, FINISHED: ", said[-2])


def test_a_run_at_its_time_limit_is_saved_and_queued_again(tmp_path):
    run = run_of(tmp_path, "base", SAVE_WHEN_TOLD)
    task = Task(run.command, str(run.log))
    queued = []

    def at_the_limit(number, frame):
        queued.append(task.checkpoint())

    def limit():
        while not (run.workdir / "ready").exists():
            time.sleep(0.005)
        os.kill(task._process.pid, signal.SIGUSR2)  # Slurm signals every process
        os.kill(os.getpid(), signal.SIGUSR2)

    before = signal.signal(signal.SIGUSR2, at_the_limit)
    try:
        threading.Thread(target=limit, daemon=True).start()
        assert task() == 0
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert (run.workdir / "saved").exists()
    (again,) = queued
    assert again.function._command == run.command


def test_what_is_wrong_with_slurm_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")  # no srun
    with pytest.raises(UserError, match="expected a machine in a Slurm cluster"):
        Slurm(tmp_path, {"partition": "gpu"}, None)
    with pytest.raises(UserError, match="Unknown argument 'partitoin'") as caught:
        Slurm(tmp_path, {"partitoin": "gpu"}, None, cluster="local")
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="--slurm.time: expected minutes, .* got 1:00"):
        Slurm(tmp_path, {"time": "1:00"}, None, cluster="local")
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(UserError, match=r"install this package with its extra: \[slu"):
        Slurm(tmp_path, {}, None)


def test_what_slurm_is_asked_for(tmp_path, monkeypatch):
    """Submit with programs of that name in place of Slurm's."""
    for name in ("srun", "sacct"):
        (tmp_path / name).write_text("#!/bin/sh\n")
    (tmp_path / "sbatch").write_text(
        f'#!/bin/sh\ncp "$1" {tmp_path / "job"}\n'
        f"test -e {tmp_path / 'full'} && echo 'sbatch: error: no room' >&2 && exit 1\n"
        "echo Submitted batch job 7\n"
    )
    for name in ("srun", "sacct", "sbatch"):
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    options = {"partition": "gpu", "gpus_per_node": "1", "setup": "module load cuda"}
    run = run_of(tmp_path, "base", TRAIN)
    launcher = Slurm(tmp_path / "slurm", options, None)
    launcher.start(run.command, run.log, run.name, 0)
    lines = (tmp_path / "job").read_text().splitlines()
    for line in (
        "--partition=gpu",
        "--gpus-per-node=1",
        "--time=240",
        "--job-name=base_seed_0",
    ):
        assert f"#SBATCH {line}" in lines
    assert "module load cuda" in lines
    (tmp_path / "full").touch()
    with pytest.raises(UserError, match="Slurm accepts, got: .*no room"):
        launcher.start(run.command, run.log, run.name, 0)
