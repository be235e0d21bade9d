"""An untrained model that writes trees: whatever it says, they have the given words."""

import pytest
from support.cases import leave
from support.configs import base
from support.models import SMALL, draw_params
from support.reference import assert_close
from support.translators import ROUNDINGS

from transformer.data.tokenizers import TOKENIZERS, Bytes, Vocabulary
from transformer.decode import grammars
from transformer.ids import EOS
from transformer.pictures import search_tree
from transformer.translate import Translator
from transformer.trees import brackets

# White space that is not ASCII's parts no words.
LINES = ["It binds .", "", "p53", "a\u00a0b  c d e", "one two three four five six"]
FULL = [0, 2, 3, 4]
TREES = ["(TOP (S (NP (N a)) (VP (V b) (NP (D c) (N d)))))"]


def make(form: str, **changes: object) -> Translator:
    settings = base(
        **{f"model.{name}": value for name, value in SMALL.items()}
        | {
            "model.layers": 1,
            "model.tying": "none",
            "data.source": "trees",
            "tokenizer.kind": "bytes",
            "tokenizer.vocab_size": 0,
            "tokenizer.target_kind": form,
            "tokenizer.joint": False,
            "data.max_length": 40,
            "decode.extra_tokens": 8,
            "decode.beam": 2,
        }
        | changes
    )
    texts = [(tree,) for tree in TREES]
    target = TOKENIZERS[form].build(texts, settings.tokenizer, "")
    vocabulary = Vocabulary(Bytes(), target)
    empty = Translator(settings, vocabulary, None)
    return Translator(settings, vocabulary, draw_params(empty.model))


@pytest.fixture(scope="module")
def translator() -> Translator:
    return make("top_down")


def words(tree: str) -> list[str]:
    return [word.form for word in brackets.words(brackets.parse(tree))]


def mended(translator: Translator, line: str, ids: list[int]) -> bool:
    return bool(translator.vocabulary.target.repairs(ids, line))


@pytest.mark.parametrize(
    "form",
    leave(
        ["top_down", "indexed", "in_order", "indexed_in_order"],
        ["indexed", "in_order"],
    ),
)
def test_an_untrained_model_writes_whole_trees(form, translator):
    one = translator if form == "top_down" else make(form)
    found = one.hypotheses(LINES)
    assert [x.text for x in found[1]] == [""]
    for row in FULL:
        (each,) = found[row]
        assert words(each.text) == brackets.split_words(LINES[row])
        assert not mended(one, LINES[row], each.ids)
    # A score is what the model gives the tree among all outputs, trees or not.
    texts = [found[row][0].text for row in FULL]
    own = [found[row][0].log_probability for row in FULL]
    assert_close(one.score([LINES[row] for row in FULL], texts), own, ROUNDINGS)


def test_without_the_constraint_its_outputs_are_mended(translator):
    free = translator.hypotheses(LINES, constrained=False)
    for row in FULL:
        (each,) = free[row]
        assert words(each.text) == brackets.split_words(LINES[row])
    assert any(mended(translator, LINES[row], free[row][0].ids) for row in FULL)
    settings = translator.search(constrained=False)
    assert translator.constraint(settings) is None
    assert not make("top_down", **{"decode.constrained": False}).search().constrained


def test_a_tree_does_not_depend_on_the_batch(translator):
    ((together,), (alone,)) = (
        translator.hypotheses(lines)[-1] for lines in (LINES, LINES[-1:])
    )
    assert alone.ids == together.ids
    assert_close([alone.score], [together.score], ROUNDINGS)


def test_samples_are_trees(translator):
    found = translator.hypotheses(LINES[:1], sample=True, n_best=8)
    assert all(not mended(translator, LINES[0], each.ids) for each in found[0])
    assert len({each.text for each in found[0]}) > 1


def test_the_picture_of_a_search_shows_the_search_among_trees(translator):
    (expected,) = translator.hypotheses(LINES[:1])
    tree = search_tree.trace(translator, LINES[0])
    best = tree.nodes[tree.results[0]]
    assert [i for i in best.ids if i != EOS] == expected[0].ids
    symbols = grammars.of_symbols("top_down", translator.vocabulary.target.symbols)
    begins = {i for i, kind in enumerate(symbols.kinds) if kind == 1}
    assert {node.ids[0] for node in tree.nodes[1:]} <= begins


def test_text_has_no_constraint():
    assert Bytes().constraint() is None
