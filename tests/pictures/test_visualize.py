"""What heads look at: the maps, the statistics, and the page in a browser."""

import base64
import dataclasses
import json
import re
import shutil
from pathlib import Path
from typing import Any

import matplotlib.figure
import numpy as np
import pytest
from support.configs import base
from support.models import SMALL, draw_params, recurrent_config
from support.reference import assert_close

from transformer.cli import main as cli
from transformer.config import UserError
from transformer.data.tokenizers import Vocabulary, Whitespace
from transformer.ids import EOS
from transformer.pictures import head_statistics
from transformer.pictures import heads as viewer
from transformer.pictures.heads import Maps
from transformer.translate import Translator

WORDS = ["the", "cat", "sl@@", "ee@@", "ps", "on", "a", "$", "</script>"]
SOURCE = "the cat sl@@ ee@@ ps"
TARGET = "a cat </script> sl@@ ps $"
CHANGES: dict[str, Any] = {"model.layers": 2, "model.tying": "none"}
CHANGES |= {"model.vocab_size": 0, "tokenizer.kind": "whitespace"}


@pytest.fixture(scope="module")
def translator() -> Translator:
    changes = {f"model.{k}": v for k, v in SMALL.items()}
    settings = base(**changes | CHANGES)
    tokenizer = Whitespace(WORDS)
    vocabulary = Vocabulary(tokenizer, tokenizer)
    empty = Translator(settings, vocabulary, None)
    params = draw_params(empty.model)
    return Translator(settings, vocabulary, params)


def recurrent(member: str) -> Translator:
    """Return a recurrent model, whose only map, if any, is of the source."""
    model = recurrent_config(member=member)
    settings = dataclasses.replace(base(**CHANGES), model=model)
    tokenizer = Whitespace(WORDS)
    vocabulary = Vocabulary(tokenizer, tokenizer)
    params = draw_params(Translator(settings, vocabulary, None).model)
    return Translator(settings, vocabulary, params)


@pytest.fixture(scope="module")
def aligning() -> Translator:
    return recurrent("cgru")


@pytest.fixture(scope="module")
def maps(translator) -> Maps:
    return viewer.look(translator, SOURCE, TARGET)


# ---- the maps ------------------------------------------------------------------------


def test_labels_can_be_read_and_words_are_whole(maps):
    read = ["<s>", "a", "cat", "</script>", "sl\u2026", "\u2026ps", "$"]
    assert maps.labels == {
        "source": ["the", "cat", "sl\u2026", "\u2026ee\u2026", "\u2026ps", "</s>"],
        "target": read,
    }
    assert maps.following == [*read[1:], "</s>"]
    assert maps.words == {
        "source": [0, 1, 2, 2, 2, -1],
        "target": [-1, 0, 1, 2, 3, 3, 4],
    }


def test_chosen_layers_and_heads_are_those_of_the_model(translator, maps):
    whole = translator.attention(SOURCE, TARGET)
    for kind in viewer.KINDS:
        assert_close(maps.weights[kind], getattr(whole, kind), 64)
    part = viewer.look(
        translator, SOURCE, TARGET, layers="2", heads="1-2", kind="cross"
    )
    assert (part.layers, part.heads) == ([2], [1, 2])
    assert part.weights.keys() == {"cross"}
    assert_close(part.weights["cross"], whole.cross[1:], 64)


def test_without_a_target_it_is_the_model_s_own(translator):
    own = viewer.look(translator, SOURCE, kind="cross")
    (found,) = translator.hypotheses([SOURCE])
    assert own.texts["target"] == found[0].text
    pieces = translator.vocabulary.target.labels(found[0].ids)
    assert own.labels["target"] == ["<s>", *pieces]


@pytest.mark.parametrize(
    "changes, wanted",
    [
        ({"layers": "3"}, "--layers: expected numbers from 1 to 2.* got 3;"),
        ({"layers": "0-1"}, "got 0-1"),
        ({"heads": "2-1"}, "--heads: expected numbers from 1 to 2.* got 2-1"),
        ({"heads": "all"}, "got all"),
        ({"source": " "}, "--source: expected a sentence"),
        ({"target": ""}, "--target: expected a sentence"),
        ({"source": "the " * 160}, "at most 159 tokens, got 160"),
    ],
)
def test_what_cannot_be_shown_is_refused(translator, changes, wanted):
    given = {"source": SOURCE, "target": TARGET} | changes
    with pytest.raises(UserError, match=wanted):
        viewer.look(translator, **given)


def test_batched_weights_are_those_of_each_pair_alone(translator):
    encode = translator.vocabulary.source.encode
    sources = [[*encode(text), EOS] for text in (SOURCE, "a", "the cat " * 9)]
    targets = [encode(text) for text in ("a", TARGET, "")]
    found = dict(translator.attentions(sources, targets))
    assert found.keys() == {0, 1, 2}
    for row, one in found.items():
        s, t = len(sources[row]), len(targets[row]) + 1
        assert one.cross.shape == (2, 2, t, s)
        ((_, alone),) = translator.attentions([sources[row]], [targets[row]])
        for kind in viewer.KINDS:
            assert_close(getattr(one, kind), getattr(alone, kind), 64)
            sums = getattr(one, kind).sum(-1)
            assert_close(sums, np.ones(sums.shape), 64)


# ---- pictures and statistics ---------------------------------------------------------


def test_the_pictures_name_every_position(translator, maps):
    cross = viewer.look(translator, SOURCE, TARGET, kind="cross")
    for drawn in (viewer.picture(cross), viewer.word_picture(cross, "slps")):
        text = re.sub("<[^>]*>", "\n", drawn.svg()).replace("&lt;", "<")
        for label in maps.labels["target"] + maps.labels["source"]:
            assert label.replace(">", "&gt;") in text or label in text
    assert viewer.picture(cross).file("png")[:4] == b"\x89PNG"


def test_a_word_is_all_its_pieces_and_must_be_there(translator, monkeypatch):
    encoder = viewer.look(translator, SOURCE, TARGET, kind="encoder")
    given = []
    monkeypatch.setattr(viewer.plots, "head_lines", lambda *x: given.append(x))
    viewer.word_picture(encoder, "sleeps")
    ((panels, heads, rows, columns),) = given
    assert [panel.chosen for panel in panels] == [[2, 3, 4]] * 2
    assert heads == ["head 1", "head 2"] and rows == columns
    with pytest.raises(UserError, match="one of the cat sleeps; got dog"):
        viewer.word_picture(encoder, "dog")


@pytest.mark.parametrize(
    "labels, words, spelt",
    [
        (["a", "\u2026", "b"], [0, 1, 2], ["a", "\u2026", "b"]),
        (["\u2026\u2026", "\u2026x\u2026", "\u2026y"], [0, 0, 0], ["\u2026xy"] * 3),
        (["\u2423\u2026", "\u2026x", "<eos>"], [0, 0, -1], ["x", "x", ""]),
    ],
)
def test_a_word_may_be_written_as_labels_mark_pieces(labels, words, spelt):
    assert viewer._spelt(labels, words) == spelt


def test_statistics_of_a_file_are_those_of_its_sentences(translator):
    sources, targets = [SOURCE, "", "a cat"], [TARGET, "the", "the cat"]
    measured = head_statistics.statistics(translator, sources, targets)
    for kind in viewer.KINDS:
        found = [
            getattr(translator.attention(s, t), kind)
            for s, t in zip(sources, targets, strict=True)
            if s
        ]
        expected = np.concatenate(
            [np.diagonal(w, 0, -2, -1) for w in found], axis=-1
        ).mean(-1)
        assert_close(measured[kind]["same"], expected, 64)
    tables = head_statistics.tables(measured)
    assert [len(table.rows) for table in tables] == [4, 4, 4]
    value = measured["cross"]["entropy"][1, 0]
    assert tables[2].rows[2][:3] == ("2", "1", f"{value:.3f}")
    assert "decoder: next" in head_statistics.picture(measured).svg()


def test_files_of_different_length_or_of_nothing_are_refused(translator):
    with pytest.raises(UserError, match="as many translations as sentences"):
        head_statistics.statistics(translator, [SOURCE, SOURCE], [TARGET])
    with pytest.raises(UserError, match="expected sentences to measure, got none"):
        head_statistics.statistics(translator, ["", " "])


# ---- a model with one map ------------------------------------------------------------


@pytest.fixture
def aligned(monkeypatch) -> list[Any]:
    """Record the alignments that are drawn."""
    given: list[Any] = []
    draw = viewer.plots.alignment

    def note(*arguments):
        given.append(arguments)
        return draw(*arguments)

    monkeypatch.setattr(viewer.plots, "alignment", note)
    return given


def test_the_only_map_is_an_alignment_of_what_is_written(aligning, aligned):
    maps = viewer.look(aligning, SOURCE, TARGET)
    assert maps.weights.keys() == {"cross"} and maps.layers == maps.heads == [1]
    svg = viewer.picture(maps).svg()
    ((title, weights, rows, columns),) = aligned
    assert title == "Attention of the decoder to the source"
    assert rows == ["a", "cat", "</script>", "sl\u2026", "\u2026ps", "$", "</s>"]
    assert columns == ["the", "cat", "sl\u2026", "\u2026ee\u2026", "\u2026ps", "</s>"]
    # Row 0 is the step that reads <s> and writes the first piece.
    assert_close(np.array(weights), aligning.attention(SOURCE, TARGET).cross[0, 0], 64)
    assert "ee\u2026" in svg and "&lt;/script&gt;" in svg


def test_an_alignment_goes_from_black_to_white():
    drawn = viewer.plots.alignment(
        "", [[0.0, 1.0], [0.5, 0.25]], ["a", "b"], ["c", "d"]
    )
    figure = matplotlib.figure.Figure()
    drawn.paint(figure)
    (image,) = figure.axes[0].images
    weights = np.asarray(image.get_array())
    shades = np.asarray(image.cmap(image.norm(weights)))
    assert_close(shades[..., 0], weights, 2**16)  # 256 shades
    assert (shades[..., 0] == shades[..., 1]).all()
    assert (shades[..., 0] == shades[..., 2]).all()
    assert [t.get_text() for t in figure.axes[0].get_xticklabels()] == ["c", "d"]


def test_a_chosen_head_of_many_is_an_alignment_with_its_name(translator, aligned):
    chosen: dict[str, Any] = {"layers": "2", "heads": "1"}
    viewer.picture(viewer.look(translator, SOURCE, TARGET, kind="cross", **chosen))
    ((title, weights, rows, _),) = aligned
    assert title.endswith("source, layer 2, head 1") and rows[-1] == "</s>"
    whole = translator.attention(SOURCE, TARGET).cross
    assert_close(np.array(weights), whole[1, 0], 64)
    viewer.picture(viewer.look(translator, SOURCE, TARGET, kind="decoder", **chosen))
    assert len(aligned) == 1


@pytest.mark.parametrize("single", [True, False])
def test_maps_of_layers_with_one_head_are_followed_by_their_mean(single, monkeypatch):
    maps = dataclasses.replace(drawn_maps(3, 2, 1), single=single)
    maps = dataclasses.replace(maps, weights={"cross": maps.weights["cross"]})
    given = []
    monkeypatch.setattr(viewer.plots, "head_maps", lambda *x: given.append(x))
    viewer.picture(maps)
    ((_, grid, _, _),) = given
    titles = [panel.title for row in grid for panel in row]
    assert titles[:2] == ["layer 1, head 1", "layer 2, head 1"]
    assert titles[2:] == ["mean of the layers"] * single
    if single:
        mean = maps.weights["cross"].mean(axis=(0, 1))
        np.testing.assert_allclose(grid[2][0].weights, mean, rtol=1e-6)


def test_the_page_too_ends_with_the_mean_of_layers_with_one_head():
    maps = dataclasses.replace(drawn_maps(3, 2, 1), single=True)
    data = data_of(viewer.page(maps))
    assert data["layers"] == [1, 2, "mean"]
    for kind, weights in maps.weights.items():
        given = np.frombuffer(base64.b64decode(data["kinds"][kind]["weights"]), "u1")
        shown = given.reshape(3, *weights.shape[1:])
        assert np.abs(shown[2] - 255.0 * weights.mean(0)).max() < 0.501
        assert np.abs(shown[:2] - 255.0 * weights).max() < 0.501
    assert data_of(viewer.page(drawn_maps(3, 2, 1)))["layers"] == [1, 2]


def test_one_map_has_a_page_statistics_and_lines_too(aligning):
    data = data_of(viewer.page(viewer.look(aligning, SOURCE, TARGET)))
    assert data["kinds"].keys() == {"cross"}
    measured = head_statistics.statistics(aligning, [SOURCE], [TARGET])
    assert measured.keys() == {"cross"} and measured["cross"]["entropy"].shape == (1, 1)
    (table,) = head_statistics.tables(measured)
    assert table.rows[0][:2] == ("1", "1")
    assert "cross: entropy" in head_statistics.picture(measured).svg()


@pytest.mark.parametrize(
    "member, flags, wanted",
    [
        ("cgru", ["--kind=encoder"], "--kind: expected cross, all that this model has"),
        ("cgru", ["--layers=2"], "--layers: expected numbers from 1 to 1"),
        ("cgru", ["--word=dog"], "--word: expected a word of the target, one of a cat"),
        ("encdec", [], "model: expected one with attention, got a model of kind rnn"),
        ("encdec", ["--statistics"], "model: expected one with attention, got a model"),
    ],
)
def test_what_a_recurrent_model_has_not_is_one_line(
    workdir_of, capsys, member, flags, wanted
):
    given = recurrent(member)
    workdir_of(head_statistics, base(), given)
    folder = workdir_of(viewer, base(), given)
    (folder / "in").write_text(f"{SOURCE}\n")
    pair = [f"--source={SOURCE}", f"--target={TARGET}"]
    if "--statistics" in flags:
        pair = [f"--input={folder / 'in'}"]
    output = folder / "a.svg"
    call = ["visualize", f"--workdir={folder}", f"--output={output}", *pair, *flags]
    assert cli.main(call) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("transformer: error: ") and wanted in line
    assert not output.exists()


def test_the_command_draws_an_alignment_and_a_word(workdir_of, aligning, aligned):
    folder = workdir_of(viewer, base(), aligning)
    call = ["visualize", f"--workdir={folder}", f"--source={SOURCE}"]
    call += [f"--target={TARGET}", f"--output={folder / 'a.png'}"]
    assert cli.main(call) == 0 and len(aligned) == 1
    assert cli.main([*call, "--word=cat"]) == 0 and len(aligned) == 1


# ---- the page ------------------------------------------------------------------------


def data_of(page: str) -> dict[str, Any]:
    found = re.search('<script type="application/json" id="data">(.*?)</script>', page)
    assert found
    return json.loads(found[1])


def drawn_maps(tokens: int, layers: int, heads: int) -> Maps:
    """Return maps of random weights, those of the target one position shorter."""
    rng = np.random.default_rng(1)
    count = {"source": tokens, "target": tokens - 1}
    labels = {side: [f"{side}{i}" for i in range(n)] for side, n in count.items()}
    weights = {}
    for kind, (rows, columns) in viewer.KINDS.items():
        scores = 4 * rng.normal(size=(layers, heads, count[rows], count[columns]))
        if kind == "decoder":
            scores += np.where(np.tri(count[rows]), 0, -1e9)
        weights[kind] = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    return Maps(
        texts={"source": "source0 source1", "target": "target0"},
        labels=labels,
        following=[f"next{i}" for i in range(count["target"])],
        words={side: list(range(n)) for side, n in count.items()},
        layers=list(range(1, layers + 1)),
        heads=list(range(1, heads + 1)),
        weights=weights,
    )


def test_the_page_holds_the_weights_to_8_bits_and_loads_nothing(maps):
    page = viewer.page(maps)
    data = data_of(page)  # although a piece is written like the end of a script
    assert data["labels"] == maps.labels and data["target"] == TARGET
    for kind, weights in maps.weights.items():
        given = np.frombuffer(base64.b64decode(data["kinds"][kind]["weights"]), "u1")
        assert np.abs(given.reshape(weights.shape) - 255.0 * weights).max() < 0.501
    outside = page.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|//[a-z]|\bsrc=|url\(|@import|fetch\(", outside)
    assert "default-src 'none'" in page


def test_the_largest_page_is_small():
    page = viewer.page(drawn_maps(60, 6, 8))
    assert len(page.encode()) < 2_000_000


def test_the_template_is_part_of_the_package():
    root = Path(viewer.__file__).parents[2]
    assert (
        '"transformer.pictures" = ["*.html"]' in (root / "pyproject.toml").read_text()
    )


CHROMIUM = shutil.which("chromium")
DRIVER = shutil.which("chromedriver")


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("no chromium with chromedriver here; Debian has both as packages")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("headless=new", "no-sandbox", "disable-dev-shm-usage"):
        options.add_argument(f"--{argument}")
    options.add_argument("--window-size=1300,1000")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=DRIVER)
    driver = webdriver.Chrome(options=options, service=service)
    yield driver
    driver.quit()


class Page:
    """The page of some maps, opened in a browser."""

    def __init__(self, browser: Any, folder: Path, maps: Maps) -> None:
        path = folder / "page.html"
        path.write_text(viewer.page(maps), encoding="utf-8")
        self.browser, self.maps = browser, maps
        browser.get(path.as_uri())

    def all(self, selector: str) -> list[Any]:
        return self.browser.find_elements("css selector", selector)

    def one(self, selector: str) -> Any:
        (found,) = self.all(selector)
        return found

    def hover(self, element: Any) -> None:
        from selenium.webdriver import ActionChains

        ActionChains(self.browser).move_to_element(element).perform()

    def press(self, key: str) -> None:
        from selenium.webdriver import ActionChains, Keys

        ActionChains(self.browser).send_keys(getattr(Keys, key, key)).perform()

    def choose(self, name: str, value: str) -> None:
        self.one(f"input[name={name}][value='{value}']").click()

    @property
    def status(self) -> str:
        return self.one("#status").text

    @property
    def heat(self) -> str:
        return self.browser.execute_script(
            "return document.querySelector('#heat canvas').toDataURL()"
        )

    def tokens(self, side: str) -> list[str]:
        return [element.text for element in self.all(f"#{side} .token b")]

    def shares(self, side: str) -> list[str]:
        return [element.text for element in self.all(f"#{side} .token i")]

    def lines(self) -> int:
        return len(self.all("#lines line"))

    def seen(self, kind: str, layer: int, head: int | None) -> np.ndarray:
        """Return the weights as the page has them, in 8 bits; head None = mean."""
        weights = np.rint(255 * self.maps.weights[kind][layer]) / 255
        return weights.mean(0) if head is None else weights[head]

    def check(self) -> None:
        assert self.browser.get_log("browser") == []
        loaded = "return performance.getEntriesByType('resource').length"
        assert self.browser.execute_script(loaded) == 0


@pytest.fixture
def page(browser, tmp_path):
    page = Page(browser, tmp_path, drawn_maps(9, 2, 3))
    yield page
    page.check()


def percent(weight: float) -> str:
    """Write a weight as the page does: halves are rounded up, below 1 % stays blank."""
    return f"{int(100 * weight + 0.5)} %" if weight >= 0.01 else ""


def test_the_page_opens_on_the_last_cross_attention(page):
    labels = page.maps.labels
    assert page.tokens("from") == labels["target"]
    assert page.tokens("to") == labels["source"]
    assert "layer 2, mean of the 3 heads" in page.status
    assert page.lines() == (page.seen("cross", 1, None) >= 0.01).sum()
    assert len(page.all("#all button")) == 6
    assert page.browser.title == "Attention: source0 source1"


def test_choosing_changes_the_picture(page):
    seen = {page.heat}
    for name, value in (("head", "1"), ("layer", "0"), ("kind", "encoder")):
        page.choose(name, value)
        assert page.heat not in seen
        seen.add(page.heat)
    assert page.tokens("from") == page.tokens("to") == page.maps.labels["source"]
    assert page.lines() == (page.seen("encoder", 0, 1) >= 0.01).sum()
    page.choose("kind", "decoder")
    assert page.tokens("to") == page.maps.labels["target"]
    (thumbnail,) = page.all("#all button[aria-label='layer 2, head 3']")
    thumbnail.click()
    assert "layer 2, head 3" in page.status
    assert page.one("input[name=layer]:checked").get_attribute("value") == "1"
    assert page.lines() == (page.seen("decoder", 1, 2) >= 0.01).sum()


def test_a_pointed_token_shows_what_it_attends_to(page):
    page.choose("head", "0")
    row = page.seen("cross", 1, 0)[4]
    page.hover(page.all("#from .token")[4])
    assert page.shares("to") == [percent(weight) for weight in row]
    assert page.lines() == (row >= 0.01).sum()
    most = f"\u201csource{row.argmax()}\u201d {percent(row.max())}"
    expected = "\u201ctarget4\u201d (about to write \u201cnext4\u201d) attends to "
    assert page.status.startswith(expected + most)
    column = page.seen("cross", 1, 0)[:, 2]
    page.hover(page.all("#to .token")[2])
    assert page.shares("from") == [percent(weight) for weight in column]
    assert page.status.startswith("\u201csource2\u201d is attended to by")
    page.hover(page.one("h1"))
    assert set(page.shares("from") + page.shares("to")) == {""}
    assert page.status.startswith("Attention of the decoder to source")


def test_a_click_keeps_a_token_and_escape_lets_it_go(page):
    token = page.all("#from .token")[3]
    token.click()
    page.hover(page.one("h1"))
    assert page.status.startswith("\u201ctarget3\u201d")
    assert token.get_attribute("aria-selected") == "true"
    page.choose("layer", "0")
    row = page.seen("cross", 0, None)[3]
    assert page.shares("to") == [percent(weight) for weight in row]
    page.press("ESCAPE")
    assert page.status.startswith("Attention of the decoder")


def test_a_cell_of_the_heat_map_says_its_weight(page):
    page.hover(page.one("#heat canvas"))
    found = re.fullmatch(
        "\u201ctarget(.)\u201d attends to \u201csource(.)\u201d: (.*) %", page.status
    )
    assert found
    weight = page.seen("cross", 1, None)[int(found[1]), int(found[2])]
    rounded = str(int(100 * weight + 0.5))
    assert found[3] == ("0" if weight == 0 else "< 1" if weight < 0.005 else rounded)


def test_the_keyboard_alone_reaches_everything(page):
    page.browser.execute_script("document.querySelector('#from .token').focus()")
    page.press("ARROW_DOWN")
    page.press("ARROW_DOWN")
    assert page.status.startswith("\u201ctarget2\u201d")
    page.press("ENTER")
    page.press("TAB")
    page.press("END")
    assert page.status.startswith("\u201csource8\u201d is attended to by")
    page.press("TAB")
    assert page.status.startswith("\u201ctarget2\u201d"), "it was kept"
    for key, expected in (
        ("ENTER", "layer 1, head 1"),
        ("ARROW_RIGHT", "layer 1, head 2"),
        ("ARROW_DOWN", "layer 2, head 2"),
    ):
        page.press(key)
        chosen = page.one("#all button[aria-pressed=true]")
        assert chosen.get_attribute("aria-label") == expected
    page.browser.execute_script("document.querySelector('[name=kind]:checked').focus()")
    page.press("ARROW_UP")
    assert page.one("[name=kind]:checked").get_attribute("value") == "decoder"


def luminance(colour: str) -> float:
    """Return the relative luminance of rgb(...) as WCAG 2 defines it."""
    parts = [int(x) / 255 for x in re.findall(r"\d+", colour)[:3]]
    bent = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return float(np.dot([0.2126, 0.7152, 0.0722], bent))


def test_light_and_dark_can_both_be_read(page):
    from selenium.webdriver.support.wait import WebDriverWait

    def ground_and_text():
        style = "return [getComputedStyle(document.body).backgroundColor, "
        style += "getComputedStyle(document.querySelector('.help')).color]"
        return [luminance(colour) for colour in page.browser.execute_script(style)]

    maps = []
    for scheme in ("light", "dark"):
        media = [{"name": "prefers-color-scheme", "value": scheme}]
        page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})
        ground, text = ground_and_text()
        assert (ground > text) == (scheme == "light")
        low, high = sorted((ground, text))
        assert (high + 0.05) / (low + 0.05) >= 4.5  # WCAG 2, AA
        # The page draws anew a moment later.
        WebDriverWait(page.browser, 10).until(lambda _: page.heat not in maps)
        maps.append(page.heat)
    page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_the_largest_page_works(browser, tmp_path):
    page = Page(browser, tmp_path, drawn_maps(60, 6, 8))
    assert len(page.all("#all button")) == 48
    page.choose("head", "7")
    page.hover(page.all("#from .token")[10])
    row = page.seen("cross", 5, 7)[10]
    assert page.shares("to") == [percent(weight) for weight in row]
    wide = "return document.documentElement.scrollWidth <= innerWidth"
    assert page.browser.execute_script(wide)
    page.check()


# ---- the command ---------------------------------------------------------------------


@pytest.fixture
def trained(workdir_of, translator):
    workdir_of(head_statistics, base(), translator)
    return workdir_of(viewer, base(), translator)


def test_the_command_writes_pages_pictures_and_tables(trained, capsys):
    call = ["visualize", f"--workdir={trained}"]
    pair = [*call, f"--source={SOURCE}", f"--target={TARGET}"]
    page, picture, table = (trained / name for name in ("a.html", "a.svg", "a.csv"))
    assert cli.main([*pair, "--layers=1", f"--output={page}"]) == 0
    data = data_of(page.read_text(encoding="utf-8"))
    assert data["layers"] == [1] and len(data["kinds"]) == 3
    assert cli.main([*pair, "--word=sleeps", f"--output={picture}"]) == 0
    assert "layer 2" in picture.read_text()
    (trained / "in").write_text(f"{SOURCE}\n")
    (trained / "out").write_text(f"{TARGET}\n")
    files = [f"--input={trained / 'in'}", f"--translations={trained / 'out'}"]
    capsys.readouterr()
    assert cli.main([*call, "--statistics", *files]) == 0
    assert "### Attention of the decoder to the source" in capsys.readouterr().out
    assert cli.main([*call, "--statistics", *files, f"--output={table}"]) == 0
    assert "layer,head,entropy,distance,previous,same,next" in table.read_text()


@pytest.mark.parametrize(
    "flags, wanted",
    [
        ([], "expected either --source or --statistics"),
        (["--source=a", "--statistics"], "expected either --source or --statistics"),
        (["--source=a"], "ends in .html, .png, .svg, .pdf; got none"),
        (["--source=a", "--output=a.gif"], "got a.gif; give one"),
        (["--source=a", "--output=a.md"], "got a.md; give one"),
        (["--source=a", "--kind=self", "--output=a.png"], "one of encoder, decoder"),
        (["--source=a", "--word=a", "--output=a.html"], "--word: expected --output="),
        (["--statistics", "--input=no_such_file"], "got no_such_file"),
    ],
)
def test_mistakes_are_one_line(trained, capsys, flags, wanted):
    assert cli.main(["visualize", f"--workdir={trained}", *flags]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("transformer: error: ") and wanted in line
