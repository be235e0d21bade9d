"""Parsing from a folder of trees to trees: the commands of translation, unchanged."""

import io
import json
from pathlib import Path

import pytest
from support.runs import NO_DROPOUT, tiny

from transformer import config, evaluate, stream
from transformer.config import UserError
from transformer.data import sources, tokenizers
from transformer.pictures import head_statistics
from transformer.prepare import prepare
from transformer.train import train
from transformer.trees import brackets, forms

NOUNS, VERBS = ["dog", "cat", "-LRB-", "caf\u00e9\u00a0x"], ["sees", "bites"]


def write_trees(folder: Path) -> None:
    folder.mkdir()
    trees = [
        f"( (S (NP-SBJ (DT the) (NN {a}))\n (VP (VBZ {v}) (NP (NN {b})))) )\n"
        for a in NOUNS
        for v in VERBS
        for b in NOUNS
    ]
    (folder / "train.trees").write_text("".join(trees), encoding="utf-8")
    (folder / "validation.trees").write_text("".join(trees[:6]), encoding="utf-8")
    (folder / "test.trees").write_text("".join(trees[20:26]), encoding="utf-8")


def settings_of(folder: Path, **changes: object) -> config.Config:
    values = {
        "data.source": "trees",
        "data.dir": str(folder),
        "data.max_length": 24,
        "tokenizer.kind": "whitespace",
        "tokenizer.vocab_size": 0,
        "tokenizer.target_kind": "top_down",
        "tokenizer.joint": False,
        "model.tying": "two",
        "batch.tokens": 192,
        "batch.shapes": 2,
        "batch.multiple": 4,
        "batch.length_multiple": 1,
        "train.steps": 4,
        "train.evaluate_every": 0,
        "decode.beam": 2,
        "decode.extra_tokens": 20,
        "decode.constrained": False,  # what a model so young writes is no tree
    }
    return tiny(**(values | NO_DROPOUT | changes))


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("parsing")
    write_trees(folder / "trees")
    (folder / "run").mkdir()
    train(settings_of(folder / "trees"), folder / "run", lambda line: None)
    return folder / "run"


@pytest.mark.parametrize("form", forms.FORMS)
def test_a_folder_of_trees_is_prepared(form, tmp_path) -> None:
    write_trees(tmp_path / "trees")
    settings = settings_of(tmp_path / "trees", **{"tokenizer.target_kind": form})
    prepared = prepare(settings, tmp_path / "run")
    sentence, tree = (side[0] for side in prepared.texts("test"))
    assert sentence == "the -LRB- bites dog"
    assert tree == ("(TOP (S (NP (DT the) (NN -LRB-)) (VP (VBZ bites) (NP (NN dog)))))")
    target = tokenizers.load_vocabulary(prepared.folder).target
    ids = prepared.vocabulary.target.encode(tree)
    assert target.encode(tree) == ids
    expected = tree
    if form != "tagged":
        expected = brackets.retagged(tree, ["XX"] * 4)
    assert target.decode(ids, sentence) == expected
    assert target.decode(ids) == " ".join(target.pieces(ids))
    assert not target.repairs(ids, sentence)
    assert target.repairs([*ids, 1], sentence)  # UNK


def test_every_line_gets_a_tree_of_its_own_words(run) -> None:
    # Only ASCII white space parts words, and "\n" lines.
    lines = ["the dog bites", "", "f(x) sees caf\u00e9\u00a0x\u2028y , ( \x85 zebra"]
    output = io.StringIO()
    stream.translate_stream(run, lines, output)
    first, empty, last = output.getvalue().split("\n")[:-1]
    assert empty == ""
    for line, tree in ((lines[0], first), (lines[2], last)):
        words = [word.form for word in brackets.words(brackets.parse(tree))]
        escaped = line.replace("(", "-LRB-").replace(")", "-RRB-")
        assert words == escaped.split(" ")


def test_given_tags_stand_in_the_trees(run) -> None:
    output = io.StringIO()
    stream.translate_stream(run, ["the\x85_DT f(x)_NN"], output, tags=True)
    found = brackets.words(brackets.parse(output.getvalue().strip()))
    assert found == [("DT", "the\x85"), ("NN", "f-LRB-x-RRB-")]
    # Each of several trees of a line has the tags of that line.
    several, lines = io.StringIO(), ["the_DT", "dog_NN bites_VBZ"]
    stream.translate_stream(run, lines, several, tags=True, n_best=2)
    trees = map(brackets.parse, several.getvalue().splitlines())
    tags = [[word.tag for word in brackets.words(tree)] for tree in trees]
    assert tags == [["DT"]] * 2 + [["NN", "VBZ"]] * 2
    with pytest.raises(UserError, match="line 2: expected word_TAG, got 'dog'"):
        stream.translate_stream(run, ["the_DT", "dog"], output, tags=True)


def test_trees_have_no_alignments(run) -> None:
    with pytest.raises(UserError, match="--alignments: .* got data.source = trees"):
        stream.translate_stream(run, [], io.StringIO(), alignments=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"tokenizer.target_kind": "same"},
            "expected top_down, tagged, indexed, in_order or i",
        ),
        ({"data.source": "text"}, "tokenizer.target_kind: expected same with"),
        ({"tokenizer.joint": True, "model.tying": "three"}, "tokenizer.joint"),
        ({"tokenizer.target_model": "x.model"}, "tokenizer.target_model"),
        (
            {"tokenizer.target_kind": "same", "data.source": "text"}
            | {"tokenizer.kind": "indexed_words"},
            "tokenizer.kind: expected .* with data.source = text",
        ),
    ],
)
def test_keys_that_contradict_each_other_are_refused(changes, message) -> None:
    with pytest.raises(UserError, match=message):
        settings_of(Path("trees"), **changes)


def test_files_that_hold_no_trees_are_refused_by_line(tmp_path) -> None:
    settings = settings_of(tmp_path)
    (tmp_path / "train.trees").write_text("(S (NN a))\nJust a sentence .\n")
    with pytest.raises(UserError, match=r"train.trees, line 2: expected brackets"):
        list(sources.open_source(settings.data).pairs("train"))
    (tmp_path / "train.trees").write_text("(S (NP (-NONE- *)))\n")
    with pytest.raises(UserError, match="expected trees in brackets, found none"):
        list(sources.open_source(settings.data).pairs("train"))
    with pytest.raises(UserError, match=r"validation.trees or .*validation.trees.gz"):
        list(sources.open_source(settings.data).pairs("validation"))


def test_a_bad_tree_to_score_is_named_by_its_line(run) -> None:
    sources = ["the dog bites"] * 300
    tree = "(TOP (S (NP (DT the) (NN dog)) (VP (VBZ bites))))"
    output = io.StringIO()
    with pytest.raises(
        UserError, match=r"target, line 290: tree: expected 1 more '\)'"
    ):
        trees = [tree] * 289 + [tree[:-1]] + [tree] * 10
        stream.score_stream(run, sources, trees, output)
    with pytest.raises(UserError, match="target, line 2: tree: expected one tree, got"):
        stream.score_stream(run, sources[:2], [tree, tree + tree], output)
    with pytest.raises(UserError, match="target, line 3: tree: expected brackets"):
        head_statistics.show(run, "md", sources[:3], [tree, tree, "dog"])


def test_evaluation_counts_repairs(run) -> None:
    logged: list[str] = []
    path = evaluate.evaluate(run, log=logged.append)
    results = json.loads(path.read_text())["last"]
    assert 0 < results["repaired"] <= 6
    assert results["repairs"].keys() <= {
        *(forms.WRONG_LABEL, forms.SURPLUS_END, forms.UNKNOWN, forms.SURPLUS_WORD),
        *(forms.MISSING_WORD, forms.UNCLOSED, forms.EMPTY, forms.ROOTS),
    }
    assert any(line.startswith("repaired ") for line in logged)
