"""The rows of the paper's tables: what each changes, there and on other data."""

import pytest
from support.configs import experiment, rows_of
from support.paths import EXPERIMENTS

from transformer import config
from transformer.cli import main as cli
from transformer.cli.parse import parse
from transformer.config import Config

ROWS = rows_of("table3")
# What a replica keeps of a row, whatever its scale.
KEPT = (
    "heads layers dropout attention_dropout relu_dropout positions score norm".split()
)


def row(argument: str) -> Config:
    return config.resolve(experiment("table3", argument))


@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_the_base_model_with_its_overrides_and_nothing_else(name):
    base = config.flatten(row("base"))
    assert ROWS[name].keys() <= base.keys()
    expected = base | ROWS[name] | {"name": f"table3/{name}/wmt14/x1"}
    assert config.flatten(row(name)) == expected


def test_table_3_is_measured_where_the_paper_measured_it():
    written = config.flatten(config.resolve(experiment("base")))
    changed = config.difference(config.resolve(experiment("base")), row("base"))
    assert [line.split(":")[0] for line in changed] == [
        "name",
        "data.test",
        "model.vocab_size",
    ]
    assert row("base").data.test == written["data.validation"]


@pytest.mark.parametrize("name", ["A_h1", "B_dk16", "D_smooth0.0", "E_learned"])
def test_a_row_can_be_typed(name):
    file = EXPERIMENTS / "table3.py"
    typed = [f"--config.{key}={value}" for key, value in ROWS[name].items()]
    flags = ["--workdir=unused", f"--config.name=table3/{name}/wmt14/x1", *typed]
    values = parse("train", cli.COMMANDS["train"], [f"--config={file}", *flags])
    assert config.resolve(values.config) == row(name)


@pytest.mark.parametrize("data", ["numbers", "multi30k", "my_text"])
@pytest.mark.parametrize("name", ROWS)
def test_a_replica_keeps_what_the_row_is_about(name, data):
    whole, small = row(name), row(f"{name},data={data},scale=0.25")
    for key in KEPT:
        assert getattr(small.model, key) == getattr(whole.model, key)
    assert small.loss == whole.loss
    for width in ("d_model", "d_ff", "d_k", "d_v"):
        assert getattr(small.model, width) * 4 == getattr(whole.model, width)
    other = row(f"base,data={data},scale=0.25")
    ratio = whole.train.steps / row("base").train.steps
    assert small.train.steps == other.train.steps * ratio
    assert small.name == f"table3/{name}/{data}/x0.25"
    assert (small.data, small.tokenizer) == (other.data, other.tokenizer)


@pytest.mark.parametrize("data", ["numbers", "multi30k"])
def test_the_steps_of_a_replica_follow_its_scale(data):
    steps = row(f"base,data={data},scale=0.25").train.steps
    assert steps == row(f"base,data={data}").train.steps
    assert steps * 2 == row(f"base,data={data},scale=0.5").train.steps


def test_options_come_in_any_order_and_the_row_is_base_by_default():
    assert row("data=numbers,scale=0.5,A_h1") == row("A_h1,scale=0.5,data=numbers")
    assert row("data=numbers") == row("base,data=numbers")


@pytest.mark.parametrize(
    "argument, expected",
    [
        ("A_h2", "expected a row, one of base, A_h1, "),
        ("A_h1,A_h4", "expected ROW,data=DATA,scale=SCALE"),
        ("A_h1,size=2", "expected ROW,data=DATA,scale=SCALE"),
        ("A_h1,data=numbers,data=dut", "expected ROW,data=DATA,scale=SCALE"),
        ("A_h1,scale=0.25,scale=0.5", "expected ROW,data=DATA,scale=SCALE"),
        ("A_h1,data=", "expected ROW,data=DATA,scale=SCALE"),
        ("A_h1,scale=0", "expected a scale above 0, got 0"),
        ("A_h1,scale=nan", "expected a scale above 0, got nan"),
        ("A_h1,scale=half", "expected a scale above 0, got half"),
        ("A_h32,scale=0.01", "model.d_model a whole number, got 512 x 0.01"),
        ("A_h32,scale=0.03125", "model.d_k a whole number, got 16 x 0.03125 = 0.5"),
    ],
)
def test_what_is_no_row_is_an_error_that_says_what_is(argument, expected):
    with pytest.raises(ValueError) as error:
        row(argument)
    assert expected in str(error.value)
