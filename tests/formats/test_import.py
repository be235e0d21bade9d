"""Models of Marian's, read from files of two systems, beside what a peer computes."""

import dataclasses
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file, save_file
from support import marian_case as case
from support.calls import error
from support.configs import base
from support.runs import tiny_run
from support.torch_values import has_peer, values

from transformer import config, objective
from transformer.cli import main as cli
from transformer.config import UserError
from transformer.evaluate import average, evaluate
from transformer.formats import huggingface, marian
from transformer.formats.arrays import NEVER
from transformer.formats.incoming import import_model
from transformer.formats.usual import settings_of
from transformer.ids import BOS, PAD
from transformer.prepare import prepare
from transformer.run import folder
from transformer.train import train
from transformer.trained import imported_vocabulary, open_run
from transformer.translate import Translator, load

SOURCES = [
    "committed",
    pytest.param(
        "installed",
        marks=[
            pytest.mark.slow,
            pytest.mark.skipif(not has_peer("transformers"), reason="no transformers"),
        ],
    ),
]


def quiet(line: str) -> None:
    """Say nothing."""


@pytest.fixture(scope="module", params=SOURCES)
def golden(request):
    return values(request.param, "marian_values")


@pytest.fixture(scope="module")
def place(golden, tmp_path_factory):
    return case.write_folder(golden, tmp_path_factory.mktemp("import") / "theirs")


@pytest.fixture(scope="module")
def run(place):
    workdir = place.parent / "run"
    workdir.mkdir()
    import_model(place, workdir, log=quiet)
    return workdir


@pytest.fixture(scope="module")
def translator(run):
    found = load(run)
    # The peer's outputs may have so many tokens more than a source with its end.
    decode = dataclasses.replace(found.settings.decode, extra_tokens=case.LIMIT + 1)
    settings = dataclasses.replace(found.settings, decode=decode)
    return Translator(settings, found.vocabulary, found.params)


def ids_of(golden: case.Values, name: str) -> list[list[int]]:
    """Return sentences of the peer's as our ids, without padding."""
    ours = case.renumbered(golden)[golden[name]]
    return [[int(i) for i in row if i != PAD] for row in ours]


def test_texts_have_the_peer_s_ids(golden, translator):
    assert translator.source_ids(golden["lines"].tolist()) == ids_of(
        golden, "source ids"
    )
    encoded = translator.vocabulary.target.encode_many(golden["targets"].tolist())
    assert [[*ids, 3] for ids in encoded] == ids_of(golden, "target ids")


def test_logits_are_the_peer_s_padded_or_not(golden, translator):
    ours = case.renumbered(golden)
    source, target = (ours[golden[f"{side} ids"]] for side in ("source", "target"))
    logits = jax.jit(objective.logits, static_argnums=0)(
        translator.model, translator.params, jnp.asarray(source), jnp.asarray(target)
    )
    assert (logits[..., [PAD, BOS]] < NEVER + 100).all()
    real, ordinary = target != PAD, slice(None, -1)  # their <pad> is the last
    got, wanted = logits[..., ours][..., ordinary], golden["logits"][..., ordinary]
    size = abs(wanted).max()
    np.testing.assert_allclose(got[real], wanted[real], rtol=0, atol=1e-5 * size)


@pytest.mark.parametrize("beam", [1, 4])
def test_searches_find_what_the_peer_finds(golden, translator, beam):
    ours, lines = case.renumbered(golden), golden["lines"].tolist()
    wanted = [ours[golden[f"beam {beam} line {i}"]][:-1] for i in range(len(lines))]
    found = translator.hypotheses(lines, beam=beam)
    assert [one[0].ids for one in found] == [ids.tolist() for ids in wanted]


def test_marian_s_own_files_are_the_same_model(golden, run, tmp_path):
    workdir = tmp_path / "run"
    workdir.mkdir()
    import_model(case.write_npz(golden, tmp_path / "npz"), workdir, log=quiet)
    one, other = load(run), load(workdir)
    assert one.vocabulary.digest == other.vocabulary.digest
    jax.tree.map(np.testing.assert_array_equal, one.params, other.params)
    # Transformers computes what Marian does, but for the epsilon of the layer norms.
    theirs, its = one.settings.model, other.settings.model
    assert isinstance(theirs, config.Transformer) and theirs.norm_epsilon == 1e-5
    assert its == dataclasses.replace(theirs, norm_epsilon=1e-6)
    assert one.settings.decode == other.settings.decode


def test_it_is_an_ordinary_workdir(golden, run, translator):
    settings = folder.read_settings(run)
    assert settings.model.tying == "three" and settings.decode.length_penalty == "power"
    average(run, log=quiet)
    line, target = golden["lines"][0], golden["targets"][0]
    (averaged,), (score,) = (
        found.score([line], [target]) for found in (load(run), translator)
    )
    assert averaged == score < 0
    maps = translator.attention(">>deu<< kalo", target)
    assert maps.cross.shape[:2] == (1, 2) and maps.encoder.shape[:2] == (2, 2)
    tagged = translator.vocabulary.source
    assert tagged.pieces(tagged.encode(">>deu<< kalo"))[0] == ">>deu<<"
    # A tag that the list lacks is unknown, and no piece of a word.
    assert tagged.encode(">>xyz<< kalo") == [1, *tagged.encode("kalo")]


def test_its_vocabulary_moves_with_it(place, tmp_path):
    given = tiny_run(tmp_path / "text", **{"data.max_length": 64, "batch.tokens": 256})
    (tmp_path / "imported").mkdir()
    import_model(place, tmp_path / "imported", given, log=quiet)
    workdir = (tmp_path / "imported").rename(tmp_path / "moved")
    settings, vocabulary = open_run(workdir)
    assert not Path(settings.tokenizer.source_model).exists()
    for _ in range(2):  # it is made, and then opened
        prepared = prepare(settings, workdir, quiet, imported_vocabulary(workdir))
        assert prepared.vocabulary.digest == vocabulary.digest
    assert open_run(workdir)[1].digest == vocabulary.digest


@pytest.mark.slow
def test_training_goes_on_from_it(place, tmp_path):
    given = tiny_run(
        tmp_path / "text",
        **{
            "data.max_length": 64,
            "batch.tokens": 1024,
            "batch.shapes": 1,
            "train.steps": 2,
            "train.evaluate_every": 0,
            "train.checkpoint_every": 1,
            "optimizer.schedule": "constant",
            "optimizer.rate": 1e-3,
            "optimizer.warmup": 1,
            "optimizer.clip_norm": 1.0,
            "decode.average": 1,
        },
    )
    (tmp_path / "imported").mkdir()
    import_model(place, tmp_path / "imported", given, log=quiet)
    workdir = (tmp_path / "imported").rename(tmp_path / "run")
    before = load(workdir).params
    settings = folder.read_settings(workdir)
    assert settings.data.dir == given.data.dir
    assert settings.model.dropout == given.model.dropout
    lines: list[str] = []
    assert train(settings, workdir, lines.append) is not None
    assert "resuming from step 0" in lines
    after = load(workdir)
    moved = jax.tree.map(lambda a, b: float(abs(a - b).max()), before, after.params)
    assert 0 < max(jax.tree.leaves(moved)) < 0.01
    # What is never written stays so.
    assert (after.params["output_bias"][np.array([PAD, BOS])] < NEVER + 1).all()


def test_it_is_trained_with_the_given_rates_of_dropout(place):
    rates = {"dropout": 0.05, "attention_dropout": 0.2, "relu_dropout": 0.3}
    given = base(**{f"model.{key}": rate for key, rate in rates.items()})
    paths = {"source": "a.marian", "target": "b.marian"}
    it = huggingface.load(place)
    found = settings_of(it, "x", paths, given)
    values = {key: getattr(config.transformer(found.model), key) for key in rates}
    assert values == rates
    assert found.model.d_model == it.model.d_model != given.model.d_model


@pytest.mark.parametrize("source", ["trees", "vectors"])
def test_a_configuration_without_pairs_of_texts_is_refused(place, source):
    keys = {"data.source": source, "tokenizer.joint": False, "model.tying": "two"}
    keys |= {"tokenizer.target_kind": "tagged"} if source == "trees" else {}
    paths = {"source": "a.marian", "target": "b.marian"}
    with pytest.raises(UserError, match=f"expected pairs of texts .* = {source}; ch"):
        settings_of(huggingface.load(place), "x", paths, base(**keys))


# ---- what is refused -----------------------------------------------------------------


def change_json(place: Path, file: str, **changes: Any) -> None:
    values = json.loads((place / file).read_text()) | changes
    (place / file).write_text(json.dumps(values))


def drop_key(place: Path, file: str, key: str) -> None:
    values = json.loads((place / file).read_text())
    del values[key]
    (place / file).write_text(json.dumps(values))


def change_arrays(place: Path, change: Any) -> None:
    arrays = load_file(place / "model.safetensors")
    change(arrays)
    save_file(arrays, place / "model.safetensors")


def only_a_pickle(place: Path) -> None:
    (place / "model.safetensors").unlink()
    (place / "pytorch_model.bin").write_bytes(pickle.dumps(print))


def halve(arrays: dict[str, np.ndarray]) -> None:
    name = "model.decoder.layers.0.fc1.weight"
    arrays[name] = arrays[name][:7]


def with_prefix(arrays: dict[str, np.ndarray]) -> None:
    for name in [*arrays]:
        arrays[f"module.{name}"] = arrays.pop(name)


def one_number(arrays: dict[str, np.ndarray]) -> None:
    arrays["model.shared.weight"] = np.zeros((), np.float32)
    arrays.pop("final_logits_bias", None)


def few_of_two_billion_rows(place: Path) -> None:
    change_json(place, "config.json", max_position_embeddings=2 * 10**9)
    table = {"model.encoder.embed_positions.weight": np.zeros((4, 10), np.float32)}
    change_arrays(place, lambda arrays: arrays.update(table))


def negative_penalty(place: Path) -> None:
    (place / "generation_config.json").unlink(missing_ok=True)
    change_json(place, "config.json", length_penalty=-1)


def eight_bits(place: Path) -> None:
    header = {"a": {"dtype": "F8_E4M3", "shape": [8], "data_offsets": [0, 8]}}
    text = json.dumps(header).encode()
    content = len(text).to_bytes(8, "little") + text + bytes(8)
    (place / "model.safetensors").write_bytes(content)


BAD: dict[str, tuple[Any, str]] = {
    "pickle": (only_a_pickle, "a pickle, which may run any code and is not opened"),
    "no arrays": (lambda p: (p / "model.safetensors").unlink(), "model.safetensors"),
    "cut off": (
        lambda p: (p / "model.safetensors").write_bytes(b"\x08" * 30),
        "expected a safetensors file",
    ),
    "no list": (
        lambda p: (p / "vocab.json").unlink(),
        "vocab.json: expected a file, found none; give the vocab.json of the model",
    ),
    "no pieces": (lambda p: (p / "target.spm").unlink(), "target.spm: expected the"),
    "other spm": (
        lambda p: (p / "source.spm").write_bytes(b"x"),
        "source.spm: expected a sentencepiece model",
    ),
    "no config": (lambda p: (p / "config.json").unlink(), "without config.json"),
    "architecture": (
        lambda p: change_json(p, "config.json", model_type="t5"),
        "expected model_type marian, got 't5'",
    ),
    "pre-norm": (
        lambda p: change_json(p, "config.json", normalize_before=True),
        "expected normalize_before = false, got true",
    ),
    "scale": (
        lambda p: drop_key(p, "config.json", "scale_embedding"),
        "expected scale_embedding = true, got false",
    ),
    "activation": (
        lambda p: change_json(p, "config.json", activation_function="tanh"),
        "activation_function of relu, swish, silu, gelu, got tanh",
    ),
    "heads": (
        lambda p: change_json(p, "config.json", decoder_attention_heads=5),
        "one number above 0 for encoder_attention_heads and decoder",
    ),
    "other list": (
        lambda p: change_json(p, "vocab.json", surplus=47),
        "expected vocab_size = 48, as in vocab.json, got 47",
    ),
    "gap": (
        lambda p: change_json(p, "vocab.json", surplus=60),
        "expected the numbers 0 to 47 for 48 pieces, each once",
    ),
    "two lists": (
        lambda p: (p / "target_vocab.json").write_text("{}"),
        "expected one vocab.json for both languages",
    ),
    "shape": (
        lambda p: change_arrays(p, halve),
        r"decoder_0.feed_forward.kernel_1 of shape \(10, 14\), got \(10, 7\)",
    ),
    "missing": (
        lambda p: change_arrays(p, lambda x: x.pop("model.encoder.layers.1.fc2.bias")),
        "an array for encoder_1.feed_forward.bias_2",
    ),
    "more": (
        lambda p: change_arrays(p, lambda x: x.update(extra=np.zeros(1))),
        "the arrays of a MarianMTModel, got extra too",
    ),
    "not finite": (
        lambda p: change_arrays(
            p, lambda x: x["model.shared.weight"].__setitem__((3, 3), np.nan)
        ),
        "finite numbers in source_embedding",
    ),
    "depth": (
        lambda p: change_json(p, "config.json", encoder_layers=10**9),
        r"arrays for 1,000,000,000 \+ 1 layers, got the",
    ),
    "rows": (
        few_of_two_billion_rows,
        r"source_positions of shape \(2000000000, 10\)",
    ),
    "kind of activation": (
        lambda p: change_json(p, "config.json", activation_function=["swish"]),
        "expected activation_function of",
    ),
    "kind of dropout": (
        lambda p: change_json(p, "config.json", dropout="much"),
        "a number of 0 or more for dropout, got 'much'",
    ),
    "nested": (
        lambda p: (p / "config.json").write_text("[" * 100_000),
        "config.json: expected JSON",
    ),
    "shards": (
        lambda p: (p / "model.safetensors.index.json").write_text(
            '{"weight_map": {"a": ["b"]}}'
        ),
        "a file name for each array in weight_map",
    ),
    "kind of heads": (
        lambda p: change_json(p, "config.json", decoder_attention_heads=[2]),
        "one number above 0 for encoder_attention_heads and decoder",
    ),
    "8 bits": (eight_bits, "expected arrays of types that numpy supports"),
    "penalty": (
        negative_penalty,
        "config.json: expected a number from 0 to below 100 for length_penalty, got -1",
    ),
    "generation": (
        lambda p: (p / "generation_config.json").write_text('{"length_penalty": "x"}'),
        "generation_config.json: expected a number from 0 .*, got 'x'",
    ),
    "half a beam": (
        lambda p: (p / "generation_config.json").write_text('{"num_beams": 2.5}'),
        "generation_config.json: expected a whole number above 0 for num_beams, got 2",
    ),
    "other names": (
        lambda p: change_arrays(p, with_prefix),
        "the arrays of a MarianMTModel, got module.",
    ),
    "one number": (
        lambda p: change_arrays(p, one_number),
        r"an array for source_embedding of shape \(\d+, \d+\), got \(\)",
    ),
    "two tables": (
        lambda p: change_arrays(
            p, lambda x: x.update({"lm_head.weight": x["model.shared.weight"] + 1})
        ),
        "one table where config.json ties them",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_other_folders_are_refused(name, tmp_path):
    place = case.write_folder(values("committed", "marian_values"), tmp_path / "theirs")
    spoil, said = BAD[name]
    spoil(place)
    workdir = tmp_path / "run"
    workdir.mkdir()
    with pytest.raises(UserError, match=said):
        import_model(place, workdir)
    assert list(workdir.iterdir()) == []


@pytest.mark.parametrize(
    "changes, beam, alpha",
    [({}, 1, 1.0), ({"num_beams": 3, "length_penalty": 0}, 3, 0.0)],
    ids=str,
)
def test_the_search_is_kept(changes, beam, alpha, tmp_path):
    """What a model does not say is as Transformers has it."""
    place = case.write_folder(values("committed", "marian_values"), tmp_path / "theirs")
    given = json.loads((place / "config.json").read_text())
    for key in ("num_beams", "length_penalty"):
        given.pop(key, None)
    (place / "config.json").write_text(json.dumps(given | changes))
    (place / "generation_config.json").unlink(missing_ok=True)
    found = huggingface.load(place)
    assert found.decode == {"beam": beam, "alpha": alpha} and not found.unused


def test_a_search_that_is_not_had_here_is_told(tmp_path):
    place = case.write_folder(values("committed", "marian_values"), tmp_path / "theirs")
    search = {"no_repeat_ngram_size": 3, "repetition_penalty": 1.0, "min_length": 0}
    (place / "generation_config.json").write_text(json.dumps(search))
    workdir, said = tmp_path / "run", list[str]()
    workdir.mkdir()
    import_model(place, workdir, log=said.append)
    told = [line for line in said if "its search" in line]
    line = "its search sets no_repeat_ngram_size = 3, which is ignored here"
    assert told == [f"{place}: {line}"]


@pytest.mark.parametrize(
    "key, neutral, other",
    [
        ("bad_words_ids", [[7]], [[7], [9]]),
        ("bad_words_ids", None, [[9]]),
        ("suppress_tokens", [], [9]),
        ("min_new_tokens", 0, 5),
        ("num_beam_groups", 1, 2),
        ("forced_bos_token_id", None, 7),
    ],
)
def test_what_a_search_must_not_write_is_told_unless_it_is_the_padding(
    tmp_path, key, neutral, other
):
    place = case.write_folder(values("committed", "marian_values"), tmp_path / "theirs")
    pad = json.loads((place / "config.json").read_text())["pad_token_id"]
    neutral = [[pad]] if neutral == [[7]] else neutral
    for value, unused in ((neutral, {}), (other, {key: other})):
        search = json.dumps({key: value})
        (place / "generation_config.json").write_text(search)
        assert huggingface.load(place).unused == unused


def test_two_lists_of_pieces_are_refused(tmp_path):
    path = npz(tmp_path / "theirs")
    (one,) = path.parent.glob("*.vocab.yml")
    other = path.with_name("trg.vocab.yml")
    other.write_bytes(one.read_bytes())
    assert marian.load(path).vocabulary
    other.write_text('{"</s>": 0, "<unk>": 1}')
    with pytest.raises(UserError, match=f"got {one.name} and {other.name}; import"):
        marian.load(path)


def npz(place: Path, **changes: Any) -> Path:
    """Write a model of Marian's with other settings."""
    path = case.write_npz(values("committed", "marian_values"), place)
    with np.load(path) as file:
        arrays: dict[str, Any] = dict(file)
    settings = yaml.safe_load(arrays["special:model.yml"].tobytes()[:-1]) | changes
    text = yaml.safe_dump(settings).encode() + b"\0"
    arrays["special:model.yml"] = np.frombuffer(text, np.int8)
    np.savez(path, **arrays)
    return path


def test_marian_s_search_is_kept_and_its_pieces_may_be_json(tmp_path):
    path = npz(tmp_path / "theirs", **{"beam-size": 3, "normalize": 0})
    plain = marian.load(path)
    assert plain.decode == {"beam": 3, "alpha": 0.0}  # 0: no length is divided by
    names = next(path.parent.glob("*.vocab.yml"))
    pieces = sorted(numbers := yaml.safe_load(names.read_text()), key=numbers.get)
    names.unlink()
    # JSON writes what is beyond 16 bits as two escapes, which YAML does not read.
    pieces[-1] = "\N{GRINNING FACE}"
    text = json.dumps({piece: number for number, piece in enumerate(pieces)})
    (path.parent / "vocab.json").write_text(text)
    assert "\\ud83d" in text
    tokenizer: Any = marian.load(path).vocabulary.target
    assert tokenizer.numbered[-1] == pieces[-1]


def test_marian_s_search_is_read_from_the_file_beside_it(tmp_path):
    path = npz(tmp_path / "theirs", **{"beam-size": None, "normalize": None})
    with np.load(path) as file:
        arrays: dict[str, Any] = dict(file)
    settings = yaml.safe_load(arrays["special:model.yml"].tobytes()[:-1])
    del settings["beam-size"], settings["normalize"]  # as in Marian's own files
    text = yaml.safe_dump(settings).encode() + b"\0"
    np.savez(path, **(arrays | {"special:model.yml": np.frombuffer(text, np.int8)}))
    assert marian.load(path).decode == {"beam": 6, "alpha": 1.0}
    common, own = (path.with_name(x) for x in ("decoder.yml", "model.npz.decoder.yml"))
    common.write_text("models: [model.npz]\nbeam-size: 5\nnormalize: 0.6\n")
    found = marian.load(path)
    assert found.decode == {"beam": 5, "alpha": 0.6} and "decoder.yml" in found.files
    own.write_text("beam-size: 12\nnormalize: 0\nword-penalty: 0\n")
    assert marian.load(path).decode == {"beam": 12, "alpha": 0.0}
    own.write_text("word-penalty: 0.5\n")
    with pytest.raises(UserError, match="decoder.yml: expected word-penalty: 0, got 0"):
        marian.load(path)


BAD_NPZ: dict[str, tuple[dict[str, Any], str]] = {
    "pre-norm": ({"transformer-preprocess": "n"}, 'transformer-preprocess: ""'),
    "type": ({"type": "s2s"}, 'expected type: "transformer", got s2s'),
    "tables": ({"tied-embeddings-all": False}, "expected tied-embeddings-all: true"),
    "rnn": (
        {"transformer-decoder-autoreg": "rnn"},
        'transformer-decoder-autoreg: "self-attention", got rnn',
    ),
    "depth": ({"dec-depth": 2}, "an array for decoder_1.self_attention.query.kernel"),
    "layers": ({"enc-depth": 10**9}, r"arrays for 1,000,000,000 \+ 1 layers"),
    "beam": ({"beam-size": "wide"}, "whole number above 0 for beam-size, got 'wide'"),
    "half a beam": ({"beam-size": 2.5}, "whole number above 0 for beam-size, got 2.5"),
    "penalty": ({"normalize": [1]}, "a number from 0 to below 100 for normalize"),
    "power": ({"normalize": 1000}, "from 0 to below 100 for normalize, got 1000"),
    "dropout": ({"transformer-dropout": -0.1}, "0 or more for transformer-dropout"),
    "activation": (
        {"transformer-ffn-activation": ["relu"]},
        "transformer-ffn-activation of relu, swish, got",
    ),
    "its own gelu": (
        {"transformer-ffn-activation": "gelu"},
        "transformer-ffn-activation of relu, swish, got gelu",
    ),
    "no norm": ({"transformer-postprocess": "da"}, "expected transformer-postproc"),
    "direction": ({"right-left": True}, "expected right-left: false, got True"),
    "nested": ({"comment": [[[[[]]]]]}, "got nested ones or an alias"),
    "alias": ({"a": (one := ["x"]), "b": one}, "got nested ones or an alias"),
    "no number": ({"dim-emb": "ten"}, "a number above 0 for dim-emb, got ten"),
}


@pytest.mark.parametrize("name", BAD_NPZ)
def test_other_models_of_marian_are_refused(name, tmp_path):
    changes, said = BAD_NPZ[name]
    path = npz(tmp_path / "theirs", **changes)
    (tmp_path / "run").mkdir()
    with pytest.raises(UserError, match=said):
        import_model(path, tmp_path / "run")


@pytest.mark.parametrize(
    "array",
    [np.array("a"), np.array([1j]), np.array(["2026-11-29"], "M8[D]")],
    ids=["text", "complex", "date"],
)
def test_arrays_of_marian_that_are_no_numbers_are_refused(array, tmp_path):
    path = npz(tmp_path / "theirs")
    with np.load(path) as file:
        np.savez(path, **{**file, "encoder_l1_ffn_b1": array})
    with pytest.raises(UserError, match="expected numbers in encoder_l1_ffn_b1, got"):
        marian.load(path)


def test_a_table_of_marian_that_is_one_number_is_refused(tmp_path):
    path = npz(tmp_path / "theirs")
    with np.load(path) as file:
        np.savez(path, **{**file, "Wemb": np.float32(1)})
    with pytest.raises(UserError, match=r"source_embedding of shape .*, got \(\)"):
        marian.load(path)


def test_what_is_no_array_of_marian_is_refused(tmp_path):
    path = npz(tmp_path / "theirs")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("more", "plain text")
    with pytest.raises(UserError, match="expected numbers in more, got"):
        marian.load(path)


def test_lists_of_pieces_that_cannot_be_read_are_refused(tmp_path):
    path = npz(tmp_path / "theirs")
    names = next(path.parent.glob("*.vocab.yml"))
    text = names.read_text()
    names.write_text(text + f"more: {'9' * 5000}\n")
    with pytest.raises(UserError, match="expected a number for each piece"):
        marian.load(path)
    names.unlink()
    numbers = yaml.safe_load(text)
    numbers["\ud83d"] = numbers.pop(next(x for x in numbers if x[0] not in "<>"))
    (path.parent / "vocab.json").write_text(json.dumps(numbers))
    with pytest.raises(UserError, match=r"got '\\ud83d', half of a character"):
        marian.load(path)


def test_a_mistaken_call_ends_in_one_line(tmp_path, capsys):
    def said(source: Path, workdir: Path) -> str:
        return error(capsys, "import", f"--from={source}", f"--workdir={workdir}")

    full = tmp_path / "full"
    full.mkdir()
    (full / "thesis.tex").write_text("all")
    assert "found thesis.tex; choose another --workdir" in said(tmp_path, full)
    assert (full / "thesis.tex").read_text() == "all"
    assert "got nothing" not in said(tmp_path, tmp_path / "a")
    assert "nothing there; name another" in said(tmp_path / "none", tmp_path / "b")
    archive = tmp_path / "model.npz"
    archive.write_bytes(b"PK")
    assert "expected an .npz of Marian" in said(archive, tmp_path / "c")
    assert "name model.npz" in said(tmp_path, tmp_path / "d")
    missing = error(capsys, "translate", f"--workdir={tmp_path / 'd'}")
    assert "expected the folder of a training run" in missing


def test_the_command_imports(tmp_path, capsys):
    place = case.write_folder(values("committed", "marian_values"), tmp_path / "theirs")
    workdir = tmp_path / "run"
    assert cli.main(["import", f"--from={place}", f"--workdir={workdir}"]) == 0
    assert "imported" in capsys.readouterr().out
    assert folder.read_settings(workdir).name == "theirs"
    with pytest.raises(UserError, match="got one imported without; import it again"):
        evaluate(workdir)
