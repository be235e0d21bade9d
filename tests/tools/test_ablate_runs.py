"""Which rows an ablation runs, and what runs share."""

import dataclasses

import pytest
from support.runs import tiny_run

from transformer import config
from transformer.config import UserError
from transformer.prepare import prepare
from transformer.tools.ablate import runs as planned
from transformer.tools.ablate import watch

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


def test_rows_of_small_letters_are_no_group():
    assert planned.choose("r_drop", ["base", "r_drop"]) == ["base", "r_drop"]
    with pytest.raises(UserError, match="base, r_drop; got 'r'"):
        planned.choose("r", ["base", "r_drop"])


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
