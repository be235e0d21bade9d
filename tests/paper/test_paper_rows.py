"""The paper's figures are those of the paper, and its claims follow from them."""

import dataclasses
import json
import math

import pytest
from support.configs import rows_of
from support.paths import SHARED

from transformer.paper import rows

PRINTED = SHARED / "paper" / "tables.json"
needs_tables = pytest.mark.skipif(
    not PRINTED.is_file(), reason=f"no copy of the paper's tables at {PRINTED}"
)


@needs_tables
def test_table_3_is_as_printed():
    printed = json.loads(PRINTED.read_text())["table3"]
    ours = [
        {
            "row": name,
            "changes": dict(row.changes),
            "ppl": row.perplexity,
            "bleu": row.bleu,
            "params": row.millions,
        }
        for name, row in rows.TABLE3.items()
        if row.perplexity is not None
    ]
    assert ours == printed["rows"]
    own = {"score": "scaled_dot", "window": 0, "attention_bias": True, "norm": "post"}
    own |= {"attention_dropout": 0.0, "relu_dropout": 0.0, "clip": -1}
    own |= {"smoothing_over": "all", "step_offset": 0, "target_space": False}
    own |= {"r_drop": 0.0}
    assert rows.BASE == printed["base"] | own


@needs_tables
def test_tables_2_and_4_are_as_printed():
    printed = json.loads(PRINTED.read_text())
    pairs = ("en_de", "en_fr")
    ours = [
        [one.name, *map(one.bleu.get, pairs), *map(one.flops.get, pairs)]
        for one in rows.TABLE2
    ]
    assert ours == printed["table2"]["rows"]
    ours = [list(dataclasses.astuple(parser)) for parser in rows.TABLE4]
    assert ours == printed["table4"]["rows"]


def test_table_3_has_the_rows_of_the_experiments_and_their_overrides():
    overrides = rows_of("table3")
    # How many checkpoints are kept and averaged is no column of the paper's table.
    overrides["big"].pop("train.keep")
    overrides["big"].pop("decode.average")
    ours = {name: row.overrides for name, row in rows.TABLE3.items()}
    assert ours == overrides and list(ours) == list(overrides)


def test_table_2_has_the_rows_of_the_experiments():
    assert set(rows.OURS_IN_TABLE2.values()) == set(rows_of("table2"))
    names = {system.name for system in rows.TABLE2}
    assert {name for name, _ in rows.OURS_IN_TABLE2} <= names


def figure(name, measure):
    return getattr(rows.TABLE3[name], measure)


@pytest.mark.parametrize("claim", rows.CLAIMS, ids=lambda c: f"{c.text}, {c.measure}")
def test_every_claim_holds_in_the_paper_s_own_figures(claim):
    assert {one.measure for one in claim.comparisons} == {claim.measure}
    for one in claim.comparisons:
        first, second = (figure(r, one.measure) for r in (one.first, one.second))
        if first is None:
            assert one.first in ("no_positions", "unscaled")
        elif one.relation == "same":
            difference = rows.badness(one.measure, first) - rows.badness(
                one.measure, second
            )
            assert abs(difference) < rows.margin(one.measure)
        elif one.measure == "perplexity":
            assert first > second
        else:
            assert first < second


def test_the_claims_that_are_asked_for():
    found = {(claim.text, claim.measure) for claim in rows.CLAIMS}
    for text in (
        "one head is worse than 8",
        "too many heads are worse",
        "a smaller d_k is worse",
        "dropout helps",
        "learned and sinusoidal positions are nearly the same",
        "without positions it is worse",
        "unscaled dot products are worse",
    ):
        assert {(text, "perplexity"), (text, "bleu")} <= found
    assert ("bigger models are better", "perplexity") in found
    assert ("label smoothing hurts perplexity", "perplexity") in found
    assert ("label smoothing helps BLEU", "bleu") in found
    for claim in rows.CLAIMS:
        for one in claim.comparisons:
            assert {one.first, one.second} <= set(rows.TABLE3)


@pytest.mark.parametrize(
    "name, measure, expected",
    [
        ("A_h1", "perplexity", ("A_h1", "base", "worse")),  # 5.29, 4.92
        ("A_h1", "bleu", ("A_h1", "base", "worse")),  # 24.9, 25.8
        ("C_ff4096", "perplexity", ("base", "C_ff4096", "worse")),  # 4.75
        ("C_ff4096", "bleu", ("base", "C_ff4096", "worse")),  # 26.2
        ("D_smooth0.0", "perplexity", ("base", "D_smooth0.0", "worse")),  # 4.67
        ("D_smooth0.0", "bleu", ("D_smooth0.0", "base", "worse")),  # 25.3
        ("A_h16", "perplexity", ("A_h16", "base", "same")),  # 4.91
        ("A_h16", "bleu", ("A_h16", "base", "same")),  # 25.8
        ("E_learned", "bleu", ("E_learned", "base", "same")),  # 25.7
        ("D_drop0.2", "perplexity", ("D_drop0.2", "base", "worse")),  # 4.95
        ("C_N8", "bleu", ("C_N8", "base", "worse")),  # 25.5
        ("no_positions", "bleu", ("no_positions", "base", "worse")),
    ],
)
def test_what_a_row_says_beside_base(name, measure, expected):
    found = rows.against_base(name, measure)
    assert found is not None
    assert (found.first, found.second, found.relation) == expected
    assert found.measure == measure


BESIDE = ["additive_score", "general_score", "window", "no_attention_bias", "pre_norm"]
BESIDE += ["attention_dropout", "relu_dropout", "relative", "disentangled"]
BESIDE += ["rotary", "alibi", "r_drop"]


@pytest.mark.parametrize("name", BESIDE)
def test_of_some_rows_the_paper_says_nothing(name):
    assert rows.against_base(name, "bleu") is None
    assert rows.against_base(name, "perplexity") is None


def test_the_margins_are_what_32_heads_cost():
    ratio = math.exp(rows.margin("perplexity"))
    assert 4.92 * ratio == pytest.approx(5.01, abs=0.0005)
    assert rows.margin("bleu") == 0.4
