"""The tree of a beam search is the search that decode.beam makes."""

import copy
import dataclasses

import numpy as np
import pytest
from support.reference import assert_close
from support.translators import ROUNDINGS, SETTINGS, draw_params

from transformer.cli import main as cli
from transformer.config import UserError
from transformer.data.tokenizers import Bytes, Vocabulary
from transformer.ids import EOS
from transformer.pictures import search_tree
from transformer.pictures.search_tree import SearchTree, trace
from transformer.translate import Translator

SOURCES = ["hello w", "a letter"]


@pytest.fixture(scope="module")
def translator() -> Translator:
    vocabulary = Vocabulary(Bytes(), Bytes())
    empty = Translator(SETTINGS, vocabulary, None, lambda text: None)
    params = draw_params(empty)
    return Translator(SETTINGS, vocabulary, params, lambda text: None)


@pytest.fixture(scope="module")
def tree(translator) -> SearchTree:
    return trace(translator, SOURCES[0])


@pytest.mark.parametrize(
    "search, sources",
    [({}, SOURCES), ({"n_best": 4}, SOURCES[:1]), ({"beam": 2, "alpha": 1}, SOURCES)],
)
def test_the_results_are_those_of_the_search(translator, search, sources):
    for source in sources:
        (expected,) = translator.hypotheses([source], **search)
        tree = trace(translator, source, **search)
        found = [tree.nodes[number] for number in tree.results[: len(expected)]]
        ids = [[i for i in node.ids if i != EOS] for node in found]
        assert ids == [one.ids for one in expected]
        for name in ("score", "log_probability"):
            ours, theirs = ([getattr(x, name) for x in y] for y in (found, expected))
            assert_close(ours, theirs, ROUNDINGS)


def test_a_beam_that_no_machine_holds_is_refused(translator):
    with pytest.raises(UserError, match="beam: expected hypotheses that fit into the"):
        trace(translator, SOURCES[0], beam=200_000)


def test_a_node_adds_one_piece_to_the_node_it_continues(tree):
    assert tree.nodes[0].parent == -1 and tree.nodes[0].ids == ()
    for number, node in enumerate(tree.nodes[1:], start=1):
        before = tree.nodes[node.parent]
        assert node.parent < number and before.fate == "continued"
        assert node.ids[:-1] == before.ids
        assert node.log_probability < before.log_probability
        assert (node.ids[-1] == EOS) == (node.fate == "finished")


def test_every_step_keeps_as_many_as_the_beam_is_wide(tree):
    length = max(len(node.ids) for node in tree.nodes)
    for step in range(1, length + 1):
        live = [n for n in tree.nodes if len(n.ids) == step and n.fate != "finished"]
        assert len(live) == tree.beam


def test_what_is_pruned_has_no_continuation(tree):
    parents = {node.parent for node in tree.nodes}
    pruned = [i for i, node in enumerate(tree.nodes) if node.fate == "pruned"]
    assert pruned and not parents & set(pruned)
    for number in pruned:  # the search continued without it
        after = len(tree.nodes[number].ids) + 1
        assert sum(len(node.ids) == after for node in tree.nodes) >= tree.beam
    last = max(len(node.ids) for node in tree.nodes)
    for number, node in enumerate(tree.nodes):
        continued = number in parents
        assert (node.fate == "continued") == continued
        if node.fate == "unfinished":
            assert len(node.ids) == last


def test_the_tables_and_the_picture_show_the_tree(translator, tree):
    results, pruned = search_tree.tables(translator, tree)
    assert len(results.rows) == len(tree.results) == tree.beam
    assert float(results.rows[0][-1]) == round(tree.nodes[tree.results[0]].score, 4)
    assert len(pruned.rows) == sum(node.fate == "pruned" for node in tree.nodes)
    steps = [int(row[0]) for row in pruned.rows]
    assert steps == sorted(steps) and steps[0] >= 2
    svg = search_tree.picture(translator, tree).svg()
    assert svg.count(", pruned<") == len(pruned.rows)
    assert all(f": no. {place}<" in svg for place in range(1, tree.beam + 1))


def test_a_sentence_without_text_is_refused(translator):
    with pytest.raises(UserError, match="--source: expected a sentence"):
        trace(translator, " ")


def test_a_run_that_reads_vectors_is_refused(translator):
    data = dataclasses.replace(translator.settings.data, source="vectors")
    other = copy.copy(translator)
    other.settings = dataclasses.replace(translator.settings, data=data)
    with pytest.raises(UserError, match="--beam: expected a run that reads text, got"):
        trace(other, "a")


def test_the_command(translator, workdir_of, capsys):
    workdir = workdir_of(search_tree, SETTINGS, translator)
    call = ["visualize", f"--workdir={workdir}", "--beam"]
    output = workdir / "tree.html"
    more = ["--source=ab", "--width=3", "--alpha=1", f"--output={output}"]
    assert cli.main([*call, *more]) == 0
    page = output.read_text(encoding="utf-8")
    assert "<h1>Beam search: ab</h1>" in page and "Beam of 3" in page
    assert cli.main([*call, "--output=a.html"]) == 2
    assert "expected either --source or --statistics" in capsys.readouterr().err


def test_rows_of_a_tree_by_hand():
    from transformer.pictures.plots.trees import _leaf_rows

    # 0 has 1 and 2; 1 has 3 and 4: the leaves are 3, 4, 2 from the top.
    assert _leaf_rows([-1, 0, 0, 1, 1]) == [0, 0, 2, 0, 1]
    assert np.unique(_leaf_rows([-1, 0, 1, 2])).tolist() == [0]
