"""An ablation runs what is not finished, all of it, and can be stopped at any time."""

import dataclasses
import fcntl
import io
import json
import os
import re
import signal
import sys
import threading
import time

import pytest
from support.ablations import (
    SAVE_WHEN_TOLD,
    STEPS,
    TRAIN,
    go,
    run_of,
    signal_when,
    write_results,
)
from support.cases import leave
from support.runs import tiny_run

from transformer.config import UserError
from transformer.tools.ablate import launchers, progress, watch
from transformer.tools.ablate import runs as planned
from transformer.tools.ablate.launchers import Local, Share

pytestmark = pytest.mark.usefixtures("hasty")


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
        "failed: B_dk32 seed 0: ended without results: it printed nothing "
        f"(log: {runs[3].log})",
        "1 of 5 runs are finished, 4 failed; the same command tries these again",
    ]
    assert "A_h1 seed 0: failed  ValueError: no such thing" in said


def test_a_row_that_another_ablation_began_fails_alone(tmp_path, unprepared):
    first = "(workdir / 'began').touch()\nwait_for((workdir / 'go on').exists)\n"
    runs = [
        run_of(tmp_path, "A", first + TRAIN),
        run_of(tmp_path, "B", TRAIN),
        run_of(tmp_path, "C", TRAIN),
    ]
    runs[1].log.parent.mkdir(parents=True)
    with runs[1].log.open("ab") as log:

        def begin_the_second():
            while not (runs[0].workdir / "began").exists():
                time.sleep(0.01)
            fcntl.flock(log, fcntl.LOCK_EX)
            (runs[0].workdir / "go on").touch()

        other = threading.Thread(target=begin_the_second)
        other.start()
        code, said = go(runs)
        other.join()
    assert code == 1 and [*map(planned.finished, runs)] == [True, False, True]
    assert "B seed 0: failed  " in "\n".join(said)
    assert any("expected no running process" in line for line in said)


def test_metrics_that_cannot_be_read_end_no_run(tmp_path, unprepared):
    damage = "(workdir / 'metrics.jsonl').write_text('{\\n[]\\n')\n"
    runs = [
        run_of(tmp_path, "A", damage + "time.sleep(0.1)\n" + TRAIN),
        run_of(tmp_path, "B", TRAIN),
    ]
    code, _ = go(runs)
    assert code == 0 and all(map(planned.finished, runs))


def test_the_log_holds_every_attempt_and_its_command(tmp_path, unprepared):
    run = run_of(tmp_path, "base", "print('once')")
    go([run])
    go([dataclasses.replace(run, command=(*run.command, "a b"))])
    lines = run.log.read_text().splitlines()
    assert lines.count("once") == 2 and lines[-2].endswith(" 'a b'")


# ---- stopped -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "number", leave([signal.SIGINT, signal.SIGTERM, signal.SIGHUP], [signal.SIGHUP])
)
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
        "stopped: 0 of 3 runs are finished; the same command resumes from there"
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
        {"step": 2, "loss": 5.0, "target_tokens": 90, "tokens_per_second": 20},
        {"step": 3, "validation_nll": 2.0, "validation_perplexity": 7.4},
        # Of step 4 alone, as the validation began the count anew.
        {"step": 4, "loss": 3.0, "target_tokens": 110, "tokens_per_second": 50}
        | {"seconds": 2.2},
    ]
    path = run.workdir / "metrics.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 6, ')
    # 50 tokens in a second, 100 in a step, 4 of 8 steps are left.
    assert progress.progress_of(run) == progress.Progress(4, 3.0, 7.4, 8.0)


def test_lines_tell_of_each_validation(tmp_path, unprepared):
    train = """
log(step=2, loss=3.5, target_tokens=60, tokens_per_second=1)
log(step=2, validation_nll=2.0, validation_perplexity=7.389)
told = workdir / "told"
wait_for(told.exists)
log(step=8, loss=1.25, target_tokens=60, tokens_per_second=1)
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
