"""A workdir's files are read by one reader, which refuses what was not written."""

import json
from typing import Any

import pytest
from support.configs import base, saved_form

from transformer import config
from transformer.config import UserError
from transformer.files import sealed
from transformer.run import folder

SETTINGS = base()


def test_one_changed_digit_of_the_configuration_is_told(tmp_path):
    folder.write_settings(tmp_path, SETTINGS)
    path = tmp_path / "config.json"
    assert folder.read_settings(tmp_path) == SETTINGS
    text = path.read_text()
    places = [i for i, x in enumerate(text) if x.isdigit()]
    assert len(places) > 60
    for place in places:
        other = str((int(text[place]) + 1) % 10)
        path.write_text(text[:place] + other + text[place + 1 :])
        with pytest.raises(UserError, match=r"config.json: expected .*; restore it"):
            folder.read_settings(tmp_path)


def test_a_configuration_without_a_seal_is_taken_as_it_is(tmp_path):
    folder.write_settings(tmp_path, SETTINGS)
    assert folder.read_settings(tmp_path) == SETTINGS


ODD = [
    {"data": 5},
    {"parallel": {"scan": []}},
    {"parallel": {"scan": {"a": 1}}, "model": None},
    {"": 5, "a.b.c": {"d": {}}},
    {"model": {"kind": []}},
    {"train.steps": 5},
]


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("whole", [False, True])
def test_a_configuration_of_something_else_is_one_line(tmp_path, odd, whole):
    values = saved_form(SETTINGS) if whole else {}
    (tmp_path / "config.json").write_text(json.dumps(values | odd))
    with pytest.raises(UserError, match=r"config.json: config: "):
        folder.read_settings(tmp_path)


INFINITE = b'{"a": 1e999, "sha256": "%s"}' % (b"0" * 64)
DAMAGED = [b"", b"{", b"[]", b"3", b"\xff", b"[" * 99999, INFINITE, None]


@pytest.mark.parametrize("name", ["config.json", "record.json", "results.json"])
@pytest.mark.parametrize("content", DAMAGED)
def test_what_is_no_json_object_is_one_line(tmp_path, name, content):
    read = {
        "config.json": folder.read_settings,
        "record.json": folder.read_record,
        "results.json": folder.read_results,
    }[name]
    if content is None:
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=rf"{name}: expected .*, got.*; re(store|peat)"):
        read(tmp_path)


@pytest.mark.parametrize(
    "record",
    [
        {"started": 5},
        {"metrics": [1]},
        {"metrics": {"bytes": "1", "sha256": ""}},
        {"metrics": {"bytes": 1}},
        {"changes": {}},
        {"changes": [{"train.steps": [1, 2]}]},
        {"data": {"train": {"train.en": "0123"}}},
    ],
)
def test_a_record_of_something_else_is_one_line(tmp_path, record):
    (tmp_path / "record.json").write_text(json.dumps(record))
    with pytest.raises(UserError, match="record.json: expected other content of '"):
        folder.read_record(tmp_path)


@pytest.mark.parametrize("name", [*folder.FILES, *folder.FOLDERS])
def test_files_for_folders_and_folders_for_files(tmp_path, name):
    folder.check_writable(tmp_path)
    if name in folder.FILES:
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).write_text("")
    with pytest.raises(UserError, match=rf"{name}: expected a .*; move it away"):
        folder.check_writable(tmp_path)


def results(**changes):
    decode, steps = SETTINGS.decode, SETTINGS.train.steps
    found = {"split": "test", "step": steps, "averaged_steps": [steps]}
    found |= {"average_of": decode.average, "beam": decode.beam, "alpha": decode.alpha}
    return found | {"last": {"bleu": {}}} | changes


@pytest.mark.parametrize(
    "changes, finished",
    [
        ({}, True),
        ({"split": "validation"}, False),
        ({"step": SETTINGS.train.steps - 1}, False),
        ({"beam": 1}, False),
        ({"average_of": 1}, False),
        ({"last": {"wer": {}}}, False),
        ({"last": {}, "best": {"bleu": {}}}, False),  # of another checkpoint
        ({"constrained": True}, True),
        ({"constrained": False}, False),
    ],
)
def test_a_run_is_finished_when_it_was_measured_as_asked(tmp_path, changes, finished):
    assert not folder.is_finished(tmp_path, SETTINGS)
    folder.write_final_results(tmp_path, results(**changes))
    assert folder.is_finished(tmp_path, SETTINGS) is finished
    text = (tmp_path / "results.json").read_text()
    (tmp_path / "results.json").write_text(text.replace("bleu", "blue"))
    assert not folder.is_finished(tmp_path, SETTINGS)


def test_results_of_another_search_are_kept_beside(tmp_path):
    for beam in (4, 4, 1):
        folder.write_results(tmp_path, results(beam=beam))
        folder.write_final_results(tmp_path, results(beam=beam))
    now, before = sorted((tmp_path / "results").iterdir(), key=lambda x: len(x.name))
    assert "_beam4_alpha0.6_" in before.name
    assert [sealed.read_json(one, "")["beam"] for one in (now, before)] == [1, 4]
    assert folder.read_results(tmp_path)["beam"] == 1


def test_results_by_a_grammar_and_without_are_not_the_same_search(tmp_path):
    for constrained in ({}, {"constrained": True}, {"constrained": False}):
        folder.write_results(tmp_path, results(**constrained))
    now, before = sorted((tmp_path / "results").iterdir(), key=lambda x: len(x.name))
    found = [sealed.read_json(one, "")["constrained"] for one in (now, before)]
    assert found == [False, True]


def test_reports_stay_strict_about_what_a_run_may_change():
    other = base(**{"name": "b", "train.steps": 7, "decode.beam": 1, "train.keep": 2})
    assert len(config.other_run(SETTINGS, other)) == 4
    assert config.other_steps(SETTINGS, other) == []
    assert config.other_steps(SETTINGS, base(seed=1)) == ["seed: 0 -> 1"]


def test_a_plateau_fixes_what_its_validations_are_made_of():
    keys = {"schedule": "plateau", "rate": 0.5, "decay": 0.5}
    plateau: dict[str, Any] = {f"optimizer.{key}": x for key, x in keys.items()}
    plateau |= {"train.evaluate_every": 10}
    measured = {"decode.beam": 7, "data.measure": "errors"}
    for watch in ("perplexity", "bleu"):
        given = plateau | {"train.watch": watch}
        found = config.other_steps(base(**given), base(**given | measured))
        assert [line.split(":")[0] for line in found] == (
            ["data.measure", "decode.beam"] if watch == "bleu" else []
        )
    for key in ("evaluate_every", "checkpoint_every"):
        other = {f"train.{key}": 20}
        (line,) = config.other_steps(base(**plateau), base(**plateau | other))
        assert line.startswith(f"train.{key}: ")
        assert not config.other_steps(SETTINGS, base(**other))
