"""A run goes on with more steps, or another course, as if it had begun so."""

import dataclasses
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import toy
from support.runs import checkpoints_of, compiling_once, metrics_of, state_of
from support.toy import toy_run

from transformer import train
from transformer.config import Config, UserError
from transformer.files import lock
from transformer.run import folder, keeper

SHORT, LONG = 6, 12


@pytest.fixture(scope="module", autouse=True)
def compiled_once(tmp_path_factory):
    """Let the runs of this module, all of the toy, share what is compiled."""
    with compiling_once(tmp_path_factory.mktemp("xla")) as patch:
        toy.register(patch)
        yield


@pytest.fixture
def unevaluated(monkeypatch):
    """Let runs end without their evaluation."""
    monkeypatch.setattr(
        train, "evaluate_held", lambda workdir, **_: workdir / "results.json"
    )


def ignore(line: str) -> None:
    pass


def changed(settings: Config, group: str, **values: Any) -> Config:
    new = dataclasses.replace(getattr(settings, group), **values)
    return dataclasses.replace(settings, **{group: new})


@pytest.fixture(scope="module")
def long(tmp_path_factory) -> Config:
    sizes = {"train.steps": LONG, "train.checkpoint_every": 3, "train.keep": 2}
    return toy_run(tmp_path_factory.mktemp("data"), **sizes, **{"model.dropout": 0.1})


@pytest.fixture(scope="module")
def short(long) -> Config:
    return changed(long, "train", steps=SHORT)


@pytest.fixture(scope="module")
def finished(short, tmp_path_factory) -> Path:
    workdir = tmp_path_factory.mktemp("finished")
    assert train.train(short, workdir, ignore) == workdir / "results.json"
    return workdir


@pytest.fixture
def workdir(finished, tmp_path) -> Path:
    """A copy of the finished run."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def test_more_steps_make_the_bits_of_a_longer_run(short, long, workdir, tmp_path):
    unbroken = tmp_path / "unbroken"
    unbroken.mkdir()
    assert train.train(long, unbroken, ignore)
    assert not folder.is_finished(workdir, long)
    assert train.train(long, workdir, ignore)
    assert folder.is_finished(workdir, long)
    assert metrics_of(workdir) == metrics_of(unbroken)
    assert checkpoints_of(workdir) == checkpoints_of(unbroken)
    for step in checkpoints_of(unbroken):
        _, _, arrays = state_of(long, workdir, step)
        _, _, expected = state_of(long, unbroken, step)
        assert arrays.keys() == expected.keys()
        for name, array in arrays.items():
            np.testing.assert_array_equal(array, expected[name], name)
    mine, its = (folder.read_results(one) for one in (workdir, unbroken))
    assert mine["step"] == LONG and mine["sentences"] == its["sentences"]
    record = folder.read_record(workdir)
    assert record["changes"] == [{"step": SHORT, "train.steps": [SHORT, LONG]}]
    assert record["ended"] and not folder.read_record(unbroken)["changes"]
    assert folder.read_settings(workdir) == long
    kept = {path.name for path in (workdir / "results").iterdir()}
    assert kept == {f"test_step{step}_average2.json" for step in (SHORT, LONG)}


def test_the_record_of_a_complete_run_stays(short, workdir, monkeypatch):
    record = (workdir / "record.json").read_bytes()
    monkeypatch.setenv("XLA_OTHER", "on another machine")
    assert train.train(short, workdir, ignore)
    assert (workdir / "record.json").read_bytes() == record
    shutil.rmtree(workdir / "checkpoints")
    monkeypatch.setattr(keeper, "now", lambda: "now")
    assert train.train(short, workdir, ignore)  # from its beginning
    found = folder.read_record(workdir)
    assert found["started"] == "now" and found["machine"]["flags"]["XLA_OTHER"]


def test_the_course_may_change_and_is_recorded(short, workdir):
    course = changed(short, "train", log_every=2, evaluate_every=4, keep=3)
    course = changed(course, "decode", beam=2, average=1)
    course = changed(course, "optimizer", nonfinite_limit=7)
    course = dataclasses.replace(course, name="renamed")
    assert not folder.is_finished(workdir, course)
    before = state_of(short, workdir)[2]
    for _ in range(2):  # the second time nothing is new
        assert train.train(course, workdir, ignore)
        (change,) = folder.read_record(workdir)["changes"]
        assert change == {
            "step": SHORT,
            "name": [short.name, "renamed"],
            "train.log_every": [1, 2],
            "train.evaluate_every": [6, 4],
            "train.keep": [2, 3],
            "decode.beam": [1, 2],
            "decode.average": [5, 1],
            "optimizer.nonfinite_limit": [short.optimizer.nonfinite_limit, 7],
        }
    for name, array in state_of(short, workdir)[2].items():
        np.testing.assert_array_equal(array, before[name], name)
    assert folder.read_results(workdir)["beam"] == 2
    assert folder.is_finished(workdir, course)
    # Another history replaces what was recorded later.
    shutil.rmtree(workdir / "checkpoints" / str(SHORT))
    assert train.train(short, workdir, ignore)
    assert folder.read_record(workdir)["changes"] == []


def test_an_average_of_an_earlier_end_does_not_outlive_it(short, workdir):
    assert checkpoints_of(workdir) == [3, 6] and (workdir / "averaged" / "6").is_dir()
    one = changed(changed(short, "train", steps=9), "decode", average=1)
    assert train.train(one, workdir, ignore)
    assert not [*(workdir / "averaged").iterdir()]


@pytest.mark.parametrize(
    "group, values, expected",
    [
        (
            "train",
            {"steps": 5},
            "train.steps: expected 6 or more, the step of the last",
        ),
        ("optimizer", {"warmup": 21}, "optimizer.warmup: 20 -> 21; choose another"),
        ("batch", {"tokens": 256}, "batch.tokens: 128 -> 256; choose another"),
    ],
)
@pytest.mark.parametrize("lost", ["", "config.json"])
def test_what_makes_another_run_is_refused(
    short, workdir, group, values, expected, lost
):
    if lost:  # the checkpoints know too
        (workdir / lost).unlink()
    before = [*workdir.rglob("*")]
    with pytest.raises(UserError, match=expected):
        train.train(changed(short, group, **values), workdir, ignore)
    assert [x for x in workdir.rglob("*") if x not in before] == []


@pytest.mark.usefixtures("unevaluated")
def test_a_lost_config_json_is_written_anew(short, workdir):
    (workdir / "config.json").unlink()
    assert train.train(short, workdir, ignore)
    assert folder.read_settings(workdir) == short


@pytest.mark.usefixtures("unevaluated")
@pytest.mark.parametrize("lost", ["results.json", "record.json"])
def test_a_run_whose_checkpoints_are_gone_is_replaced_by_its_own_kind_only(
    short, workdir, lost
):
    shutil.rmtree(workdir / "checkpoints")
    (workdir / lost).unlink()  # the other one tells of the run
    before = (workdir / "metrics.jsonl").read_bytes()
    for other in (
        dataclasses.replace(short, seed=1),
        changed(short, "train", steps=LONG),  # nothing goes on, and results are lost
    ):
        with pytest.raises(UserError, match="belongs to another configuration"):
            train.train(other, workdir, ignore)
    assert (workdir / "metrics.jsonl").read_bytes() == before
    assert folder.read_settings(workdir) == short
    said: list[str] = []
    assert train.train(short, workdir, said.append)
    anew = f"{workdir}: no checkpoint found, the run starts over"
    assert (anew in said) == (lost == "results.json")
    assert metrics_of(workdir) and checkpoints_of(workdir) == [3, 6]


# ---- one holder, damage --------------------------------------------------------------


@pytest.mark.usefixtures("unevaluated")
def test_a_second_run_in_the_workdir_is_refused(short, workdir):
    before = {path: path.stat().st_mtime_ns for path in workdir.rglob("*")}
    with lock.holding(workdir):
        with pytest.raises(UserError, match="no other process works in, but process "):
            assert train.train(short, workdir, ignore)
    after = {path: path.stat().st_mtime_ns for path in workdir.rglob("*")}
    assert after.keys() == before.keys()
    assert {p for p in after if after[p] != before[p]} <= {workdir / "lock"}
    assert train.train(short, workdir, ignore)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.usefixtures("unevaluated")
@pytest.mark.parametrize("damage", [flip, truncate, Path.unlink, Path.touch])
@pytest.mark.parametrize("name", ["config.json", "record.json", "metrics.jsonl"])
def test_damage_is_reported_before_a_step(long, workdir, name, damage):
    if damage is Path.touch:  # a folder in place of the file
        (workdir / name).unlink()
        (workdir / name).mkdir()
    else:
        damage(workdir / name)
    checkpoints = checkpoints_of(workdir)
    if (name, damage) == ("record.json", Path.unlink):  # the way to go on without it
        said: list[str] = []
        assert train.train(long, workdir, said.append)
        assert f"{workdir / name}: none found, a new one is started" in said
    elif (name, damage) == ("config.json", Path.unlink):
        assert train.train(long, workdir, ignore)
    else:
        with pytest.raises(UserError, match=rf"{name}.*; (restore it,|move it)"):
            train.train(long, workdir, ignore)
        assert checkpoints_of(workdir) == checkpoints


@pytest.mark.usefixtures("unevaluated")
def test_without_its_history_a_run_goes_on(long, workdir):
    (workdir / "metrics.jsonl").unlink()
    (workdir / "record.json").unlink()
    assert train.train(long, workdir, ignore)
    steps = {line["step"] for line in metrics_of(workdir)}
    assert steps == {*range(SHORT + 1, LONG + 1)}


def test_a_link_in_the_workdir_is_not_followed(long, workdir, tmp_path):
    mine = tmp_path / "mine"
    mine.write_text("of somebody else")
    for name in ("results.json", "config.json.partial", "record.json.partial"):
        (workdir / name).unlink(missing_ok=True)
        (workdir / name).symlink_to(mine)
    assert train.train(long, workdir, ignore)
    assert mine.read_text() == "of somebody else"
    assert folder.read_results(workdir)["step"] == LONG
    (workdir / "metrics.jsonl").rename(mine)
    (workdir / "metrics.jsonl").symlink_to(mine)
    before = mine.read_bytes()
    longer = changed(long, "train", steps=LONG + 3)
    with pytest.raises(UserError, match=r"metrics.jsonl: .* and no link, got: "):
        train.train(longer, workdir, ignore)
    assert mine.read_bytes() == before
    (tmp_path / "elsewhere").mkdir()
    shutil.rmtree(workdir / "results")
    (workdir / "results").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="expected a folder, got a link to .*elsewhere"):
        train.train(longer, workdir, ignore)
    assert not [*(tmp_path / "elsewhere").iterdir()]


# ---- a loss that explodes ------------------------------------------------------------


@pytest.mark.parametrize(
    "steps, expected",
    [
        (
            SHORT,
            r"test, last: expected a finite loss, got \S+ nats per token; lower",
        ),
        (
            SHORT + 3,
            "step 7: expected a finite loss and gradient, got 6 steps in a row",
        ),
    ],
)
def test_an_exploding_loss_ends_with_what_helps(
    short, workdir, tmp_path, steps, expected
):
    # Without warm-up products of the first updated parameters are beyond float32.
    # Smaller ones left the first losses finite on a CPU with AVX2 alone.
    wild = changed(short, "optimizer", scale=3e38, warmup=1, nonfinite_limit=6)
    wild = changed(wild, "train", steps=steps)
    run = tmp_path / "wild"
    shutil.copytree(workdir / "corpus", run / "corpus")
    for _ in range(2):
        with pytest.raises(UserError, match=expected):
            train.train(wild, run, ignore)
    assert not (run / "results.json").exists()


# ---- other data ----------------------------------------------------------------------


@pytest.fixture
def rewrite() -> Iterator[Callable[[Path], None]]:
    """Let a test exchange the first two lines of a file, and undo it."""
    before: dict[Path, bytes] = {}

    def exchange(path: Path) -> None:
        before[path] = path.read_bytes()
        first, second, rest = before[path].split(b"\n", 2)
        path.write_bytes(b"\n".join([second, first, rest]))

    yield exchange
    for path, content in before.items():
        path.write_bytes(content)


@pytest.mark.usefixtures("unevaluated")
def test_the_steps_go_on_with_the_pairs_they_were_made_with(long, workdir, rewrite):
    path = Path(long.data.dir, "train.de")
    rewrite(path)
    shutil.rmtree(workdir / "corpus")
    expected = f"{path}: expected the content that the {SHORT} steps of {workdir} were"
    with pytest.raises(UserError, match=re.escape(expected)):
        train.train(long, workdir, ignore)
    assert checkpoints_of(workdir) == [3, SHORT]


@pytest.mark.usefixtures("unevaluated")
def test_other_held_out_pairs_are_recorded(long, workdir, rewrite):
    path = Path(long.data.dir, "test.de")
    old = folder.read_record(workdir)["data"]["test"][str(path)]["sha256"]
    rewrite(path)
    with pytest.raises(UserError, match="restore it, or remove that folder"):
        train.train(long, workdir, ignore)
    shutil.rmtree(workdir / "corpus")

    def killed(*_: Any) -> Iterator[Any]:
        raise KeyboardInterrupt

    # Resumed, the run has written the new digest; the change is not forgotten.
    with pytest.raises(KeyboardInterrupt):
        train.train(long, workdir, ignore, killed)
    assert train.train(long, workdir, ignore)
    record = folder.read_record(workdir)
    new = record["data"]["test"][str(path)]["sha256"]
    (change,) = record["changes"]
    assert change == {
        "step": SHORT,
        "train.steps": [SHORT, LONG],
        f"data.test: {path}": [old, new],
    }
    assert old != new
