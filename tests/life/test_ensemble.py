"""Several models as one: the mean of their probabilities, in search and in scores."""

import dataclasses
import io
import json
import shutil
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from support.calls import error
from support.paths import TESTS
from support.reference import assert_close
from support.translators import EXTRA, ROUNDINGS, SETTINGS, draw_params

import transformer
from transformer import objective
from transformer.config import UserError
from transformer.data.tokenizers import Bytes, Vocabulary
from transformer.ensemble import EnsembleTranslator
from transformer.ids import EOS
from transformer.translate import Translator

LINE = "hello w"


def member(seed: int, **keys: object) -> Translator:
    tokenizer = Bytes()
    model = dataclasses.replace(SETTINGS.model, **keys)  # type: ignore[arg-type]
    settings = dataclasses.replace(SETTINGS, model=model)
    vocabulary = Vocabulary(tokenizer, tokenizer)
    empty = Translator(settings, vocabulary, None)
    return Translator(settings, vocabulary, draw_params(empty, seed))


@pytest.fixture(scope="module")
def members() -> list[Translator]:
    return [member(7), member(8, d_ff=40, heads=1)]


def probabilities(members: list[Translator], ids: list[int]) -> np.ndarray:
    """Return each member's probabilities of each next token, in float64."""
    x = jnp.array([[*Bytes().encode(LINE), EOS]], jnp.int32)
    tables = []
    for one in members:
        ids_ = jnp.array([ids], jnp.int32)
        logits = objective.logits(one.model, one.params, x, ids_)
        raw = np.exp(np.asarray(logits[0], np.float64))
        tables.append(raw / raw.sum(-1, keepdims=True))
    return np.array(tables)


def test_tokens_are_those_of_the_largest_mean_and_so_are_scores(members):
    together = EnsembleTranslator(members)
    assert together.translate(["", " "]) == ["", ""]
    ((one,),) = together.hypotheses([LINE], beam=1)
    ids = [*one.ids, EOS] if len(one.ids) < len(LINE) + EXTRA else one.ids
    each = probabilities(members, ids)
    mean = each.mean(0)
    assert mean.argmax(-1).tolist() == ids
    for table in each:  # neither member alone would have gone this way
        assert table.argmax(-1).tolist() != ids
    total = np.log(mean[np.arange(len(ids)), ids]).sum()
    assert_close([one.log_probability], [total], ROUNDINGS)
    if ids[-1] == EOS:
        assert_close(together.score([LINE], [one.text]), [total], ROUNDINGS)


def test_one_model_twice_is_that_model(members):
    ((twice,),) = EnsembleTranslator([members[0]] * 2).hypotheses(["ab"], beam=2)
    ((once,),) = members[0].hypotheses(["ab"], beam=2)
    assert twice.ids == once.ids
    assert_close([twice.score], [once.score], ROUNDINGS)


def test_a_line_beyond_any_member_is_told(members):
    said: list[str] = []
    learned = member(9, positions="learned", max_positions=8)
    short = dataclasses.replace(SETTINGS.data, max_length=7)
    learned.settings = dataclasses.replace(learned.settings, data=short)
    for order in ((members[0], learned), (learned, members[0])):
        together = EnsembleTranslator(order)
        together._warn = said.append
        together.source_ids(["a" * 9])
    assert len(said) == 2 and said[0] == said[1]
    assert "10 tokens, more than the 7 in training" in said[0]
    assert "past the 8 learned ones" in said[0]


def test_what_each_member_has_of_its_own_is_not_told(members):
    together = EnsembleTranslator(members)
    for call in (together.encode, lambda lines: together.attention(lines[0], "x")):
        with pytest.raises(UserError, match="got an ensemble of 2; choose one"):
            call(["ab"])


# ---- from workdirs -------------------------------------------------------------------


@pytest.fixture
def run(tmp_path, monkeypatch) -> Path:
    shutil.copytree(TESTS / "old_run", tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run"


@pytest.mark.usefixtures("started")
def test_runs_are_joined_by_their_folders(run, capsys, monkeypatch):
    shutil.copytree(run, run.with_name("two"))
    sources = ["zero four eight four four nine", "five five"]
    wanted = ["null vier acht acht vier neun", "fünf fünf"]
    assert not isinstance(transformer.load([run]), EnsembleTranslator)
    assert isinstance(
        transformer.load([str(run), run.with_name("two")]), EnsembleTranslator
    )
    text = io.TextIOWrapper(io.BytesIO("".join(f"{x}\n" for x in sources).encode()))
    monkeypatch.setattr("sys.stdin", text)
    from transformer.cli import main as cli

    assert cli.main(["translate", "--workdir=run,two"]) == 0
    assert capsys.readouterr().out.splitlines() == wanted


@pytest.mark.usefixtures("started")
def test_runs_that_cannot_be_joined(run, capsys):
    other = run.with_name("other")
    shutil.copytree(run, other)
    values = json.loads((run / "config.json").read_text())
    values.pop("digest", None)
    values["model"]["vocab_size"] = 99
    (other / "config.json").write_text(json.dumps(values))
    with pytest.raises(UserError, match="run with 14 and other with 99 .model.vocab"):
        transformer.load(["run", "other"])
    with pytest.raises(UserError, match="expected different runs, got .*/run twice"):
        transformer.load(["run", run])
    text = error(capsys, "translate", "--workdir=run,run", "--alignments")
    assert text.startswith("--alignments: expected with one --workdir only")
    text = error(capsys, "translate", "--workdir=run,nowhere")
    assert "nowhere: expected the folder of a training run" in text


def test_vocabularies_have_to_be_the_same(run, monkeypatch):
    from transformer import ensemble

    settings, vocabulary = ensemble.open_run(run)
    turned = Vocabulary(vocabulary.target, vocabulary.source)
    runs = {"a": vocabulary, "b": turned}
    monkeypatch.setattr(ensemble, "open_run", lambda x: (settings, runs[x.name]))
    with pytest.raises(UserError, match="one target vocabulary, got a and b, whose"):
        transformer.load(["a", "b"])
    runs["c"] = Vocabulary(vocabulary.target, vocabulary.target)
    with pytest.raises(UserError, match="one source vocabulary, got a and c, whose"):
        transformer.load(["a", "c"])
    with pytest.raises(UserError, match="got none"):
        transformer.load([])
