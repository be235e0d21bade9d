"""Jobs have cores or accelerators of their own, and a workdir one process."""

import os
import sys

import pytest
from support.ablations import TRAIN, go, run_of

from transformer import parallel
from transformer.config import UserError
from transformer.tools.ablate import launchers, watch
from transformer.tools.ablate.launchers import Local, Share

pytestmark = pytest.mark.usefixtures("hasty")

COUNT = """
with (workdir.parent.parent / "events").open("a") as file:
    print("start", workdir.parent.name, file=file)
    file.flush()
    events = workdir.parent.parent / "events"
    wait_for(lambda: events.read_text().count("start") >= 2)
    print("end", workdir.parent.name, file=file)
finish()
"""


def test_jobs_run_side_by_side_and_no_more_than_asked(tmp_path, unprepared):
    runs = [run_of(tmp_path, f"row{i}", COUNT) for i in range(5)]
    launcher = Local("cpu", 1)
    launcher.slots = 2
    launcher._shares = [Share(), Share()]
    assert watch.ablate(runs, launcher, lambda line: None) == 0
    running, most = 0, 0
    for line in (tmp_path / "events").read_text().splitlines():
        running += 1 if line.startswith("start") else -1
        most = max(most, running)
    assert most == 2  # the first two wait for each other


def test_each_job_has_cores_of_its_own(tmp_path, unprepared):
    cores = os.sched_getaffinity(0)
    if len(cores) < 2:
        pytest.skip("needs two cores")
    look = "time.sleep(0.2)\nprint(*os.sched_getaffinity(0))\nfinish()"
    runs = [run_of(tmp_path, row, look) for row in ("base", "big")]
    assert go(runs, jobs=2)[0] == 0
    lines = [run.log.read_text().splitlines()[-1] for run in runs]
    seen = [set(map(int, line.split())) for line in lines]
    assert not seen[0] & seen[1] and seen[0] | seen[1] == cores
    assert os.sched_getaffinity(0) == cores


def test_where_no_process_is_bound_to_cores_all_share_them(monkeypatch):
    for name in ("sched_getaffinity", "sched_setaffinity"):  # as on macOS
        monkeypatch.delattr(os, name)
    assert launchers.shares("cpu", 3) == [launchers.Share()] * 3


def accelerators(monkeypatch, platform: str, count: int) -> None:
    monkeypatch.setattr(launchers, "_count_accelerators", lambda: (platform, count))


def test_an_accelerator_for_each_job(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    accelerators(monkeypatch, "gpu", 4)
    everyone = [share.environment for share in launchers.shares("any", None)]
    assert everyone == [{"CUDA_VISIBLE_DEVICES": str(i)} for i in range(4)]
    assert launchers.shares("gpu", 3) == launchers.shares("any", None)[:3]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5, GPU-8a")
    accelerators(monkeypatch, "gpu", 2)
    everyone = [share.environment for share in launchers.shares("any", 2)]
    assert everyone == [{"CUDA_VISIBLE_DEVICES": name} for name in ("5", "GPU-8a")]
    with pytest.raises(UserError, match="device: expected a tpu, this machine offers"):
        launchers.shares("tpu", None)
    accelerators(monkeypatch, "tpu", 2)
    chips = [
        share.environment["TPU_VISIBLE_CHIPS"]
        for share in launchers.shares("any", None)
    ]
    assert chips == ["0", "1"]
    with pytest.raises(UserError, match="at most 2, the accelerators of this .* got 3"):
        launchers.shares("any", 3)


@pytest.mark.parametrize("name", [None, "CLIENT", "PYTHON_CLIENT"])
def test_jobs_share_a_gpu_and_its_memory(monkeypatch, name):
    fractions = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
    for one in ("CUDA_VISIBLE_DEVICES", *fractions):
        monkeypatch.delenv(one, raising=False)
    if name is not None:  # the user's own share stands
        monkeypatch.setenv(f"XLA_{name}_MEM_FRACTION", ".2")
    accelerators(monkeypatch, "gpu", 2)
    environments = [share.environment for share in launchers.shares("any", 5)]
    assert [x["CUDA_VISIBLE_DEVICES"] for x in environments] == ["0", "1"] * 2 + ["0"]
    for environment in environments:
        assert environment["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
        fraction = environment.get("XLA_CLIENT_MEM_FRACTION")
        assert fraction == (None if name else "0.2500")


def test_a_single_job_has_all_of_the_machine(monkeypatch):
    for platform, count in (("gpu", 1), ("cpu", 0)):
        accelerators(monkeypatch, platform, count)
        assert launchers.shares("any", None) == [Share()]
    monkeypatch.setattr(launchers, "_count_accelerators", pytest.fail)
    assert launchers.shares("any", 1) == launchers.shares("cpu", None) == [Share()]


def test_devices_are_counted_in_another_process(monkeypatch):
    assert parallel.accelerators()[0] == "cpu"
    assert launchers._count_accelerators() == ("cpu", 0)
    monkeypatch.setenv("JAX_PLATFORMS", "nonsense")
    with pytest.raises(UserError, match="expected devices that jax can use, got: .*no"):
        launchers._count_accelerators()


def test_two_processes_never_train_in_one_workdir(tmp_path, unprepared):
    run = run_of(tmp_path, "base", TRAIN)
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    # As one whose ablation was killed: nobody but itself has the log open.
    process = launchers.start_process(sleep, run.log, {})
    try:
        with pytest.raises(UserError, match="base/seed_0: expected no running proc"):
            go([run])
        with pytest.raises(UserError, match="wait until it ends, or stop it"):
            Local("cpu", 1).start(run.command, run.log, run.name, 0)
    finally:
        process.kill()
        process.wait()
    assert go([run])[0] == 0
