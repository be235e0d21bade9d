"""Drawn constituency trees: where their texts stand, and where they are shown."""

import random
import re
import sys
import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path
from support.configs import base
from support.models import SMALL, draw_params

from transformer.cli import main as cli
from transformer.config import UserError
from transformer.data.tokenizers import Vocabulary, Whitespace
from transformer.data.tokenizers.trees import TopDown
from transformer.pictures import constituents, heads, plots
from transformer.pictures.plots.constituents import Place, layout
from transformer.translate import Translator
from transformer.trees import brackets
from transformer.trees.forms import Symbol

DOG = "(TOP (S (NP (NNP John)) (VP (VBZ has) (NP (DT a) (NN dog))) (. .)))"
FONT = FontProperties(family="DejaVu Sans", size=100)


def drawn(text: str) -> list[Place]:
    return layout(brackets.parse(text))


# ---- where texts stand ---------------------------------------------------------------


def test_a_tree_by_hand():
    # Lower-case letters are .65 em wide, 1 em is between words, tags are left out.
    places = drawn("(TOP (s (n (XX aa)) (v (XX b) (n (XX cccc)))))")
    found = {(p.text, p.row): p.x for p in places}
    aa, b, c = 0.65, 1.3 + 1 + 0.325, 1.3 + 1 + 0.65 + 1 + 1.3
    expected = {
        ("aa", 0): aa,
        ("n", 1): aa,
        ("b", 0): b,
        ("cccc", 0): c,
        ("v", 2): (b + c) / 2,
        ("s", 3): (aa + (b + c) / 2) / 2,
    }
    names = [(p.text, p.row) for p in places]
    assert sorted([*expected, ("n", 1)]) == sorted(names)
    assert [p.x for p in places if p.text == "n"] == pytest.approx([aa, c])
    del found["n", 1], expected["n", 1]
    assert found == pytest.approx(expected)


def test_a_label_wider_than_its_word_pushes_the_word_and_what_follows():
    narrow = drawn("(TOP (s (XX a) (XX b) (XX c)))")
    wide = drawn("(TOP (s (XX a) (abcdefgh (XX b)) (XX c)))")
    x = {p.text: p.x for p in wide}
    assert x["b"] == x["abcdefgh"]
    assert x["b"] - 8 * 0.65 / 2 == pytest.approx(x["a"] + 0.325 + 1)
    assert x["c"] - 0.325 == pytest.approx(x["b"] + 8 * 0.65 / 2 + 1)
    assert narrow[2].x < x["c"]


def test_tags_are_drawn_where_there_are_some_and_the_top_where_it_says_something():
    assert [p.text for p in drawn("(TOP (S (NN a) (XX b)))")] == ["a", "NN", "b", "S"]
    assert [p.text for p in drawn("(TOP (A (XX a)) (XX b))")] == ["a", "A", "b", "TOP"]
    assert [p.text for p in drawn("(TOP (XX b))")] == ["b", "TOP"]


def random_tree(draw: random.Random, depth: int = 0) -> str:
    if depth and (depth > 9 or draw.random() < 0.4):
        word = "".join(draw.choices("abmwWQil.,%1", k=draw.randint(1, 12)))
        return f"({draw.choice(['XX', 'NNP', '-LRB-'])} {word})"
    children = [random_tree(draw, depth + 1) for _ in range(draw.randint(1, 4))]
    return f"({draw.choice(['S', 'WHADVP', 'NP'])} {' '.join(children)})"


def width(text: str) -> float:
    """Return the width of a text in matplotlib's font, em."""
    return text_to_path.get_text_width_height_descent(text, FONT, False)[0] / 100


@pytest.mark.parametrize("seed", range(12))
def test_labels_stand_above_the_middle_of_their_children_and_nothing_overlaps(seed):
    tree = brackets.parse(f"(TOP {random_tree(random.Random(seed))})")
    places = layout(tree)
    words = [p for p in places if not p.row]
    assert [p.text for p in words] == [word.form for word in brackets.words(tree)]
    ends = [(p.x - width(p.text) / 2, p.x + width(p.text) / 2) for p in places]
    assert min(low for low, _ in ends) > -0.1
    for place in places:
        children = [places[number] for number in place.children]
        assert bool(children) == bool(place.row)
        if children:
            middle = (children[0].x + children[-1].x) / 2
            assert place.x == pytest.approx(middle)
            assert place.row == 1 + max(child.row for child in children)
    for row in range(max(p.row for p in places) + 1):
        # Texts of the row, and the edges that pass it on their way up.
        texts = [end for end, p in zip(ends, places, strict=True) if p.row == row]
        texts += [
            (places[child].x,) * 2
            for p in places
            for child in p.children
            if places[child].row < row < p.row
        ]
        texts.sort()
        assert all(a < b for (_, a), (b, _) in zip(texts, texts[1:], strict=False))


def test_a_chain_of_constituents_is_deeper_than_the_stack():
    count = 2000
    assert count > sys.getrecursionlimit()
    text = "(TOP " + "(NP " * count + "(NN a)" + ")" * (count + 1)
    places = drawn(text)
    assert len(places) == count + 2 and places[-1].row == count + 1
    assert len({p.x for p in places}) == 1
    picture = plots.constituents(brackets.parse(text))
    assert picture.height <= 200


@pytest.mark.parametrize("odd", ["<img/src=x>", "</script>", "&amp;", "$x$", "]]>"])
def test_words_and_labels_are_escaped(odd):
    tree = (brackets.Open(odd), brackets.Word(odd, odd), brackets.CLOSE)
    svg = plots.constituents(tree).svg()
    found = ElementTree.fromstring(svg).iter()
    assert ["".join(x.itertext()) for x in found if x.text == odd] == [odd] * 3


def test_a_file_is_a_picture_that_loads_nothing():
    picture = plots.constituents(brackets.parse(DOG))
    assert picture.file("png")[:4] == b"\x89PNG"
    assert picture.file("pdf")[:4] == b"%PDF"
    svg = picture.svg().replace("http://www.w3.org/", "")
    assert not re.search(r"https?:|url\(|@import", svg)
    assert "currentColor" in svg  # the words, on light and on dark


# ---- where they are shown ------------------------------------------------------------

SYMBOLS = [Symbol(kind, x) for kind in ("open", "close") for x in ("NP", "S", "VP")]
SOURCE = "John has a dog ."


@pytest.fixture(scope="module")
def parser() -> Translator:
    changes: dict[str, Any] = {f"model.{k}": v for k, v in SMALL.items()}
    changes |= {"model.vocab_size": 0, "tokenizer.kind": "whitespace"}
    changes |= {"model.tying": "none", "decode.extra_tokens": 12}
    source, target = Whitespace(SOURCE.split()), TopDown([*SYMBOLS, Symbol("word", "")])
    vocabulary = Vocabulary(source, target)
    empty = Translator(base(**changes), vocabulary, None)
    params = draw_params(empty.model)
    return Translator(empty.settings, vocabulary, params)


def test_the_page_has_the_tree_that_the_target_is(parser):
    maps = heads.look(parser, SOURCE, DOG)
    assert maps.labels["target"][:4] == ["<s>", "(S", "(NP", "XX"]
    page = heads.page(maps)
    (shown,) = re.findall('<section class="tree">.*?</section>', page, re.DOTALL)
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", shown)
    assert set(SOURCE.split()) | {"NNP", "NP", "VP", "S"} <= set(texts)
    own = heads.look(parser, SOURCE)
    assert own.tree is not None
    assert [w.form for w in brackets.words(own.tree)] == SOURCE.split()


def test_a_text_has_no_tree(parser):
    words = Whitespace(SOURCE.split())
    assert words.tree(DOG) is None
    maps = heads.look(parser, SOURCE, DOG)
    page = heads.page(heads.Maps(**vars(maps) | {"tree": None}))
    assert 'class="tree"' not in page


def test_the_command_draws_the_tree_given_or_written(workdir_of, parser, capsys):
    folder = workdir_of(constituents, base(), parser)
    output = folder / "tree.svg"
    call = ["visualize", f"--workdir={folder}", "--tree", f"--output={output}"]
    assert cli.main([*call, f"--source={SOURCE}", f"--target={DOG}"]) == 0
    assert output.read_bytes() == plots.constituents(brackets.parse(DOG)).file("svg")
    assert cli.main([*call, f"--source={SOURCE}"]) == 0
    tree = brackets.parse(parser.translate([SOURCE])[0])
    assert output.read_bytes() == plots.constituents(tree).file("svg")
    for flags, wanted in (
        (["--source= "], "--source: expected a sentence, got none"),
        ([f"--source={SOURCE}", "--target=(S"], "expected 1 more ')'"),
        ([f"--source={SOURCE}", "--layers=1"], "without --tree only"),
    ):
        assert cli.main([*call, *flags]) == 2
        assert wanted in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("tree", ["()", "(NP)", "(TOP )", "(NP (-NONE- *))"])
def test_a_tree_without_words_is_refused(tree, monkeypatch, parser, tmp_path):
    monkeypatch.setattr(constituents, "load", lambda workdir, step: parser)
    for show in (
        lambda: constituents.show(tmp_path, "svg", SOURCE, tree),
        lambda: heads.look(parser, SOURCE, tree),
    ):
        with pytest.raises(UserError, match="--target: expected a tree with words"):
            show()


def test_a_run_that_writes_text_has_no_tree_to_draw(monkeypatch, parser, tmp_path):
    words = Whitespace(SOURCE.split())
    text = Vocabulary(words, words)
    given = Translator(parser.settings, text, draw_params_of(parser.settings, text))
    monkeypatch.setattr(constituents, "load", lambda workdir, step: given)
    with pytest.raises(UserError, match="--tree: expected a run that writes trees"):
        constituents.show(tmp_path, "png", SOURCE, "a dog")


def draw_params_of(settings: Any, vocabulary: Vocabulary) -> Any:
    return draw_params(Translator(settings, vocabulary, None).model)
