"""Training that starts from a trained model: what is taken, drawn, frozen, resumed."""

import dataclasses
import functools
import random
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from support.configs import base
from support.models import (
    convolutional_config,
    model_config,
    recurrent_config,
)
from support.runs import (
    WORDS,
    checkpoints_of,
    compiling_once,
    lines_of,
    metrics_of,
    state_of,
    tiny_run,
)

from transformer import config, evaluate, models, programs, train, warm_start
from transformer import step as steps
from transformer.cli import main as cli
from transformer.config import Config, UserError, patterns
from transformer.data import tokenizers
from transformer.data.tokenizers.trees import Tagged
from transformer.prepare import Prepared, prepare
from transformer.run import folder
from transformer.step import init_state
from transformer.translate import load
from transformer.trees.forms import Kind, Symbol

SHORT: dict[str, Any] = {
    "train.steps": 6,
    "train.evaluate_every": 0,
    "train.checkpoint_every": 2,
    "decode.average": 2,
    "batch.shapes": 1,
}
FROZEN = "encoder_0, .*_embedding, decoder_0.feed_forward.bias_1"


@pytest.fixture(scope="module", autouse=True)
def compiled_once(tmp_path_factory):
    """Let the runs share what is compiled; they leave out the evaluation at the end."""
    make = steps.make_train_step
    kept: dict[Any, Any] = {}
    with compiling_once(tmp_path_factory.mktemp("xla")) as patch:
        patch.setattr(
            programs,
            "make_train_step",
            lambda *given: kept.setdefault(given[:2], make(*given)),
        )
        patch.setattr(
            train, "evaluate_held", lambda workdir, **_: workdir / "results.json"
        )
        yield


def ignore(line: str) -> None:
    pass


def new(workdir: Path) -> Path:
    workdir.mkdir(exist_ok=True)
    return workdir


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("warm")


@pytest.fixture(scope="module")
def other(place) -> Path:
    """The workdir of the run whose parameters are taken."""
    workdir = new(place / "other")
    settings = tiny_run(place / "digits", **SHORT)
    assert train.train(settings, workdir, ignore)
    evaluate.average(workdir, log=ignore)
    return workdir


@pytest.fixture(scope="module")
def teens(place) -> Path:
    """Texts of which some words are those of the other run's, in another order."""
    names = {
        "en": ["ten", "eleven", *WORDS["en"][7:]],
        "de": ["zehn", "elf", *WORDS["de"][7:]],
    }
    draw, written = random.Random(1), place / "teens"
    written.mkdir()
    for split, count in (("train", 100), ("validation", 6), ("test", 2)):
        rows = [draw.choices(range(5), k=draw.randint(2, 6)) for _ in range(count)]
        for language, words in names.items():
            lines = "".join(" ".join(words[i] for i in row) + "\n" for row in rows)
            (written / f"{split}.{language}").write_text(lines, encoding="utf-8")
    return written


def settings_on(texts: Path, **changes: Any) -> Config:
    run = tiny_run(texts.parent / "digits", **(SHORT | changes))
    return dataclasses.replace(run, data=dataclasses.replace(run.data, dir=str(texts)))


def started(settings: Config, workdir: Path, init_from: Path | str) -> Any:
    """Return the data, what a run would start with, and what it says of that."""
    said: list[str] = []
    origin = warm_start.open_origin(settings, workdir, str(init_from), ignore)
    assert origin
    prepared = prepare(settings, workdir, ignore, origin.vocabulary(settings))
    start = origin.start(settings, prepared.vocabulary, said.append)
    (line,) = said
    return prepared, start, line


def test_a_model_that_reads_the_same_arrays_otherwise_is_told(place, other):
    """As the arrays of two heads of 8 are those of four of 4."""
    heads = {"model.heads": 4, "model.d_k": 4, "model.d_v": 4, "model.norm": "pre"}
    rest = {"model.dropout": 0.3, "init.skip": ".*_norm"}
    origin = warm_start.open_origin(
        settings := tiny_run(place / "digits", **SHORT, **heads, **rest),
        workdir := place / "heads",
        str(other),
        ignore,
    )
    assert origin
    said: list[str] = []
    prepared = prepare(settings, workdir, ignore, origin.vocabulary(settings))
    origin.start(settings, prepared.vocabulary, said.append)
    assert said[1:] == [
        f"model: differs from that of {other}: model.heads: 2 -> 4; model.d_k: 8 -> 4; "
        "model.d_v: 8 -> 4; model.norm: 'post' -> 'pre'"
    ]


def pieces(prepared: Prepared | Any) -> list[str]:
    tokenizer = prepared.vocabulary.source
    return tokenizer.pieces(range(tokenizer.size))


# ---- what is taken -------------------------------------------------------------------


def test_rows_of_shared_pieces_are_copied_and_new_ones_drawn(place, other, teens):
    settings = settings_on(teens, **{"init.skip": "decoder_0.feed_forward"})
    workdir = place / "rows"
    prepared, start, line = started(settings, workdir, other)
    model, record = models.make(settings, *prepared.vocabulary.sizes), start.record
    begin = jax.jit(functools.partial(warm_start.begin, settings, model))
    found = models.by_name(begin(start.parts).params)
    drawn = models.by_name(jax.jit(lambda: init_state(settings, model))().params)
    old = load(other)  # the average, which translate takes
    theirs = models.by_name(old.params)
    mine, before = pieces(prepared), pieces(old)
    assert {"ten", "elf"} <= set(mine) - set(before)
    assert mine.index("nine") != before.index("nine")
    table = found.pop("source_embedding")
    for i, piece in enumerate(mine):
        shared = piece in before
        expected = theirs["source_embedding"][before.index(piece)] if shared else None
        expected = expected if shared else drawn["source_embedding"][i]
        np.testing.assert_array_equal(table[i], expected, piece)
    for name, array in found.items():
        skipped = name.startswith("decoder_0.feed_forward.")
        expected = drawn[name] if skipped else theirs[name]
        np.testing.assert_array_equal(array, expected, name)
    shared_words = len(set(mine) & set(before))
    rows = {"source": f"{shared_words} of {len(mine)} source pieces"}
    assert record["arrays"] == {"taken": len(found) + 1 - 4, "drawn": 4}
    assert record["rows"] == rows and rows["source"] in line
    assert record["checkpoint"] == "averaged/6" and "averaged/6" in line
    assert record["config_digest"] == config.digest(folder.read_settings(other))


def test_rows_that_are_set_aside_are_drawn_where_the_vocabulary_is_the_same(
    place, other
):
    settings = tiny_run(place / "digits", **SHORT, **{"model.vocab_size": 40})
    prepared, start, line = started(settings, place / "aside", other)
    size = prepared.vocabulary.source.size
    values, mask = start.parts["source_embedding"]
    assert mask is not None and len(values) == 40 > size
    assert mask[:, 0].tolist() == [True] * size + [False] * (40 - size)
    before = models.by_name(load(other).params)["source_embedding"]
    np.testing.assert_array_equal(values[:size], before)
    assert f"{size} of {size} source pieces" in line


def test_pieces_of_two_kinds_that_are_written_alike_are_told_apart(place):
    def tagged(*symbols: tuple[Kind, str]) -> Tagged:
        return Tagged([Symbol(*symbol) for symbol in symbols])

    old = tagged(("close", "X"), ("open", "X"), ("word", "NN"), ("word", "Y"))
    new = tagged(("word", "NN"), ("word", "VB"), ("word", "X"), ("open", "Y"))
    assert new.pieces([6, 7]) == ["X", "Y"] and old.pieces([5, 7]) == ["X", "Y"]
    special = [(i, i) for i in range(4)]
    assert warm_start.shared_ids(new, old) == [*special, (4, 6)]
    # An index is no digit of a word: "3" is both.
    words = [(f"3 {text} 3{text}", text) for text in ("cats", "dogs")]
    prepared = tokenizers.build_vocabulary(
        dataclasses.replace(base().tokenizer, kind="indexed_words", vocab_size=30),
        lambda: iter(words),
        place / "indexed",
    )
    own = prepared.source
    assert own.pieces(range(own.size)).count("3") == 2
    assert warm_start.shared_ids(own, own) == [(i, i) for i in range(own.size)]


def test_a_checkpoint_may_be_named_and_the_old_vocabulary_kept(place, other, teens):
    settings = settings_on(teens, **{"init.vocabulary": "old"})
    prepared, start, line = started(settings, place / "old", f"{other}:4")
    old = load(other, step=4)
    assert prepared.vocabulary.digest == old.vocabulary.digest
    assert start.record["checkpoint"] == "checkpoints/4" and "all pieces" in line
    for name, array in models.by_name(old.params).items():
        np.testing.assert_array_equal(start.parts[name].values, array, name)
        assert start.parts[name].mask is None
    # The folder is of this vocabulary: another run does not take it for its own.
    again = dataclasses.replace(settings, init=config.Init("", "", "new"))
    with pytest.raises(UserError, match="init.vocabulary: 'old' -> 'new'"):
        prepare(again, place / "old")


def test_tables_of_ids_are_found_in_every_model():
    def tables(model: config.Model) -> dict[str, Any]:
        return warm_start.axes_of_ids(dataclasses.replace(base(), model=model))

    three = {"source_embedding": ("source", 0)}
    two = three | {"target_embedding": ("target", 0)}
    none = two | {"output": ("target", 0)}
    # Rows that are set aside are no rows of ids.
    assert tables(model_config(tying="three", vocab_size=40)) == three
    biased = three | {"output_bias": ("source", 0)}
    assert tables(model_config(tying="three", output_bias=True)) == biased
    assert tables(recurrent_config(member="cgru")) == two
    assert tables(model_config(tying="none", positions="learned")) == none
    convolutional = none | {x: ("target", 0) for x in ("output_bias", "output_gain")}
    assert tables(convolutional_config()) == convolutional
    assert tables(convolutional_config(tying="three")) == biased


# ---- a run that does so --------------------------------------------------------------


@pytest.fixture(scope="module")
def tuned(place, other, teens) -> tuple[Config, Path]:
    """A run of frozen parameters that started from the other one."""
    changes = {"optimizer.frozen": FROZEN, "optimizer.clip_norm": 0.5}
    settings = settings_on(teens, **changes, **{"optimizer.name": "adam"})
    assert train.train(settings, new(place / "tuned"), ignore, init_from=str(other))
    return settings, place / "tuned"


def test_frozen_parameters_keep_every_bit_and_have_no_state(place, other, tuned):
    settings, workdir = tuned
    begun = started(settings, place / "begun", other)[1].parts
    step, metadata, arrays = state_of(settings, workdir)
    frozen = {name for name in begun if patterns.matches(FROZEN, name)}
    assert step == 6 and 0 < len(frozen) < len(begun)
    for name, (before, mask) in begun.items():
        after = arrays["['params']" + "".join(f"['{x}']" for x in name.split("."))]
        given = slice(None) if mask is None else mask[:, 0]
        same = after[given].tobytes() == before[given].tobytes()
        assert same is (name in frozen), name
    of_state = [name for name in arrays if name.startswith("['opt_state']")]
    moments = [x for x in of_state if ".mu" in x or "'mu'" in x]
    assert len(moments) == len(begun) - len(frozen)
    assert not any("source_embedding" in name for name in of_state)
    record = folder.read_record(workdir)
    assert record["init"]["run"] == str(other.resolve())
    assert record["init"] == metadata["init"] and not record["changes"]
    assert folder.read_record(other)["init"] is None
    # Schedule and count begin anew: 1, not 7, is the first of them.
    assert lines_of(workdir)[0]["step"] == 1


def test_a_resumed_run_does_not_read_the_other_one(place, other, tuned):
    settings, whole = tuned
    cut, moved = place / "cut", place / "moved"
    shutil.copytree(whole, cut)
    shutil.rmtree(cut / "checkpoints" / "6")
    (cut / "record.json").unlink()
    other.rename(moved)
    try:
        assert train.train(settings, cut, ignore, init_from=str(other))
    finally:
        moved.rename(other)
    assert metrics_of(cut) == metrics_of(whole)
    assert checkpoints_of(cut) == checkpoints_of(whole)
    _, metadata, arrays = state_of(settings, cut)
    _, expected_metadata, expected = state_of(settings, whole)
    assert metadata == expected_metadata and arrays.keys() == expected.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, expected[name], name)
    assert folder.read_record(cut)["init"] == metadata["init"]


def test_a_run_that_has_begun_goes_on_with_what_it_began_with(
    place, other, tuned, monkeypatch
):
    settings, workdir = tuned
    monkeypatch.chdir(place)
    assert warm_start.open_origin(settings, workdir, other.name, ignore) is None
    for given, began in (
        (f"{other}:4", rf"{other} \(averaged/6\)"),
        (str(place / "elsewhere"), str(other)),
    ):
        said = f"expected {began}, with which .* began, got {given}; leave it out"
        with pytest.raises(UserError, match=said):
            warm_start.open_origin(settings, workdir, given, ignore)
    plain = folder.read_settings(other)
    with pytest.raises(UserError, match="expected none, with which .* began"):
        warm_start.open_origin(plain, other, str(workdir), ignore)


# ---- what does not fit ---------------------------------------------------------------


@pytest.mark.parametrize(
    "changes, said",
    [
        (
            {"optimizer.frozen": "encoder"},
            "optimizer.frozen: expected patterns .* got 'encoder', which matches none;"
            " the closest are encoder_0",
        ),
        ({"init.only": "encoder_0, dekoder_0"}, "init.only: .* closest are decoder_0"),
        ({"optimizer.frozen": ".*"}, "expected patterns that leave a parameter"),
        (
            {"model.d_ff": 48},
            r"decoder_0.feed_forward.bias_1 of shape \(32,\) instead of \(48,\), .* "
            "and 1 more; .* init.skip",
        ),
        (
            {"model.d_ff": 48, "init.skip": "decoder_0.feed_forward.bias_1"},
            r"^(?!.* more;).* of shape \(32, 16\) instead of \(48, 16\); use the model",
        ),
        ({"model.layers": 2}, "decoder_1.cross_attention.key.bias absent, .* more"),
        ({"model.d_model": 32, "init.skip": ".*_0"}, r"\(16,\) instead of \(32,\)"),
        (
            {"init.vocabulary": "old", "tokenizer.kind": "bytes"},
            "tokenizer.kind: expected 'whitespace', as .* has, with init.vocabulary",
        ),
        (
            {"init.vocabulary": "old", "tokenizer.joint": False, "model.tying": "two"},
            "tokenizer.joint: expected True, as .* has, with init.vocabulary = old",
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_any_work(
    place, other, teens, changes, said
):
    settings, workdir = settings_on(teens, **changes), new(place / "refused")
    with pytest.raises(UserError, match=said) as error:
        train.train(settings, workdir, ignore, init_from=str(other))
    assert "\n" not in str(error.value)
    assert [path.name for path in workdir.iterdir()] == ["lock"]


def test_another_kind_of_model_is_refused_by_its_kind(place, other, teens):
    model = recurrent_config(member="cgru")
    settings = dataclasses.replace(settings_on(teens), model=model)
    with pytest.raises(
        UserError, match="model.kind: expected transformer, as .* 'rnn'"
    ):
        warm_start.open_origin(settings, place / "kind", str(other), ignore)


def test_what_is_skipped_need_not_fit(place, other, teens):
    changes = {"model.d_ff": 48, "init.skip": r".*\.feed_forward"}
    settings = settings_on(teens, **changes)
    assert warm_start.open_origin(settings, place / "wide", str(other), ignore)


def test_a_folder_whose_name_ends_like_a_step_is_a_folder(tmp_path):
    workdir = new(tmp_path / "tuned:4")
    assert warm_start.split_step(str(workdir)) == (workdir, None)
    assert warm_start.split_step(f"{workdir}:6") == (workdir, 6)
    assert warm_start.split_step(f"{workdir}:best") == (Path(f"{workdir}:best"), None)


def test_places_without_a_run_are_refused(place, other, teens):
    settings, workdir = settings_on(teens), place / "new"
    refused = functools.partial(warm_start.open_origin, settings, workdir)
    with pytest.raises(UserError, match="found no config.json"):
        refused(str(teens), ignore)
    with pytest.raises(UserError, match=r"expected a checkpoint of step 4, 6 .* 5"):
        refused(f"{other}:5", ignore)
    with pytest.raises(UserError, match="expected a run other than --workdir"):
        refused(str(workdir / ".." / "new"), ignore)
    kept = settings_on(teens, **{"init.vocabulary": "old"})
    with pytest.raises(UserError, match="init.vocabulary: expected 'new' without"):
        warm_start.open_origin(kept, workdir, None, ignore)


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"optimizer.frozen": "encoder_["}, "optimizer.frozen: expected regular expr"),
        ({"init.skip": "a{99999999999}"}, "init.skip: expected regular expressions"),
        (
            {"optimizer.frozen": ".*bias", "parallel.layers": "scanned"},
            "parallel.layers: expected auto or unrolled with optimizer.frozen",
        ),
        (
            {"init.vocabulary": "old", "tokenizer.source_model": "a.model"}
            | {"tokenizer.kind": "sentencepiece"},
            "tokenizer.source_model: expected '' with init.vocabulary = old",
        ),
    ],
)
def test_configurations_that_contradict_themselves(place, changes, said):
    with pytest.raises(UserError, match=said):
        tiny_run(place / "digits", **changes)


def test_the_command_says_it_in_a_line(place, capsys):
    file = Path(__file__).parents[2] / "experiments" / "number_words.py"
    workdir, nowhere = place / "command", place / "nowhere"
    arguments = ["train", f"--config={file}", f"--workdir={workdir}"]
    assert cli.main([*arguments, f"--init_from={nowhere}"]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert said[-1].startswith(f"transformer: error: {nowhere}: expected the fold")
    assert not (workdir / "corpus").exists()
