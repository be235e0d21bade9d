"""A model as an object that translates, and as a filter of lines.

The model's parameters are drawn, and bent so that it writes lower-case letters and ends
now and then: its translations are text that is encoded to the same ids again.
"""

import dataclasses
import io
import math
from typing import Any

import numpy as np
import pytest
from support import models, reference
from support.models import options, recurrent_config, reference_weights
from support.reference import assert_close
from support.translators import EXTRA, LONGEST, ROUNDINGS, SETTINGS, draw_params

from transformer import config, stream
from transformer.config import UserError
from transformer.data.tokenizers import Bytes, Vocabulary
from transformer.ids import EOS
from transformer.metrics import heads
from transformer.parallel import sizes
from transformer.search import Search
from transformer.translate import Translation, Translator

# All in one batch but the fifth, which is longer than any in training.
LINES = ["ab", "", "hello w", " \t", "a longer line", "q", "xyz", "xyy", "\u00fc"]
SHORT = [LINES[i] for i in (0, 2, 5, 6, 7, 8)]
LONG = 4


@pytest.fixture(scope="module")
def warnings() -> list[str]:
    return []


@pytest.fixture(scope="module")
def translator(warnings) -> Translator:
    tokenizer = Bytes()
    vocabulary = Vocabulary(tokenizer, tokenizer)
    empty = Translator(SETTINGS, vocabulary, None, warnings.append)
    return Translator(SETTINGS, vocabulary, draw_params(empty), warnings.append)


@pytest.fixture(scope="module")
def best(translator) -> list[list[Translation]]:
    return translator.hypotheses(LINES, n_best=4)


def ended(one: Translation, source: str) -> bool:
    """Return whether a hypothesis ended before the limit cut it."""
    return len(one.ids) < len(source.encode()) + EXTRA


# ---- translating ---------------------------------------------------------------------


def test_lines_keep_their_order_and_lines_without_text_stay_empty(translator, best):
    full = [found[0] for line, found in zip(LINES, best, strict=True) if line.strip()]
    assert all(one.text for one in full)
    assert len({one.log_probability for one in full}) == len(full) == 7
    backwards = translator.hypotheses(LINES[::-1], n_best=4)
    assert [x[0].text for x in backwards[::-1]] == [x[0].text for x in best]
    for a, b in zip(backwards[::-1], best, strict=True):
        assert_close([a[0].score], [b[0].score], ROUNDINGS)
    assert best[1] == best[3] == [Translation("", 0.0, 0.0, [])]
    assert translator.translate([]) == []


def test_a_line_too_long_is_translated_after_one_warning(translator, warnings):
    warnings.clear()
    text = translator.hypotheses(LINES, n_best=4)[LONG][0].text
    assert text
    assert len(warnings) == 1
    assert "line 5: 14 tokens" in warnings[0] and f" {LONGEST} " in warnings[0]
    translator.hypotheses(LINES, first=101, n_best=4)
    assert "line 105:" in warnings[1]


def test_what_nothing_constrains_cannot_be_set_free(translator):
    assert translator.search(constrained=True).constrained
    with pytest.raises(UserError, match="False only where translations are trees"):
        translator.search(constrained=False)


def test_several_long_lines_are_told_in_one_line(translator, warnings):
    warnings.clear()
    translator.source_ids(["a longer line", "ab", "a line still longer"], first=3)
    (said,) = warnings
    assert said.startswith("2 lines, the first of them line 3: 20 tokens, more than")


def test_what_is_past_the_learned_positions_is_told(translator, warnings):
    for rows, told in ((20, False), (12, True)):
        model = dataclasses.replace(
            translator.settings.model, positions="learned", max_positions=rows
        )
        settings = dataclasses.replace(translator.settings, model=model)
        learned = Translator(settings, translator.vocabulary, None, warnings.append)
        warnings.clear()
        learned.source_ids(["a longer line"])
        (said,) = warnings
        past = "all positions past the 12 learned ones use the last of them"
        assert (past in said) is told


def test_a_translation_does_not_depend_on_the_other_lines(translator, best):
    for line, together in zip(LINES, best, strict=True):
        (alone,) = translator.hypotheses([line], n_best=4)
        assert [x.ids for x in alone] == [x.ids for x in together]
        for name in ("score", "log_probability"):
            a, b = ([getattr(x, name) for x in y] for y in (alone, together))
            assert_close(a, b, ROUNDINGS)


def test_hypotheses_are_different_and_the_best_come_first(best):
    for line, found in zip(LINES, best, strict=True):
        if not line.strip():
            continue
        assert len({tuple(x.ids) for x in found}) == len(found) == 4
        ends = [ended(x, line) for x in found]
        assert ends == sorted(ends, reverse=True)  # what was cut comes last
        scores = [x.score for x in found if ended(x, line)]
        assert scores == sorted(scores, reverse=True)
        for one in found:
            length = len(one.ids) + ended(one, line)
            assert length <= len(line.encode()) + EXTRA
            divisor = ((5 + length) / 6) ** 0.6
            assert_close([one.score * divisor], [one.log_probability], 16)
    every = [
        ended(x, line) for line, found in zip(LINES, best, strict=True) for x in found
    ]
    assert 4 < sum(every) < len(every), "both kinds should occur"


def test_a_beam_of_one_is_scored_like_any_other(translator):
    how = {"beam": 1, "alpha": 1.0, "length_penalty": "power"}
    for line, (one,) in zip(SHORT, translator.hypotheses(SHORT, **how), strict=True):
        length = len(one.ids) + ended(one, line)
        assert_close([one.score * length], [one.log_probability], 16)


# ---- scores --------------------------------------------------------------------------


def test_a_score_is_the_sum_of_the_log_probabilities_of_the_reference(translator):
    weights = reference_weights(translator.params, SETTINGS.model)
    pairs = [("ab", "xyz"), ("hello w", ""), ("", "q")]
    expected = []
    for source, target in pairs:
        x = np.array([*Bytes().encode(source), EOS])
        y = [*Bytes().encode(target), EOS]
        rows = reference.transformer(
            weights, x, np.array([2, *y[:-1]]), **options(SETTINGS.model)
        )
        expected.append(
            sum(reference.log_softmax(row)[i] for row, i in zip(rows, y, strict=True))
        )
    assert_close(translator.score(*zip(*pairs, strict=True)), expected, ROUNDINGS)


def test_the_score_of_a_translation_is_its_log_probability(translator, best):
    pairs = [
        (line, one)
        for line, found in zip(LINES, best, strict=True)
        for one in found
        if line.strip() and ended(one, line)
    ]
    assert all(Bytes().encode(one.text) == one.ids for _, one in pairs)
    scores = translator.score([x for x, _ in pairs], [one.text for _, one in pairs])
    assert_close(scores, [one.log_probability for _, one in pairs], ROUNDINGS)


def test_pairs_are_scored_in_order_and_counted(translator):
    targets = ["ab", "c", "defghij", "", "x", "yz"]
    scores = translator.score(SHORT, targets)
    assert_close(translator.score(SHORT[::-1], targets[::-1])[::-1], scores, ROUNDINGS)
    assert len(set(scores)) == len(scores)
    with pytest.raises(UserError, match="got 6 sources and 5 targets"):
        translator.score(SHORT, targets[:5])


# ---- sampling ------------------------------------------------------------------------


def test_sampling_is_decided_by_seed_and_line_number(translator):
    def draw(lines, first=1, seed=0):
        return translator.hypotheses(lines, first, sample=True, n_best=3, seed=seed)

    found = draw(SHORT)
    assert draw(SHORT) == found
    assert [x[0].ids for x in draw(SHORT, seed=1)] != [x[0].ids for x in found]
    (alone,) = draw(SHORT[1:2], first=2)  # the longest, so not the first of its batch
    assert [x.ids for x in alone] == [x.ids for x in found[1]]
    # Equal sentences in other lines are other draws.
    twins = draw(["ab"] * 6)
    assert len({x[0].text for x in twins}) > 1
    for line, draws in zip([*SHORT, *["ab"] * 6], [*found, *twins], strict=True):
        scores = [x.score for x in draws]
        assert len(draws) == 3 and scores == sorted(scores, reverse=True)
        for one in draws:
            divisor = ((5 + len(one.ids) + ended(one, line)) / 6) ** 0.6
            assert_close([one.score * divisor], [one.log_probability], 16)
    assert len({x.text for draws in found for x in draws}) > len(found)


# ---- encoder output and attention ----------------------------------------------------


def test_encoded_lines_have_a_row_for_each_piece_and_the_end(translator):
    together = translator.encode(LINES)
    for line, states in zip(LINES, together, strict=True):
        assert states.shape == (len(line.encode()) + 1, 16)
    weights = reference_weights(translator.params, SETTINGS.model)
    for line, states in zip(SHORT[:2], translator.encode(SHORT[:2]), strict=True):
        ids = np.array([*Bytes().encode(line), EOS])
        expected = reference.encode(weights, ids, **options(SETTINGS.model))
        assert_close(states, expected, ROUNDINGS)
        assert_close(together[LINES.index(line)], expected, ROUNDINGS)


def test_attention_of_a_pair(translator):
    found = translator.attention("ab", "xyz")
    assert found.source == ["a", "b", "</s>"]
    assert found.target == ["<s>", "x", "y", "z"]
    assert found.encoder.shape == (1, 2, 3, 3)
    assert found.decoder.shape == (1, 2, 4, 4)
    assert found.cross.shape == (1, 2, 4, 3)
    for weights in (found.encoder, found.decoder, found.cross):
        assert_close(weights.sum(-1), np.ones(weights.shape[:3]), 8)
    assert (found.decoder > 0).all(axis=(0, 1)).tolist() == np.tri(
        4, dtype=bool
    ).tolist()
    assert (found.encoder > 0).all() and (found.cross > 0).all()


def recurrent(member: str, vocabulary: Vocabulary) -> Translator:
    settings = dataclasses.replace(SETTINGS, model=recurrent_config(member=member))
    empty = Translator(settings, vocabulary, None)
    return Translator(settings, vocabulary, models.draw_params(empty.model))


def test_a_model_without_self_attention_has_cross_attention_alone(translator):
    found = recurrent("cgru", translator.vocabulary)
    pair = found.attention("ab", "xyz")
    assert pair.weights.keys() == {"cross"} and pair.cross.shape == (1, 1, 4, 3)
    assert_close(pair.cross.sum(-1), np.ones((1, 1, 4)), 8)
    with pytest.raises(UserError, match="expected cross, .* got encoder; change it"):
        _ = pair.encoder
    # The only layer aligns, as the last but one does where there are more.
    weights = found.attention("a b", "x").cross[0, 0]
    expected = int(weights[0, 2] > weights[0, :2].sum())
    assert found.alignments(["a b"], [Bytes().encode("x")]) == [[(expected, 0)]]


def test_a_model_without_attention_is_refused(translator):
    found = recurrent("encdec", translator.vocabulary)
    for look in (found.attention, lambda *x: found.alignments([x[0]], [[70]])):
        with pytest.raises(UserError, match="expected one with attention, got"):
            look("ab", "xyz")


def test_attention_without_a_target_is_that_of_the_translation(translator, monkeypatch):
    ids = [*Bytes().encode("abc"), 4 + 0xFF]  # no text is encoded as these
    written = Translation(Bytes().decode(ids), 0.0, 0.0, ids)
    monkeypatch.setattr(translator, "hypotheses", lambda lines: [[written]])
    found = translator.attention("ab")
    assert found.target == ["<s>", "a", "b", "c", "<0xFF>"]
    expected = translator.attention("ab", "abc")
    assert_close(found.cross[..., :4, :], expected.cross, ROUNDINGS)


def test_alignments_are_read_off_the_attention_of_each_pair(translator):
    sources, targets = ["ab c d", "", "x y"], ["q r", "s", ""]
    ids = [Bytes().encode(text) for text in targets]
    found = translator.alignments(sources, ids)
    weights = translator.attention(sources[0], targets[0]).cross[0].mean(0)
    # Bytes of the words: a b _ | c _ | d, then the end mark; rows write q _ | r.
    spans, rows = [(0, 3), (3, 5), (5, 6)], [(0, 2), (2, 3)]
    best = [
        int(np.argmax([weights[slice(*t), slice(*s)].sum() for s in spans]))
        for t in rows
    ]
    assert found == [[(best[0], 0), (best[1], 1)], [], []]
    with pytest.raises(UserError, match="--layer: expected a number from 1 to 1, got"):
        translator.alignments(sources, ids, layer=2)


def test_the_last_layer_but_one_aligns(translator, monkeypatch):
    model = dataclasses.replace(config.transformer(SETTINGS.model), layers=3)
    settings = dataclasses.replace(SETTINGS, model=model)
    deep = Translator(settings, translator.vocabulary, None)
    cross = np.zeros((3, 2, 3, 4))  # a b _ c to x _ y, each layer its own way
    cross[0, :, :, 0], cross[1, :, :, 2], cross[2, :, :, 0] = 1, 1, 1
    pair = heads.Attention([], [], {"cross": cross})
    monkeypatch.setattr(deep, "attentions", lambda *_: iter([(0, pair)]))
    target = [Bytes().encode("x y")]
    assert deep.alignments(["a bc"], target) == [[(1, 0), (1, 1)]]
    assert deep.alignments(["a bc"], target, layer=3) == [[(0, 0), (0, 1)]]


# ---- settings of a search ------------------------------------------------------------


def test_the_configuration_is_the_usual_search(translator):
    assert translator.search() == Search(4, 0.6, "gnmt")
    assert translator.search(beam=None, alpha=0.0) == Search(4, 0.0, "gnmt")


@pytest.mark.parametrize(
    "changes, wanted",
    [
        ({"beam": 0}, "beam: expected a number greater than 0, got 0; change it"),
        ({"n_best": 0}, "n_best: expected a number greater than 0, got 0"),
        ({"n_best": 5}, "n_best of at most beam = 4, got 5"),
        ({"alpha": -0.1}, "alpha: expected 0 or more, got -0.1"),
        ({"alpha": math.nan}, "alpha: expected 0 or more, got nan"),
        ({"length_penalty": "gnmtt"}, "expected one of gnmt, power, got 'gnmtt'"),
        ({"temperature": 0.0}, "temperature: expected at least 1e-6 and at most 1e6"),
        ({"temperature": math.nan}, "temperature: expected at least 1e-6"),
        ({"temperature": math.inf}, "temperature: expected at least 1e-6"),
        ({"top_p": 0.0}, "top_p: expected above 0 and at most 1, got 0.0"),
        ({"top_p": math.nan}, "top_p: expected above 0 and at most 1, got nan"),
        ({"top_p": 1.1}, "top_p: expected above 0 and at most 1, got 1.1"),
        ({"top_k": -1}, "top_k: expected 0 or more, got -1"),
        ({"alpha": math.inf}, "alpha: expected a finite number of float32, got inf"),
        (
            {"seed": 2**32},
            "seed: expected 0 or more and less than 2.32, got 4294967296",
        ),
        ({"temperature": 0.5}, "temperature: expected with sample=True only; add that"),
        ({"top_k": 3}, "top_k: expected with sample=True only"),
        ({"top_p": 0.5}, "top_p: expected with sample=True only"),
        ({"seed": 1}, "seed: expected with sample=True only"),
        ({"sample": True, "beam": 2}, "beam: expected with sample=False only"),
    ],
)
def test_a_search_that_cannot_be_is_refused(translator, changes, wanted):
    with pytest.raises(UserError, match=wanted) as caught:
        translator.translate(["ab"], **changes)
    assert "\n" not in str(caught.value)


def test_more_draws_than_beams_are_no_mistake(translator):
    assert translator.search(sample=True, n_best=9).n_best == 9


# ---- streams of lines ----------------------------------------------------------------


class Echo(Translator):
    """Translates a line as its number and itself; every line that ends in ! twice."""

    chunks: list[int]
    beams: list[int | None]

    def hypotheses(self, lines, first=1, **search):
        self.chunks.append(len(lines))
        return [
            [Translation(f"{number} {line}", -1.5, -3.0, [])] * (1 + line.endswith("!"))
            for number, line in enumerate(lines, first)
        ]


@pytest.fixture
def loaded(translator, monkeypatch) -> Translator:
    """Replace what is loaded by a translator that echoes, three lines at a time."""
    echo = Echo(
        translator.settings, translator.vocabulary, translator.params, translator._warn
    )
    echo.chunks, echo.beams = [], []

    def load(workdir, step, beam=None):
        echo.beams.append(beam)
        return echo

    monkeypatch.setattr(stream, "load", load)
    monkeypatch.setattr(stream, "_LINES_AT_A_TIME", 3)
    return echo


def test_a_stream_is_translated_in_chunks_with_lines_counted_through(loaded, tmp_path):
    output = io.StringIO()
    lines = (f"line{i}" for i in range(7))
    stream.translate_stream(tmp_path, lines, output)
    assert output.getvalue() == "".join(f"{i + 1} line{i}\n" for i in range(7))
    assert loaded.chunks == [3, 3, 1]


def test_a_stream_says_its_sizes_which_follow_the_beam(loaded, tmp_path, capsys):
    for beam in (None, 9):
        stream.translate_stream(tmp_path, ["a"], io.StringIO(), beam=beam)
    assert loaded.beams == [None, 9]
    line = sizes.line(loaded.settings)
    assert capsys.readouterr() == ("", f"{line}\n{line}\n")


def test_every_line_of_a_stream_gives_n_best_lines(loaded, tmp_path):
    output = io.StringIO()
    stream.translate_stream(tmp_path, ["a!", "b"], output, n_best=2, scores=True)
    assert output.getvalue().splitlines() == [
        "-1.5000\t1 a!",
        "-1.5000\t1 a!",
        "-1.5000\t2 b",
        "-inf\t",  # there was no second one
    ]


def test_a_stream_says_how_far_it_is(loaded, tmp_path, capsys):
    lines = [f"line{i}" for i in range(7)]
    stream.translate_stream(tmp_path, lines, io.StringIO())
    _, *said = capsys.readouterr().err.splitlines()
    assert said == ["3 lines translated", "6 lines translated"]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", "\x85", "\u2028", "\u2029", "\f"])
def test_one_line_is_written_for_one_line(loaded, tmp_path, monkeypatch, end):
    found = [[Translation(f"a{end}b\tc", -1.5, -3.0, [])]]
    monkeypatch.setattr(loaded, "hypotheses", lambda lines, first, **_: found)
    monkeypatch.setattr(loaded, "alignments", lambda *_: [[(0, 1)]])

    def written(**options):
        output = io.StringIO()
        stream.translate_stream(tmp_path, ["x"], output, **options)
        return output.getvalue()

    assert written() == "a b\tc\n"
    assert written(scores=True) == "-1.5000\ta b c\n"
    assert written(alignments=True) == "a b c\t0-1\n"
    assert written(scores=True, alignments=True) == "-1.5000\ta b c\t0-1\n"


def test_a_stream_is_aligned(loaded, tmp_path, monkeypatch):
    def alignments(sources, target_ids, layer):
        assert len(sources) == len(target_ids) and layer == 2
        return [[(1, 0), (0, 1)] if source else [] for source in sources]

    monkeypatch.setattr(loaded, "alignments", alignments)
    output = io.StringIO()
    options: Any = {"n_best": 2, "alignments": True, "layer": 2}
    stream.translate_stream(tmp_path, ["a!", ""], output, **options)
    assert output.getvalue().splitlines() == [
        "1 a!\t0-1 1-0",
        "1 a!\t0-1 1-0",
        "2 \t",
        "\t",
    ]


def test_a_stream_of_pairs_is_scored(loaded, tmp_path, warnings):
    sources, targets = [*SHORT, "a longer line"], ["a", "", "bc", "d", "e", "f", "g"]
    warnings.clear()
    output = io.StringIO()
    stream.score_stream(tmp_path, iter(sources), iter(targets), output)
    expected = loaded.score(sources, targets)
    found = [float(line) for line in output.getvalue().splitlines()]
    assert len(found) == 7
    assert all(abs(a - b) < 1e-4 for a, b in zip(found, expected, strict=True))
    # It is the first of the third chunk.
    assert [text.split(":")[0] for text in warnings] == ["line 7", "line 7"]


@pytest.mark.parametrize("sources, targets", [(5, 4), (4, 5), (6, 3), (3, 4), (1, 0)])
def test_streams_of_unequal_length_are_refused(loaded, tmp_path, sources, targets):
    with pytest.raises(UserError, match=f"got {sources} source and {targets} target"):
        stream.score_stream(tmp_path, ["a"] * sources, ["b"] * targets, io.StringIO())


def test_a_sentence_is_no_list_of_sentences(translator):
    one = "zero one"
    for call in (
        translator.translate,
        translator.encode,
        lambda text: next(translator.stream(text)),
        lambda text: translator.score(text, ["a"] * len(text)),
        lambda text: translator.score(["a"] * len(text), text),
    ):
        with pytest.raises(UserError, match="a list of sentences, got one, 'z"):
            call(one)
    with pytest.raises(UserError, match="a list of words to forbid, got one, 'zw"):
        translator.translate([one], forbid="zwei")
    with pytest.raises(UserError, match="a list of prefixes, got one, 'ab'"):
        translator.translate([one, one], prefixes="ab")
