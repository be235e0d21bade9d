"""A run that was stopped and started again ends bit for bit like an unbroken one.

What is compared: every file of numbers of the last checkpoint (parameters, optimiser
state, key, step), which checkpoints there are, and metrics.jsonl but for what the clock
decides.
"""

import dataclasses
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cases import leave
from support.paths import ROOT
from support.runs import (
    EVERY_DROPOUT,
    checkpoints_of,
    command,
    compilations,
    compiling_once,
    metrics_of,
    state_of,
    tiny_run,
)

from transformer import parallel, programs, train
from transformer import step as steps
from transformer.cli import main as cli
from transformer.config import Config, UserError
from transformer.run import folder
from transformer.run.checkpoints import Checkpoints

STEPS = 20
# The rate follows the validations, and is so high that some are in vain: their state
# has to be resumed with the rest.
PLATEAU = {
    "optimizer.schedule": "plateau",
    "optimizer.rate": 0.5,
    "optimizer.warmup": 4,
    "optimizer.decay": 0.5,
    "train.evaluate_every": 3,
}


def assert_same_end(settings: Config, workdir: Path, unbroken: Path) -> None:
    assert metrics_of(workdir) == metrics_of(unbroken)
    assert checkpoints_of(workdir) == checkpoints_of(unbroken)
    for step in checkpoints_of(unbroken):
        _, metadata, arrays = state_of(settings, workdir, step)
        _, expected_metadata, expected = state_of(settings, unbroken, step)
        assert metadata == expected_metadata
        assert arrays.keys() == expected.keys()
        for name, array in arrays.items():
            np.testing.assert_array_equal(array, expected[name], name)
    records = [
        json.loads((one / "record.json").read_text()) for one in (workdir, unbroken)
    ]
    assert records[0]["tokens"] == records[1]["tokens"]
    assert all(record["ended"] for record in records)


# ---- in this process -----------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def compiled_once(tmp_path_factory):
    """Let the runs and processes of this module share what is compiled.

    The runs in this process leave out the evaluation at the end.
    """
    make = steps.make_train_step
    kept: dict[Any, Any] = {}
    with compiling_once(tmp_path_factory.mktemp("xla")) as patch:
        patch.setattr(
            programs,
            "make_train_step",
            lambda *given: kept.setdefault(given[1], make(*given)),
        )
        patch.setattr(
            train, "evaluate_held", lambda workdir, **_: workdir / "results.json"
        )
        patch.setattr(parallel, "start", lambda device: f"devices: {device}")
        yield


@pytest.fixture(scope="module")
def settings(tmp_path_factory) -> Config:
    changes = EVERY_DROPOUT | PLATEAU | {"train.steps": STEPS}
    return tiny_run(tmp_path_factory.mktemp("data"), **changes)


@pytest.fixture(scope="module")
def unbroken(settings, tmp_path_factory) -> Path:
    """The workdir of a run that nothing stopped."""
    workdir = tmp_path_factory.mktemp("unbroken")
    assert train.train(settings, workdir, ignore)
    _, metadata, _ = state_of(settings, workdir)
    assert metadata["course"]["factor"] < 1
    return workdir


@pytest.fixture
def workdir(unbroken, tmp_path) -> Path:
    """A new workdir with the corpus, which need not be made again."""
    shutil.copytree(unbroken / "corpus", tmp_path / "corpus")
    return tmp_path


def ignore(line: str) -> None:
    pass


def signalling(number: int, step: int) -> Callable[[str], None]:
    """Return a ``say`` that sends this process a signal after a step was shown."""

    def say(line: str) -> None:
        if line.startswith(f"step {step}/"):
            os.kill(os.getpid(), number)

    return say


def stop(settings: Config, workdir: Path, step: int) -> int:
    """Stop a run by SIGTERM when a step is shown; return its last checkpoint."""
    assert train.train(settings, workdir, signalling(signal.SIGTERM, step)) is None
    return checkpoints_of(workdir)[-1]


def resume(settings: Config, workdir: Path) -> list[str]:
    said: list[str] = []
    assert train.train(settings, workdir, said.append) == workdir / "results.json"
    return said


@pytest.mark.parametrize(
    "where", leave(["prepare", "evaluate_held"], ["evaluate_held"])
)
def test_sigterm_before_and_after_training(
    settings, unbroken, workdir, where, monkeypatch
):
    before, said = signal.getsignal(signal.SIGTERM), list[str]()
    with monkeypatch.context() as patch:

        def killed(*_: object, **__: object) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)  # the signal arrives in here

        patch.setattr(train, where, killed)
        assert train.train(settings, workdir, said.append) is None
    assert said[-1] == "stopped; the same command resumes"
    assert signal.getsignal(signal.SIGTERM) is before
    resume(settings, workdir)
    assert_same_end(settings, workdir, unbroken)


def test_the_end_of_a_run_is_validated_also_where_it_was_stopped(settings, workdir):
    last = stop(settings, workdir, 3)
    _, stopped, _ = state_of(settings, workdir)
    assert not stopped["mark"]["kept"]
    short = dataclasses.replace(settings.train, steps=last)
    resume(dataclasses.replace(settings, train=short), workdir)
    assert checkpoints_of(workdir) == [last]
    _, ended, _ = state_of(settings, workdir)
    assert ended["mark"]["kept"] and ended["mark"]["validated"]
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    assert "validation_nll" in lines[-1] and json.loads(lines[-1])["step"] == last


def test_sigterm_while_the_last_checkpoint_is_written(
    settings, unbroken, workdir, monkeypatch
):
    clean, said = Checkpoints.clean, list[str]()

    def killed(checkpoints: Checkpoints) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        clean(checkpoints)

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "clean", killed)
        assert train.train(settings, workdir, said.append) is None
    assert said[-1] == "stopped; the same command evaluates what was trained"
    resume(settings, workdir)
    assert_same_end(settings, workdir, unbroken)


# A signal is seen one step after the one that is shown: 3 -> 4, no checkpoint of its
# own; 14 -> 15, which has one that is still kept at the end; 19 -> 20, the last.
@pytest.mark.parametrize("step", leave([3, 14, 19], [3, 19]))
def test_stopped_by_sigterm(settings, unbroken, workdir, step):
    before = signal.getsignal(signal.SIGTERM)
    last = stop(settings, workdir, step)
    assert last in (step, step + 1)
    assert signal.getsignal(signal.SIGTERM) is before
    assert json.loads((workdir / "record.json").read_text())["ended"] is None
    with compilations() as logged:
        said = resume(settings, workdir)
    # It runs what is compiled.
    assert not [line for line in logged if "Compiling jit(train_step)" in line]
    assert f"resuming from step {last}" in said
    assert_same_end(settings, workdir, unbroken)


def test_a_damaged_checkpoint_costs_only_time(settings, unbroken, workdir):
    stop(settings, workdir, 7)
    newest = checkpoints_of(workdir)[-1]
    file = max((workdir / "checkpoints" / str(newest)).rglob("*"), key=size_of)
    file.write_bytes(file.read_bytes()[: size_of(file) // 2])
    said = resume(settings, workdir)
    (report,) = [line for line in said if "is damaged" in line]
    assert str(workdir / "checkpoints" / str(newest)) in report
    assert "resuming from step 5" in said
    assert_same_end(settings, workdir, unbroken)


def size_of(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


@pytest.mark.thorough
def test_checkpoints_by_the_clock_change_no_number(settings, workdir, unbroken):
    clock = dataclasses.replace(
        settings.train,
        steps=6,
        evaluate_every=3,
        checkpoint_every=0,
        checkpoint_minutes=1e-9,
        keep=100,
    )
    by_clock = dataclasses.replace(settings, train=clock)
    by_steps = dataclasses.replace(clock, checkpoint_every=3, checkpoint_minutes=0.0)
    reference = workdir / "by_steps"  # unbroken, validated at the same steps
    shutil.copytree(unbroken / "corpus", reference / "corpus")
    assert train.train(dataclasses.replace(settings, train=by_steps), reference, ignore)
    assert checkpoints_of(reference) == [3, 6]
    stop(by_clock, workdir, 2)
    resume(by_clock, workdir)
    assert checkpoints_of(workdir) == [1, 2, 3, 4, 5, 6]
    validated = [x["step"] for x in metrics_of(workdir) if "validation_nll" in x]
    assert validated == [3, 6]  # not where the clock struck
    losses = [x for x in metrics_of(workdir) if "loss" in x]
    assert len(losses) == 6
    assert losses == [x for x in metrics_of(reference) if "loss" in x]
    clock = dataclasses.replace(clock, checkpoint_minutes=60.0)
    hourly = workdir / "hourly"
    shutil.copytree(unbroken / "corpus", hourly / "corpus")
    resume(dataclasses.replace(settings, train=clock), hourly)
    assert checkpoints_of(hourly) == [6]
    assert losses == [x for x in metrics_of(hourly) if "loss" in x]


def test_a_finished_run_does_not_train_again(settings, unbroken):
    before = files_of(unbroken)
    said = resume(settings, unbroken)
    assert f"resuming from step {STEPS}" in said
    assert not [line for line in said if re.match(r"step \d+[/:]", line)]
    assert files_of(unbroken) == before


def files_of(workdir: Path) -> dict[str, bytes]:
    """Return what a run must not lose: all but the record, the events and the lock."""
    others = {"record.json", "tensorboard", "lock"}
    return {
        str(path.relative_to(workdir)): path.read_bytes()
        for path in workdir.rglob("*")
        if path.is_file() and not others & set(path.parts)
    }


def test_another_configuration_is_refused_with_the_difference(
    settings, unbroken, capsys
):
    before = files_of(unbroken)
    other = ["--config.model.heads=4", "--config.optimizer.rate=0.25"]
    assert cli.main(command(settings, unbroken, *other)) == 2
    captured = capsys.readouterr()
    assert captured.err.count("transformer: error: ") == 1
    (line,) = [x for x in captured.err.splitlines() if "error" in x]
    assert "model.heads: 2 -> 4; optimizer.rate: 0.5 -> 0.25;" in line
    assert files_of(unbroken) == before
    assert cli.main(command(settings, unbroken)) == 0  # the flags are those of settings


def test_other_devices_are_no_other_configuration(settings, tmp_path):
    stop(settings, tmp_path, 5)
    spread = dataclasses.replace(settings.parallel, data=1)
    moved = dataclasses.replace(settings, device="cpu", parallel=spread)
    train.adopt_config(moved, tmp_path)
    assert folder.read_settings(tmp_path) == moved
    with pytest.raises(UserError, match="got seed: 0 -> 1; choose another workdir"):
        train.adopt_config(dataclasses.replace(moved, seed=1), tmp_path)


def test_a_run_that_never_began_can_be_mended(settings, tmp_path):
    data = dataclasses.replace(settings.data, dir=str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match="expected a file"):
        train.train(dataclasses.replace(settings, data=data), tmp_path, ignore)
    assert stop(settings, tmp_path, 1) in (1, 2)
    assert folder.read_settings(tmp_path) == settings


def test_another_vocabulary_is_refused(settings, unbroken, tmp_path):
    workdir = tmp_path / "run"
    shutil.copytree(unbroken, workdir)
    shutil.rmtree(workdir / "corpus")
    texts = tmp_path / "data"
    shutil.copytree(settings.data.dir, texts)
    text = (texts / "train.en").read_text(encoding="utf-8")
    (texts / "train.en").write_text(text.replace("nine", "niner"), encoding="utf-8")
    data = dataclasses.replace(settings.data, dir=str(texts))
    changed = dataclasses.replace(settings, data=data)
    folder.write_settings(workdir, changed)
    before = files_of(workdir / "checkpoints")
    with pytest.raises(UserError, match="step 20: expected vocabulary .*, got .*"):
        train.train(changed, workdir, ignore)
    assert files_of(workdir / "checkpoints") == before


# ---- as a process --------------------------------------------------------------------


# Twenty steps are over sooner than a signal is sent where others use the processor: a
# pause after each line of metrics.
_UNHURRIED = """
import time
from transformer.cli import main as cli
from transformer.run import history

add = history.History.add

def unhurried(self, line):
    add(self, line)
    time.sleep(0.05)

history.History.add = unhurried
cli.run()
"""


def start(settings: Config, workdir: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _UNHURRIED, *command(settings, workdir)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def signal_when(
    process: subprocess.Popen[str], number: int, moment: Callable[[], bool]
) -> tuple[int, str, float]:
    """Send a signal as soon as a moment has come; return code, output and seconds."""
    with process:
        while not moment():
            if process.poll() is not None:
                assert process.stdout
                pytest.fail(f"ended before the signal: {process.stdout.read()}")
            time.sleep(0.001)
        process.send_signal(number)
        sent = time.monotonic()
        output, _ = process.communicate(timeout=60)
    return process.returncode, output, time.monotonic() - sent


def step_is_written(workdir: Path, step: int) -> Callable[[], bool]:
    path = workdir / "metrics.jsonl"
    return lambda: path.exists() and f'{{"step": {step},' in path.read_text()


def a_checkpoint_is_being_written(workdir: Path, after: int) -> Callable[[], bool]:
    def steps() -> Iterator[int]:
        for path in (workdir / "checkpoints").glob("*.*"):
            yield int(path.name.split(".")[0])

    return lambda: any(step > after for step in steps())


def test_killed_at_any_step(settings, unbroken, workdir):
    seed = random.SystemRandom().randrange(2**32)
    draw = random.Random(seed)
    moments = [
        step_is_written(workdir, draw.randint(1, 5)),
        step_is_written(workdir, draw.randint(6, 9)),
        a_checkpoint_is_being_written(workdir, after=10),
    ]
    print("seed of the steps", seed)
    for moment in moments:
        process = start(settings, workdir)
        code, output, _ = signal_when(process, signal.SIGKILL, moment)
        assert code == -signal.SIGKILL, output
        print(checkpoints_of(workdir), output.splitlines()[-3:])
    process = start(settings, workdir)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert re.search(r"resuming from step (5|10|15)\n", output)
    assert_same_end(settings, workdir, unbroken)
    results = json.loads((workdir / "results.json").read_text())
    assert results["step"] == STEPS and len(results["sentences"]) == 3


def test_sigterm_ends_well_and_ctrl_c_says_interrupted(settings, unbroken, workdir):
    process = start(settings, workdir)
    code, output, seconds = signal_when(
        process, signal.SIGTERM, step_is_written(workdir, 3)
    )
    assert code == 143 and seconds < 30, output  # `train && evaluate` does not go on
    (stopped,) = re.findall(r"stopped at step (\d+); the same command", output)
    assert checkpoints_of(workdir)[-1] == int(stopped)
    process = start(settings, workdir)
    moment = step_is_written(workdir, int(stopped) + 3)
    code, output, _ = signal_when(process, signal.SIGINT, moment)
    assert code == 130, output
    assert output.endswith("transformer: error: interrupted\n")
    assert "Traceback" not in output
    resume(settings, workdir)
    assert_same_end(settings, workdir, unbroken)


def test_a_reader_that_goes_away_stops_a_run_with_a_checkpoint(
    settings, unbroken, workdir
):
    with start(settings, workdir) as process:
        assert process.stdout
        next(line for line in process.stdout if line.startswith("step 3/"))
        process.stdout.close()
        assert process.wait(timeout=60) == 141
    assert 3 <= checkpoints_of(workdir)[-1] < STEPS
    resume(settings, workdir)
    assert_same_end(settings, workdir, unbroken)


# Compilations of the train step, all but the first, last until the test is over.
_SLOWLY = """
import sys, time
import jax
from transformer.cli import configs
from transformer.cli import main as cli

compile_it, begun = jax.stages.Lowered.compile, []

def slowly(lowered):
    begun.append(lowered)
    if len(begun) > 1:
        print("compiling slowly", flush=True)
        time.sleep(600)
    return compile_it(lowered)

jax.stages.Lowered.compile = slowly
cli.run()
"""


def test_sigterm_while_a_shape_is_compiled(settings, unbroken, workdir):
    arguments = [sys.executable, "-c", _SLOWLY, *command(settings, workdir)]
    with subprocess.Popen(
        arguments, cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        said = [next(line for line in process.stdout if "compiling slowly" in line)]
        process.send_signal(signal.SIGTERM)
        sent = time.monotonic()
        said += process.stdout
    assert process.returncode == 143 and time.monotonic() - sent < 30, said
    (stopped,) = re.findall(r"stopped at step (\d+); the same command", "".join(said))
    assert checkpoints_of(workdir)[-1] == int(stopped) < STEPS
    resume(settings, workdir)
    assert_same_end(settings, workdir, unbroken)
