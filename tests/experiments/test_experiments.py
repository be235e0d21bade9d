"""The experiments are what the paper says, can be launched as they say, and stay so."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import pytest
from support.configs import experiment, rows_of
from support.paths import EXPERIMENTS, ROOT

from transformer import config, models
from transformer.config import Config

# Every experiment as it was when it was last changed on purpose: all values of base, of
# the others what differs from another one, and the digest of it all. A changed digest
# is a changed experiment, whose old results are no longer its own. After a change on
# purpose run PYTHONPATH=tests python tests/experiments/test_experiments.py, and look at
# what that changes.
PINS = Path(__file__).with_name("experiments.json")
PINNED: dict[str, dict[str, Any]] = json.loads(PINS.read_text())
FILES = ["base", "base:as_run", "big", "en_fr:base", "en_fr:big", "multi30k"]
FILES += [
    "multi30k:tiny",
    "multi30k:transformer",
    "number_words",
    "text",
    "gnmt",
    "rnnsearch",
]
FILES += ["text:quick"]
FILES += ["length", "length:learned", "length:none"]
FILES += ["length:relative", "length:rotary", "length:alibi"]
FILES += ["length:disentangled"]
FILES += ["rnnsearch:encdec", "convs2s", "convs2s:en_ro", "convs2s:iwslt"]
FILES += ["convs2s:adam", "multi30k:convs2s", "number_words:convs2s"]
FILES += ["bytenet", "multi30k:bytenet", "number_words:bytenet"]
FILES += [
    f"{stem}:{member}"
    for stem in ("multi30k", "number_words")
    for member in ("cgru", "rnnsearch", "luong", "encdec")
]
FILES += [
    "parsing",
    "parsing:craft_tagged",
    "parsing:craft_in_order",
    "parsing:craft_indexed",
    "parsing:craft_indexed_in_order",
]
FILES += ["parsing:wsj", "parsing:wsj_semi", "parsing:as_run"]
FILES += ["g2p", "g2p:dut", "digits", "digits:window"]
FILES += [f"table2:{row}" for row in rows_of("table2")]
ROWS = rows_of("table3")
REPLICAS = ["", *(f",data={x}" for x in ("numbers", "eng_us", "dut", "multi30k"))]
REPLICAS += [",data=my_text,scale=0.25"]
EXPERIMENTS_AND_ROWS = FILES + [f"table3:{row}{on}" for on in REPLICAS for row in ROWS]

# Section by section: what the text of the paper fixes, or recipe.md's "as written".
AS_WRITTEN = {
    # 3 and Table 3, row (base)
    "model.kind": "transformer",
    "model.layers": 6,
    "model.d_model": 512,
    "model.d_ff": 2048,
    "model.heads": 8,
    "model.d_k": 64,
    "model.d_v": 64,
    "model.norm": "post",
    "model.attention_bias": True,
    "model.score": "scaled_dot",
    "model.window": 0,
    "model.tying": "three",
    "model.positions": "sinusoidal",
    "model.target_space": False,
    "model.norm_epsilon": 1e-6,
    # 5.1
    "data.name": "wmt14_translate/de-en",
    "data.source_language": "en",
    "data.target_language": "de",
    "data.train_pairs": 0,
    "data.digits": 9,
    "data.test_digits": 0,
    "data.measure": "bleu",
    "tokenizer.kind": "sentencepiece",
    "tokenizer.vocab_size": 37_000,
    "tokenizer.joint": True,
    "batch.tokens": 25_000,
    # 5.2
    "train.steps": 100_000,
    # 5.3
    "optimizer.name": "adam",
    "optimizer.b1": 0.9,
    "optimizer.b2": 0.98,
    "optimizer.epsilon": 1e-9,
    "optimizer.warmup": 4000,
    "optimizer.scale": 1.0,
    "optimizer.step_offset": 0,
    "optimizer.clip_norm": 0.0,
    # 5.4
    "model.dropout": 0.1,
    "model.attention_dropout": 0.0,
    "model.relu_dropout": 0.0,
    "loss.smoothing": 0.1,
    "loss.smoothing_over": "all",
    # 6.1
    "decode.beam": 4,
    "decode.alpha": 0.6,
    "decode.length_penalty": "gnmt",
    "decode.extra_tokens": 50,
    "decode.average": 5,
    "train.keep": 5,
    "train.checkpoint_every": 0,
    "train.checkpoint_minutes": 10.0,
}
BIG = {
    "name": "big",
    "model.d_model": 1024,
    "model.d_ff": 4096,
    "model.heads": 16,
    "model.dropout": 0.3,
    "train.steps": 300_000,
    "train.keep": 20,
    "decode.average": 20,
}
FRENCH = {
    "data.name": "wmt14_translate/fr-en",
    "data.target_language": "fr",
    "tokenizer.vocab_size": 32_000,
}
# What a row of the paper changes, and nothing else.
CHANGES: dict[str, dict[str, Any]] = {
    "base": {},
    "base:as_run": {
        "name": "base_as_run",
        "model.positions": "sinusoidal_concat",
        "model.target_space": True,
        "model.vocab_size": 40_960,
        "loss.smoothing_over": "others",
        "optimizer.step_offset": 1,
        "batch.tokens": 8 * 4096,
    },
    "big": BIG,
    "en_fr:base": FRENCH | {"name": "en_fr_base"},
    "en_fr:big": BIG | FRENCH | {"name": "en_fr_big", "model.dropout": 0.1},
}


def against(row: str) -> str | None:
    """Return the experiment whose difference tells most about this one."""
    if row == "base":
        return None
    name, _, options = row.partition(",")
    if name.startswith("table3:") and name != "table3:base":
        return f"table3:base,{options}" if options else "table3:base"
    return "base"


def pinned(row: str) -> dict[str, Any]:
    """Return all values that an experiment had when it was pinned."""
    other, values = PINNED[row]["against"], PINNED[row]["values"]
    rest = pinned(other) if other else {}
    if "model.kind" in values and other:  # another kind of model has other keys
        rest = {key: x for key, x in rest.items() if not key.startswith("model.")}
    return rest | values


def pin(row: str) -> dict[str, Any]:
    """Return what is to be pinned of an experiment as it is now."""
    now, other = resolved(row), against(row)
    rest = config.flatten(resolved(other)) if other else {}
    if rest.get("model.kind") != now.model.kind:
        rest = {key: x for key, x in rest.items() if not key.startswith("model.")}
    values = dict(config.flatten(now).items() - rest.items())
    return {"digest": config.digest(now), "against": other, "values": values}


def resolved(row: str) -> Config:
    return config.resolve(experiment(*row.split(":")))


def commands(stem: str) -> list[str]:
    """Return what the docstring of an experiment hands to --config."""
    text = ast.get_docstring(ast.parse((EXPERIMENTS / f"{stem}.py").read_text()))
    assert text
    pattern = r"transformer train --config=experiments/([\w.:]+)"
    return [name.replace(".py", "") for name in re.findall(pattern, text)]


def variants(stem: str) -> list[str]:
    """Return the rows of a file, as its error for an unknown variant lists them."""
    with pytest.raises(ValueError) as error:
        experiment(stem, "no_such")
    listed = re.findall(r":(\w+)", str(error.value))
    return [stem, *(f"{stem}:{name}" for name in listed if name != "no_such")]


# The rows of table3.py are in test_tables.py.
STEMS = sorted({path.stem for path in EXPERIMENTS.glob("*.py")} - {"table3"})


@pytest.mark.parametrize("row", EXPERIMENTS_AND_ROWS)
def test_no_experiment_drifts(row):
    now, before = config.flatten(resolved(row)), pinned(row)
    moved = {key: (before.get(key), now.get(key)) for key in before | now}
    moved = {key: values for key, values in moved.items() if values[0] != values[1]}
    assert not moved, f"{row} has (before, now) {moved}"
    assert config.digest(resolved(row)) == PINNED[row]["digest"]


def test_every_experiment_is_pinned():
    assert sorted(PINNED) == sorted(EXPERIMENTS_AND_ROWS)


@pytest.mark.parametrize("stem", STEMS)
def test_every_variant_resolves_and_is_in_the_docstring(stem):
    # A variant may go by two names, such as that of the default.
    offered = {resolved(row) for row in variants(stem)}
    assert {resolved(row) for row in commands(stem)} == offered
    listed = {resolved(row) for row in FILES if row.split(":")[0] == stem}
    assert listed == offered
    assert len({settings.name for settings in offered}) == len(offered)


def test_base_is_the_paper():
    values = config.flatten(resolved("base"))
    assert {key: values[key] for key in AS_WRITTEN} == AS_WRITTEN


@pytest.mark.parametrize("row", CHANGES)
def test_a_row_of_the_paper_changes_only_what_it_must(row):
    base = config.flatten(resolved("base"))
    assert config.flatten(resolved(row)) == base | CHANGES[row]


@pytest.mark.parametrize(
    "row, peak", [("base", 6.99e-4), ("big", 4.94e-4), ("multi30k:tiny", 5e-3)]
)
def test_peak_rates(row, peak):
    settings = resolved(row)
    rule, d_model = settings.optimizer, settings.model.d_model
    assert rule.scale * (d_model * rule.warmup) ** -0.5 == pytest.approx(peak, rel=1e-3)


@pytest.mark.parametrize(
    "row, vocabulary, millions",
    [
        ("base", 40_960, "65.11"),  # Table 3: 65
        ("base", 37_000, "63.08"),
        ("big", 40_960, "218.3"),  # Table 3 says 213, which needs fewer rows
        ("multi30k:tiny", 9712, "2.57"),  # as published
    ],
)
def test_models_have_the_published_sizes(row, vocabulary, millions):
    settings = resolved(row)
    digits = len(millions.split(".")[1])
    model = models.make(settings, vocabulary, vocabulary)
    leaves = jax.tree.leaves(models.abstract(model))
    assert f"{sum(leaf.size for leaf in leaves) / 1e6:.{digits}f}" == millions


@pytest.mark.slow
def test_numbers_are_translated_exactly(tmp_path, monkeypatch):
    monkeypatch.delenv("JAX_DISABLE_MOST_OPTIMIZATIONS")  # see conftest.py
    config_file = EXPERIMENTS / "number_words.py"
    arguments = ["train", f"--config={config_file}", f"--workdir={tmp_path}"]
    subprocess.run(
        [sys.executable, "-m", "transformer", *arguments],
        cwd=ROOT,
        check=True,
    )
    results = json.loads((tmp_path / "results.json").read_text())
    best = max(results[name]["exact_match"] for name in ("last", "average"))
    assert best >= 0.99
    assert len(results["sentences"]) == 1000


if __name__ == "__main__":
    pins = {row: pin(row) for row in EXPERIMENTS_AND_ROWS}
    PINS.write_text(json.dumps(pins, indent=1, sort_keys=True) + "\n")
