"""Nothing that a user, a model or a corpus wrote becomes markup."""

import html.parser
import json
import re
import xml.etree.ElementTree as ElementTree

import markdown_it
import numpy as np
import pytest

from transformer.files import markdown
from transformer.pictures import heads, plots, tables
from transformer.pictures.plots.picture import INK

IMG, END = "<img src=x onerror=alert(1)>", "</script><script>alert(1)</script>"
ODD = [
    IMG,
    END,
    "<!-- a",
    "<https://a.b>",
    "https://a.b/c",
    "www.a.b",
    "a@b.c",
    "[a](javascript:alert(1))",
    "![a](x)",
    "[a]: x",
    "`a`",
    "``` a",
    "**a** *b* __c__ _d_ ~~e~~",
    "a \\| b | c \\",
    "a\n# b\n\n- c",
    "# a",
    "> a",
    "1. a",
    "- a",
    "---",
    "===",
    "&lt;b&gt; &#60; &amp",
    "\\<b>",
    "d_model, x_1, _y_2_",
]


class Reader(html.parser.HTMLParser):
    """Collects the tags of a page, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)

    def handle_data(self, data):
        self.text += data


def test_what_style_is_made_of_may_stand_in_a_text():
    names = ["a font-family: b; c", f"x {INK} y", "_begun"]
    lines = {name: [1.0, 2.0] for name in names}
    svg = plots.categories("x", "y", ["1", "2"], lines).svg()
    shown = "".join(ElementTree.fromstring(svg).itertext())
    assert all(name in shown for name in names)


STRUCTURE = {"h1", "h3", "p", "table", "thead", "tbody", "tr", "th", "td"}


@pytest.mark.parametrize("odd", ODD)
def test_markdown_shows_any_text_as_it_is(odd):
    table = tables.Table(odd, (odd, "n"), ((odd, "1"), (f"x {odd}", "2")), odd)
    text = tables.page("markdown", odd, [table], [])
    page = markdown_it.MarkdownIt("commonmark").enable(["table", "strikethrough"])
    found = Reader(page.render(text))
    assert found.tags == STRUCTURE
    # The page's title, the table's, a head, two cells, the note.
    shown = " ".join(odd.split())
    assert " ".join(found.text.replace("\u200b", "").split()).count(shown) == 6


def test_addresses_and_people_are_not_found_by_themselves():
    # As GitHub does: http://, www. and @, beside what it has of CommonMark.
    for odd in ("https://a.b/c", "www.a.b", "a@b.c", "@everyone"):
        assert not re.search(r"://|www\.|@", markdown.plain(odd))


def test_plain_names_and_numbers_stay_readable():
    for text in ("A_h1, d_model = 64", "< 0.05", "24.9 ± 0.2 (x 3)", "1.2e19", "p > 1"):
        assert markdown.plain(text) == text


TEXTS = [text.replace("\n", " ") for text in [*ODD, "$x$", "$\\frac$", "$"]]


@pytest.mark.parametrize("odd", TEXTS)
def test_html_and_pictures_show_any_text_as_it_is(odd):
    svg = plots.points(odd, [odd, "b"], [(0.0, 1.0), (1.0, 0.0)], odd).svg()
    assert texts_of(svg).count(odd) == 3
    table = tables.Table(odd, (odd,), ((odd,),), odd)
    page = Reader(tables.html([table], [svg], odd))
    assert not {"img", "script", "b", "a"} & page.tags and odd in page.text


@pytest.mark.parametrize("start", range(0, len(TEXTS), 9))  # what a legend can hold
def test_every_picture_shows_any_text_as_it_is(start):
    odd = TEXTS[start : start + 9]
    line, ones, title = [(1, 2.0), (2, 9.0)], [1.0] * len(odd), " ".join(odd)
    branches = [plots.Branch(-1, 0, "", "", True, True)]
    branches += [plots.Branch(0, 1, text, text, True, True) for text in odd]
    one = plots.HeadMap(title, [ones] * len(odd))
    for drawn, expected in (
        (plots.curves("y", {text: [line] for text in odd}), odd),
        (plots.panels("x", [("y", True, {text: line for text in odd})]), odd),
        (plots.bars(title, odd, "y", dict.fromkeys(odd, ones)), [title, *odd]),
        (plots.tree(title, branches), [title, *odd]),
        (plots.head_maps(title, [[one]], odd, odd), [title, *odd]),
    ):
        svg = drawn.svg()
        assert set(expected) <= set(texts_of(svg))
        assert not {"img", "script", "b", "a"} & Reader(svg).tags


def texts_of(svg: str) -> list[str]:
    found = ElementTree.fromstring(svg).iterfind(".//{*}text")
    return ["".join(text.itertext()) for text in found]


@pytest.mark.filterwarnings("ignore:Glyph")
def test_what_xml_forbids_is_replaced_in_pictures():
    svg = plots.bars("x", ["a\x01b\x0bc\ufffed"], "y", {"x": [1.0]}).svg()
    texts = ["".join(x.itertext()) for x in ElementTree.fromstring(svg).iter()]
    assert any("a\ufffdb\ufffdc\ufffdd" in text for text in texts)


@pytest.mark.parametrize("odd", [IMG, END, "<!--<script>", "\u2028]]>"])
def test_a_page_of_heads_holds_any_sentence(odd):
    one = np.ones((1, 1, 1, 1))
    maps = heads.Maps(
        {"source": odd, "target": odd},
        {"source": [odd], "target": [odd]},
        [odd],
        {"source": [0], "target": [0]},
        [1],
        [1],
        {"cross": one},
    )
    plain = dict.fromkeys(("source", "target"), "a")
    page = heads.page(maps)
    same = heads.page(
        heads.Maps(plain, {x: ["a"] for x in plain}, ["a"], *[*vars(maps).values()][3:])
    )
    assert Reader(page).tags == Reader(same).tags
    assert page.count("</script") == same.count("</script")
    data = re.search(r'id="data">(.*?)</script>', page, re.DOTALL)
    assert data and "<" not in data[1]
    found = json.loads(data[1])
    assert found["source"] == odd and found["labels"]["target"] == [odd]
