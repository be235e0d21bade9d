"""What is shown of a model while it is trained."""

import dataclasses

import jax
import pytest
from support.configs import experiment
from support.runs import tiny_run

from transformer import config, models, parallel, validation
from transformer.parallel import sizes
from transformer.prepare import prepare
from transformer.translate import Translator


def test_sentences_are_shown_with_reference_and_translation(tmp_path):
    settings = tiny_run(tmp_path / "digits", **{"train.show": 2})
    prepared = prepare(settings, tmp_path)
    model = models.make(settings, *prepared.vocabulary.sizes)
    params = jax.jit(lambda: models.init(model, jax.random.key(0)))()
    said: list[str] = []
    validation.show(settings, prepared, model, params, said.append)
    sources, targets = prepared.texts("validation")
    translator = Translator(settings, prepared.vocabulary, params)
    chosen = [0, len(sources) // 2]
    found = translator.translate([sources[i] for i in chosen])
    expected = []
    for i, line in zip(chosen, found, strict=True):
        expected += [f"  source      {sources[i]}", f"  reference   {targets[i]}"]
        expected += [f"  translation {line}"]
    assert said == expected
    none = dataclasses.replace(settings.train, show=0)
    hidden = dataclasses.replace(settings, train=none)
    validation.show(hidden, prepared, model, params, said.append)
    assert said == expected


def test_a_better_score_of_the_watched_pairs_is_a_lower_value(tmp_path, monkeypatch):
    watch = {"train.watch": "tokens", "train.watch_pairs": 5}
    settings = tiny_run(tmp_path / "digits", **watch)
    prepared = prepare(settings, tmp_path)
    settings = sizes.here(settings, prepared.vocabulary.target.size)
    model = models.make(settings, *prepared.vocabulary.sizes)
    params = jax.jit(lambda: models.init(model, jax.random.key(0)))()
    mesh = parallel.replica_mesh(jax.devices()[:1])
    right = prepared.references("validation")[:5]
    found = []
    for written in (right, right[:4] + ["wrong"]):

        def translated(*given, written=written):
            assert given[-1] == prepared.inputs("validation")[:5]
            return written

        monkeypatch.setattr(validation, "_translated", translated)
        found.append(validation.measure(settings, prepared, model, params, mesh))
    scores = [one.metrics["validation_tokens"] for one in found]
    assert scores[0] == pytest.approx(100.0) and 0 < scores[1] < 99
    assert [one.value for one in found] == [-score for score in scores]


def test_a_laptop_s_size_follows_the_number_of_pairs():
    few, usual, many = (
        config.resolve(experiment("text", f"quick{pairs}"))
        for pairs in (",pairs=3000", "", ",pairs=1_000_000")
    )
    assert few.train.steps < usual.train.steps == many.train.steps
    assert few.tokenizer.vocab_size < usual.tokenizer.vocab_size
    epochs = few.train.steps * few.batch.tokens / (3000 * 15)
    assert 25 < epochs <= 30
    assert usual.train.show == 3 and usual.train.evaluate_every < usual.train.steps
    for wrong in ("quick,3000", "quick,pairs=0", "full,pairs=3000", "small"):
        with pytest.raises(ValueError, match="expected"):
            experiment("text", wrong)
