"""Damage of a prepared folder: said with the file's name, or nothing has changed."""

import dataclasses
import errno
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.limits import largest_file
from support.runs import write_digits
from support.texts import text_config

from transformer import config as configs
from transformer.config import Config, UserError
from transformer.data import sources
from transformer.data.batches import Batches, prefetch
from transformer.data.corpus import Corpus, write_corpus
from transformer.data.folder import Folder
from transformer.data.tokenizers import Bytes, Vocabulary, load_vocabulary
from transformer.files import digests, sealed
from transformer.prepare import prepare

MANIFEST = "manifest.json"
JSON = ["vocabulary.json", *(f"{split}.json" for split in sources.SPLITS)]
ARRAYS = [
    f"{split}.{side}.{kind}"
    for split in sources.SPLITS
    for side in ("source", "target")
    for kind in ("ids", "offsets")
]
TEXTS = [
    f"{split}.{side}.txt"
    for split in ("validation", "test")
    for side in ("source", "target")
]
# Of each kind: jointly or not, vocab_size, files.
TOKENIZERS: dict[str, tuple[bool, int, list[str]]] = {
    "whitespace": (False, 0, ["source.vocab", "target.vocab"]),
    "sentencepiece": (True, 60, ["source.model"]),
    "bytes": (True, 0, ["source.bytes"]),
}
EVERY = [("whitespace", name) for name in (*JSON, *ARRAYS, *TEXTS)]
EVERY += [(kind, name) for kind, (*_, names) in TOKENIZERS.items() for name in names]
FLIPS = 5  # of each file


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Config]:
    """Prepare a folder with each kind of tokenizer; return their configurations."""
    home = tmp_path_factory.mktemp("originals")
    write_digits(home / "text")
    found = {}
    for kind, (joint, size, _) in TOKENIZERS.items():
        found[kind] = text_config(
            home / "text",
            data_prepared=str(home / kind),
            tokenizer_kind=kind,
            tokenizer_joint=joint,
            tokenizer_vocab_size=size,
            model_tying="two",
        )
        prepare(found[kind], "")
    return found


def copied(original: Config, folder: Path) -> Config:
    """Copy a prepared folder; return the configuration that names the copy."""
    shutil.copytree(original.data.prepared, folder)
    data = dataclasses.replace(original.data, prepared=str(folder))
    return dataclasses.replace(original, data=data)


def vocabulary_of(config: Config) -> list[Any]:
    """Return what translation reads of a folder."""
    vocabulary = load_vocabulary(Path(config.data.prepared))
    sides = vocabulary.source, vocabulary.target
    return [vocabulary.joint, *([*x.pieces(range(x.size)), x.digest] for x in sides)]


def content(config: Config) -> list[Any]:
    """Return all that training, evaluation and translation read of a folder."""
    prepared = prepare(config, "")
    found: list[Any] = [prepared.manifest, vocabulary_of(config)]
    for split, corpus in prepared.corpora.items():
        found += [corpus.counts, split != "train" and prepared.texts(split)]
        for side in (corpus.source, corpus.target):
            found += [side.lengths.tolist(), list(side)]
    return found


def refusal(read: Callable[[Config], Any], config: Config) -> str:
    """Return the one line with which reading a folder is refused."""
    with pytest.raises(UserError) as error:
        read(config)
    assert "\n" not in str(error.value)
    return str(error.value)


def flip(path: Path, number: int) -> None:
    """Change one byte, for ever the same one of each number."""
    draw = random.Random(f"{path.name} {number}")
    content = bytearray(path.read_bytes())
    content[draw.randrange(len(content))] ^= draw.randrange(1, 256)
    path.write_bytes(content)


# ---- every file, damaged -------------------------------------------------------------


@pytest.mark.parametrize(("kind", "name"), EVERY)
def test_flipped_bytes(
    tmp_path: Path, originals: dict[str, Config], kind: str, name: str
) -> None:
    config = copied(originals[kind], tmp_path / "corpus")
    path = tmp_path / "corpus" / name
    before = path.read_bytes()
    for number in range(FLIPS if before else 0):
        path.write_bytes(before)
        flip(path, number)
        said = refusal(content, config)
        assert said.startswith(f"{path}: expected") and "prepare the data again" in said


def test_flipped_bytes_of_the_manifest(
    tmp_path: Path, originals: dict[str, Config]
) -> None:
    config = copied(originals["bytes"], tmp_path / "corpus")
    path = tmp_path / "corpus" / MANIFEST
    whole, before = path.read_bytes(), content(config)
    for place in range(0, len(whole), 11):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            assert content(config) == before  # white space
        except UserError as error:
            assert str(error).startswith(f"{path}: expected")


def replace_by_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


DAMAGES: dict[str, Callable[[Path], None]] = {
    "deleted": Path.unlink,
    "emptied": lambda path: os.truncate(path, 0),
    "halved": lambda path: os.truncate(path, path.stat().st_size // 2),
    "shortened": lambda path: os.truncate(path, path.stat().st_size - 2),
    "lengthened": lengthen,
    "a folder": replace_by_a_folder,
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(("kind", "name"), [*EVERY, ("bytes", MANIFEST)])
def test_other_damage(
    tmp_path: Path, originals: dict[str, Config], kind: str, name: str, damage: str
) -> None:
    config = copied(originals[kind], tmp_path / "corpus")
    path = tmp_path / "corpus" / name
    if path.suffix == ".bytes" and damage in ("emptied", "halved", "shortened"):
        damage = "lengthened"  # it is empty
    DAMAGES[damage](path)
    said = refusal(content, config)
    assert name in said and "remove" in said
    if name in ("vocabulary.json", *TOKENIZERS[kind][2]):  # translation reads them too
        assert refusal(vocabulary_of, config).startswith(f"{path}: expected")


@pytest.mark.parametrize("name", ["vocabulary.json", "source.vocab", "target.vocab"])
@pytest.mark.parametrize("damage", [how for how in DAMAGES if how != "lengthened"])
def test_a_vocabulary_without_a_manifest_is_its_own_seal(
    tmp_path: Path, originals: dict[str, Config], name: str, damage: str
) -> None:
    config = copied(originals["whitespace"], tmp_path / "corpus")
    (tmp_path / "corpus" / MANIFEST).unlink()
    assert vocabulary_of(config) == vocabulary_of(originals["whitespace"])
    DAMAGES[damage](tmp_path / "corpus" / name)
    assert str(tmp_path / "corpus") in refusal(vocabulary_of, config)


# ---- a large corpus is verified where it is read -------------------------------------


def test_no_row_of_a_damaged_block_is_read(
    tmp_path: Path, originals: dict[str, Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "BLOCK", 64)
    bytes_ = dataclasses.replace(
        originals["bytes"].data, prepared=str(tmp_path / "corpus")
    )
    config = dataclasses.replace(originals["bytes"], data=bytes_)
    before = list(prepare(config, "").corpora["train"].source)
    path = tmp_path / "corpus" / "train.source.ids"
    os.truncate(path, path.stat().st_size - 2)
    with path.open("ab") as file:
        file.write(b"\x07\x00")  # another id in place of the last EOS
    corpus = prepare(config, "").corpora["train"]
    assert [corpus.source[row] for row in range(190)] == before[:190]
    with pytest.raises(UserError, match=r"train\.source\.ids: expected the content"):
        corpus.source.padded(np.array([199]), (1, 99))
    # Also where another thread makes the batches, behind the first.
    made = Batches(corpus, configs.Batch(256, 8, 4, 1, 1), 0)
    assert 199 not in made.rows_at(0, 0)[0]
    steps = prefetch(made, 0, made.per_epoch)
    next(steps)
    with pytest.raises(UserError, match=r"train\.source\.ids: expected the content"):
        list(steps)


def test_offsets_are_verified_before_the_first_row(
    tmp_path: Path, originals: dict[str, Config]
) -> None:
    config = copied(originals["bytes"], tmp_path / "corpus")
    flip(tmp_path / "corpus" / "train.target.offsets", 0)
    corpus = prepare(config, "").corpora["train"]
    with pytest.raises(UserError, match=r"train\.target\.offsets"):
        corpus.target[0]


# ---- folders of an earlier version ---------------------------------------------------


def strip(folder: Path) -> None:
    """Make a prepared folder what earlier versions wrote."""
    for name in (MANIFEST, *JSON):
        values = json.loads((folder / name).read_text())
        del values["sha256"]
        values.pop("files", None)
        (folder / name).write_text(json.dumps(values, indent=2) + "\n")


def test_without_digests_is_read_as_it_is(
    tmp_path: Path, originals: dict[str, Config]
) -> None:
    config = copied(originals["whitespace"], tmp_path / "corpus")
    strip(tmp_path / "corpus")
    said: list[str] = []
    prepare(config, "", said.append)
    assert "an earlier version" in said[-1] and len(said) == 2
    assert content(config)[1:] == content(originals["whitespace"])[1:]


@pytest.mark.parametrize("name", [MANIFEST, *JSON, *ARRAYS, *TEXTS, "source.vocab"])
def test_damage_without_digests_is_no_traceback(
    tmp_path: Path, originals: dict[str, Config], name: str
) -> None:
    config = copied(originals["whitespace"], tmp_path / "corpus")
    strip(tmp_path / "corpus")
    path = tmp_path / "corpus" / name
    before = path.read_bytes()
    for number in range(20):
        path.write_bytes(before)
        flip(path, number)
        try:
            content(config)  # there may be nothing to compare it with
        except UserError as error:
            assert "\n" not in str(error) and str(tmp_path) in str(error)
    for how in [how for how in DAMAGES if how != "lengthened"]:
        path.write_bytes(before)
        DAMAGES[how](path)
        assert str(tmp_path / "corpus") in refusal(content, config)
        path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.8, 0.99])
def test_what_finds_no_room_is_told(tmp_path: Path, share: float) -> None:
    vocabulary = Vocabulary(Bytes(), Bytes())
    pairs = [("abcdefghijklmnopqrst", "abcdefghijklmnopqrst")] * 1000
    write_corpus(tmp_path, "whole", pairs, vocabulary)
    size = (tmp_path / "whole.source.ids").stat().st_size
    with largest_file(int(size * share)), pytest.raises(OSError) as error:
        write_corpus(tmp_path, "train", pairs, vocabulary)
    assert error.value.errno == errno.EFBIG
    assert str(error.value.filename).startswith(str(tmp_path / "train."))
    assert not (tmp_path / "train.json").exists()


def test_ids_that_a_full_disk_cut_off_are_found_behind_their_digests(
    originals: dict[str, Config], tmp_path: Path
) -> None:
    config = copied(originals["bytes"], tmp_path / "corpus")
    path = tmp_path / "corpus" / "train.source.ids"
    path.write_bytes(path.read_bytes()[:-2])
    manifest = sealed.read_json(tmp_path / "corpus" / MANIFEST, "")
    manifest["files"][path.name] = digests.record_of(path)
    sealed.write_json(tmp_path / "corpus" / MANIFEST, manifest)
    assert "train.source.ids: expected " in refusal(content, config)


@pytest.mark.parametrize(
    ("offsets", "said"),
    [
        ([0, 1 << 62, 3], "rise"),
        ([0, 9, 3], "rise"),
        ([0, 0, 3], "rise"),
        ([1, 2, 3], "rise"),
        ([0, 1, 1 << 40], "bytes"),
        ([0, 3], "24 bytes"),
    ],
)
def test_offsets_without_digests_lead_nowhere_else(
    tmp_path: Path, offsets: list[int], said: str
) -> None:
    for side in ("source", "target"):
        np.array(offsets, np.int64).tofile(tmp_path / f"train.{side}.offsets")
        np.array([5, 3, 3], np.uint16).tofile(tmp_path / f"train.{side}.ids")
    record = {"counts": {"kept": 2}, "source": "uint16", "target": "uint16"}
    sealed.write_json(tmp_path / "train.json", record)
    with pytest.raises(UserError, match=rf"train\.source\..*{said}"):
        Corpus(tmp_path, "train").source[1]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("format", "1"),
        ("config", []),
        ("inputs", None),
        ("vocabulary", 3),
        ("files", []),
        ("files", {"train.json": {"bytes": 9, "sha256": []}}),
        ("files", {"train.json": 3}),
    ],
)
def test_what_a_manifest_must_hold(
    tmp_path: Path, originals: dict[str, Config], key: str, value: Any
) -> None:
    copied(originals["bytes"], tmp_path / "corpus")
    path = tmp_path / "corpus" / MANIFEST
    sealed.write_json(path, sealed.read_json(path, "") | {key: value})
    with pytest.raises(UserError, match=rf"manifest\.json: expected .*{key}|train"):
        Folder(tmp_path / "corpus")
