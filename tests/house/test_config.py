"""A configuration is checked once, with errors in the user's words."""

import dataclasses
from typing import Any, Literal

import pytest
from support.configs import base, changed, experiment, saved_form
from support.paths import EXPERIMENTS

from transformer import config
from transformer.config import UserError
from transformer.config import values as checks


def error(changes: dict[str, object]) -> str:
    with pytest.raises(UserError) as caught:
        config.resolve(changed(changes))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_paper_s_values_are_the_default():
    resolved = base()
    model = config.transformer(resolved.model)
    sizes = (model.layers, model.d_model, model.d_ff, model.heads, model.d_k, model.d_v)
    assert sizes == (6, 512, 2048, 8, 64, 64)
    assert (model.dropout, model.attention_dropout, model.relu_dropout) == (0.1, 0, 0)
    assert (resolved.optimizer.b1, resolved.optimizer.b2) == (0.9, 0.98)
    assert (resolved.optimizer.epsilon, resolved.optimizer.warmup) == (1e-9, 4000)
    assert (resolved.optimizer.scale, resolved.train.steps) == (1.0, 100_000)
    assert (resolved.decode.beam, resolved.decode.alpha) == (4, 0.6)
    assert model.norm == "post" and model.tying == "three"


@pytest.mark.parametrize("path", sorted(EXPERIMENTS.glob("*.py")), ids=lambda p: p.stem)
def test_every_experiment_resolves_and_names_itself(path):
    assert config.resolve(experiment(path.stem)).name


def test_a_variant_that_does_not_exist():
    with pytest.raises(ValueError, match="expected :as_written or :as_run, got :x"):
        experiment("base", "x")


def test_config_dict_and_mapping_resolve_to_the_same():
    assert config.resolve(experiment("base")) == base()
    assert config.resolve(saved_form(base())) == base()


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({"model.head": 4}, "unknown key model.head for model.kind = tr"),
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
        ({"tokenizer.dropout": 1.0}, "tokenizer.dropout: expected at least 0 and less"),
        ({"tokenizer.samples": 2}, "tokenizer.samples: expected 1 without tokenizer.d"),
        (
            {"tokenizer.dropout": 0.1, "tokenizer.kind": "bytes"},
            "tokenizer.dropout: expected 0.0 where no sentencepiece model",
        ),
        (
            {"tokenizer.dropout": 0.1, "tokenizer.source_model": "a.model"},
            "tokenizer.dropout: expected 0.0 where no sentencepiece model",
        ),
        (
            {"tokenizer.kind": "bytes", "tokenizer.source_model": "a.model"},
            "tokenizer.source_model: expected '' with tokenizer.kind = bytes, which",
        ),
        (
            {"tokenizer.kind": "whitespace", "tokenizer.target_model": "a.model"},
            "tokenizer.target_model: expected '' with tokenizer.kind = whitespace, wh",
        ),
        (
            {"init.vocabulary": "old", "tokenizer.target_model": "a.model"},
            "tokenizer.target_model: expected '' with init.vocabulary = old, got 'a.m",
        ),
        (
            {
                "tokenizer.kind": "marian",
                "tokenizer.source_model": "a.spm",
                "tokenizer.joint": False,
                "model.tying": "two",
            },
            "tokenizer.target_model: expected a .marian or .spm file where tokenizer.j",
        ),
        (
            {
                "data.source": "trees",
                "tokenizer.kind": "marian",
                "tokenizer.target_kind": "tagged",
                "tokenizer.joint": False,
            },
            "tokenizer.kind: expected sentencepiece, whitespace or bytes with data.sou",
        ),
        (
            {"tokenizer.dropout": 0.1, "init.vocabulary": "old"},
            "tokenizer.dropout: expected 0.0 with a given vocabulary",
        ),
        ({"model.dropout": 0.0, "loss.r_drop": 5.0}, "loss.r_drop: expected 0 where"),
        ({"loss.smoothing": -0.1}, "loss.smoothing: expected at least 0 and less"),
        ({"model.dropout": float("nan")}, "model.dropout: expected at least 0"),
        ({"optimizer.scale": float("nan")}, "optimizer.scale: expected a number gr"),
        ({"device": "gpus"}, "device: expected one of any, cpu, gpu, tpu, got 'gpus'"),
        ({"model.norm": "Post"}, "model.norm: expected one of post, pre, got 'Post'"),
        ({"model.d_model": 513}, "model.d_model: expected an even number"),
        ({"model.positions": "learned", "model.max_positions": 9}, "at least data.max"),
        (
            {"model.positions": "rotary", "model.d_k": 33},
            "model.d_k: expected an even number for rotary positions, got 33",
        ),
        (
            {"model.positions": "relative"},
            "model.clip: expected 0 or more with relative positions, got -1",
        ),
        (
            {"model.clip": 16},
            "model.clip: expected -1 with sinusoidal positions, got 16",
        ),
        (
            {"model.positions": "alibi", "model.relative_heads": "per_head"},
            "model.relative_heads: expected 'shared' with alibi positions, got 'per_h",
        ),
        (
            {"model.positions": "disentangled", "model.clip": 1},
            "model.clip: expected 2 or more with disentangled positions, got 1",
        ),
        (
            {
                "model.positions": "disentangled",
                "model.clip": 8,
                "model.farthest": 8,
            },
            "model.farthest: expected 0, or more than model.clip = 8, got 8",
        ),
        (
            {
                "model.positions": "disentangled",
                "model.clip": 8,
                "model.score": "dot",
            },
            "model.score: expected scaled_dot with disentangled positions, got 'dot'",
        ),
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
        (
            {"batch.lengths": 4, "batch.tokens": 8191},
            "batch.tokens: expected room for batch.lengths = 4 times batch.multiple = ",
        ),
        ({"parallel.data": 0}, "parallel.data: expected 1 or more, or -1 for what is"),
        ({"parallel.how": "pmap", "parallel.fsdp": 2}, "parallel.how: expected jit"),
        ({"train.checkpoint_minutes": 0.0}, "train.checkpoint_every: expected steps"),
        ({"data.test_digits": 9}, "0, or 7, 8 or 9 where data.digits = 6, got 9"),
        ({"data.digits": 6, "data.test_digits": 6}, "where data.digits = 6, got 6"),
        (
            {
                "decode.checkpoint": "best",
                "decode.average": 1,
                "train.evaluate_every": 0,
            },
            "expected steps above 0 with decode.checkpoint = best, got 0",
        ),
    ],
)
def test_errors_say_what_was_expected_and_what_came(changes, expected):
    assert expected in error(changes)


POSITIVE = (
    "data.digits data.max_length tokenizer.samples batch.tokens batch.shapes "
    "batch.multiple batch.length_multiple batch.lengths model.layers model.d_model "
    "model.d_ff model.heads model.d_k model.d_v model.norm_epsilon model.max_positions "
    "optimizer.scale optimizer.warmup optimizer.epsilon optimizer.accumulation "
    "optimizer.nonfinite_limit train.steps train.log_every train.keep decode.beam "
    "decode.average parallel.fsdp parallel.tensor"
).split()
NOT_NEGATIVE = (
    "data.train_pairs data.test_digits tokenizer.vocab_size model.vocab_size "
    "model.window model.farthest "
    "optimizer.step_offset optimizer.clip_norm train.evaluate_every "
    "train.checkpoint_every train.checkpoint_minutes decode.alpha decode.extra_tokens "
    "loss.block decode.tokens optimizer.rate optimizer.decay_patience "
    "optimizer.decay_after optimizer.decay_every optimizer.least_rate optimizer.l2 "
    "train.watch_pairs train.show train.patience "
    "model.decoder_layers loss.r_drop"
).split()
RATES = (
    "tokenizer.dropout model.dropout model.attention_dropout model.relu_dropout "
    "loss.smoothing optimizer.b1 optimizer.b2"
).split()
CHOICES = {
    "device": "any, cpu, gpu, tpu",
    "tokenizer.kind": "sentencepiece, whitespace, bytes, indexed_words, marian",
    "tokenizer.target_kind": "same, top_down, tagged, indexed, in_order, "
    "indexed_in_order",
    "model.kind": "transformer, rnn, convs2s, bytenet",
    "model.norm": "post, pre",
    "model.positions": "sinusoidal, sinusoidal_concat, learned, none, rotary, alibi, "
    "relative, disentangled",
    "model.relative_heads": "shared, per_head",
    "model.activation": "relu, swish, gelu",
    "model.tying": "three, two, none",
    "init.vocabulary": "new, old",
    "model.score": "scaled_dot, dot, additive, general",
    "model.dtype": "float32, bfloat16",
    "loss.smoothing_over": "all, others",
    "decode.checkpoint": "last, best",
    "decode.length_penalty": "gnmt, power",
    "optimizer.schedule": "inverse_sqrt, constant, plateau, epochs",
    "parallel.how": "jit, pmap",
    "parallel.remat": "none, layers, dots",
    "parallel.layers": "auto, unrolled, scanned",
}
SYMBOLS = (
    "distinct symbols joined by commas, without white space, none of <pad>, <unk>, "
    "<s>, </s>"
)
RANGES = (
    [(key, 0, "a number greater than 0") for key in POSITIVE]
    + [(key, -1, "0 or more") for key in NOT_NEGATIVE]
    + [(key, x, "at least 0 and less than 1") for key in RATES for x in (-0.5, 1.0)]
    + [(key, "x", f"one of {choices}") for key, choices in CHOICES.items()]
    + [("seed", x, "0 or more and less than 2^32") for x in (-1, 2**32)]
    + [(key, 10, "at most 9") for key in ("data.digits", "data.test_digits")]
    + [("tokenizer.symbols", "a b", SYMBOLS)]
    + [("model.clip", -2, "0 or more, or -1 for none")]
    + [("optimizer.decay", x, "above 0 and at most 1") for x in (0, 1.5)]
    + [("parallel.data", x, "1 or more, or -1 for what is left") for x in (0, -2)]
)


@pytest.mark.parametrize("key, value, expected", RANGES)
def test_every_range_is_refused_in_words(key, value, expected):
    got = float(value) if type(config.flatten(base())[key]) is float else value
    said = f"config: {key}: expected {expected}, got {got!r}; change it"
    assert error({key: value}) == said


def test_every_number_and_every_choice_has_a_range():
    free = {"name"} | {
        f"data.{name}"
        for name in "dir name train validation test prepared".split()
        + ["source_language", "target_language", "source", "measure"]
    }
    free |= {"tokenizer.source_model", "tokenizer.target_model"}
    free |= {"optimizer.name", "optimizer.options", "train.watch"}
    # Patterns, as tests/life/test_warm_start.py has them.
    free |= {"optimizer.frozen", "init.only", "init.skip"}
    bounded = {key for key, _, _ in RANGES}
    values = config.flatten(base()).items()
    assert {k for k, v in values if type(v) is not bool} == free | bounded


FLOATS = [k for k, v in config.flatten(base()).items() if type(v) is float]


@pytest.mark.parametrize("key", FLOATS)
@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_no_float_may_be_infinite_or_no_number(key, value):
    assert f"{key}: expected " in (said := error({key: float(value)}))
    assert said.endswith(f", got {value}; change it")


@pytest.mark.parametrize("key", FLOATS)
@pytest.mark.parametrize("value", [10**400, -(10**400), 1e39])
def test_no_float_may_be_beyond_float32(key, value):
    assert f"{key}: expected " in (said := error({key: value}))
    assert said.endswith(f", got {value}; change it")


INTS = [k for k, v in config.flatten(base()).items() if type(v) is int]


@pytest.mark.parametrize("key", INTS)
@pytest.mark.parametrize("value", [2**32, 2**63, 2**64, 10**30])
def test_no_whole_number_may_be_beyond_what_a_device_counts(key, value):
    limit = "0 or more and less than 2^32" if key == "seed" else "less than 2^31"
    said = f"config: {key}: expected {limit}, got {value}; change it"
    assert error({key: value}) == said


def test_a_rate_that_ends_a_run_before_its_first_step_is_refused():
    keys = {"schedule": "epochs", "rate": 0.5, "decay": 0.5, "decay_every": 1.0}
    values = {f"optimizer.{key}": x for key, x in keys.items()}
    said = error(values | {"optimizer.least_rate": 0.3})
    assert "optimizer.least_rate: expected at most 0.25, the rate of the first" in said
    late = {"optimizer.decay_after": 1.0, "optimizer.least_rate": 0.5}
    resolved = config.resolve(changed(values | late))
    assert resolved.optimizer.least_rate == 0.5


def test_an_optimiser_of_norms_scans_no_layers():
    said = error({"parallel.layers": "scanned", "optimizer.name": "lamb"})
    assert "expected auto or unrolled with optimizer.name = lamb" in said


def test_sines_and_cosines_apart_need_two_of_each():
    said = error({"model.positions": "sinusoidal_concat", "model.d_model": 2})
    assert "model.d_model: expected at least 4 for sinusoidal_concat" in said


def test_a_score_that_knows_no_distances_is_refused():
    model = config.transformer(base(**{"model.positions": "rotary"}).model)
    changes: dict[str, Any] = {"score": "additive"}
    other = dataclasses.replace(model, **changes)
    with pytest.raises(UserError, match="scaled_dot or dot with rotary positions, got"):
        checks._check_distances(other)


def test_2_to_31_is_one_too_many():
    assert "train.steps: expected less than 2^31" in error({"train.steps": 2**31})


def test_the_largest_whole_numbers_are_taken():
    largest = {"train.steps": 2**31 - 1, "batch.tokens": 2**31 - 1, "seed": 2**32 - 1}
    assert config.flatten(base(**largest)).items() >= largest.items()


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "/a", "a/", "a//b", "../a", "a/../b", "a/./b", "a\\..\\b"]
    + ["a\n", "\x1b[2J", "a\0b"],
)
def test_a_name_that_could_leave_its_folder_is_refused(name):
    assert error({"name": name}) == (
        "config: name: expected a name such as base or table3/base, without .. and "
        f"empty parts, got {name!r}; change it"
    )


@pytest.mark.parametrize("name", ["base", "table3/A_h1/wmt14/x0.5", "..a", "größer 2"])
def test_other_names_are_taken(name):
    assert base(name=name).name == name


@dataclasses.dataclass(frozen=True)
class Toy(config.Model):
    """Another family of models."""

    cell: Literal["gru", "lstm"]


def toy(**changes: object) -> dict:
    values = changed({})
    own = {field.name for field in dataclasses.fields(Toy)}
    kept = {k: v for k, v in values["model"].items() if k in own}
    values["model"] = kept | {"kind": "toy", "cell": "gru"} | changes
    return values


@pytest.fixture
def families(monkeypatch):
    monkeypatch.setitem(config.MODELS, "toy", Toy)


def test_the_kind_of_a_model_chooses_its_keys(families):
    resolved = config.resolve(toy())
    assert isinstance(resolved.model, Toy) and resolved.model.cell == "gru"
    assert config.resolve(saved_form(resolved)) == resolved
    with pytest.raises(UserError, match="model.kind: expected transformer, got 'toy'"):
        config.transformer(resolved.model)
    assert config.transformer(base().model) is not None


def test_a_key_of_another_family_is_refused_by_name(families):
    assert error({"model.cell": "gru"}).startswith(
        "config: unknown key model.cell for model.kind = transformer; expected one of "
        "model.kind, model.vocab_size, "
    )
    with pytest.raises(UserError) as caught:
        config.resolve(toy(heads=8))
    assert str(caught.value) == (
        "config: unknown key model.heads for model.kind = toy; expected one of "
        "model.kind, model.vocab_size, model.d_model, model.dropout, model.tying, "
        "model.dtype, model.cell"
    )
    with pytest.raises(UserError, match="model.cell: expected one of gru, lstm, got"):
        config.resolve(toy(cell="rnn"))
    kinds = "transformer, rnn, convs2s, bytenet, toy"
    with pytest.raises(UserError, match=f"model.kind: expected one of {kinds}"):
        config.resolve(toy(kind="none"))


def test_two_kinds_of_model_differ_in_their_kind_and_in_what_both_have(families):
    found = config.difference(base(), config.resolve(toy(d_model=64)))
    kind = "model.kind: 'transformer' -> 'toy'"
    assert found == [kind, "model.d_model: 512 -> 64"]


def test_a_missing_key_is_named():
    values = changed({})
    del values["model"]["heads"]
    with pytest.raises(UserError, match="key model.heads is missing; set it"):
        config.resolve(values)


def test_a_run_from_before_there_were_devices_can_be_read():
    values = saved_form(base())
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
    with pytest.raises(UserError, match="key loss.block is missing; set it"):
        config.resolve_saved(values)


def test_a_run_of_another_model_has_no_newer_keys_of_a_transformer():
    its = config.resolve(experiment("rnnsearch"))
    assert config.resolve_saved(saved_form(its)) == its


@pytest.mark.parametrize("key", config.NEWER)
def test_a_run_that_lacks_a_newer_key_can_be_read(key):
    values = saved_form(base(**{key: config.NEWER[key]}))
    group, name = key.split(".")
    del values[group][name]
    assert config.resolve_saved(values) == base(**{key: config.NEWER[key]})


def test_a_run_with_keys_that_are_gone_can_be_read():
    values = saved_form(base())
    values["model"]["dropout_bits"] = "hash"
    values["tokenizer"]["algorithm"] = "bpe"
    assert config.resolve_saved(values) == base()
    with pytest.raises(UserError, match="unknown key tokenizer.algorithm"):
        config.resolve(values)
    values["tokenizer"]["algorithm"] = "unigram"
    with pytest.raises(UserError) as caught:
        config.resolve_saved(values)
    assert str(caught.value) == (
        "config: tokenizer.algorithm: expected 'bpe', the only value in this version, "
        "got 'unigram'; use the version that trained the run"
    )


@pytest.mark.parametrize(
    "values, expected",
    [
        ([], "config: : expected a group of keys (Config), got []; change it"),
        ({"model": 3}, "config: key device is missing; set it"),
        ({"modle": {"heads": 3}}, "config: unknown key modle; expected one of name"),
    ],
)
def test_a_config_json_of_something_else_is_refused(values, expected):
    with pytest.raises(UserError) as caught:
        config.resolve_saved(values)
    assert expected in str(caught.value)


@pytest.mark.parametrize("scan, layers", [(False, "unrolled"), (True, "scanned")])
def test_a_run_whose_layers_were_scanned_or_not_can_be_read(scan, layers):
    values = saved_form(base())
    del values["parallel"]["layers"]
    values["parallel"]["scan"] = scan
    assert config.resolve_saved(values) == base(**{"parallel.layers": layers})
    assert values["parallel"]["scan"] is scan  # what was given is not changed
    values["parallel"]["scan"] = "sometimes"
    with pytest.raises(UserError, match="parallel.layers: expected one of .* 'someti"):
        config.resolve_saved(values)


def test_what_is_just_allowed():
    base(**{"model.d_model": 513, "model.positions": "none"})
    base(**{"model.dropout": 0, "batch.tokens": 2048, "optimizer.accumulation": 4})
    base(**{"batch.tokens": 2048, "data.max_length": 249})
    base(**{"train.checkpoint_minutes": 0.0, "train.checkpoint_every": 1})
    base(**{"model.positions": "learned", "model.max_positions": 256})


def test_an_integer_is_as_good_as_the_float_it_equals():
    assert base(**{"model.dropout": 0}) == base(**{"model.dropout": 0.0})
    assert config.digest(base(**{"decode.alpha": 1})) == config.digest(
        base(**{"decode.alpha": 1.0})
    )


def with_another(old: config.Config, key: str) -> tuple[config.Config, Any]:
    """Return a configuration with another value of a key, and the value."""
    before = config.flatten(old)[key]
    value = {bool: not before, int: 7, float: 0.25, str: "other"}[type(before)]
    one, *rest = key.split(".")
    part = dataclasses.replace(getattr(old, one), **{rest[0]: value}) if rest else value
    changes: dict[str, Any] = {one: part}
    return dataclasses.replace(old, **changes), value


@pytest.mark.parametrize("key", config.flatten(base()))
def test_every_key_counts_in_digest_and_difference(key):
    old, before = base(), config.flatten(base())[key]
    new, value = with_another(old, key)
    assert config.digest(new) != config.digest(old)
    assert config.difference(old, new) == [f"{key}: {before!r} -> {value!r}"]


def test_which_keys_make_another_run_and_which_may_change_on_its_way():
    old, every = base(), config.flatten(base())
    new = {key: with_another(old, key)[0] for key in every}
    place = {key for key in every if not config.other_run(old, new[key])}
    course = {key for key in every if not config.other_steps(old, new[key])} - place

    def of(group: str) -> set[str]:
        return {key for key in every if key.startswith(group)}

    assert place == of("parallel.") | {"device", "loss.block", "decode.tokens"}
    fixed = of("train.watch") | {"decode.tokens"}
    assert course == (of("train.") | of("decode.")) - fixed | {
        "name",
        "data.measure",
        "optimizer.nonfinite_limit",
        "optimizer.least_rate",
    }


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
