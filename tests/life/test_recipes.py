"""Schedules that follow validations or epochs, early ends, the best checkpoint."""

import dataclasses
import math
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import toy
from support.cases import leave
from support.runs import compiling_once, flat, lines_of, metrics_of, state_of
from support.toy import toy_run

from transformer import evaluate, train, validation
from transformer.config import Config, UserError
from transformer.run import folder
from transformer.run.checkpoints import Checkpoints, steps_in
from transformer.translate import load

CONSTANT: dict[str, Any] = {
    "optimizer.schedule": "constant",
    "optimizer.rate": 0.01,
    "optimizer.warmup": 4,
    "train.steps": 12,
    "train.evaluate_every": 2,
    "train.checkpoint_every": 4,
    "decode.average": 1,
}
# Of a rate so high that most validations are in vain.
PLATEAU = CONSTANT | {
    "optimizer.schedule": "plateau",
    "optimizer.rate": 0.5,
    "optimizer.decay": 0.5,
}


@pytest.fixture(scope="module", autouse=True)
def compiled_once(tmp_path_factory):
    """Let the runs of this module, all of the toy, share what is compiled."""
    with compiling_once(tmp_path_factory.mktemp("xla")) as patch:
        toy.register(patch)
        yield


def ignore(line: str) -> None:
    pass


def trained(folder_: Path, workdir: Path, changes: dict[str, Any]) -> Any:
    settings = toy_run(folder_, **changes)
    workdir.mkdir(exist_ok=True)
    assert train.train(settings, workdir, ignore)
    return settings


def rates(workdir: Path) -> list[float]:
    lines = lines_of(workdir)
    return [line["learning_rate"] for line in lines if "learning_rate" in line]


def test_a_constant_rate_begins_with_a_linear_warm_up(tmp_path):
    trained(tmp_path / "data", tmp_path / "run", CONSTANT)
    expected = [0.0025, 0.005, 0.0075] + [0.01] * 9
    np.testing.assert_allclose(rates(tmp_path / "run"), expected, rtol=1e-6)


def test_a_plateau_lowers_the_rate_and_resumes_bit_by_bit(tmp_path):
    data, whole, cut = (tmp_path / name for name in ("data", "whole", "cut"))
    settings = trained(data, whole, PLATEAU)
    values = {
        line["step"]: line["validation_nll"]
        for line in lines_of(whole)
        if "validation_nll" in line
    }
    factor, best, expected = 1.0, float("inf"), []
    for step in range(12):
        expected.append(0.5 * min(1, (step + 1) / 4) * factor)
        if (value := values.get(step + 1)) is not None:
            factor, best = (factor, value) if value < best else (factor / 2, best)
    np.testing.assert_allclose(rates(whole), expected, rtol=1e-6)
    assert factor < 1, "nothing was in vain: another seed"
    # As a kill leaves it that came after step 8 was saved.
    shutil.copytree(whole, cut)
    shutil.rmtree(cut / "checkpoints" / "12")
    (cut / "results.json").unlink()
    assert train.train(settings, cut, ignore)
    assert metrics_of(cut) == metrics_of(whole)
    _, metadata, arrays = state_of(settings, cut)
    _, expected_metadata, expected_arrays = state_of(settings, whole)
    assert metadata == expected_metadata and metadata["course"]["factor"] == factor
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, expected_arrays[name], name)


def test_the_end_of_a_shorter_run_lowers_no_rate(tmp_path):
    data, whole, longer = (tmp_path / name for name in ("data", "whole", "longer"))
    settings = trained(data, whole, PLATEAU)
    # Step 9 is validated as the end of a run, in vain, and of no other.
    trained(data, longer, PLATEAU | {"train.steps": 9})
    assert any("validation_nll" in x and x["step"] == 9 for x in lines_of(longer))
    assert train.train(settings, longer, ignore)
    assert rates(longer) == rates(whole)


def test_what_the_clock_saves_is_not_the_best(tmp_path):
    by_step = CONSTANT | {"optimizer.rate": 0.5, "decode.checkpoint": "best"}
    by_step |= {
        "train.steps": 6,
        "train.evaluate_every": 3,
        "train.checkpoint_every": 3,
    }
    by_clock = by_step | {"train.checkpoint_minutes": 1e-9, "train.keep": 20}
    data, *places = (tmp_path / name for name in ("data", "by_step", "by_clock"))
    found = []
    for place, changes in zip(places, (by_step, by_clock), strict=True):
        trained(data, place, changes)
        found.append(folder.read_results(place))
    assert len(steps_in(places[1] / "checkpoints")) == 6
    assert found[0]["step"] == found[1]["step"]
    assert found[0]["best"]["nll"] == found[1]["best"]["nll"]


@pytest.mark.parametrize("lengths", [1, 2])
def test_epochs_lower_the_rate(lengths, tmp_path):
    changes = PLATEAU | {
        "batch.lengths": lengths,
        "optimizer.schedule": "epochs",
        "optimizer.warmup": 1,
        "optimizer.decay_after": 1.0,
        "optimizer.decay_every": 0.5,
        "train.steps": 25,
    }
    settings = trained(tmp_path / "data", tmp_path / "run", changes)
    found = np.array(rates(tmp_path / "run"))
    lowered = 1 + np.flatnonzero(np.diff(found))
    # 200 pairs of at most 7 tokens in steps of 128: each is so much of an epoch.
    said: list[str] = []
    train.train(settings, tmp_path / "run", said.append)
    (line,) = [x for x in said if x.startswith("batches: ")]
    epoch = int(line.split()[1]) / lengths  # steps
    assert lowered[:2].tolist() == [math.ceil(epoch), math.ceil(1.5 * epoch)]
    halved = found[[0, *lowered]]
    np.testing.assert_allclose(halved, 0.5 * 0.5 ** np.arange(len(halved)), rtol=1e-6)


def test_the_end_before_a_rate_that_is_too_low_is_kept(tmp_path):
    changes = PLATEAU | {
        "optimizer.schedule": "epochs",
        "optimizer.warmup": 1,
        "optimizer.decay_after": 1.0,
        "optimizer.decay_every": 1.0,
        "optimizer.least_rate": 0.2,
        "train.steps": 100,
        "train.evaluate_every": 0,
        "train.checkpoint_every": 1000,
    }
    settings, said = toy_run(tmp_path / "data", **changes), list[str]()
    workdir = tmp_path / "run"
    workdir.mkdir()
    assert train.train(settings, workdir, said.append)
    found = rates(workdir)
    assert set(found) == {np.float32(0.5), np.float32(0.25)}  # and then .125
    end = len(found)
    assert f"ended at step {end}: the learning rate would be 0.125" in "".join(said)
    assert steps_in(workdir / "checkpoints") == [end]
    assert folder.read_results(workdir)["step"] == end
    lines, record = lines_of(workdir), folder.read_record(workdir)
    assert "validation_nll" in lines[-1] and record["ended"]
    assert record["tokens"] == sum(x.get("target_tokens", 0) for x in lines)
    before = metrics_of(workdir)
    assert folder.is_finished(workdir, settings)
    assert train.train(settings, workdir, ignore)  # nothing is left to do
    assert metrics_of(workdir) == before


def assert_same_run(settings: Config, workdir: Path, unbroken: Path) -> None:
    assert metrics_of(workdir) == metrics_of(unbroken)
    kept = [steps_in(one / "checkpoints") for one in (workdir, unbroken)]
    assert kept[0] == kept[1]
    for step in kept[0]:
        _, metadata, arrays = state_of(settings, workdir, step)
        _, its_metadata, expected = state_of(settings, unbroken, step)
        assert metadata == its_metadata
        for name, array in arrays.items():
            np.testing.assert_array_equal(array, expected[name], name)
    with Checkpoints(workdir / "checkpoints", keep=1) as mine:
        with Checkpoints(unbroken / "checkpoints", keep=1) as its:
            assert mine.best() == its.best()


# Validated alone, also saved, the end.
@pytest.mark.parametrize("step", leave([2, 4, 12], [2, 12]))
def test_a_validation_that_failed_is_made_when_the_run_goes_on(
    step, tmp_path, monkeypatch
):
    data, whole, cut = (tmp_path / name for name in ("data", "whole", "cut"))
    settings = trained(data, whole, PLATEAU)
    measure, left = validation.measure, [step // 2]  # a validation every 2 steps

    def failing(*arguments: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise UserError("a line that is too long; cut it")
        return measure(*arguments)

    monkeypatch.setattr(validation, "measure", failing)
    cut.mkdir()
    with pytest.raises(UserError, match="too long"):
        train.train(settings, cut, ignore)
    assert steps_in(cut / "checkpoints")[-1] == step
    assert not (cut / "results.json").exists()
    assert train.train(settings, cut, ignore)
    assert_same_run(settings, cut, whole)


@pytest.mark.parametrize("how", ["stopped", "saved by the clock"])
def test_an_early_end_is_validated_also_by_who_finds_it_reached(how, tmp_path):
    data, whole, cut = (tmp_path / name for name in ("data", "whole", "cut"))
    changes = PLATEAU | {
        "optimizer.schedule": "epochs",
        "optimizer.warmup": 1,
        "optimizer.decay_after": 1.0,
        "optimizer.decay_every": 1.0,
        "optimizer.least_rate": 0.3,
        "train.steps": 100,
        "train.evaluate_every": 0,
        "train.checkpoint_every": 1000,
    }
    settings = trained(data, whole, changes)
    (end,) = steps_in(whole / "checkpoints")
    cut.mkdir()
    if how == "stopped":

        def stop(line: str) -> None:
            if line.startswith(f"step {end - 1}/"):
                os.kill(os.getpid(), signal.SIGTERM)

        assert train.train(settings, cut, stop) is None
        assert steps_in(cut / "checkpoints") == [end]
        assert train.train(settings, cut, ignore)
        assert_same_run(settings, cut, whole)
    else:
        clock = {"train.checkpoint_minutes": 1e-9, "train.keep": 100}
        trained(data, cut, changes | clock)
        assert metrics_of(cut) == metrics_of(whole)
        with Checkpoints(cut / "checkpoints", keep=1) as checkpoints:
            assert checkpoints.best() == end


@pytest.fixture(scope="module")
def short_of_patience(tmp_path_factory) -> Any:
    """A run that ends early: its rate is so high that it soon finds nothing better."""
    place = tmp_path_factory.mktemp("early")
    changes = CONSTANT | {
        "optimizer.rate": 0.3,
        "train.steps": 60,
        "train.patience": 3,
        "train.keep": 1,
        "decode.checkpoint": "best",
    }
    return trained(place / "data", place / "run", changes), place / "run"


def test_patience_ends_a_run_with_the_best_checkpoint(short_of_patience):
    settings, workdir = short_of_patience
    values = {
        line["step"]: line["validation_nll"]
        for line in lines_of(workdir)
        if "validation_nll" in line
    }
    best, end = min(values, key=lambda step: values[step]), max(values)
    assert end == best + 3 * settings.train.evaluate_every < settings.train.steps
    assert steps_in(workdir / "checkpoints") == [best, end]
    assert folder.read_record(workdir)["ended"]
    results = folder.read_results(workdir)
    assert (results["step"], results["trained"]) == (best, end)
    assert "best" in results and "last" not in results
    assert folder.is_finished(workdir, settings)


def test_translations_and_evaluations_are_of_the_best(short_of_patience):
    settings, workdir = short_of_patience
    best, end = steps_in(workdir / "checkpoints")
    params = flat(load(workdir).params)
    for step, same in ((best, True), (end, False)):
        assert np.array_equal(params, flat(load(workdir, step=step).params)) is same
    path = evaluate.evaluate(workdir, step=end, log=ignore)
    assert path.name == f"test_step{end}_average1.json"
    assert folder.read_results(workdir)["step"] == best


def test_a_run_that_ended_early_goes_on_with_more_patience(short_of_patience, tmp_path):
    settings, workdir = short_of_patience
    workdir = Path(shutil.copytree(workdir, tmp_path / "run"))
    before = metrics_of(workdir)
    said: list[str] = []
    assert train.train(settings, workdir, said.append)
    assert metrics_of(workdir) == before  # no step more
    assert any("no improvement in 3 validations" in line for line in said)
    patient = dataclasses.replace(settings.train, patience=4)
    settings = dataclasses.replace(settings, train=patient)
    assert not folder.is_finished(workdir, settings)
    assert train.train(settings, workdir, ignore)
    assert len(metrics_of(workdir)) > len(before)
    assert folder.is_finished(workdir, settings)


def test_a_run_with_patience_that_came_to_its_last_step_is_not_that_of_more(tmp_path):
    changes = CONSTANT | {"train.steps": 4, "train.patience": 20}
    workdir = tmp_path / "run"
    settings = trained(tmp_path / "data", workdir, changes)
    longer = dataclasses.replace(settings.train, steps=8)
    assert folder.is_finished(workdir, settings)
    assert not folder.is_finished(workdir, dataclasses.replace(settings, train=longer))


def test_bleu_can_be_watched(tmp_path):
    changes = CONSTANT | {
        "train.watch": "tokens",
        "train.watch_pairs": 5,
        "decode.checkpoint": "best",
        "train.keep": 1,
    }
    trained(tmp_path / "data", tmp_path / "run", changes)
    scores = {
        line["step"]: line["validation_tokens"]
        for line in lines_of(tmp_path / "run")
        if "validation_nll" in line
    }
    assert list(scores) == [2, 4, 6, 8, 10, 12]
    best = folder.read_results(tmp_path / "run")["step"]
    assert scores[best] == max(scores.values())


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({"train.watch": "bleu"}, "train.watch: expected perplexity or one of 13a,"),
        ({"train.patience": 2, "train.evaluate_every": 0}, "train.evaluate_every: exp"),
        ({"decode.checkpoint": "best", "decode.average": 5}, "decode.average: expe"),
        ({"optimizer.scale": 2.0}, "optimizer.scale: expected 1.0 with optimizer.sch"),
        ({"optimizer.rate": 0.0}, "optimizer.rate: expected above 0 with constant"),
        ({"optimizer.decay": 0.5}, "optimizer.decay: expected 1.0 with optimizer.sch"),
        ({"optimizer.decay_patience": 1}, "optimizer.decay_patience: expected 0 with"),
        ({"optimizer.schedule": "plateau"}, "optimizer.decay: expected less than 1"),
        (
            {"optimizer.schedule": "epochs", "optimizer.decay": 0.5},
            "optimizer.decay_every: expected above 0 with epochs",
        ),
        (
            {"optimizer.schedule": "inverse_sqrt"},
            "optimizer.rate: expected 0.0 with optimizer.schedule = inverse_sqrt",
        ),
    ],
)
def test_keys_that_contradict_each_other_are_refused(changes, expected, tmp_path):
    with pytest.raises(UserError) as error:
        settings = toy_run(tmp_path / "data", **(CONSTANT | changes))
        train.train(settings, tmp_path, ignore)
    assert expected in str(error.value)
    assert [path.name for path in tmp_path.iterdir() if path.name != "lock"] == ["data"]


def test_what_a_plateau_follows_may_not_change(tmp_path):
    settings = trained(tmp_path / "data", tmp_path / "run", PLATEAU)
    other = dataclasses.replace(settings.train, evaluate_every=3, steps=20)
    with pytest.raises(UserError, match=r"train\.evaluate_every: 2 -> 3"):
        train.train(
            dataclasses.replace(settings, train=other), tmp_path / "run", ignore
        )
    other = dataclasses.replace(settings.train, checkpoint_every=1, steps=20)
    with pytest.raises(UserError, match=r"train\.checkpoint_every: 4 -> 1"):
        train.train(
            dataclasses.replace(settings, train=other), tmp_path / "run", ignore
        )
