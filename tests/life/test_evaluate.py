"""Evaluation and averaging of a small run that was really trained."""

import dataclasses
import json
import math
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from support import reference
from support.configs import base
from support.limits import largest_file
from support.models import options, reference_weights
from support.reference import assert_close

import transformer
from transformer import evaluate as evaluation
from transformer import models
from transformer import step as steps
from transformer import train as training
from transformer.config import UserError
from transformer.data.sources import number_words
from transformer.evaluate import average, evaluate, steps_to_average
from transformer.files import lock
from transformer.ids import BOS
from transformer.metrics import bleu, chrf_ter
from transformer.objective import corpus_sums
from transformer.parallel import sizes
from transformer.prepare import prepare
from transformer.run import checkpoints
from transformer.run.checkpoints import Checkpoints
from transformer.run.folder import read_settings, write_settings
from transformer.trained import open_run

PAIRS = {"train": 200, "validation": 5, "test": 6}
SETTINGS = base(
    **{
        "data.source": "numbers",
        "data.train_pairs": PAIRS["train"],
        "data.max_length": 64,
        "tokenizer.vocab_size": 80,
        "batch.tokens": 1024,
        "batch.shapes": 1,
        "model.layers": 1,
        "model.d_model": 16,
        "model.d_ff": 24,
        "model.heads": 2,
        "model.d_k": 8,
        "model.d_v": 8,
        "model.positions": "learned",
        "model.max_positions": 64,
        "model.dtype": "float32",
        "optimizer.scale": 0.3,
        "optimizer.warmup": 10,
        "train.steps": 40,
        "train.log_every": 20,
        "train.evaluate_every": 0,
        "train.checkpoint_every": 10,
        "train.checkpoint_minutes": 0.0,
        "train.keep": 3,
        "decode.beam": 2,
        "decode.extra_tokens": 4,
        "decode.average": 2,
    }
)


def few_numbers(patch: pytest.MonkeyPatch) -> None:
    """Let the source have few pairs, all of similar length: less is compiled."""
    patch.setattr(number_words, "_NUMBER_PAIRS", PAIRS)
    every = number_words._whole
    patch.setattr(number_words, "_whole", lambda lengths: every(range(3, 5)))


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """Return the folder of a run that nobody changes."""
    workdir = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        few_numbers(patch)
        training.train(SETTINGS, workdir, log=lambda line: None)
    return workdir


@pytest.fixture
def run(trained, tmp_path, monkeypatch) -> Path:
    """Return a copy of the run."""
    few_numbers(monkeypatch)
    return Path(shutil.copytree(trained, tmp_path / "run"))


def results(workdir: Path) -> dict[str, Any]:
    return json.loads((workdir / "results.json").read_text())


def saved_params(workdir: Path, step: int) -> Any:
    settings, vocabulary = open_run(workdir)
    abstract = models.abstract(models.make(settings, *vocabulary.sizes))
    with Checkpoints(workdir / "checkpoints", 3) as saved:
        return saved.restore({"params": abstract}, step)[1]["params"]


def mean(*trees: Any) -> Any:
    return jax.tree.map(lambda *x: np.mean(np.asarray(x, np.float64), axis=0), *trees)


def assert_same_params(found: Any, expected: Any) -> None:
    """Assert that averaging rounded once, to float32."""
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b).astype(np.float32))


# ---- results.json --------------------------------------------------------------------


def test_results_tell_what_was_measured(trained):
    found = results(trained)
    assert (found["split"], found["step"]) == ("test", 40)
    assert found["averaged_steps"] == [30, 40]
    usual = SETTINGS.decode
    for name in ("beam", "alpha", "length_penalty", "extra_tokens"):
        assert found[name] == getattr(usual, name)


@pytest.mark.parametrize(
    "keys, bits",
    [
        ({"tokenizer.kind": "bytes"}, 1),
        ({"tokenizer.kind": "sentencepiece"}, 0),
        (
            {
                "tokenizer.kind": "bytes",
                "tokenizer.target_kind": "tagged",
                "tokenizer.joint": False,
                "model.tying": "two",
                "data.source": "trees",
            },
            0,
        ),
    ],
    ids=["bytes", "pieces", "trees"],
)
def test_the_perplexity_of_bytes_is_told_in_bits_too(keys, bits):
    lines: list[str] = []
    measured: dict[str, Any] = {
        "perplexity": 8.0,
        "nll": math.log(8),
        "exact_match": 0.5,
        "bleu": {},
    }
    measured |= dict.fromkeys(chrf_ter.BESIDE, {"value": 1.0, "signature": "x"})
    settings = base(**keys)
    evaluation._report("last", 40, "test", settings, measured, lines.append)
    assert lines[1] == "perplexity 8.000 per token"
    assert lines.count("3.0000 bits per byte") == bits


def test_sentences_are_those_of_the_split_in_order(trained):
    found = results(trained)["sentences"]
    assert [set(one) for one in found] == [
        {"source", "reference", "last", "average"}
    ] * 6
    lines, references = prepare_again(trained).texts("test")
    assert [one["source"] for one in found] == lines
    assert [one["reference"] for one in found] == references


def prepare_again(workdir: Path):
    with pytest.MonkeyPatch.context() as patch:
        few_numbers(patch)
        return prepare(SETTINGS, workdir)


@pytest.mark.parametrize("name", ["last", "average"])
def test_every_variant_of_bleu_is_that_of_the_sentences(trained, name):
    found = results(trained)
    translations = [one[name] for one in found["sentences"]]
    references = [one["reference"] for one in found["sentences"]]
    assert any(translations)
    assert set(found[name]["bleu"]) == set(bleu.VARIANTS)
    for variant, score in found[name]["bleu"].items():
        expected = bleu.corpus_bleu(translations, [references], variant, "de")
        assert score["value"] == expected.value
        assert score["signature"] == expected.signature
        assert "|lines:6" in score["signature"]
    for measure, score in chrf_ter.BESIDE.items():
        value = score(translations, references)
        assert found[name][measure] == dataclasses.asdict(value)
    assert found[name]["exact_match"] == bleu.exact_match(translations, references)


@pytest.mark.parametrize("name", ["last", "average"])
def test_perplexity_is_that_of_the_reference_s_logits(trained, name):
    """A second computation: the float64 model of reference.py, pair by pair."""
    params = saved_params(trained, 40)
    if name == "average":
        params = mean(saved_params(trained, 30), params)
    prepared = prepare_again(trained)
    weights, corpus = (
        reference_weights(params, SETTINGS.model),
        prepared.corpora["test"],
    )
    nll, correct, count = 0.0, 0, 0
    for source, target in zip(corpus.source, corpus.target, strict=True):
        shifted = np.array([BOS, *target[:-1]])
        rows = reference.transformer(
            weights, np.array(source), shifted, **options(SETTINGS.model)
        )
        for row, wanted in zip(rows, target, strict=True):
            nll -= reference.log_softmax(row)[wanted]
            correct += row.argmax() == wanted
            count += 1
    found = results(trained)[name]
    assert found["tokens"] == count
    assert_close([found["nll"]], [nll / count], 300)
    assert found["perplexity"] == pytest.approx(math.exp(found["nll"]), rel=1e-12)
    assert found["accuracy"] == pytest.approx(correct / count, rel=1e-6)


def test_training_said_what_validation_measures(trained):
    prepared = prepare_again(trained)
    lines = (trained / "metrics.jsonl").read_text().splitlines()
    last = [json.loads(x) for x in lines if "validation_nll" in x][-1]
    model = models.make(SETTINGS, *prepared.vocabulary.sizes)
    corpus = prepared.corpora["validation"]
    settings = sizes.here(SETTINGS, prepared.vocabulary.target.size)
    sums = corpus_sums(settings, model, saved_params(trained, 40), corpus)
    assert last["validation_nll"] == pytest.approx(sums["nll"] / sums["weight"])
    assert sums["weight"] == sum(corpus.target.lengths)


# ---- which checkpoints ---------------------------------------------------------------


def test_the_average_is_the_mean_of_the_checkpoints(trained):
    expected = mean(saved_params(trained, 30), saved_params(trained, 40))
    assert_same_params(transformer.load(trained).params, expected)


def test_an_average_of_more_checkpoints(run):
    line = average(run, 3, log=lambda line: None)
    assert line.startswith("average of steps 20, 30, 40:")
    expected = mean(*(saved_params(run, step) for step in (20, 30, 40)))
    assert_same_params(transformer.load(run).params, expected)
    # Not twice: the old average is not kept beside the new one.
    assert len(list((run / "averaged").iterdir())) == 1


def test_an_average_that_is_asked_for_no_more_is_translated_with_no_more(run):
    settings, _ = open_run(run)
    decode = dataclasses.replace(settings.decode, average=1)
    single = dataclasses.replace(settings, decode=decode)
    write_settings(run, single)
    evaluate(run, log=lambda line: None)
    assert "average" not in results(run) and not any((run / "averaged").iterdir())
    assert_same_params(transformer.load(run).params, saved_params(run, 40))
    # What the command has made of the same step is somebody's wish, and stays.
    average(run, 2, log=lambda line: None)
    evaluate(run, log=lambda line: None)
    assert len(list((run / "averaged").iterdir())) == 1


def test_more_checkpoints_to_average_than_are_kept_are_told(run):
    settings, _ = open_run(run)
    decode = dataclasses.replace(settings.decode, average=20)
    write_settings(run, dataclasses.replace(settings, decode=decode))
    said: list[str] = []
    average(run, 2, log=lambda line: None)
    for _ in range(2):  # the second average replaces that of an evaluation
        evaluate(run, log=said.append)
    replaced = "averaged: replaces that of steps 30, 40, by transformer average"
    assert said.count(replaced) == 1
    warning, *_ = [line for line in said if line.startswith("warning: 20 checkpoints")]
    assert "but only 3 are kept (train.keep)" in warning
    assert results(run)["averaged_steps"] == [20, 30, 40]


def test_load_prefers_the_average_and_takes_the_step_it_is_told(run):
    assert_same_params(transformer.load(run, step=30).params, saved_params(run, 30))
    shutil.rmtree(run / "averaged")
    assert_same_params(transformer.load(run).params, saved_params(run, 40))


def test_an_average_is_for_inference_only(run):
    settings, vocabulary = open_run(run)
    model = models.make(settings, *vocabulary.sizes)
    abstract = jax.eval_shape(lambda: steps.init_state(settings, model)).parts()
    with (
        Checkpoints(run / "averaged", 1) as saved,
        pytest.raises(UserError, match="inference-only.*training cannot resume"),
    ):
        saved.restore(abstract)
    shutil.rmtree(run / "checkpoints")
    shutil.copytree(run / "averaged", run / "checkpoints")
    longer = dataclasses.replace(
        settings, train=dataclasses.replace(settings.train, steps=50)
    )
    write_settings(run, longer)
    with pytest.raises(UserError, match="inference-only.*training cannot resume"):
        training.train(longer, run, log=lambda line: None)


def contents(run: Path) -> dict[str, bytes]:
    """Return the run's results and averaged checkpoint."""
    files = [run / "results.json", *(run / "averaged").rglob("*")]
    return {str(path): path.read_bytes() for path in files if path.is_file()}


def test_another_step_and_split_are_evaluated(run):
    before = contents(run)
    output = run / "texts" / "of"
    path = evaluate(
        run, "validation", step=30, average=1, log=lambda line: None, output=output
    )
    assert path == run / "results" / "validation_step30_average1.json"
    found = json.loads(path.read_text())
    assert (found["split"], found["step"]) == ("validation", 30)
    assert found["averaged_steps"] == [30] and "average" not in found
    assert len(found["sentences"]) == PAIRS["validation"]
    lines = {x.name: x.read_text().split("\n")[:-1] for x in output.iterdir()}
    wanted = {"source": "sources.en", "reference": "references.de"}
    wanted |= {"last": "hypotheses.last.de"}
    assert lines.keys() == set(wanted.values())
    for key, name in wanted.items():
        assert lines[name] == [one[key] for one in found["sentences"]]
    # What report reads and what translate takes stays that of the run's end.
    assert contents(run) == before
    prepared = prepare(SETTINGS, run)
    model, corpus = models.make(SETTINGS, *prepared.vocabulary.sizes), prepared.corpora
    settings = sizes.here(SETTINGS, prepared.vocabulary.target.size)
    sums = corpus_sums(settings, model, saved_params(run, 30), corpus["validation"])
    assert found["last"]["nll"] == pytest.approx(
        sums["nll"] / sums["weight"], rel=1e-12
    )


def test_samples_that_cannot_be_printed_lose_no_results(run):
    def log(line):
        if line.startswith("reference"):
            raise UnicodeEncodeError("ascii", line, 0, 1, "not in range(128)")

    with pytest.raises(UnicodeEncodeError):
        evaluate(run, "validation", step=30, average=1, log=log)
    path = run / "results" / "validation_step30_average1.json"
    assert len(json.loads(path.read_text())["sentences"]) == PAIRS["validation"]


def test_no_room_for_the_average_loses_no_results(run):
    """results.json, which says that there is such an average, waits for it."""
    for path in (run / "results.json", run / "averaged", run / "results"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    parameters = sum(x.nbytes for x in jax.tree.leaves(saved_params(run, 40)))
    with largest_file(parameters - 1), pytest.raises(OSError, match="File too large"):
        evaluate(run, log=lambda line: None)
    kept = json.loads((run / "results" / "test_step40_average2.json").read_text())
    assert not (run / "results.json").exists()
    evaluate(run, log=lambda line: None)
    found = results(run)
    assert found["average"]["perplexity"] == kept["average"]["perplexity"]
    assert found["sentences"] == kept["sentences"]


def test_a_reader_that_goes_away_loses_no_results(run):
    said: list[str] = []

    def log(line):
        if said:
            raise BrokenPipeError
        said.append(line)

    with pytest.raises(BrokenPipeError):
        evaluate(run, "validation", step=40, average=1, log=log)
    path = run / "results" / "validation_step40_average1.json"
    assert len(json.loads(path.read_text())["sentences"]) == PAIRS["validation"]
    assert len(said) == 1


@pytest.mark.parametrize(
    "split, step, average, name",
    [
        ("validation", None, None, "validation_step40_average2"),
        ("test", 30, None, "test_step30_average2"),
        ("test", None, 3, "test_step40_average3"),
        ("test", 40, 2, "test_step40_average2"),  # the usual one, spelt out
    ],
)
def test_each_evaluation_has_its_results(run, split, step, average, name):
    before, usual = contents(run), name == "test_step40_average2"
    shutil.rmtree(run / "results")
    path = evaluate(run, split, step, average, log=lambda line: None)
    kept = run / "results" / f"{name}.json"
    assert [*(run / "results").iterdir()] == [kept]
    assert path == (run / "results.json" if usual else kept)
    assert (contents(run) == before) is not usual
    assert results(run)["averaged_steps"] == [30, 40]


@pytest.mark.parametrize(
    "arguments, wanted",
    [
        ({"average": 4}, "expected 4 checkpoints to average .* found 3; ask for fewer"),
        ({"average": 3, "step": 30}, "expected 3 checkpoints to average .* found 2"),
        ({"step": 5}, "expected a checkpoint of step 20, 30, 40 .* got step 5"),
    ],
)
def test_checkpoints_that_are_not_there(run, arguments, wanted):
    with pytest.raises(UserError, match=wanted):
        evaluate(run, log=lambda line: None, **arguments)


@pytest.mark.parametrize("work", [evaluate, average])
def test_a_held_workdir_is_refused(run, work):
    before = contents(run)
    with lock.holding(run), pytest.raises(UserError, match="no other process works in"):
        work(run, log=lambda line: None)
    assert contents(run) == before


def test_a_lost_or_damaged_average_is_told(run):
    (run / "averaged" / "40" / "digests.json").unlink()
    with pytest.raises(UserError, match="averaged, .*run transformer average again"):
        transformer.load(run, warn=lambda line: None)
    (run / "averaged" / "40").rename(run / "averaged" / "40.saving")  # by a kill
    assert_same_params(transformer.load(run).params, saved_params(run, 40))


def test_a_step_is_evaluated_where_none_is_the_best(run, monkeypatch):
    settings = read_settings(run)
    decode = dataclasses.replace(settings.decode, checkpoint="best", average=1)
    often = dataclasses.replace(settings.train, evaluate_every=10)
    write_settings(run, dataclasses.replace(settings, decode=decode, train=often))
    results = (run / "results.json").read_bytes()
    monkeypatch.setattr(Checkpoints, "best", lambda self: None)  # none was validated
    path = evaluate(run, step=40, log=lambda line: None)
    assert json.loads(path.read_text())["step"] == 40
    assert (run / "results.json").read_bytes() == results
    with pytest.raises(UserError, match="expected a validated checkpoint"):
        evaluate(run, log=lambda line: None)


def test_an_older_best_checkpoint_is_not_averaged(tmp_path):
    tree = {"params": np.zeros(2, np.float32)}
    with Checkpoints(tmp_path / "checkpoints", 3) as saved:
        for step, metric in [(10, 1.0), (20, 3.0), (30, 3.0), (40, 3.0)]:
            saved.save(step, tree, {}, metric)
    # 10 is the best of all; 20, 30 and 40 are the last three.
    assert steps_to_average(tmp_path, SETTINGS, 3, None) == [20, 30, 40]
    assert steps_to_average(tmp_path, SETTINGS, None, 30) == [20, 30]
    with pytest.raises(UserError, match="found 2"):
        steps_to_average(tmp_path, SETTINGS, 3, 30)
    # It can be measured by itself, as it can translate.
    assert steps_to_average(tmp_path, SETTINGS, None, 10) == [10]
    assert steps_to_average(tmp_path, SETTINGS, 1, 10) == [10]
    with pytest.raises(UserError, match="expected 2 checkpoints .* found 1"):
        steps_to_average(tmp_path, SETTINGS, 2, 10)


def test_uneven_intervals_are_reported(run):
    with Checkpoints(run / "checkpoints", 3) as saved:
        trained_with = {"vocabulary": open_run(run)[1].digest}
        saved.save(43, {"params": saved_params(run, 40)}, trained_with, 9.0)
    said: list[str] = []
    average(run, 3, log=said.append)
    assert said == [
        "warning: the averaged checkpoints are not evenly spaced (30, 40, 43)"
    ]


def test_a_run_with_another_vocabulary_is_not_loaded(run):
    settings, vocabulary = open_run(run)
    checkpoints.save_inference(
        run / "averaged",
        40,
        transformer.load(run).params,
        {"vocabulary": "0123456789ab"},
    )
    with pytest.raises(UserError, match="expected vocabulary 0123456789ab, "):
        transformer.load(run)


def test_a_run_with_another_vocabulary_is_not_evaluated(run):
    with Checkpoints(run / "checkpoints", 3) as saved:
        of_another = {"vocabulary": "0123456789ab"}
        saved.save(50, {"params": saved_params(run, 40)}, of_another, 9.0)
    for measured in (evaluate, average):
        with pytest.raises(UserError, match="50: expected vocabulary 0123456789ab, "):
            measured(run, log=lambda line: None)


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(UserError, match="found no config.json; run transformer train"):
        transformer.load(tmp_path)


# ---- sentences longer than the table of positions ------------------------------------


def test_learned_positions_serve_sentences_of_any_length(trained):
    translator = transformer.load(trained, warn=lambda line: None)
    line = "one hundred " * 40  # many more pieces than 64
    assert len(translator.vocabulary.source.encode(line)) > 64
    (memory,) = translator.encode([line])
    assert np.isfinite(memory).all()
    (score,) = translator.score([line], [line])
    assert math.isfinite(score) and score < 0
