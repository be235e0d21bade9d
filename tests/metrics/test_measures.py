"""What a measure is: variants that are named, scores that bear those names."""

import pytest
from support.configs import base

from transformer import validation
from transformer.config import UserError
from transformer.metrics import measures

RIGHT, WRONG = "(S (NP (DT a) (NN dog)))", "(S (DT a) (NN dog))"


@pytest.mark.parametrize("name", measures.MEASURES)
def test_a_measure_has_the_variants_that_it_names(name):
    data = base(**{"data.measure": name}).data
    scores = measures.measure_of(data)([RIGHT, WRONG], [RIGHT, RIGHT], "de")
    assert tuple(scores) == measures.VARIANTS[name]
    first = next(iter(scores))
    assert measures.variant_of(data) == first
    assert measures.score(data, [RIGHT, WRONG], [RIGHT] * 2) == scores[first]
    for variant in scores:
        one = measures.score(data, [RIGHT, WRONG], [RIGHT] * 2, variant)
        assert one == scores[variant] and 0 <= one.value < 100


def test_what_is_better_has_less_badness():
    for name in measures.MEASURES:
        data = base(**{"data.measure": name}).data
        good, bad = (
            measures.badness(data, measures.score(data, [x, RIGHT], [RIGHT] * 2).value)
            for x in (RIGHT, WRONG)
        )
        assert good < bad


def test_a_variant_belongs_to_its_measure():
    data = base(**{"data.measure": "f1"}).data
    with pytest.raises(UserError, match="--variant: expected one of evalb, honest, "):
        measures.score(data, [RIGHT], [RIGHT], "13a")
    with pytest.raises(UserError, match="expected one of bleu, f1.*, got 'f2'"):
        measures.measure_of(base(**{"data.measure": "f2"}).data)


def test_exact_trees_may_have_other_tags():
    untagged = [RIGHT.replace("NN", "XX"), WRONG]
    for name, share in (("f1", 0.5), ("bleu", 0.0)):
        data = base(**{"data.measure": name}).data
        assert measures.exact_match(data, untagged, [RIGHT, RIGHT]) == share


def test_f1_can_be_watched_in_training():
    trees = {"data.source": "trees", "data.measure": "f1", "tokenizer.joint": False}
    trees |= {"tokenizer.target_kind": "top_down", "model.tying": "two"}
    validation.check(base(**trees, **{"train.watch": "honest"}))
    with pytest.raises(UserError, match="perplexity or one of evalb, honest"):
        validation.check(base(**trees, **{"train.watch": "13a"}))
    with pytest.raises(UserError, match="perplexity or one of 13a, "):
        validation.check(base(**{"train.watch": "honest"}))


def test_what_cannot_be_measured_at_the_end_is_refused_at_the_start():
    with pytest.raises(UserError, match="data.measure: expected one of bleu, f1"):
        validation.check(base(**{"data.measure": "meteor"}))
    with pytest.raises(UserError, match="data.measure: expected a measure of text"):
        validation.check(base(**{"data.measure": "f1"}))
