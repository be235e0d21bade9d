"""An ablation runs what is not finished, all of it, and can be stopped at any time.

Most runs here are small programs that do to a workdir what ``transformer train`` does.
"""

import dataclasses
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.calls import error
from support.configs import base
from support.paths import EXPERIMENTS, ROOT
from support.runs import tiny_run, write_digits

from transformer import config, parallel
from transformer.cli import main as cli
from transformer.config import UserError
from transformer.prepare import prepare
from transformer.tools.ablate import launchers, progress, watch
from transformer.tools.ablate import runs as planned
from transformer.tools.ablate.launchers import Local, Share
from transformer.tools.ablate.runs import Run
from transformer.tools.ablate.slurm import Slurm, Task

STEPS = 8
TABLE3 = f"--config={EXPERIMENTS / 'table3.py'}"

# What a run does, after these lines.
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


@pytest.fixture(autouse=True)
def hasty(monkeypatch):
    monkeypatch.setattr(Local, "pause", 0.01)
    monkeypatch.setattr(Slurm, "pause", 0.01)


@pytest.fixture
def unprepared(monkeypatch):
    """Leave the data alone: the programs need none."""
    monkeypatch.setattr(watch, "_prepare", lambda runs, say: None)


def run_of(folder: Path, row: str, code: str, seed: int = 0) -> Run:
    settings = base(**{"train.steps": STEPS, "train.log_every": 2, "seed": seed})
    workdir = planned.workdir_of(folder, row, seed)
    command = (sys.executable, "-c", FAKE + code, str(workdir))
    return Run(row, seed, settings, folder, folder, command)


def go(runs: Sequence[Run], jobs: int = 1) -> tuple[int, list[str]]:
    """Return exit code and lines."""
    said: list[str] = []
    return watch.ablate(runs, Local("cpu", jobs), said.append), said


# ---- which rows ----------------------------------------------------------------------

KNOWN = ["base", "A_h1", "A_h4", "B_dk16", "big", "no_positions"]


@pytest.mark.parametrize(
    "names, rows",
    [
        ("A", "base A_h1 A_h4"),
        ("B,A_h4", "base B_dk16 A_h4"),
        ("no_positions, big", "base no_positions big"),
        ("big,base", "base big"),
        ("base", "base"),
    ],
)
def test_rows_by_name_and_by_group_with_base_first(names, rows):
    assert planned.choose(names, KNOWN) == rows.split()


def test_a_table_without_base_has_none():
    assert planned.choose("big_en_de", ["base_en_de", "big_en_de"]) == ["big_en_de"]


@pytest.mark.parametrize(
    "names, expected",
    [
        ("A_h3", "'A_h3'; did you mean A_h4?"),
        ("C", "base, A_h1, A_h4, B_dk16, big, no_positions, or A, B for all rows of a"),
        ("A,", "got ''; change --rows"),
        ("no", "got 'no'; "),
        ("b", "got 'b'; "),
        ("A,A_h4", "expected every row once, got A_h4 twice in A,A_h4"),
        ("base,A,base", "got base twice"),
    ],
)
def test_rows_that_are_not_there_or_twice(names, expected):
    with pytest.raises(UserError) as caught:
        planned.choose(names, KNOWN)
    assert expected in str(caught.value) and "\n" not in str(caught.value)


# ---- the command line ----------------------------------------------------------------


def test_dry_run_prints_the_commands_and_touches_nothing(tmp_path, capsys):
    folder = tmp_path / "a folder"
    given = ["--config.train.steps=8", "--noconfig.model.attention_bias"]
    call = ["ablate", f"{TABLE3}:data=numbers,scale=0.25", *given, "--rows=E,A_h4"]
    assert cli.main([*call, "--seeds=2", f"--workdir={folder}", "--dry_run"]) == 0
    commands = [shlex.split(line) for line in capsys.readouterr().out.splitlines()]
    order = [(row, k) for k in (0, 1) for row in ("base", "E_learned", "A_h4")]
    python = [sys.executable, "-m", "transformer", "train"]
    assert commands == [
        [
            *python,
            f"{TABLE3}:{row},data=numbers,scale=0.25",
            "--config.train.steps=8",
            "--config.model.attention_bias=False",
            f"--config.seed={k}",
            f"--workdir={folder / row / f'seed_{k}'}",
        ]
        for row, k in order
    ]
    assert not list(tmp_path.iterdir())


def test_dry_run_leaves_out_what_is_finished(tmp_path, capsys):
    write_results(tmp_path / "base" / "seed_0")
    call = [f"{TABLE3}:data=numbers", "--rows=E", "--config.train.steps=8"]
    assert cli.main(["ablate", *call, f"--workdir={tmp_path}", "--dry_run"]) == 0
    (command,) = capsys.readouterr().out.splitlines()
    assert f"--workdir={tmp_path}/E_learned/seed_0" in command


def write_results(workdir: Path, split: str = "test", step: int = STEPS) -> None:
    workdir.mkdir(parents=True, exist_ok=True)
    results = json.dumps({"split": split, "step": step})
    (workdir / "results.json").write_text(results)


@pytest.mark.parametrize(
    "arguments, expected",
    [
        ([TABLE3, "--rows=A_h2"], "expected rows of the config file, base, A_h1, "),
        ([TABLE3, "--rows=E,E_learned"], "expected every row once, got E_learned"),
        ([TABLE3, "--rows=E", "--seeds=0"], "flag --seeds=0: 0 is not a positive"),
        ([TABLE3], "ablate: expected --rows: "),
        (
            [f"{TABLE3}:scale=0.3", "--rows=A"],
            "table3.py: expected a scale that leaves model.d_model a whole number, got",
        ),
        (
            [f"{TABLE3}:scale=0.015625", "--rows=A"],
            "model.d_k a whole number, got 32 x 0.015625",
        ),
        ([f"{TABLE3}:scale=-1", "--rows=A"], "expected a scale above 0, got -1"),
        ([f"{TABLE3}:A_h1", "--rows=E"], ":KEY=VALUE,... for all rows, got :A_h1; nam"),
        ([TABLE3, "--rows=E", "--config.seed=3"], "--config.seed: expected no value"),
        ([TABLE3, "--rows=E", "--config.name=x"], "--config.name: expected no value"),
        ([TABLE3, "--rows=E", "--config.sed=3"], "got sed; did you mean seed?"),
        (
            [TABLE3, "--rows=D", "--config.model.dropout=0.2"],
            "expected rows that differ, got base and D_drop0.0, which are the same",
        ),
        (
            [f"--config={EXPERIMENTS / 'number_words.py'}", "--rows=E"],
            "expected a file with ROWS, such as experiments/table3.py, got ",
        ),
        ([TABLE3, "--rows=E", "--jobs=0"], "flag --jobs=0: 0 is not a positive"),
        ([TABLE3, "--rows=E", "--launcher=ssh"], "one of <local|slurm>"),
        (
            [TABLE3, "--rows=E", "--slurm.account=me"],
            "--slurm.account: expected --launcher=slurm with it",
        ),
        (
            [TABLE3, "--rows=E", "--config.device=cpu", "--jobs=9999"],
            "the cores of this machine, got 9999; ask for fewer",
        ),
    ],
)
def test_mistakes_are_one_line_and_nothing_runs(
    capsys, monkeypatch, tmp_path, arguments, expected
):
    monkeypatch.setattr(watch, "ablate", pytest.fail)
    folder = tmp_path / "x"
    assert expected in error(capsys, "ablate", *arguments, f"--workdir={folder}")
    assert not folder.exists() or not list(folder.iterdir())


def test_a_workdir_of_another_configuration_is_refused(capsys, tmp_path):
    workdir = tmp_path / "E_learned" / "seed_0"
    write_results(workdir)
    (workdir / "config.json").write_text(config.to_json(base(name="mine")))
    call = ["ablate", TABLE3, "--rows=E", f"--workdir={tmp_path}", "--dry_run"]
    text = error(capsys, *call)
    assert text.startswith(f"{workdir} belongs to another configuration; expected the ")
    assert "name: 'mine' -> 'table3/E_learned/wmt14/x1'; " in text


def test_all_of_it_from_the_command_line(capsys, monkeypatch, tmp_path):
    """Three rows of real configurations and real data; only training is not real."""

    def fake(arguments: Sequence[str]) -> tuple[str, ...]:
        workdir = arguments[-1].removeprefix("--workdir=")
        return sys.executable, "-c", FAKE + TRAIN, workdir

    monkeypatch.setattr(planned, "command_of", fake)
    write_digits(tmp_path / "data")
    folder = tmp_path / "runs"
    call = [
        "ablate",
        f"{TABLE3}:data={tmp_path / 'data'},scale=0.125",
        *("--rows=E,no_positions", f"--workdir={folder}", "--config.device=cpu"),
        *("--config.tokenizer.kind=whitespace", "--config.tokenizer.vocab_size=0"),
        f"--config.train.steps={STEPS}",
    ]
    assert cli.main(call) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "3 runs: 0 finished before, 3 to do, 1 at a time" in lines
    assert lines[-1].startswith("3 of 3 runs are finished; compare them by transformer")
    made = sorted(path.name for path in folder.iterdir())
    assert made == ["E_learned", "base", "corpus", "no_positions"]
    assert "trained" in (folder / "E_learned" / "seed_0.log").read_text()
    moved = folder.rename(tmp_path / "moved")
    for row in ("base", "E_learned", "no_positions"):
        link = moved / row / "seed_0" / "corpus"
        assert link.is_symlink() and (link / "manifest.json").is_file()


# ---- what is run, and what is not ----------------------------------------------------


def test_finished_runs_are_left_alone(tmp_path, unprepared):
    done, other = run_of(tmp_path, "base", "1 / 0"), run_of(tmp_path, "big", TRAIN)
    write_results(done.workdir)
    code, said = go([done, other])
    assert code == 0 and not done.log.exists()
    assert said[0] == "2 runs: 1 finished before, 1 to do, 1 at a time"
    assert said[1:3] == ["big seed 0: running", "big seed 0: finished"]
    code, said = go([done, other])
    assert code == 0 and said[0].startswith("2 runs: 2 finished before, 0 to do")
    assert "trained" in other.log.read_text()


@pytest.mark.parametrize("results", [("validation", STEPS), ("test", STEPS - 1)])
def test_results_of_another_split_or_step_do_not_end_a_run(
    tmp_path, unprepared, results
):
    run = run_of(tmp_path, "base", TRAIN)
    write_results(run.workdir, *results)
    assert not planned.finished(run)
    assert go([run])[0] == 0 and planned.finished(run)
    (run.workdir / "results.json").write_text('{"split": "te')
    assert not planned.finished(run)


def test_a_failing_row_does_not_stop_the_others(tmp_path, unprepared):
    runs = [
        run_of(tmp_path, "A_h1", "print('step 1')\nraise ValueError('no such thing')"),
        run_of(
            tmp_path, "A_h4", "sys.exit('transformer: error: config: change it\\n')"
        ),
        run_of(tmp_path, "B_dk16", "print('x')\nos.kill(os.getpid(), signal.SIGKILL)"),
        dataclasses.replace(
            run_of(tmp_path, "B_dk32", ""), command=(sys.executable, "-c", "pass")
        ),
        run_of(tmp_path, "big", TRAIN),
    ]
    code, said = go(runs)
    assert code == 1 and planned.finished(runs[-1])
    assert said[-5:] == [
        f"failed: A_h1 seed 0: ValueError: no such thing (log: {runs[0].log})",
        f"failed: A_h4 seed 0: config: change it (log: {runs[1].log})",
        f"failed: B_dk16 seed 0: killed by signal 9: x (log: {runs[2].log})",
        "failed: B_dk32 seed 0: ended before its results: it printed nothing "
        f"(log: {runs[3].log})",
        "1 of 5 runs are finished, 4 failed; the same command tries these again",
    ]
    assert "A_h1 seed 0: failed  ValueError: no such thing" in said


def test_the_log_holds_every_attempt_and_its_command(tmp_path, unprepared):
    run = run_of(tmp_path, "base", "print('once')")
    go([run])
    go([dataclasses.replace(run, command=(*run.command, "a b"))])
    lines = run.log.read_text().splitlines()
    assert lines.count("once") == 2 and lines[-2].endswith(" 'a b'")


# ---- several at a time ---------------------------------------------------------------

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
    with pytest.raises(UserError, match="at most 2, the accelerators of this .* got 3"):
        launchers.shares("any", 3)
    with pytest.raises(UserError, match="device: expected a tpu, this machine offers"):
        launchers.shares("tpu", None)
    accelerators(monkeypatch, "tpu", 2)
    chips = [
        share.environment["TPU_VISIBLE_CHIPS"]
        for share in launchers.shares("any", None)
    ]
    assert chips == ["0", "1"]


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
        with pytest.raises(
            UserError, match="base/seed_0: expected no process that wor"
        ):
            go([run])
        with pytest.raises(UserError, match="wait for its end, or stop it"):
            Local("cpu", 1).start(run.command, run.log, run.name, 0)
    finally:
        process.kill()
        process.wait()
    assert go([run])[0] == 0


# ---- stopped -------------------------------------------------------------------------


def signal_when(moment, *numbers: int) -> threading.Thread:
    """Send this process signals, one whenever the moment (index) has come."""

    def send():
        for index, number in enumerate(numbers):
            while not moment(index):
                time.sleep(0.005)
            os.kill(os.getpid(), number)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_stopped_runs_save_and_go_on_later(tmp_path, unprepared, number):
    before = signal.getsignal(number)
    late = "sys.exit(0)", "wait_for((workdir / 'late').exists)\n    sys.exit(0)"
    programs = {
        "base": SAVE_WHEN_TOLD,
        "big": SAVE_WHEN_TOLD.replace(*late),
        "A_h1": SAVE_WHEN_TOLD,
    }
    runs = [run_of(tmp_path, row, code) for row, code in programs.items()]
    launcher = Local("cpu", 1)
    launcher.slots, launcher._shares = 2, [Share(), Share()]
    ready = [run.workdir / "ready" for run in runs[:2]]
    signal_when(lambda _: all(path.exists() for path in ready), number)
    said: list[str] = []

    def say(line):
        said.append(line)
        if line == "base seed 0: stopped":
            (runs[1].workdir / "late").touch()

    assert watch.ablate(runs, launcher, say) == 130
    assert signal.getsignal(number) is before
    assert all((run.workdir / "saved").exists() for run in runs[:2])
    assert not runs[2].workdir.exists()  # none is started any more
    assert "base seed 0: stopped" in said and "big seed 0: stopped" in said
    assert said[-1] == (
        "stopped: 0 of 3 runs are finished; the same command goes on from there"
    )
    resumed = [run_of(tmp_path, run.row, TRAIN) for run in runs]
    assert go(resumed)[0] == 0


def test_ctrl_c_twice_does_not_wait(tmp_path, unprepared):
    deaf = """
signal.signal(signal.SIGTERM, lambda *_: (workdir / "told").touch())
(workdir / "ready").touch()
while True:
    time.sleep(0.05)
"""
    run = run_of(tmp_path, "base", deaf)
    marks = [run.workdir / "ready", run.workdir / "told"]
    signal_when(lambda i: marks[i].exists(), signal.SIGINT, signal.SIGINT)
    code, said = go([run])
    assert code == 130 and "base seed 0: stopped" in said
    launchers.check_idle(run.log)  # it is dead


def test_nohup_stays_in_force():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with watch._Signals():
            os.kill(os.getpid(), signal.SIGHUP)  # would raise
    finally:
        signal.signal(signal.SIGHUP, before)


# ---- the data ------------------------------------------------------------------------


def test_rows_share_the_data_that_are_the_same(tmp_path):
    settings = tiny_run(tmp_path / "data")
    other = dataclasses.replace(
        settings,
        name="other",
        tokenizer=dataclasses.replace(settings.tokenizer, kind="bytes"),
        data=dataclasses.replace(settings.data, max_length=99),
    )
    deeper = dataclasses.replace(config.transformer(settings.model), layers=2)
    rows = {
        "base": settings,
        "A": dataclasses.replace(settings, name="A", model=deeper),
        "T": other,
    }
    runs = planned.plan(
        list(rows),
        2,
        tmp_path / "runs",
        settings,
        lambda row, seed: [row, str(seed)],
        lambda given: dataclasses.replace(rows[given[0]], seed=int(given[1])),
    )
    homes = [run.home.relative_to(tmp_path).as_posix() for run in runs]
    assert homes == ["runs", "runs", "runs/T"] * 2
    said: list[str] = []
    watch._prepare(runs, said.append)
    assert len([line for line in said if line.startswith("tokenizer: building")]) == 2
    before = sorted(tmp_path.rglob("manifest.json"))
    said.clear()
    watch._prepare(runs, said.append)
    for run in runs:
        prepared = prepare(run.settings, run.workdir, said.append)
        kind = run.settings.tokenizer.kind
        assert prepared.manifest["config"]["tokenizer.kind"] == kind
    assert not [line for line in said if line.startswith("tokenizer: building")]
    assert sorted(tmp_path.rglob("manifest.json")) == before


def test_data_that_cannot_be_used_stop_before_a_run_starts(tmp_path):
    settings = tiny_run(tmp_path / "data")
    missing = dataclasses.replace(settings.data, dir=str(tmp_path / "none"))
    run = dataclasses.replace(
        run_of(tmp_path, "base", TRAIN),
        settings=dataclasses.replace(settings, data=missing),
    )
    with pytest.raises(UserError, match="expected a file"):
        go([run])
    assert not run.log.exists()


def test_stopped_while_preparing(tmp_path, monkeypatch):
    def slow(runs, say):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)

    monkeypatch.setattr(watch, "_prepare", slow)
    run = run_of(tmp_path, "base", TRAIN)
    code, said = go([run])
    assert code == 130 and not run.log.exists()
    assert said == [
        "stopped while preparing the data; the same command starts there again"
    ]


# ---- how far they are ----------------------------------------------------------------


def test_progress_is_read_from_the_metrics(tmp_path):
    run = run_of(tmp_path, "base", "")
    assert progress.progress_of(run) == progress.Progress()
    run.workdir.mkdir(parents=True)
    lines = [
        {"step": 2, "loss": 5.0, "seconds": 9.0},
        {"step": 2, "validation_nll": 2.0, "validation_perplexity": 7.4},
        {"step": 4, "loss": 3.0, "seconds": 1.5},
    ]
    path = run.workdir / "metrics.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 6, ')
    # 2 steps took 1.5 s, 4 of 8 are left.
    assert progress.progress_of(run) == progress.Progress(4, 3.0, 7.4, 3.0)


def test_lines_tell_of_each_validation(tmp_path, unprepared):
    train = """
log(step=2, loss=3.5, seconds=120)
log(step=2, validation_nll=2.0, validation_perplexity=7.389)
told = workdir / "told"
wait_for(told.exists)
log(step=8, loss=1.25, seconds=1)
log(step=8, validation_nll=1.0, validation_perplexity=2.718)
finish()
"""
    run = run_of(tmp_path, "base", train)
    said: list[str] = []

    def say(line):
        said.append(line)
        if "step 2/8" in line:
            (run.workdir / "told").touch()

    assert watch.ablate([run], Local("cpu", 1), say) == 0
    assert said[1:-1][:2] == [
        "base seed 0: running",
        "base seed 0: running  step 2/8  loss 3.500  perplexity 7.389  0:06:00 left",
    ]
    assert said[-2] == "base seed 0: finished  step 8/8  loss 1.250  perplexity 2.718"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_live_table_on_a_terminal(tmp_path, unprepared, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LINES", "10")  # four rows
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    train = "log(step=8, loss=1.25)\ntime.sleep(0.1)\nfinish()"
    runs = [run_of(tmp_path, f"row{i}", TRAIN) for i in range(4)]
    runs += [run_of(tmp_path, "failing", "1 / 0"), run_of(tmp_path, "last", train)]
    code, said = go(runs)
    assert code == 1
    assert not [line for line in said if ": running" in line]
    frames = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue()).split(
        " runs fini"
    )
    assert re.search(r"row0 +│ 0 +│ running +│ 0/8", frames[1])
    evaluating = [f for f in frames if "evaluating" in f]
    assert evaluating and all(
        re.search(r"last +│ 0 +│ evaluating │ 8/8 +│ 1.250", f) for f in evaluating
    )
    # What runs and what failed is seen also where there is no room for all.
    assert all("failing" in f and "row3" not in f for f in evaluating)
    assert frames[-2].endswith("5 of 6")


# ---- a cluster -----------------------------------------------------------------------


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
    with pytest.raises(UserError, match="expected a machine of a Slurm cluster"):
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


# ---- with real training --------------------------------------------------------------


@pytest.mark.slow
def test_a_real_ablation_of_a_few_steps(tmp_path):
    write_digits(tmp_path / "data")
    sizes = {
        "data.max_length": 8,
        "tokenizer.kind": "whitespace",
        "tokenizer.vocab_size": 0,
        "batch.tokens": 128,
        "model.layers": 1,
        "train.steps": 4,
        "train.log_every": 1,
        "train.evaluate_every": 2,
        "train.checkpoint_every": 2,
        "train.checkpoint_minutes": 0.0,
        "decode.beam": 1,
        "decode.extra_tokens": 1,
        "device": "cpu",
    }
    call = [
        *(sys.executable, "-m", "transformer", "ablate", "--rows=no_positions"),
        f"{TABLE3}:data={tmp_path / 'data'},scale=0.0625",
        *(f"--config.{key}={value}" for key, value in sizes.items()),
        f"--workdir={tmp_path / 'runs'}",
    ]

    def call_it() -> list[str]:
        run = subprocess.run(call, cwd=ROOT, capture_output=True, text=True)
        assert run.returncode == 0, run.stdout + run.stderr
        return run.stdout.splitlines()

    lines = call_it()
    assert any(re.match(r"base seed 0: running  step 2/4  loss \d", x) for x in lines)
    for row in ("base", "no_positions"):
        workdir = tmp_path / "runs" / row / "seed_0"
        results = json.loads((workdir / "results.json").read_text())
        assert results["step"] == 4 and len(results["sentences"]) == 3
        assert (workdir / "corpus").is_symlink()
        record = json.loads((workdir / "record.json").read_text())
        assert record["name"] == f"table3/{row}/data/x0.0625"
    assert "2 runs: 2 finished before, 0 to do, 0 at a time" in call_it()
