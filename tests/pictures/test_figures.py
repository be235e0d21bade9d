"""The numbers behind the pictures of `transformer plot`."""

import dataclasses
import json
import math
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from support.configs import base
from support.models import SMALL, draw_params

from transformer import translate
from transformer.cli import main as cli
from transformer.config import UserError
from transformer.data.tokenizers import Vocabulary, Whitespace
from transformer.nn.positions import sinusoidal_positions
from transformer.pictures import curves, plots
from transformer.translate import Translator

WORDS = ["one", "two", "three", "man", "woman", "dog@@", "s"]


@pytest.fixture
def painted(monkeypatch) -> list[Any]:
    """Record what the pictures are given."""
    given: list[Any] = []
    for name in ("panels", "bars", "maps", "points"):

        def note(*arguments, **options):
            given.append(arguments)
            return plots.Picture(lambda figure: None, 1, 1)

        monkeypatch.setattr(plots, name, note)
    return given


def texts(svg: str) -> str:
    return "".join(ElementTree.fromstring(svg).itertext())


# ---- schedule and smoothing ----------------------------------------------------------


def test_the_schedule_peaks_at_its_warm_up(painted):
    curves.schedule([512, 1024], [4000, 8000], 20_000)
    ((x_label, [(label, logarithmic, lines)]),) = painted
    assert (x_label, label, logarithmic) == ("step", "learning rate", False)
    assert len(lines) == 4
    for d_model in (512, 1024):
        for warmup in (4000, 8000):
            points = lines[f"d_model {d_model:,}, warm-up {warmup:,}"]
            step, rate = max(points, key=lambda point: point[1])
            assert step == warmup and points[-1][0] == 20_000
            assert rate == pytest.approx((d_model * warmup) ** -0.5, rel=1e-6)


def test_smoothed_targets_by_hand(painted):
    curves.smoothing(0.2, 5)
    ((_, names, _, rows),) = painted
    assert names[2] == "id 2\n(target)" and len(names) == 5
    expected = {
        "no smoothing": [0, 0, 1, 0, 0],
        "0.2 over all ids": [0.04, 0.04, 0.84, 0.04, 0.04],
        "0.2 over the others": [0.05, 0.05, 0.8, 0.05, 0.05],
    }
    assert rows.keys() == expected.keys()
    for name, values in expected.items():
        assert rows[name] == pytest.approx(values, abs=1e-6)


# ---- curves --------------------------------------------------------------------------


def write_metrics(workdir: Path, lines: list[dict[str, Any]]) -> Path:
    workdir.mkdir(parents=True)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (workdir / "metrics.jsonl").write_text(text + '{"step": 9, "lo')  # a kill tore it
    return workdir


def test_curves_of_runs_side_by_side(painted, tmp_path):
    first = write_metrics(
        tmp_path / "a" / "run",
        [
            {"step": 1, "loss": 5.0, "learning_rate": 0.1},
            {"step": 1, "validation_perplexity": 90.0},
            {"step": 2, "loss": None, "learning_rate": 0.2},
        ],
    )
    second = write_metrics(tmp_path / "b" / "run", [{"step": 4, "loss": 3.0}])
    curves.curves([first, second])
    ((_, panels),) = painted
    assert [panel[2] for panel in panels] == [
        {"a/run": [(1, 5.0)], "b/run": [(4, 3.0)]},
        {"a/run": [(1, 90.0)]},
        {"a/run": [(1, 0.1), (2, 0.2)]},
    ]
    curves.curves([first])
    assert painted[-1][1][0][2].keys() == {"run"}


def test_a_folder_without_metrics_is_refused(tmp_path):
    with pytest.raises(UserError, match="found no lines in metrics.jsonl"):
        curves.curves([tmp_path])


# ---- positions and embeddings --------------------------------------------------------


def make_translator(**changes: Any) -> Translator:
    values = {f"model.{k}": v for k, v in (SMALL | changes).items()}
    values |= {"model.vocab_size": 0, "tokenizer.kind": "whitespace"}
    values |= {"data.max_length": 16}
    tokenizer = Whitespace(WORDS)
    vocabulary = Vocabulary(tokenizer, tokenizer)
    empty = Translator(base(**values), vocabulary, None)
    params = draw_params(empty.model)
    return Translator(empty.settings, vocabulary, params)


@pytest.fixture(scope="module")
def learned() -> Translator:
    return make_translator(positions="learned", max_positions=20, tying="none")


def test_positions_and_their_products(painted, learned):
    curves.positions(12, 6, learned)
    ((every,),) = painted
    sinusoids = np.asarray(sinusoidal_positions(12, 6))
    tables = {"sinusoids": sinusoids}
    for side in ("source", "target"):
        table = np.asarray(learned.params[f"{side}_positions"])[:12]
        tables[f"learned, {side}"] = table
    shown = {one.title: np.array(one.values) for one in every}
    assert len(shown) == 6
    for name, table in tables.items():
        assert (shown[name] == table).all()
        products = shown[f"{name}: dot products"]
        assert products[3, 5] == pytest.approx(table[3] @ table[5], rel=1e-5)
    # A sinusoid's products depend on the distance alone, and d/2 is the norm's square.
    own = shown["sinusoids: dot products"]
    assert np.allclose(np.diagonal(own, 2), own[0, 2], atol=1e-5) and own[
        4, 4
    ] == pytest.approx(3)
    curves.positions(12, 6, None)
    assert len(painted[-1][0]) == 2


@pytest.mark.parametrize("length, positions", [(21, "learned"), (5, "sinusoidal")])
def test_positions_that_are_not_there_are_refused(length, positions):
    translator = make_translator(positions=positions, max_positions=20)
    with pytest.raises(UserError, match=f"at least {length} of them, got {positions}"):
        curves.positions(length, 16, translator)


def test_words_are_placed_by_the_mean_of_their_pieces(painted, learned):
    params = dict(learned.params)
    rng = np.random.default_rng(0)
    plane = rng.normal(size=(2, 16))
    places = np.array([[9, 0], [-9, 0], [0, 4], [0, -4], [0, 0], [8, 0], [-2, 8]])
    table = np.zeros((11, 16), np.float32)
    table[4:] = places @ np.linalg.qr(plane.T)[0].T
    params["source_embedding"] = jnp.asarray(table)
    translator = Translator(learned.settings, learned.vocabulary, params)
    words = ["one", "two", "three", "man", "dog@@ s"]
    curves.embeddings(translator, words, "pca", "source")
    ((_, labels, found, note),) = painted
    assert labels == words and note.startswith("two directions with 100%")
    wanted = np.array([[1, 0], [-1, 0], [0, 1], [0, -1], [0.6, 0.8]])  # [3, 4] of two
    distances = np.linalg.norm(wanted[:, None] - wanted, axis=-1)
    found = np.array(found)
    drawn = np.linalg.norm(found[:, None] - found, axis=-1)
    assert np.allclose(drawn, distances, atol=1e-4)  # a turn of the plane
    curves.embeddings(translator, words, "tsne", "source")
    assert np.isfinite(painted[-1][2]).all() and "perplexity 1.33" in painted[-1][3]


def test_neighbours_by_hand(learned):
    params = dict(learned.params)
    table = np.zeros((11, 16), np.float32)
    for row, (x, y) in enumerate([(1, 0), (3, 4), (0, 2), (-1, 0), (4, 3)], start=4):
        table[row, :2] = x, y
    params["target_embedding"] = jnp.asarray(table)
    params["target_embedding"] = params["target_embedding"].at[:4].set(9.0)
    translator = Translator(learned.settings, learned.vocabulary, params)
    found = curves.neighbours(translator, ["one", "three"], 2, "target")
    # Cosines with (1, 0): .6, 0, -1, .8; with (0, 2): 0, .8, 0, .6. Marks do not count.
    assert found.rows == (
        ("one", "woman 0.80, two 0.60"),
        ("three", "two 0.80, woman 0.60"),
    )


def test_words_that_cannot_be_placed_are_refused(learned):
    with pytest.raises(UserError, match="expected at least 4, got 3"):
        curves.embeddings(learned, ["a", "b", "c"], "pca", "source")
    for method in ("pca", "tsne"):
        with pytest.raises(
            UserError, match="with different embeddings, got a, a, a, a"
        ):
            curves.embeddings(learned, ["a"] * 4, method, "source")
    with pytest.raises(UserError, match="expected words, got ''"):
        curves.neighbours(learned, ["one", ""], 2, "source")
    data = dataclasses.replace(learned.settings.data, source="vectors")
    heard = Translator(learned.settings, learned.vocabulary, learned.params)
    heard.settings = dataclasses.replace(learned.settings, data=data)
    words = ["one", "two", "three", "a"]
    for call in (
        lambda side: curves.embeddings(heard, words, "pca", side),
        lambda side: curves.neighbours(heard, ["one"], 2, side),
    ):
        with pytest.raises(UserError, match="--side: expected target for a run whose"):
            call("source")
        call("target")


# ---- pictures ------------------------------------------------------------------------


def test_a_picture_is_what_its_form_says():
    picture = curves.schedule([512], [4000], 10_000)
    assert picture.file("png")[:4] == b"\x89PNG" and picture.file("pdf")[:4] == b"%PDF"
    assert "d_model 512, warm-up 4,000" in texts(picture.file("svg").decode())
    for form in plots.FORMS:
        assert picture.file(form) == picture.file(form), "the same again"


def test_characters_that_the_font_lacks_are_told_in_one_line(capsys):
    picture = plots.bars("\u4f60\u597d", ["a", "\u4f60"], "p", {"x": [0.1, 0.9]})
    assert "\u4f60\u597d" in picture.svg()
    assert capsys.readouterr().err == ""
    picture.file("png")
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "lacks \u4f60 \u597d, drawn as boxes" in said


def test_pictures_name_what_they_show(tmp_path):
    run = write_metrics(
        tmp_path / "my_$run$",
        [{"step": s, "loss": 1 / s, "validation_perplexity": 9 / s} for s in (1, 2, 3)],
    )
    assert "validation perplexity" in texts(curves.curves([run]).svg())
    text = texts(curves.smoothing(0.1, 4).svg())
    assert "id 3" in text and "0.925" in text and "0.0333" in text
    assert "sinusoids: dot products" in texts(curves.positions(5, 8, None).svg())
    names = ["$x$", "b", "c"]
    drawn = plots.points("title", names, [[0, 0], [1, 1], [2, 0]], "note")
    assert all(name in texts(drawn.svg()) for name in names)


# ---- the command ---------------------------------------------------------------------


@pytest.fixture
def trained(workdir_of, learned):
    return workdir_of(translate, base(), learned)


def test_the_command_draws_each_kind(trained, capsys):
    write_metrics(trained / "a", [{"step": 1, "loss": 1.0}])
    write_metrics(trained / "b", [{"step": 1, "loss": 2.0}])
    here = f"--workdir={trained}"
    for what, *more in (
        ("schedule", "--d_model=64,128", "--warmup=10", "--steps=50"),
        ("smoothing", "--smoothing=0.3", "--ids=4"),
        ("curves", f"--workdir={trained / 'a'},{trained / 'b'}"),
        ("positions", here, "--d_model=8", "--length=6"),
        ("embeddings", here, "--words=one,two, three,man", "--neighbours=1"),
    ):
        output = trained / f"{what}.svg"
        call = ["plot", f"--what={what}", f"--output={output}", *more]
        assert cli.main(call) == 0, capsys.readouterr().err
        ElementTree.fromstring(output.read_text())
    assert re.search(r"\| three \| \S+ -?\d\.\d\d \|", capsys.readouterr().out)


@pytest.mark.parametrize(
    "flags, wanted",
    [
        ([], "plot: expected --what: schedule"),
        (["--what=schedule"], "plot: expected --output"),
        (
            ["--what=schedule", "--output=a.html"],
            "ends in .png, .svg, .pdf; got a.html",
        ),
        (["--what=schedule", "--output=a.png", "--warmup=1e3"], "got 1e3; change it"),
        (["--what=curves", "--output=a.png"], "expected --workdir; add it"),
        (
            ["--what=curves", "--output=a.png", "--workdir=a,./a"],
            "--workdir: expected each folder once, got a,./a",
        ),
        (["--what=embeddings", "--output=a.png"], "expected --workdir; add it"),
        (
            ["--what=embeddings", "--output=a.png", "--workdir=a,b"],
            "expected one --workdir, got a,b",
        ),
        (["--what=smoothing", "--output=a.png", "--smoothing=2"], "at most 1, got '2'"),
        (["--what=positions", "--output=a.png", "--d_model=7"], "one even number up"),
        (["--what=positions", "--output=a.png", "--d_model=4,8"], "one even number up"),
        (["--what=schedule", "--output=a.png", "--d_model=2147483648"], "below 2^31"),
    ],
)
def test_mistakes_are_one_line(trained, capsys, flags, wanted):
    assert cli.main(["plot", *flags]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("transformer: error: ") and wanted in line


# ---- what is drawn, measured ---------------------------------------------------------


def drawn(picture: plots.Picture) -> Any:
    """Return the figure of a picture, laid out."""
    from matplotlib.figure import Figure

    size = (picture.width, picture.height)
    figure = Figure(figsize=size, layout="constrained")
    picture.paint(figure)
    figure.draw_without_rendering()
    return figure


@pytest.mark.parametrize("heads", [4, 8, 16])
@pytest.mark.parametrize("words", [6, 16])
def test_the_legend_of_heads_lies_inside_and_tells_them_apart(heads, words):
    weights = np.full((heads, words, words), 1 / words).tolist()
    names, labels = [f"head {h + 1}" for h in range(heads)], ["word"] * words
    every = [plots.HeadLines("layer 1", [2], weights)]
    figure = drawn(plots.head_lines(every, names, labels, labels))
    (legend,) = figure.legends
    box, page = legend.get_window_extent(), figure.bbox
    assert page.x0 <= box.x0 and box.x1 <= page.x1
    assert len({line.get_color() for line in legend.get_lines()}) == heads


def test_the_texts_of_a_tree_do_not_run_into_each_other():
    long, note = "vierundzwanzigtausend", "-14.87, score -9.808: no. 1"
    every = [(-1, 0, "<s>"), (0, 1, long), (0, 1, long), (1, 2, long), (2, 2, long)]
    branches = [plots.Branch(*x, note, best=True, kept=True) for x in every]
    figure = drawn(plots.tree("title", branches))
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert len(boxes) == 2 * len(branches)
    for i, one in enumerate(boxes):
        assert not any(one.overlaps(other) for other in boxes[:i])


def test_three_maps_leave_no_empty_panel():
    every = [plots.Map(name, [[1.0, 2.0]], "x", "y") for name in "abc"]
    shown = [x for x in drawn(plots.maps(every)).axes if x.get_visible()]
    titled = [x.get_title() for x in shown if x.get_title()]
    assert titled == ["a", "b", "c"]
    assert len(shown) == 6  # and the colours of each


def test_thirty_lines_leave_room_for_the_panel_and_are_told_apart():
    lines = {f"d_model {i}, warm-up 4,000": [(0, i), (1, i + 1)] for i in range(30)}
    figure = drawn(plots.panels("step", [("learning rate", False, lines)]))
    (axes,), (legend,) = figure.axes, figure.legends
    assert axes.get_window_extent().height > 2 * figure.dpi
    assert legend.get_window_extent().y0 >= 0
    styles = {(x.get_color(), x.get_linestyle()) for x in legend.get_lines()}
    assert len(styles) == 30


def test_a_run_with_one_point_is_a_dot():
    one = drawn(plots.panels("step", [("loss", False, {"run": [(40, 3.0)]})]))
    rows = {"base": [[(60, 43.7)], [(60, 40.0), (80, 30.0)]], "A": [[(60, 41.0)]]}
    every = (
        one.axes[0].lines[:1] + drawn(plots.curves("perplexity", rows)).axes[1].lines
    )
    for line in every:
        dot = len(line.get_xdata()) == 1
        assert line.get_marker() == ("o" if dot else "None")
    assert len(every) == 4


def test_a_map_has_a_scale_of_its_own_and_its_first_row_above():
    values = [[1.0, -4.0, 2.0], [0.5, 3.0, 0.0]]
    every = [plots.Map(name, values, "x", "y") for name in "ab"]
    for signed, least in ((True, -4), (False, 0)):
        figure = drawn(plots.maps(every, first=1, signed=signed))
        for axes in figure.axes[:2]:
            (image,) = axes.images
            assert image.get_clim() == (least, 4)
            # Cells of 1 about the numbers of columns 1 to 3 and of rows 1 and 2.
            assert (axes.get_xlim(), axes.get_ylim()) == ((0.5, 3.5), (2.5, 0.5))
            assert [*image.get_extent()] == [0.5, 3.5, 2.5, 0.5]


def test_a_mark_stands_in_its_row_with_its_interval_and_the_paper_s():
    rows = [
        plots.Mark("one seed", 5.0, -math.inf, math.inf, None),
        plots.Mark("more", 2.0, 1.0, 3.0, 2.5),
    ]
    (axes,) = drawn(plots.marks([("BLEU", False, rows)], "paper")).axes
    found = [(*line.get_xdata(), *line.get_ydata()) for line in axes.lines]
    assert found == [(1, 3, 1, 1), (5, 2, 0, 1), (2.5, 1)]
    assert [x.get_text() for x in axes.get_yticklabels()] == ["one seed", "more"]
    assert axes.yaxis_inverted()  # the first one is above


def test_bars_of_a_group_stand_side_by_side_about_its_name():
    rows = {"a": [1.0, 2.0], "b": [3.0, 4.0]}
    (axes,) = drawn(plots.bars("title", ["x", "y"], "z", rows)).axes
    middles = [bar.get_x() + bar.get_width() / 2 for bar in axes.patches]
    assert middles == pytest.approx([-0.2, 0.8, 0.2, 1.2])
    assert [bar.get_height() for bar in axes.patches] == [1, 2, 3, 4]


def test_lines_of_a_head_lead_from_the_word_above_to_what_it_attends_to():
    weights = [[0.25, 0.75], [0.5, 0.5]]
    every = [plots.HeadLines("layer 1", [0], [weights])]
    (axes,) = drawn(plots.head_lines(every, ["head 1"], ["a", "b"], ["c", "d"])).axes
    found = [
        (*line.get_xdata(), *line.get_ydata(), line.get_alpha())
        for line in axes.lines
        if len(line.get_xdata())  # the legend's have no points
    ]
    assert found == [(0, 0, 1, 0, 0.25), (0, 1, 1, 0, 0.75)]


def test_an_edge_of_a_tree_leads_from_the_parent_s_row_to_the_child_s():
    every = [(-1, 0, "<s>"), (0, 1, "a"), (0, 1, "b"), (2, 2, "c")]
    branches = [plots.Branch(*x, "", best=False, kept=True) for x in every]
    (axes,) = drawn(plots.tree("title", branches)).axes
    ends = [[line.get_xydata()[i].tolist() for i in (0, -1)] for line in axes.lines]
    assert ends == [[[0, 0], [1, 0]], [[0, 0], [1, 1]], [[1, 1], [2, 1]]]


def test_scores_by_length_are_drawn_from_0():
    lines = {"a": [20.0, 30.0], "b": [25.0, 35.0]}
    (axes,) = drawn(plots.categories("x", "BLEU", ["1-5", "6+"], lines)).axes
    assert axes.get_ylim()[0] == 0
    assert [x.get_text() for x in axes.get_xticklabels()] == ["1-5", "6+"]
    assert [[*line.get_ydata()] for line in axes.lines] == [[20, 30], [25, 35]]
