"""Constituency trees: brackets, linearisations, repairs."""

import collections
import gzip
import random
import re
from collections.abc import Iterator

import pytest
from support.cases import leave
from support.paths import SHARED

from transformer.config import UserError
from transformer.trees import brackets, forms
from transformer.trees.brackets import CLOSE, Open, Tree, Word
from transformer.trees.forms import Symbol

JOHN = "(TOP (S (NP (NNP John)) (VP (VBZ has) (NP (DT a) (NN dog))) (. .)))"
TREEBANK = SHARED / "data" / "craft-treebank"


def symbols_of(form: forms.Form, text: str) -> list[Symbol]:
    """Read symbols as people write them; a tag is what no bracket is opened with."""
    parts, found = text.split(), []
    for part in parts:
        if part in ("XX", "SH"):
            found.append(Symbol("word", ""))
        elif part.isdigit():
            found.append(Symbol("word", part))
        elif part[0] in ")/" or part.startswith("RE-"):
            found.append(Symbol("close", part.removeprefix("RE-").lstrip(")/")))
        elif form == "tagged" and f"/{part}" not in parts:
            found.append(Symbol("word", part))
        else:
            found.append(Symbol("open", part.removeprefix("PJ-").lstrip("(")))
    return found


def untagged(tree: Tree) -> Tree:
    return tuple(x._replace(tag="XX") if isinstance(x, Word) else x for x in tree)


def forms_of(tree: Tree) -> list[str]:
    return [word.form for word in brackets.words(tree)]


# ---- brackets


def test_a_tree_may_span_lines_and_a_line_hold_two() -> None:
    lines = [
        "",
        "( (S",
        "   (NP-SBJ (NN a\u00a0b))",
        ")) (NN x)",
        "(S (NN y)) (X (NN z))",
    ]
    found = list(brackets.read(lines, "f"))
    assert [line for line, _ in found] == [2, 4, 5, 5]
    assert found[0][1] == (
        *(Open(""), Open("S"), Open("NP-SBJ"), Word("NN", "a\u00a0b")),
        *(CLOSE, CLOSE, CLOSE),
    )
    assert found[1][1] == (Word("NN", "x"),)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["(S (NN a))", "(S", "(NN b)"], "f, line 3: expected 1 more '\\)'"),
        (["(S (NN a)))"], "f, line 1: expected brackets, got '\\)' outside"),
        (["", "(S (NN a) b)"], "f, line 2: expected a tag before each word"),
        (["(S (NN a b))"], "expected a tag before each word.*got 'b' alone"),
        (["(S (NN a (X b)) (Z c))"], r"line 1: expected '\)' after a word, got '\('"),
        (["A sentence."], "f, line 1: expected brackets, got 'A' outside"),
    ],
)
def test_what_is_no_tree_is_refused_by_line(lines, message) -> None:
    with pytest.raises(UserError, match=message):
        list(brackets.read(lines, "f"))


@pytest.mark.parametrize(
    ("given", "clean"),
    [
        ("( (S (NP-SBJ-1 (-NONE- *)) (VP (VB go))) )", "(TOP (S (VP (VB go))))"),
        ("(S1 (S (NP=2 (-NONE- *T*-1) (PRP it))))", "(TOP (S (NP (PRP it))))"),
        ("(ROOT (FRAG (-LRB- -LRB-)))", "(TOP (FRAG (-LRB- -LRB-)))"),
        ("(NP (NP-X (NN-Y a)))", "(TOP (NP (NP (NN-Y a))))"),
        ("(S (-X-Y (NN a)) (NP))", "(TOP (S (-X-Y (NN a))))"),
        ("(TOP (NP (NN a)))", "(TOP (NP (NN a)))"),
        ("(NN a)", "(TOP (NN a))"),
    ],
)
def test_traces_functions_and_outer_labels_are_cleaned(given, clean) -> None:
    assert brackets.write(brackets.clean(brackets.parse(given))) == clean


def test_a_tree_without_words_is_cleaned_away() -> None:
    assert brackets.clean(brackets.parse("(S (NP (-NONE- *)) (VP))")) == ()


def test_no_depth_is_too_deep() -> None:
    depth = 5000
    text = "(TOP " + "(NP " * depth + "(NN a)" + ")" * depth + ")"
    tree = brackets.clean(brackets.parse(text))
    assert brackets.write(tree) == text
    for form in forms.FORMS:
        written = forms.linearise(form, tree)
        assert len(written) == 2 * depth + 1
        assert len(forms.build(form, written, ["a"])[0]) == len(tree)


def test_tags_are_split_off_and_put_in() -> None:
    sentence, tags = brackets.split_tags("a_b_NN  (_-LRB-", "line 3")
    assert (sentence, tags) == ("a_b (", ["NN", "-LRB-"])
    for wrong in ("dog", "_NN", "dog_", "dog_N(N", "_"):
        told = re.escape(f"line 3: expected word_TAG, got {wrong!r}; ")
        with pytest.raises(UserError, match=told):
            brackets.split_tags(f"a_DT {wrong}", "line 3")
    text = "(TOP (S (XX a_b) (XX -LRB-)))"
    assert brackets.retagged(text, tags) == "(TOP (S (NN a_b) (-LRB- -LRB-)))"


# ---- linearisations


@pytest.mark.parametrize(
    ("form", "written"),
    [
        ("top_down", "(S (NP XX )NP (VP XX (NP XX XX )NP )VP XX )S"),
        ("tagged", "S NP NNP /NP VP VBZ NP DT NN /NP /VP . /S"),
        ("indexed", "(S (NP 1 )NP (VP 2 (NP 3 4 )NP )VP 5 )S"),
        (
            "in_order",
            "SH PJ-NP RE-NP PJ-S SH PJ-VP SH PJ-NP SH RE-NP RE-VP SH RE-S",
        ),
        (
            "indexed_in_order",
            "1 PJ-NP RE-NP PJ-S 2 PJ-VP 3 PJ-NP 4 RE-NP RE-VP 5 RE-S",
        ),
    ],
)
def test_the_forms_of_one_tree(form, written) -> None:
    symbols = forms.linearise(form, brackets.parse(JOHN))
    assert " ".join(forms.written(form, symbol) for symbol in symbols) == written
    assert symbols == symbols_of(form, written)


@pytest.mark.parametrize("form", forms.INDEXED)
def test_indices_begin_anew_in_long_sentences(form) -> None:
    tree = brackets.parse("(TOP (S " + "(NN a)" * 130 + "))")
    symbols = forms.linearise(form, tree)
    written = [x.label for x in symbols if x.kind == "word"]
    assert written == [str(n) for n in [*range(1, 65), *range(1, 65), 1, 2]]
    assert forms.build(form, symbols, ["a"] * 130) == (untagged(tree), {})
    assert {x for x in symbols if x.kind == "word"} == forms.of_every_vocabulary(form)


@pytest.mark.parametrize("form", forms.FORMS)
def test_several_roots_get_one(form) -> None:
    tree = brackets.parse("(TOP (NP (NN a)) (. .))")
    built, repairs = forms.build(form, forms.linearise(form, tree), ["a", "."])
    assert untagged(built) == untagged(brackets.parse("(TOP (S (NP (NN a)) (. .)))"))
    assert not repairs


def trees_of(split: str) -> Iterator[Tree]:
    path = TREEBANK / f"{split}.clean.trees.gz"
    if not path.exists():
        pytest.skip(f"{path.name} of CRAFT is not there")
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
        for _, tree in brackets.read(file, path):
            yield tree


@pytest.mark.parametrize("split", leave(["dev", "train"], ["train"]))
def test_every_tree_of_a_treebank_comes_back(split) -> None:
    count = 0
    for tree in trees_of(split):
        assert brackets.clean(tree) == tree
        for form in forms.FORMS if split == "dev" else ("top_down",):
            built, repairs = forms.build(
                form, forms.linearise(form, tree), forms_of(tree)
            )
            assert built == (tree if form == "tagged" else untagged(tree))
            assert not repairs
        count += 1
    assert count == {"dev": 2780, "train": 18_951}[split]


# ---- repairs


@pytest.mark.parametrize(
    ("form", "written", "count", "tree", "kinds"),
    [
        ("top_down", "(S (NP XX )VP XX )S", 2, "(S (NP w0) w1)", [forms.WRONG_LABEL]),
        ("top_down", "(S XX )S )S", 1, "(S w0)", [forms.SURPLUS_END]),
        ("top_down", "(S XX XX )S", 1, "(S w0)", [forms.SURPLUS_WORD]),
        ("top_down", "(S XX )S", 3, "(S w0 w1 w2)", [forms.MISSING_WORD] * 2),
        ("top_down", "(S (NP XX", 1, "(S (NP w0))", [forms.UNCLOSED] * 2),
        (
            *("top_down", "(S (NP XX", 2, "(S (NP w0) w1)"),
            [forms.MISSING_WORD, *[forms.UNCLOSED] * 2],
        ),
        ("top_down", "(S (NP )NP XX )S", 1, "(S w0)", [forms.EMPTY]),
        ("top_down", "(NP XX )NP XX", 2, "(S (NP w0) w1)", [forms.ROOTS]),
        ("top_down", "", 1, "(S w0)", [forms.MISSING_WORD, forms.ROOTS]),
        ("tagged", "NP NN /NP", 2, "(NP NN:w0 w1)", [forms.MISSING_WORD]),
        ("indexed", "(S 1 3 )S", 2, "(S w0 w1)", [forms.WRONG_INDEX]),
        ("indexed", "(S 2 1 )S", 1, "(S w0)", [forms.WRONG_INDEX, forms.SURPLUS_WORD]),
        ("in_order", "PJ-S SH PJ-S RE-S", 1, "(S w0)", [forms.SURPLUS_BEGINNING]),
        ("in_order", "SH PJ-NP SH", 2, "(NP w0 w1)", [forms.UNCLOSED]),
        ("in_order", "SH RE-S", 1, "(S w0)", [forms.SURPLUS_END, forms.ROOTS]),
        ("indexed_in_order", "1 PJ-S 3 RE-S", 2, "(S w0 w1)", [forms.WRONG_INDEX]),
    ],
)
def test_what_is_no_tree_is_repaired(form, written, count, tree, kinds) -> None:
    words = [f"w{i}" for i in range(count)]
    built, repairs = forms.build(form, symbols_of(form, written), words)
    plain = brackets.write(built).replace("(XX ", "(XX:").replace("(NN ", "(NN:")
    for word in words:
        plain = plain.replace(f"(XX:{word})", word)
        plain = plain.replace(f"(NN:{word})", f"NN:{word}")
    assert plain == f"(TOP {tree})"
    assert repairs == collections.Counter(kinds)


@pytest.mark.parametrize("form", forms.FORMS)
def test_any_symbols_make_a_tree_of_exactly_the_words(form) -> None:
    draw = random.Random(0)
    label = {"tagged": "NN", "top_down": "", "in_order": ""}.get(form, "1")
    known = [
        *(Symbol("open", x) for x in "ABC"),
        *(Symbol("close", x) for x in "ABC"),
        *[Symbol("word", label)] * 3,
        None,
    ]
    clean = 0
    for _ in range(3000):
        symbols = draw.choices(known, k=draw.randrange(16))
        words = [str(i) for i in range(draw.randrange(1, 6))]
        tree, _ = forms.build(form, symbols, words)
        assert forms_of(tree) == words
        assert brackets.parse(brackets.write(tree)) == tree == brackets.clean(tree)
        again, repairs = forms.build(form, forms.linearise(form, tree), words)
        assert again == tree
        clean += not repairs
    assert clean == 3000
