"""The scorer of trees against EVALB's sample, its rules by hand, and definitions."""

import gzip
import random
from collections.abc import Sequence
from typing import Any

import pytest
from support.paths import SHARED

from transformer.config import UserError
from transformer.metrics import parseval
from transformer.metrics.evalb import COLLINS, Counts, Rules, count, read, with_tags
from transformer.metrics.evalb_table import table
from transformer.metrics.parseval import count_all, score_all, total

REFERENCE = SHARED / "data" / "evalb-reference"
TREEBANK = SHARED / "data" / "craft-treebank" / "dev.clean.trees.gz"
needs_reference = pytest.mark.skipif(
    not REFERENCE.is_dir(), reason=f"EVALB's sample is not at hand: no {REFERENCE}"
)
needs_treebank = pytest.mark.skipif(
    not TREEBANK.is_file(), reason=f"the treebank is not at hand: no {TREEBANK}"
)


def counted(gold: str, test: str, rules: Rules = COLLINS) -> Counts:
    return count(read(gold), read(test), rules)


def brackets(gold: str, test: str) -> tuple[int, int, int]:
    """Return (matched, gold, test) brackets of two trees whose words agree."""
    row = counted(gold, test)
    assert row.status == "valid"
    return row.matched, row.gold, row.test


# ---- EVALB's own sample --------------------------------------------------------------


def text_of(name: str) -> str:
    return gzip.decompress((REFERENCE / name).read_bytes()).decode()


def rules_of(name: str) -> Rules:
    """Read what differs between parameter files of EVALB."""
    lines = [x.split() for x in text_of(name).splitlines() if x[:1] not in ("#", "")]
    deleted = frozenset(x[1] for x in lines if x[0] == "DELETE_LABEL")
    labels = {x[2]: x[1] for x in lines if x[0] == "EQ_LABEL"}
    words = {x[2]: x[1] for x in lines if x[0] == "EQ_WORD"}
    return Rules("COLLINS.prm", deleted, labels, words)


@needs_reference
def test_the_table_of_the_sample_is_evalb_s():
    gold, test = (text_of(f"sample/sample.{x}.gz").splitlines() for x in ("gld", "tst"))
    rows = count_all(gold, test, "test", rules_of("sample/sample.prm.gz"))
    printed = table(rows, sentences=True)
    assert printed.startswith(text_of("sample/sample.rsl-2006.gz"))
    # 28 gold brackets of 7 failed sentences of 4 each join the 98: 86 of 126.
    assert printed.endswith(
        "Recall         =  68.25\nBracketing FMeasure       =  77.83\n"
    )


@needs_reference
def test_the_parameters_are_those_of_the_file():
    assert rules_of("COLLINS.prm.gz") == COLLINS


# ---- the rules, one by one -----------------------------------------------------------

DOG = "(TOP (S (NP (DT a) (NN dog)) (VP (VBZ barks)) (. .)))"


@pytest.mark.parametrize("tag", [",", ":", "``", "''", ".", "-NONE-"])
def test_words_of_these_tags_are_dropped(tag):  # rule 1
    inside = f"(S (NP (DT a) ({tag} x)) (VP (V b)))"
    outside = f"(S (NP (DT a)) ({tag} other) (VP (V b)))"
    assert brackets(inside, outside) == (3, 3, 3)
    assert brackets(inside, "(S (NP (DT a)) (VP (V b)))") == (3, 3, 3)


@pytest.mark.parametrize("tag", ["-LRB-", "-RRB-", "$", "#", "HYPH", "?", "NFP"])
def test_words_of_other_tags_count(tag):  # rules 1 and 13
    inside, outside = f"(S (NP (D a) ({tag} x)))", f"(S (NP (D a)) ({tag} x))"
    assert brackets(inside, outside) == (1, 2, 2)
    assert counted(inside, "(S (NP (D a)))").status == "error"


def test_brackets_without_words_are_dropped():  # rule 2
    gold = "(S (NP (-NONE- *T*)) (NP) (PRN (, ,)) (VP (V go)))"
    assert brackets(gold, "(S (VP (V go)))") == (2, 2, 2)


def test_labels_are_cut_and_tags_are_not():  # rule 2
    gold = "(S (NP-SBJ=1-2 (D-X a)) (-LRB-=x (N b)) (NP|X (N c)))"
    assert brackets(gold, "(S (NP (D-X a)) (-OTHER (N b)) (NP|X (N c)))") == (4, 4, 4)
    assert brackets(gold, "(S (NP (D-X a)) (LRB (N b)) (NP (N c)))") == (2, 4, 4)
    assert counted("(S (D-X a))", "(S (D a))").tags == 0


def test_top_is_dropped_wherever_it_stands_and_other_roots_count():  # rules 3 and 13
    assert brackets("(TOP (S (TOP (N a))))", "(S (N a))") == (1, 1, 1)
    for root in ("ROOT", "S1", ""):
        assert brackets(f"({root}(S (N a)))", f"({root}(X (N a)))") == (1, 2, 2)


def test_brackets_match_as_multisets():  # rule 4
    assert brackets("(NP (NP (NP (N a))))", "(NP (N a))") == (1, 3, 1)
    assert brackets("(NP (N a))", "(NP (NP (NP (N a))))") == (1, 1, 3)
    assert brackets("(NP (X (N a)))", "(X (NP (N a)))") == (2, 2, 2)


def test_advp_is_prt_as_a_label_and_as_a_tag():  # rule 4
    row = counted(
        "(S (ADVP (PRT up)) (PRT (RB x)))", "(S (PRT (ADVP up)) (ADVP (Y x)))"
    )
    assert (row.matched, row.tags) == (3, 1)


def test_sums_are_over_sentences():  # rule 5
    rows = count_all(["(S (NP (N a)))", "(S (N b))"], ["(S (N a))", "(S (X (N b)))"])
    both = total(rows)
    assert (both.matched, both.gold, both.test) == (2, 3, 3)
    # The mean of the F1 of both sentences would be 66.67 too, that of recalls 75.
    assert both.recall == both.precision == pytest.approx(200 / 3)


@pytest.mark.parametrize(
    "test, status",
    [
        (DOG.replace("dog", "Dog"), "error"),
        (DOG.replace("(NN dog)", "(NN dog) (NN dog)"), "error"),
        (DOG.replace("(NN dog)", ""), "error"),
        (DOG[:-1], "error"),
        (DOG + ")", "error"),
        (")" + DOG + "(", "error"),
        (DOG + " text", "error"),
        ("text", "error"),
        (DOG.replace("dog", "big dog"), "error"),
        (DOG.replace("dog)", "dog )"), "error"),
        ("", "skip"),
        ("  (TOP)  ", "skip"),
        ("(TOP (. .))", "skip"),
        ("((((", "skip"),
        (f"{DOG} (. !)", "valid"),
        ("(DT a) (NN dog) (VBZ barks)", "valid"),
    ],
)
def test_what_fails_leaves_the_score_but_is_wanted(test, status):  # rules 6 and 9
    row = counted(DOG, test)
    assert row.status == status and row.wanted == 3 and row.length == 4
    sums = total([row, counted(DOG, DOG)])
    assert (sums.errors, sums.skips) == (status == "error", status == "skip")
    assert sums.gold == (6 if status == "valid" else 3)
    assert sums.wanted == 6


def test_a_sentence_of_punctuation_is_skipped_even_if_right():  # rule 6
    row = counted("(TOP (NP (. .)))", "(TOP (NP (. .)))")
    assert row.status == "skip" and row.wanted == 0


def test_tags_are_input_where_the_form_has_none():  # rule 7
    untagged = "(TOP (S (NP (XX a) (XX dog)) (VP (XX barks)) (XX .)))"
    (row,) = count_all([DOG], [untagged])
    assert row == counted(DOG, DOG)
    (given,) = count_all([DOG], [untagged], "test")
    assert given.status == "error"
    traced = DOG.replace("(VP", "(NP (-NONE- *)) (VP")
    assert count_all([traced], [untagged]) == [counted(DOG, DOG)]
    assert count_all([DOG], [untagged.replace("(VP", "(NP (-NONE- *)) (VP")]) == [row]
    # A tag that the output has is its own.
    (row,) = count_all([DOG], [untagged.replace("XX dog", "VB dog")])
    assert (row.status, row.tags) == ("valid", 2)


def test_a_wrong_word_is_not_taken_for_punctuation():  # rules 6 and 7
    wrong = "(TOP (S (NP (XX a) (XX dog)) (VP (XX barks)) (XX loudly)))"
    assert count_all([DOG], [wrong])[0].status == "error"
    assert with_tags(read(wrong), read(DOG)).words[-1] == ("XX", "loudly")
    short = wrong.replace(" (XX loudly)", "")  # EVALB takes it, for "." is no word
    assert count_all([DOG], [short])[0].status == "valid"


def test_any_number_of_errors_is_counted():  # rule 8
    rows = count_all([DOG] * 40, ["(S (N a))"] * 39 + [DOG])
    assert total(rows).errors == 39 and total(rows).valid == 1


def test_a_word_without_letters_is_a_word():  # rule 9
    assert counted("(S (N a))", "(S (NP ) (N a))").status == "error"
    assert counted("(S (N a))", "(S (NP) (N a))").status == "valid"
    assert brackets("(S ( ) (N a))", "(S ( ) (N a))") == (1, 1, 1)


def test_long_sentences_have_no_limit_and_take_no_quadratic_time():  # rule 10
    n = 20_000
    right = "".join(f"(A (W w{i}) " for i in range(n)) + ")" * n
    left = "(A " * n + "".join(f"(W w{i}))" for i in range(n))
    row = counted(right, left)
    # Both have the span of all words; each other one of two words or more crosses.
    assert (row.matched, row.gold, row.test, row.crossing) == (1, n, n, n - 2)
    assert row.words == row.tags == row.length == n


def test_complete_crossing_and_length():  # rule 11
    gold = "(S (A (W a) (W b)) (B (W c) (W d)) (, ,) (-NONE- *))"
    test = "(S (W a) (X (X (W b) (W c))) (Y (W b2)))".replace("(Y (W b2))", "(W d)")
    row = counted(gold, test)
    assert row.crossing == 2 and row.length == 5 and not row.complete
    assert counted(gold, gold).complete
    assert not counted(gold, "(S (S (A (W a) (W b)) (B (W c) (W d))))").complete
    long = "(S " + "(W a)" * 39 + "{}(-NONE- *))"
    rows = count_all([long.format("(, ,)"), long.format("(, ,)" * 2)], [DOG, DOG])
    assert [one.length for one in rows] == [40, 41]
    assert parseval.short(rows) == rows[:1]


def test_tag_accuracy_is_over_the_words_that_count():  # rule 12
    row = counted(DOG, DOG.replace("NN", "VB"))
    assert (row.words, row.tags, row.matched) == (3, 2, 3)


def test_nothing_matched_is_zero():  # rule 12
    scores = score_all(["(X (N a))", ""], ["(S (N a))", "(S (N a))"], "trees")
    assert [one.value for one in scores.values()] == [0, 0, 0, 0]
    assert "nan" not in table(count_all(["(S (N a))"], [""]), sentences=True)


# ---- scores --------------------------------------------------------------------------


def test_variants_by_hand():
    gold = [DOG, DOG, "(S " + "(W a)" * 41 + ")"]
    test = ["(S (NP (DT a) (NN dog)) (VBZ barks) (. .))", "(S)", gold[2]]
    scores = score_all(test, gold, "trees")
    assert tuple(scores) == parseval.VARIANTS
    values = {variant: score.value for variant, score in scores.items()}
    # 3 of 3 test brackets are right, of 4 gold ones, or 7 with the second sentence.
    assert values == pytest.approx(
        {
            "evalb": 100 * 2 * 0.75 / 1.75,
            "honest": 100 * 2 * (3 / 7) / (1 + 3 / 7),
            "complete": 50.0,
            "evalb_40": 100 * 2 * (2 / 3) / (1 + 2 / 3),
        }
    )
    assert scores["honest"].recall == pytest.approx(300 / 7)
    assert scores["evalb"].signature == (
        "COLLINS.prm|tags:gold|failed:left_out|lines:3|errors:0|skips:1"
    )
    assert len({score.signature for score in scores.values()}) == 3


def test_exact_trees_have_all_brackets_and_all_words():
    gold = [DOG] * 5
    test = [
        DOG.replace("DT", "XX").replace("(. ", "(XX "),
        DOG.replace("(VP (VBZ barks)) (. .)", "(VP (VBZ barks) (. .))"),
        DOG.replace("dog", "cat"),
        DOG + ")",
        DOG.removeprefix("(TOP ").removesuffix(")"),
    ]
    assert parseval.exact_match(test, gold) == 0.2


@pytest.mark.parametrize(
    "gold, expected",
    [
        ([DOG], "gold: expected as many gold as test trees, got 1 and 2; align"),
        ([DOG, ""], "gold, line 2: expected a tree in brackets, got an empty line;"),
        ([DOG, "(S (NP))"], "gold, line 2: expected a tree in brackets, got no words;"),
        ([DOG, DOG[:-2]], "line 2: expected a tree in brackets, got 2 '(' without ')'"),
        ([DOG, DOG + ")"], "got 0 '(' without ')' and 1 ')' without '('; correct it"),
        (["(S a dog)", DOG], "gold, line 1: expected a tree in brackets, got 'a'"),
        (["(S (NN a b))", DOG], "line 1: expected a tree in brackets, got 'a', which"),
    ],
)
def test_mistakes_in_gold_trees(gold, expected):
    with pytest.raises(UserError) as refused:
        count_all(gold, [DOG, DOG], name="gold")
    assert expected in str(refused.value) and "\n" not in str(refused.value)


def test_nothing_to_score():
    with pytest.raises(UserError, match="expected trees, got none"):
        score_all([], [], "trees")


# ---- against the definition ----------------------------------------------------------

# A tree is a label and a list of trees or of (tag, word).
Nested = tuple[str, Any]
CUT = {"TOP", "-NONE-", ",", ":", "``", "''", "."}


def written(tree: Nested) -> str:
    label, inside = tree
    if isinstance(inside, str):
        return f"({label} {inside})"
    return f"({label} {' '.join(map(written, inside))})"


def leaves(tree: Nested) -> list[Nested]:
    label, inside = tree
    if isinstance(inside, str):
        return [tree]
    return [leaf for child in inside for leaf in leaves(child)]


def as_sets(tree: Nested, numbers: Any = None) -> list[tuple[frozenset[int], str]]:
    """Return (numbers of its words, label) of each constituent that counts."""
    root = numbers is None
    if root:
        kept = (leaf for leaf in leaves(tree) if leaf[0] not in CUT)
        numbers = {id(leaf): number for number, leaf in enumerate(kept)}
    label, inside = tree
    if isinstance(inside, str):
        return []
    here = frozenset(numbers[id(x)] for x in leaves(tree) if id(x) in numbers)
    label = label.replace("=", "-").split("-")[0]
    found = [(here, label)] if here and label not in CUT else []
    for child in inside:
        found += as_sets(child, numbers)
    return found


def same(one: str, other: str) -> bool:
    return one == other or {one, other} == {"ADVP", "PRT"}


def slow_counts(gold: Nested, test: Nested) -> Counts:
    """Count by EVALB's rules: brackets are sets of words, matched one by one."""
    right, found = as_sets(gold), as_sets(test)
    words, others = ([x for x in leaves(t) if x[0] not in CUT] for t in (gold, test))
    length = sum(tag != "-NONE-" for tag, _ in leaves(gold))
    wanted = len(right)
    if not others:
        return Counts(length, "skip", 0, 0, 0, 0, 0, 0, wanted)
    if [form for _, form in words] != [form for _, form in others]:
        return Counts(length, "error", 0, 0, 0, 0, 0, 0, wanted)
    free, matched = list(found), 0
    for span, label in right:
        for one in free:
            if one[0] == span and same(one[1], label):
                free.remove(one)
                matched += 1
                break
    crossing = sum(any(a & b and a - b and b - a for b, _ in right) for a, _ in found)
    tags = sum(same(a, b) for (a, _), (b, _) in zip(words, others, strict=True))
    return Counts(
        *(length, "valid", matched, wanted, len(found), crossing, len(words), tags),
        wanted,
    )


LABELS = ["NP", "NP-SBJ", "S", "TOP", "ADVP", "PRT", "X=2", "-A", "."]
TAGS = ["NN", "NN", "DT-X", ",", ".", "-NONE-", "``", "PRT", "ADVP", "-LRB-"]


def random_tree(chance: random.Random, words: Sequence[Nested]) -> Nested:
    """Return a tree of words; constituents without any stand between them."""
    if len(words) == 1 and chance.random() < 0.6:
        return words[0]
    cuts = sorted(chance.choices(range(len(words) + 1), k=chance.randint(0, 2)))
    edges = [0, *cuts, len(words)]
    parts = [words[a:b] for a, b in zip(edges, edges[1:], strict=False)]
    if len(parts) == 1 and chance.random() < 0.7:
        return chance.choice(LABELS), list(words) or [("-NONE-", "*")]
    inside = [random_tree(chance, x) for x in parts if x or chance.random() < 0.1]
    return chance.choice(LABELS), inside or [("-NONE-", "*")]


def test_random_trees_are_counted_by_the_definition():
    chance = random.Random(1)
    seen = set()
    for _ in range(1500):
        words = [(chance.choice(TAGS), f"w{i}") for i in range(chance.randint(1, 9))]
        gold = random_tree(chance, words)
        others = [
            (chance.choice(TAGS), form) if chance.random() < 0.05 else (tag, form)
            for tag, form in words
        ]
        test = random_tree(chance, others)
        row = counted(written(gold), written(test))
        assert row == slow_counts(gold, test), (written(gold), written(test))
        seen |= {row.status, f"crossing {row.crossing}", f"matched {row.matched}"}
    assert seen > {"valid", "error", "skip", "crossing 3", "matched 4"}


def nested(line: str) -> Nested:
    """Read a line of a treebank that is known to be clean."""
    stack: list[Any] = [("", [])]
    for token in line.replace("(", " ( ").replace(")", " ) ").split():
        if token == "(":
            stack.append(None)
        elif token == ")":
            label, inside = stack.pop()
            stack[-1][1].append((label, inside))
        elif stack[-1] is None:
            stack[-1] = (token, [])
        else:
            stack[-1] = (stack[-1][0], token)
    return stack[0][1][0]


def damaged(chance: random.Random, tree: Nested) -> Nested:
    """Relabel, drop and shift brackets, retag words, and lose a word at times."""
    label, inside = tree
    if isinstance(inside, str):
        return (chance.choice(TAGS), inside) if chance.random() < 0.003 else tree
    children = [damaged(chance, child) for child in inside]
    for place in reversed(range(len(children))):
        kind, parts = children[place]
        if isinstance(parts, str):
            if chance.random() < 0.001 and len(children) > 1:
                del children[place]
        elif chance.random() < 0.06:  # drop
            children[place : place + 1] = parts
        elif chance.random() < 0.1 and place + 1 < len(children):  # shift its end
            after, rest = children[place + 1]
            if isinstance(rest, str) or len(rest) == 1:
                children[place : place + 2] = [(kind, [*parts, (after, rest)])]
            else:
                children[place] = (kind, [*parts, rest[0]])
                children[place + 1] = (after, rest[1:])
    return (chance.choice(LABELS) if chance.random() < 0.06 else label), children


@needs_treebank
def test_damaged_trees_of_a_treebank_are_counted_by_the_definition():
    lines = gzip.decompress(TREEBANK.read_bytes()).decode().splitlines()[::13][:200]
    chance = random.Random(2)
    gold = list(map(nested, lines))
    test = [damaged(chance, tree) for tree in gold]
    rows = count_all(lines, map(written, test), "test")
    assert rows == [slow_counts(a, b) for a, b in zip(gold, test, strict=True)]
    sums = total(rows)
    assert sums.sentences == 200 and 2 < sums.errors < 40 and sums.complete < 80
    assert 60 < sums.rates()["f1"] < 95 and sums.crossing > 50


def test_few_crossing_is_two_or_fewer():
    rows = [Counts(4, "valid", 0, 3, 3, crossing, 4, 4, 3) for crossing in range(4)]
    sums = total(rows)
    assert (sums.crossing, sums.no_crossing, sums.few_crossing) == (6, 1, 3)
