"""BLEU against published figures, hand counts and the traps of tokenised text."""

import gzip
import json
import logging
import math
from collections.abc import Sequence

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.significance import PairedTest, Result
from support.cases import leave
from support.paths import SHARED

from transformer.config import UserError
from transformer.metrics import bleu
from transformer.metrics.resamples import Resampler

DATA = SHARED / "data" / "bleu-reference"
needs_data = pytest.mark.skipif(
    not DATA.is_dir(), reason=f"the WMT17 outputs are not at hand: no folder {DATA}"
)

PUBLISHED = {
    "uedin-nmt": (28.30, 28.92, 28.50, 28.10, 28.47),
    "lium-nmt": (26.60, 27.15, 26.89, 26.38, 26.84),
}


def read(name: str) -> list[str]:
    text = gzip.decompress((DATA / name).read_bytes()).decode()
    return text.removesuffix("\n").split("\n")


def cases() -> dict:
    return json.loads(gzip.decompress((DATA / "cases.json.gz").read_bytes()))


@needs_data
@pytest.mark.parametrize("system", leave(PUBLISHED, ["lium-nmt"]))
def test_published_figures_of_wmt17_systems(system):
    scores = bleu.score_all(read(f"hyp.{system}.de.gz"), read("ref.de.gz"), "de")
    assert tuple(scores) == bleu.VARIANTS
    names = ("13a", "13a_lowercase", "intl", "moses", "paper")
    got = tuple(round(scores[name].value, 2) for name in names)
    assert got == PUBLISHED[system]
    assert all(s.signature.endswith("|order:4|lines:3004") for s in scores.values())


@needs_data
@pytest.mark.parametrize("variant, key", [("13a", "13a"), ("intl", "intl")])
def test_three_references(variant, key):
    case = cases()["corpus"]
    score = bleu.corpus_bleu(case["hyps"], case["refs"], variant, "en")
    assert score.value == pytest.approx(case["expected"][key], abs=1e-6)
    assert score.signature.startswith("nrefs:2|")


@needs_data
def test_untokenised_references():
    case = cases()["corpus"]
    score = bleu.corpus_bleu(case["hyps"], case["refs"], "tokens", "en")
    assert score.value == pytest.approx(case["expected"]["none"], abs=1e-6)


@needs_data
@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_precisions_and_brevity_penalty_give_bleu_of_lower_orders(order):
    case = cases()["corpus"]
    score = bleu.corpus_bleu(case["hyps"], case["refs"], "13a", "en")
    mean = sum(math.log(p) for p in score.precisions[:order]) / order
    expected = case["expected_by_max_order_13a"][str(order)]
    assert score.brevity_penalty * math.exp(mean) == pytest.approx(expected, abs=0.005)


@needs_data
def test_statistics_of_the_library_in_use():
    for case in cases()["statistics"]:
        score = BLEU.compute_bleu(
            case["correct"],
            case["total"],
            case["sys_len"],
            case["ref_len"],
            smooth_method=case.get("smoothing", "none"),
        ).score
        tolerance = case.get("tolerance", 5e-9)
        assert score == pytest.approx(case["expected"], abs=tolerance)


@needs_data
def test_counts_are_clipped_by_the_best_reference():
    case = cases()["clipping"]
    references = [[line] for line in case["refs"]]
    score = bleu.corpus_bleu([case["hyp"]], references, "tokens", "en")
    pairs = zip(case["correct"], case["total"], strict=True)
    assert score.precisions == pytest.approx([100 * c / t for c, t in pairs])
    assert score.value == 0  # no smoothing, as multi-bleu


def test_bleu_by_hand():
    # One of six words is wrong: p = 5/6, 3/5, 2/4, 1/3; reference one word longer.
    hypothesis, reference = "the cat sat on a mat", "the cat sat on the mat today"
    score = bleu.corpus_bleu([hypothesis], [[reference]], "tokens", "en")
    expected = (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25 * math.exp(1 - 7 / 6)
    assert score.value == pytest.approx(100 * expected)


def test_words_shorter_than_four_are_scored_up_to_their_order():
    # Number words: no reference has four tokens, so no 4-gram can exist.
    references = ["dreizehn", "eine Million", "zwei Millionen eins"]
    for variant, score in bleu.score_all(references, references, "de").items():
        assert score.value == pytest.approx(100), variant
        assert "|order:3|" in score.signature
    half = bleu.corpus_bleu(["dreizehn", "vier"], [["dreizehn", "zehn"]], "13a", "de")
    assert half.value == pytest.approx(50)
    assert "|order:1|" in half.signature


def test_order_depends_on_the_references_alone():
    long = "eins zwei drei vier fünf"
    score = bleu.corpus_bleu([long], [["eins zwei"]], "tokens", "de")
    assert "|order:2|" in score.signature
    assert score.value == pytest.approx(100 * math.sqrt(2 / 5 * 1 / 4))


def test_signatures_tell_the_measures_apart():
    scores = bleu.score_all(["Ein Haus ."], ["Ein Haus ."], "fr")
    assert len({score.signature for score in scores.values()}) == len(scores)
    assert "case:mixed|eff:no|tok:13a|smooth:exp|" in scores["13a"].signature
    assert "case:lc|eff:no|tok:13a|smooth:exp|" in scores["13a_lowercase"].signature
    assert "|tok:moses-fr-" in scores["moses"].signature
    assert "|tok:punctuation+moses-fr-" in scores["paper"].signature
    assert "+compounds|smooth:none|" in scores["paper"].signature
    assert "case:mixed|eff:no|tok:none|" in scores["tokens"].signature
    assert "case:lc|eff:no|tok:none|" in scores["tokens_lowercase"].signature


def test_only_what_sacrebleu_defines_is_smoothed():
    # No three words are in order. multi-bleu, which has the others, prints 0.
    scores = bleu.score_all(["a b x c d"], ["a b c d e"], "en")
    smoothed = {name for name, score in scores.items() if score.value > 0}
    assert smoothed == {"13a", "13a_lowercase", "intl"}


def test_case_counts_only_in_cased_variants():
    scores = bleu.score_all(
        ["EIN GROSSES HAUS STEHT"], ["ein grosses haus steht"], "de"
    )
    lowered = {name for name, score in scores.items() if score.value > 99.9}
    assert lowered == {"13a_lowercase", "tokens_lowercase"}


def test_tokens_takes_text_as_it_stands():
    # 13a would split the comma off; the words here agree in three of four places.
    score = bleu.corpus_bleu(["a b c d,"], [["a b c d"]], "tokens", "en")
    assert score.precisions[0] == 75


def test_tokenised_text_makes_no_noise(caplog, capfd):
    lines = ["ein Satz ist hier ."] * 120
    with caplog.at_level(logging.DEBUG):
        bleu.score_all(lines, lines, "de")
    assert not caplog.records
    assert capfd.readouterr() == ("", "")


def test_unicode_punctuation_is_plain_in_the_paper_variant_only():
    hypothesis, reference = "„ Er ist ” nicht … da ’ s", "„ Er ist \" nicht ... da ' s"
    paper = bleu.corpus_bleu([hypothesis], [[reference]], "paper", "de")
    moses = bleu.corpus_bleu([hypothesis], [[reference]], "moses", "de")
    assert paper.value == pytest.approx(100)
    assert moses.value < 99


@pytest.mark.parametrize(
    "language, text, tokens",
    [
        ("en", "It's Mr. Smith's.", "It &apos;s Mr. Smith &apos;s ."),
        ("fr", "L'homme d'Etat.", "L&apos; homme d&apos; Etat ."),
        ("de", "Geht's gut, Dr. Abs?", "Geht &apos; s gut , Dr. Abs ?"),
        ("other", "a'b, 5,300 (x)", "a &apos; b , 5,300 ( x )"),
        # the last word loses its full stop even where it is an abbreviation
        ("de", "Er ist Dr.", "Er ist Dr ."),
        ("de", "Er ging z.B.", "Er ging z.B ."),
        ("de", "Er ging ...", "Er ging ..."),
        ("de", "Er ging...", "Er ging ..."),
        ("de", ".", "."),
        ("de", "", ""),
    ],
)
def test_moses_tokens(language, text, tokens):
    assert bleu.moses_tokenize(text, language) == tokens


@pytest.mark.parametrize(
    "tokens, split",
    [
        ("rich-text format", "rich ##AT##-##AT## text format"),
        ("a-b-c", "a ##AT##-##AT## b-c"),  # b is used up by the first match
        ("aa-bb-cc", "aa ##AT##-##AT## bb ##AT##-##AT## cc"),
        ("- 5 -x y-", "- 5 -x y-"),
        ("a--b", "a ##AT##-##AT## -b"),
    ],
)
def test_compounds_are_split_left_to_right(tokens, split):
    assert bleu.split_compounds(tokens) == split


def test_empty_hypotheses_score_zero():
    scores = bleu.score_all(["", ""], ["ein Haus", "ein Tal"], "de")
    assert all(score.value == 0 for score in scores.values())


@pytest.mark.parametrize("hypotheses, references", [(["a"], ["a", "b"]), ([], ["a"])])
def test_counts_must_agree(hypotheses, references):
    counts = rf"{len(hypotheses)} hypotheses and {len(references)} references"
    with pytest.raises(UserError, match=counts):
        bleu.score_all(hypotheses, references, "de")
    with pytest.raises(UserError, match=counts):
        bleu.exact_match(hypotheses, references)


def test_nothing_to_score_is_an_error():
    with pytest.raises(UserError, match="at least one line"):
        bleu.score_all([], [], "de")


def test_exact_match_counts_words_and_case():
    hypotheses = ["a b", "a b", "A b", "a"]
    references = ["a b", " a  b ", "a b", "a b"]
    assert bleu.exact_match(hypotheses, references) == 0.5


LINES = ["ein Haus steht am See", "", "der Hund läuft schnell heim", "das ist gut so"]
REFERENCES = [
    "ein Haus steht am Fluss",
    "nichts davon ist wahr",
    "der Hund läuft heim",
    "das ist gut so",
]


@pytest.mark.parametrize("variant", ["13a", "paper", "tokens_lowercase"])
def test_a_draw_has_the_bleu_of_the_lines_drawn(variant):
    drawn = Resampler(4, resamples=20)
    counts = bleu.line_counts(LINES, REFERENCES, variant, "de")
    scores = drawn.scores(counts, lambda row: bleu.of_counts(row, variant))
    for times, score in zip(drawn.times, scores, strict=True):
        assert times.sum() == 4
        lines, references = (
            [line for line, n in zip(text, times, strict=True) for _ in range(n)]
            for text in (LINES, REFERENCES)
        )
        expected = bleu.corpus_bleu(lines, [references], variant, "de")
        assert score == pytest.approx(expected.value)
    assert len(set(scores)) > 3


def scores_13a(lines: Sequence[str], references: Sequence[str]) -> np.ndarray:
    counts = bleu.line_counts(lines, references, "13a", "de")
    drawn = Resampler(len(references))
    return drawn.scores(counts, lambda row: bleu.of_counts(row, "13a"))


def test_resamples_are_paired():
    # The same lines drawn for both: a system against itself never differs.
    first, second = (scores_13a(LINES, REFERENCES) for _ in range(2))
    assert (first == second).all()
    better = scores_13a(REFERENCES, REFERENCES)
    assert better == pytest.approx(100) and (first <= better).all()
    with pytest.raises(UserError, match="3 hypotheses and 4 references"):
        scores_13a(LINES[:3], REFERENCES)


@needs_data
def test_resamples_deviate_as_sacrebleu_s():
    references = read("ref.de.gz")[:500]
    lines = [read(f"hyp.{system}.de.gz")[:500] for system in PUBLISHED]
    scores = [scores_13a(one, references) for one in lines]
    named: list[tuple[str, Sequence[str]]] = [("1", lines[0]), ("2", lines[1])]
    test = PairedTest(named, {"BLEU": BLEU()}, [references], "bs")
    _, results = test()
    for ours, theirs in zip(scores, results["BLEU"], strict=True):
        assert isinstance(theirs, Result)
        # Half of a 95 % interval over 1,000 resamples: known to about 4 %.
        half = (np.quantile(ours, 0.975) - np.quantile(ours, 0.025)) / 2
        assert half == pytest.approx(theirs.ci, rel=0.15)
        assert ours.mean() == pytest.approx(theirs.mean, abs=0.1)
