"""A configuration is checked once, with errors in the user's words."""

import dataclasses
import json
from typing import Any

import pytest
from support.configs import base, changed, experiment
from support.paths import EXPERIMENTS

from transformer import config
from transformer.config import UserError


def error(changes: dict[str, object]) -> str:
    with pytest.raises(UserError) as caught:
        config.resolve(changed(changes))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_paper_s_values_are_the_default():
    resolved = base()
    assert dataclasses.astuple(resolved.model)[1:9] == (6, 512, 2048, 8, 64, 64, 0.1, 0)
    assert (resolved.optimizer.b1, resolved.optimizer.b2) == (0.9, 0.98)
    assert (resolved.optimizer.epsilon, resolved.optimizer.warmup) == (1e-9, 4000)
    assert (resolved.optimizer.scale, resolved.train.steps) == (1.0, 100_000)
    assert (resolved.decode.beam, resolved.decode.alpha) == (4, 0.6)
    assert resolved.model.norm == "post" and resolved.model.tying == "three"


@pytest.mark.parametrize("path", sorted(EXPERIMENTS.glob("*.py")), ids=lambda p: p.stem)
def test_every_experiment_resolves_and_names_itself(path):
    assert config.resolve(experiment(path.stem)).name


def test_a_variant_that_does_not_exist():
    with pytest.raises(ValueError, match="expected :as_written or :as_run, got :x"):
        experiment("base", "x")


def test_config_dict_and_mapping_resolve_to_the_same():
    assert config.resolve(experiment("base")) == base()
    assert config.resolve(json.loads(config.to_json(base()))) == base()


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({"model.head": 4}, "unknown key model.head; expected one of"),
        ({"modle": {}}, "unknown key modle; expected one of name, seed"),
        ({"model": 3}, "model: expected a group of keys (Model), got 3"),
        ({"model.heads": 4.0}, "model.heads: expected a value of type int, got 4.0"),
        ({"model.heads": True}, "model.heads: expected a value of type int, got True"),
        ({"model.heads": "4"}, "model.heads: expected a value of type int, got '4'"),
        ({"model.dropout": "0"}, "model.dropout: expected a value of type float"),
        ({"model.dropout": False}, "model.dropout: expected a value of type float"),
        ({"model.attention_bias": 1}, "expected a value of type bool, got 1"),
        ({"name": None}, "name: expected a value of type str, got None"),
        ({"model.heads": 0}, "model.heads: expected a number greater than 0, got 0"),
        ({"model.d_k": -64}, "model.d_k: expected a number greater than 0, got -64"),
        ({"train.steps": 0}, "train.steps: expected a number greater than 0, got 0"),
        ({"model.window": -1}, "model.window: expected 0 or more, got -1"),
        ({"model.dropout": 1.0}, "model.dropout: expected at least 0 and less than 1"),
        ({"loss.smoothing": -0.1}, "loss.smoothing: expected at least 0 and less"),
        ({"model.dropout": float("nan")}, "model.dropout: expected at least 0"),
        ({"optimizer.scale": float("nan")}, "optimizer.scale: expected a number gr"),
        ({"device": "gpus"}, "device: expected one of any, cpu, gpu, tpu, got 'gpus'"),
        ({"model.norm": "Post"}, "model.norm: expected one of post, pre, got 'Post'"),
        ({"model.d_model": 513}, "model.d_model: expected an even number"),
        ({"model.positions": "learned", "model.max_positions": 9}, "at least data.max"),
        ({"tokenizer.joint": False}, "model.tying: expected two or none where"),
        ({"optimizer.accumulation": 3}, "expected a divisor of batch.multiple = 8"),
        ({"seed": -1}, "seed: expected 0 or more and less than 2^32, got -1"),
        ({"seed": 2**32}, "seed: expected 0 or more and less than 2^32"),
        ({"batch.tokens": 2047}, "batch.tokens: expected room for batch.multiple = 8"),
        (
            {"batch.length_multiple": 0},
            "batch.length_multiple: expected a num",
        ),
        (
            {"data.max_length": 250, "batch.tokens": 2047},
            "8 rows of 256 (batch.length_multiple, data.max_length = 250) tokens",
        ),
        ({"parallel.data": 0}, "parallel.data: expected 1 or more, or -1 for what is"),
        ({"parallel.how": "pmap", "parallel.fsdp": 2}, "parallel.how: expected jit"),
        ({"train.checkpoint_minutes": 0.0}, "train.checkpoint_every: expected steps"),
    ],
)
def test_errors_say_what_was_expected_and_what_came(changes, expected):
    assert expected in error(changes)


def test_a_missing_key_is_named():
    values = changed({})
    del values["model"]["heads"]
    with pytest.raises(UserError, match="key model.heads is missing; set it"):
        config.resolve(values)


def test_a_run_from_before_there_were_devices_can_be_read():
    values = json.loads(config.to_json(base()))
    assert config.resolve_saved(values) == base()
    del values["parallel"], values["data"]["digits"]
    # What it did is today's default, on a CPU.
    unrolled = {"parallel.layers": "unrolled"}
    assert config.resolve_saved(values) == base(**unrolled)
    del values["batch"]["length_multiple"]
    expected = base(**unrolled, **{"batch.length_multiple": 1})
    assert config.resolve_saved(values) == expected
    with pytest.raises(UserError, match="key parallel is missing; set it"):
        config.resolve(values)
    del values["loss"]
    with pytest.raises(UserError, match="key loss is missing; set it"):
        config.resolve_saved(values)


@pytest.mark.parametrize("scan, layers", [(False, "unrolled"), (True, "scanned")])
def test_a_run_whose_layers_were_scanned_or_not_can_be_read(scan, layers):
    values = json.loads(config.to_json(base()))
    del values["parallel"]["layers"]
    values["parallel"]["scan"] = scan
    assert config.resolve_saved(values) == base(**{"parallel.layers": layers})
    assert values["parallel"]["scan"] is scan  # what was given is not changed


def test_what_is_just_allowed():
    base(**{"model.d_model": 513, "model.positions": "none"})
    base(**{"model.dropout": 0, "batch.tokens": 2048, "optimizer.accumulation": 4})
    base(**{"batch.tokens": 2048, "data.max_length": 249})
    base(**{"train.checkpoint_minutes": 0.0, "train.checkpoint_every": 1})


def test_an_integer_is_as_good_as_the_float_it_equals():
    assert base(**{"model.dropout": 0}) == base(**{"model.dropout": 0.0})
    assert config.digest(base(**{"decode.alpha": 1})) == config.digest(
        base(**{"decode.alpha": 1.0})
    )


@pytest.mark.parametrize("key", config.flatten(base()))
def test_every_key_counts_in_digest_and_difference(key):
    old = config.flatten(base())[key]
    value = {bool: not old, int: 7, float: 0.25, str: "other"}[type(old)]
    one, *rest = key.split(".")
    part = (
        dataclasses.replace(getattr(base(), one), **{rest[0]: value}) if rest else value
    )
    changes: dict[str, Any] = {one: part}
    new = dataclasses.replace(base(), **changes)
    assert config.digest(new) != config.digest(base())
    assert config.difference(base(), new) == [f"{key}: {old!r} -> {value!r}"]


def test_no_difference():
    assert config.difference(base(), base()) == []


def test_a_config_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        base().seed = 1  # type: ignore[misc]


def test_other_devices_make_no_other_run():
    moved = base(**{"device": "cpu", "parallel.fsdp": 4, "parallel.remat": "dots"})
    assert config.other_run(base(), moved) == []
    other = base(**{"parallel.fsdp": 4, "seed": 1})
    assert config.other_run(base(), other) == ["seed: 0 -> 1"]
