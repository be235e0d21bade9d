"""Runs written for other systems, read again here and, where they are, by these."""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file
from support import marian_case as case
from support.calls import error
from support.limits import largest_file
from support.models import draw_params, recurrent_config
from support.runs import tiny
from support.torch_values import has_peer, run_peer, values

from transformer import config, models, objective
from transformer.cli import main as cli
from transformer.config import UserError
from transformer.data import tokenizers
from transformer.formats import card, ctranslate2, exporting
from transformer.formats.exporting import check_quantization, export
from transformer.formats.incoming import import_model
from transformer.run import folder
from transformer.trained import Restored
from transformer.translate import Translator, load

PAIRS = [
    (f"the {a} {b} sleeps on a {c}", f"der {a}e {b} schläft auf einem {c}")
    for a in ("old", "young", "green", "tired")
    for b in ("dog", "horse", "sailor")
    for c in ("bench", "roof", "cliff", "boat")
]


def quiet(line: str) -> None:
    """Say nothing."""


@pytest.fixture(scope="module")
def golden():
    return values("committed", "marian_values")


@pytest.fixture(scope="module")
def run(golden, tmp_path_factory):
    place = case.write_folder(golden, tmp_path_factory.mktemp("export") / "theirs")
    workdir = place.parent / "run"
    workdir.mkdir()
    import_model(place, workdir, log=quiet)
    return workdir


@pytest.fixture(scope="module")
def imported(run):
    return load(run)


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    """One sentencepiece model of both languages, 60 pieces."""
    settings = config.Tokenizer("sentencepiece", "same", 60, True, "", "", "", 0.0, 1)
    place = tmp_path_factory.mktemp("pieces")
    return tokenizers.build_vocabulary(settings, lambda: iter(PAIRS), place)


def drawn(vocabulary: tokenizers.Vocabulary, **changes: Any) -> Translator:
    """Return a translator of drawn parameters; nothing is compiled."""
    usual = {"data.max_length": 64, "model.norm_epsilon": 1e-5}
    settings = tiny(**(usual | changes))
    model = models.make(settings, *vocabulary.sizes)
    return Translator(settings, vocabulary, draw_params(model))


# ---- Transformers --------------------------------------------------------------------


def test_export_after_import_returns_every_bit(golden, imported, tmp_path):
    output = tmp_path / "again"
    export(imported, "huggingface", output)
    before, after = case.arrays(golden), load_file(output / "model.safetensors")
    assert after.keys() == before.keys()
    for name, array in before.items():
        assert after[name].tobytes() == array.tobytes(), name
    assert json.loads((output / "vocab.json").read_text()) == json.loads(
        golden["file vocab.json"].tobytes()
    )
    for side in ("source", "target"):
        name = f"{side}.spm"
        assert (output / name).read_bytes() == golden[f"file {name}"].tobytes()
    # Of their settings all that they have an own value of.
    ours = json.loads((output / "config.json").read_text())
    theirs = json.loads(golden["file config.json"].tobytes())
    same = theirs.keys() & ours.keys() - {"max_position_embeddings"}
    assert {key: ours[key] for key in same} == {key: theirs[key] for key in same}
    assert len(same) > 20
    page = (output / "README.md").read_text()
    assert config.digest(imported.settings) in page and "not evaluated" in page


RELATIVE = {"model.positions": "relative", "model.clip": 3}
OWN: dict[str, dict[str, Any]] = {
    "as it is": {},
    "tables of positions": {
        "model.positions": "sinusoidal_concat",
        "model.target_space": True,
        "model.vocab_size": 70,
    },
    "learned": {
        "model.positions": "learned",
        "model.max_positions": 64,
        "model.decoder_layers": 2,
        "model.activation": "gelu",
    },
    "no positions, no scale, no biases": {
        "model.positions": "none",
        "model.score": "dot",
        "model.attention_bias": False,
        "model.tying": "none",
    },
    "no scale": {"model.score": "dot", "model.attention_bias": True},
    "two tables": {"model.tying": "two", "model.output_bias": True},
}


def test_rates_of_dropout_and_the_search_have_their_names(pieces, tmp_path):
    rates = {"dropout": 0.1, "attention_dropout": 0.2, "relu_dropout": 0.3}
    changes = {f"model.{key}": rate for key, rate in rates.items()}
    search = {"decode.beam": 3, "decode.alpha": 0.7}
    export(drawn(pieces, **changes, **search), "huggingface", tmp_path / "theirs")
    theirs = json.loads((tmp_path / "theirs" / "config.json").read_text())
    names = ("dropout", "attention_dropout", "activation_dropout")
    assert [theirs[name] for name in names] == [0.1, 0.2, 0.3]
    how = json.loads((tmp_path / "theirs" / "generation_config.json").read_text())
    assert (how["num_beams"], how["length_penalty"]) == (3, 0.7)


@pytest.mark.parametrize("name", OWN)
def test_a_run_of_ours_is_the_same_model_when_it_comes_back(name, pieces, tmp_path):
    """Through another system's file its logits are what they were, to rounding."""
    ours = drawn(pieces, **OWN[name])
    export(ours, "huggingface", tmp_path / "theirs")
    read = json.loads((tmp_path / "theirs" / "tokenizer_config.json").read_text())
    assert read["model_max_length"] == (64 if name == "learned" else 512)
    (tmp_path / "run").mkdir()
    import_model(tmp_path / "theirs", tmp_path / "run", log=quiet)
    again = load(tmp_path / "run")
    assert again.source_ids(["the old dog"]) == ours.source_ids(["the old dog"])
    source = jnp.array([[5, 9, 11, 40, 3, 0], [8, 3, 0, 0, 0, 0]])
    target = jnp.array([[6, 7, 20, 3], [9, 59, 3, 0]])
    logits = jax.jit(objective.logits, static_argnums=0)
    before, after = (
        logits(x.model, x.params, source, target)[..., 4 : pieces.target.size]
        for x in (ours, again)
    )
    real = np.asarray(target != 0)
    np.testing.assert_allclose(
        after[real], before[real], rtol=0, atol=2e-5 * float(abs(before).max())
    )


@pytest.mark.parametrize("dtype, digits", [("float16", 11), ("bfloat16", 8)])
def test_arrays_are_rounded_once(dtype, digits, golden, imported, tmp_path):
    export(imported, "huggingface", tmp_path / "half", dtype)
    exact = case.arrays(golden)["model.encoder.layers.0.fc1.weight"]
    rounded = load_file(tmp_path / "half" / "model.safetensors")
    array = rounded["model.encoder.layers.0.fc1.weight"]
    assert array.dtype == dtype
    error = abs(array.astype(np.float32) - exact)
    assert 0 < error.max() and (error <= 2.0**-digits * abs(exact)).all()
    kept = json.loads((tmp_path / "half" / "config.json").read_text())
    assert kept["dtype"] == dtype


# ---- CTranslate2 ---------------------------------------------------------------------

# Of all in model.bin but the sinusoids, whose last digits are those of a machine, as
# CTranslate2 4.8.5 translated with it like Transformers, see the last test here.
DIGEST = "0f86a2e6cc276889d73d2e0729805151042367e20bf8146f79f70575addf0fe3"


def test_the_file_is_the_one_that_was_translated_with(imported, tmp_path):
    export(imported, "ctranslate2", tmp_path / "folder")
    content = (tmp_path / "folder" / "model.bin").read_bytes()
    found = dict(ctranslate2.read_variables(content))
    table = found.pop("encoder/position_encodings/encodings")
    assert found.pop("decoder/position_encodings/encodings") is table
    # The first angle of position 1 is 1, the next ones 10,000^(-2 i / 10).
    np.testing.assert_allclose(table[1, :3], np.sin([1, 1 + np.pi / 2, 10**-0.8]), 1e-6)
    whole = hashlib.sha256()
    for name, array in found.items():
        whole.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    assert whole.hexdigest() == DIGEST
    vocabulary = json.loads((tmp_path / "folder/shared_vocabulary.json").read_text())
    assert vocabulary[:6] == ["<pad>", "<unk>", "<s>", "</s>", ">>deu<<", ">>fra<<"]
    kept = json.loads((tmp_path / "folder" / "config.json").read_text())
    assert kept["layer_norm_epsilon"] == 1e-5 and kept["add_source_eos"]


def test_matrices_above_each_other_and_tables_once(pieces, tmp_path):
    ours = drawn(pieces, **{"model.norm": "pre"})
    export(ours, "ctranslate2", tmp_path / "folder")
    found = dict(
        ctranslate2.read_variables((tmp_path / "folder" / "model.bin").read_bytes())
    )
    layer = ours.params["decoder_0"]["cross_attention"]
    stacked = found["decoder/layer_0/attention/linear_1/weight"]
    np.testing.assert_array_equal(stacked[:16], layer["key"]["kernel"].T)
    np.testing.assert_array_equal(stacked[16:], layer["value"]["kernel"].T)
    final = found["encoder/layer_norm/gamma"]
    np.testing.assert_array_equal(final, ours.params["encoder_norm"]["scale"])
    assert found["encoder/pre_norm"] == 1 and "decoder/projection/bias" not in found
    same = [found[f"{x}/weight"] for x in ("decoder/embeddings", "decoder/projection")]
    assert same[0] is same[1]


def test_layer_norms_keep_their_epsilon(pieces, tmp_path):
    export(drawn(pieces, **{"model.norm_epsilon": 1e-3}), "ctranslate2", tmp_path / "x")
    settings = json.loads((tmp_path / "x" / "config.json").read_text())
    assert settings["layer_norm_epsilon"] == 1e-3


def test_vectors_of_distances_take_the_place_of_tables(pieces, tmp_path):
    ours = drawn(pieces, **RELATIVE)
    export(ours, "ctranslate2", tmp_path / "folder")
    found = dict(
        ctranslate2.read_variables((tmp_path / "folder" / "model.bin").read_bytes())
    )
    assert not [name for name in found if "position_encodings" in name]
    for stack in ("encoder", "decoder"):
        tables = ours.params[f"{stack}_0"]["self_attention"]["distances"]
        for part in ("key", "value"):
            theirs = f"{stack}/layer_0/self_attention/relative_position_{part}s"
            np.testing.assert_array_equal(found[theirs], tables[part])
    assert not [name for name in found if "/attention/relative" in name]


def test_integers_are_within_half_a_step_of_each_row():
    matrix = np.array([[1.0, -2.0, 0.3], [0, 0, 0], [1e-3, 2e-3, -1e-3]], np.float32)
    scalar, vector = np.int8(1), np.ones(3, np.float32)
    given: dict[str, np.ndarray] = {
        "a/weight": matrix,
        "b/bias": vector,
        "c": np.asarray(scalar),
    }
    found = ctranslate2.quantized(given, "int8")
    assert found["a/weight"].dtype == np.int8 and found["b/bias"] is vector
    assert found["a/weight"].tolist()[:2] == [[64, -127, 19], [0, 0, 0]]
    np.testing.assert_allclose(found["a/weight_scale"], [63.5, 1, 63_500], rtol=1e-6)
    back = found["a/weight"] / found["a/weight_scale"][:, None]
    assert (abs(back - matrix) <= 0.5001 / found["a/weight_scale"][:, None]).all()


# ---- what is refused -----------------------------------------------------------------

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("huggingface", {"model.norm": "pre"}, "model.norm: expected post, .*got pre"),
    ("huggingface", {"model.window": 3}, "model.window: expected 0, .*got 3"),
    ("ctranslate2", {"model.window": 3}, "model.window: expected 0, .*got 3"),
    ("ctranslate2", {"model.positions": "rotary"}, "model.positions: .*got rotary"),
    (
        "huggingface",
        {"model.positions": "relative", "model.clip": 3},
        "model.positions: .*got relative",
    ),
    (
        "ctranslate2",
        {
            "model.positions": "relative",
            "model.clip": 3,
            "model.relative_heads": "per_head",
        },
        "model.relative_heads: expected shared, .*got per_head",
    ),
    (
        "ctranslate2",
        {"model.positions": "relative", "model.clip": 3, "model.target_space": True},
        "model.target_space: expected False beside positions=relative",
    ),
    ("ctranslate2", {"model.score": "additive"}, "scaled_dot or dot, .*got additive"),
    ("ctranslate2", {"model.d_k": 4}, "d_model / heads = 8, .*got 4"),
    ("ctranslate2", {"model.d_v": 4}, "d_model / heads = 8, .*got 8 and 4"),
]


@pytest.mark.parametrize("to, changes, said", REFUSED, ids=str)
def test_what_a_format_cannot_hold_is_refused_by_name(
    to, changes, said, pieces, tmp_path
):
    with pytest.raises(UserError, match=said):
        export(drawn(pieces, **changes), to, tmp_path / "folder")
    assert list(tmp_path.iterdir()) == []


def test_other_tokenizers_and_models_are_refused(tmp_path):
    letters = tokenizers.Bytes()
    one = drawn(tokenizers.Vocabulary(letters, letters))
    with pytest.raises(UserError, match="expected sentencepiece or marian, as the"):
        export(one, "huggingface", tmp_path / "folder")
    export(one, "ctranslate2", tmp_path / "bytes")  # which has words of any kind
    assert not (tmp_path / "bytes" / "source.spm").exists()
    settings = dataclasses.replace(one.settings, model=recurrent_config(member="cgru"))
    for to in ("huggingface", "ctranslate2"):
        other = Translator(settings, one.vocabulary, {})
        with pytest.raises(UserError, match="expected transformer, got 'rnn'"):
            export(other, to, tmp_path / "folder")


def test_pieces_that_are_words_twice_are_refused(tmp_path):
    settings = config.Tokenizer("sentencepiece", "same", 40, True, "", "", "", 0.0, 1)
    texts = [(f"{a} 1 2 3 dogs", f"{a} 1 2 3 horses") for a in range(9)] * 4
    pieces = tokenizers.SentencePiece.build(texts, settings, "")
    indexed = tokenizers.IndexedWords(pieces)
    one = drawn(tokenizers.Vocabulary(indexed, pieces), **{"model.tying": "none"})
    with pytest.raises(UserError, match="distinct source pieces, as the other system"):
        export(one, "ctranslate2", tmp_path / "folder")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_one_line(imported, tmp_path):
    wanted = "that can be written, .*: File too large"
    with largest_file(2000), pytest.raises(UserError, match=wanted):
        export(imported, "huggingface", tmp_path / "folder")
    assert list(tmp_path.iterdir()) == []


def test_quantizations_belong_to_formats():
    check_quantization("ctranslate2", "int8")
    with pytest.raises(UserError, match="float16 or bfloat16 with --to=huggingface"):
        check_quantization("huggingface", "int8")


def test_the_card_s_languages_are_texts(run):
    settings = folder.read_settings(run)
    data = dataclasses.replace(settings.data, source_language="no", target_language="1")
    text = card.text(dataclasses.replace(settings, data=data), "x", {}, [])
    front = yaml.safe_load(text.split("---")[1])
    assert front["language"] == ["no", "1"] and "from no to 1" in text


def test_the_card_tells_the_measure_of_the_run():
    score = {"value": 12.5, "signature": "wrong lines|lines:8"}
    results = {"split": "test", "average": {"errors": {"wer": score}}}
    text = card.text(tiny(**{"data.measure": "errors"}), "x", results, [])
    assert "* average: WER 12.50, wer wrong lines|lines:8" in text


def test_a_card_has_no_scores_of_another_checkpoint():
    results = {"split": "test", "step": 30, "averaged_steps": [20, 30]}
    results |= {name: {"bleu": {}} for name in ("last", "average")}

    def of(step, results, **metadata):
        found = Restored(None, None, None, Path(str(step)), metadata, "")  # type: ignore[arg-type]
        return exporting._results_of(found, results)

    last = {"split": "test", "last": {"bleu": {}}}
    assert of(30, results) == last
    assert of(40, results) == {}
    assert of(30, {}) == {}
    for steps, kinds in (([20, 30], {"split", "average"}), ([10, 20, 30], set())):
        assert {*of(30, results, averaged_steps=steps)} == kinds


@pytest.mark.usefixtures("own_cache")
def test_the_command_exports_whole_or_not_at_all(run, tmp_path, capsys):
    output = tmp_path / "folder"
    arguments = ["export", f"--workdir={run}", "--to=ctranslate2", f"--output={output}"]
    assert cli.main([*arguments, "--quantization=int8"]) == 0
    assert "exported" in capsys.readouterr().out
    before = (output / "model.bin").read_bytes()
    assert error(capsys, *arguments) == (
        f"--output: expected a new folder, got {output}: File exists; choose another"
    )
    assert (output / "model.bin").read_bytes() == before
    inside = [*arguments[:-1], f"--output={run / 'checkpoints' / 'x'}"]
    assert "not part of the run" in error(capsys, *inside)
    assert "one of huggingface, ctranslate2" in error(
        capsys, "export", f"--workdir={run}", "--to=onnx", "--output=x"
    )


# ---- the peers themselves ------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(
    not (has_peer("transformers") and has_peer("ctranslate2")),
    reason="no transformers and ctranslate2",
)
def test_peers_translate_as_the_peer_did(golden, imported, tmp_path):
    numbers = json.loads(golden["file vocab.json"].tobytes())
    name, pad = {n: piece for piece, n in numbers.items()}, len(numbers) - 1
    sides = {
        side: [[int(i) for i in row if i != pad] for row in golden[f"{side} ids"]]
        for side in ("source", "target")
    }
    written = {
        "lines": golden["lines"].tolist(),
        "beams": [1, 4],
        "limits": [len(ids) + case.LIMIT for ids in sides["source"]],
        "compute_type": "float32",
        "pieces": [[name[i] for i in ids[:-1]] for ids in sides["source"]],
        "target pieces": [[name[i] for i in ids[:-1]] for ids in sides["target"]],
        "targets": sides["target"],
    }
    file = tmp_path / "case.json"
    file.write_text(json.dumps(written))
    scores = imported.score(golden["lines"].tolist(), golden["targets"].tolist())
    for system in ("huggingface", "ctranslate2", "converted"):
        folder = tmp_path / system
        to = "ctranslate2" if system == "ctranslate2" else "huggingface"
        export(imported, to, folder)
        run_peer("peer_translations", system, str(folder), str(file))
        found = json.loads((tmp_path / "case.out.json").read_text())
        for beam in (1, 4):
            wanted = [golden[f"beam {beam} line {i}"] for i in range(len(scores))]
            assert found[str(beam)] == [[name[int(i)] for i in x] for x in wanted]
        if system == "huggingface":
            assert found["ids"] == sides["source"]
        # Theirs may also write <pad>, with a logit of 0.
        tolerance = 2e-3 if system == "huggingface" else 1e-4
        np.testing.assert_allclose(found["scores"], scores, atol=tolerance, rtol=0)


@pytest.mark.skipif(not has_peer("ctranslate2"), reason="no ctranslate2")
@pytest.mark.parametrize("name", ["post", "pre, no scale"])
def test_ctranslate2_relates_positions_by_distance_as_ours(name, pieces, tmp_path):
    """Whole: greedy ids, and log-probabilities of given outputs, past the clip."""
    changes = {} if name == "post" else {"model.norm": "pre", "model.score": "dot"}
    ours = drawn(pieces, **RELATIVE, **changes, **{"decode.extra_tokens": 5})
    lines = [a for a, _ in PAIRS[::7]]
    targets = [b for _, b in PAIRS[::7]]
    sources = ours.source_ids(lines)
    greedy = [best[0].ids for best in ours.hypotheses(lines, beam=1)]
    assert max(map(len, greedy)) > 2 * 3 + 1  # tokens farther apart than the clip
    written = {
        "beams": [1],
        "limits": [len(ids) + 4 for ids in sources],
        "compute_type": "float32",
        "pieces": [ours.vocabulary.source.pieces(ids[:-1]) for ids in sources],
        "target pieces": [
            ours.vocabulary.target.pieces(ours.vocabulary.target.encode(line))
            for line in targets
        ],
    }
    export(ours, "ctranslate2", tmp_path / "theirs")
    (tmp_path / "case.json").write_text(json.dumps(written))
    case_file = tmp_path / "case.json"
    run_peer(
        "peer_translations", "ctranslate2", str(tmp_path / "theirs"), str(case_file)
    )
    found = json.loads((tmp_path / "case.out.json").read_text())
    assert found["1"] == [ours.vocabulary.target.pieces(ids) for ids in greedy]
    scores = ours.score(lines, targets)
    # Sums of up to 30 log-probabilities, each right to some 30 roundings of 5.
    np.testing.assert_allclose(found["scores"], scores, atol=1e-4, rtol=0)
