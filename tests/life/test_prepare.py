"""Preparation: built once, opened after, refused where it does not fit."""

import dataclasses
import gzip
import json
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet
from sacrebleu import utils
from support.paths import ROOT
from support.texts import make_config, text_config, write_texts

from transformer import config as configs
from transformer import prepare as preparation
from transformer.config import UserError
from transformer.data import sources
from transformer.data.corpus import Corpus, Counts
from transformer.data.sources import Split
from transformer.files import lock, sealed
from transformer.prepare import prepare
from transformer.run import folder
from transformer.trained import open_run


def contents(folder: pathlib.Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_numbers_from_words_to_ids_and_back(tmp_path: pathlib.Path) -> None:
    prepared = prepare(make_config(), tmp_path)
    assert prepared.folder == tmp_path / "corpus"
    assert {k: len(v) for k, v in prepared.corpora.items()} == {
        "train": 300,
        "validation": 500,
        "test": 1_000,
    }
    texts, targets = prepared.texts("test")
    vocabulary, corpus = prepared.vocabulary, prepared.corpora["test"]
    for row in (0, 499, 999):
        assert vocabulary.source.decode(corpus.source[row]) == texts[row]
        assert vocabulary.target.decode(corpus.target[row]) == targets[row]
    assert prepared.references("test") == targets


def test_second_time_opens_what_is_there(tmp_path: pathlib.Path) -> None:
    first = prepare(make_config(), tmp_path)
    before = contents(first.folder)
    times = {path: path.stat().st_mtime_ns for path in first.folder.iterdir()}
    said: list[str] = []
    again = prepare(make_config(model_heads=4, data_prepared=""), tmp_path, said.append)
    assert times == {path: path.stat().st_mtime_ns for path in again.folder.iterdir()}
    assert before == contents(again.folder)
    assert again.vocabulary.digest == first.vocabulary.digest
    assert again.checksums == first.checksums and "300 pairs" in said[-1]


def test_same_input_gives_the_same_bytes(tmp_path: pathlib.Path) -> None:
    one = prepare(make_config(), tmp_path / "one")
    two = prepare(make_config(), tmp_path / "two")
    assert contents(one.folder) == contents(two.folder)


def test_each_training_pair_has_several_segmentations(tmp_path: pathlib.Path) -> None:
    said: list[str] = []
    settings = make_config(tokenizer_dropout=0.3, tokenizer_samples=3)
    prepared = prepare(settings, tmp_path / "some", said.append)
    assert "train: 3 segmentations of each pair, with BPE dropout 0.3" in said
    vocabulary, train = prepared.vocabulary, prepared.corpora["train"]
    plain = prepare(make_config(), tmp_path / "plain")
    assert vocabulary.digest == plain.vocabulary.digest and len(train) == 900
    for row in range(300):
        ways = [[side[row + 300 * n] for n in range(3)] for side in train_sides(train)]
        for tokenizer, ids, once in zip(
            (vocabulary.source, vocabulary.target),
            ways,
            train_sides(plain.corpora["train"]),
            strict=True,
        ):
            texts = {tokenizer.decode(one) for one in ids}
            assert texts == {tokenizer.decode(once[row])}
            assert all(len(one) >= len(once[row]) for one in ids)
    source = train.source
    assert sum(source[n] != source[n + 300] for n in range(300)) > 200
    # Evaluation reads what a search will write.
    for split in ("validation", "test"):
        files = [
            folder.files.path / f"{split}.target.ids" for folder in (prepared, plain)
        ]
        assert files[0].read_bytes() == files[1].read_bytes()
    again = prepare(settings, tmp_path / "again")
    assert contents(again.folder) == contents(prepared.folder)


def train_sides(corpus: Corpus) -> tuple[Any, Any]:
    return corpus.source, corpus.target


def test_prepared_folder_may_be_shared(tmp_path: pathlib.Path) -> None:
    shared = make_config(data_prepared=str(tmp_path / "shared" / "numbers"))
    prepared = prepare(shared, tmp_path / "one")
    assert prepared.folder == prepare(shared, tmp_path / "two").folder
    assert not (tmp_path / "one").exists()
    # Where the folder lies does not decide what is in it.
    moved = tmp_path / "moved"
    os.replace(prepared.folder, moved)
    prepare(make_config(data_prepared=str(moved)), tmp_path)


def test_text_is_kept_left_out_and_counted(tmp_path: pathlib.Path) -> None:
    write_texts(tmp_path / "text")
    said: list[str] = []
    config = text_config(tmp_path / "text", data_max_length=9)
    prepared = prepare(config, tmp_path, said.append)
    assert prepared.corpora["train"].counts == Counts(2, 1, 1)
    assert "train: 2 pairs; left out 1 empty, 1 too long" in said
    # Validation and test keep every line, as it stands.
    texts, targets = prepared.texts("validation")
    assert texts == ["one@@ two", "", "three\u2028four"]
    assert targets == ["eins@@ zwei", "x", ""]
    assert prepared.corpora["validation"].counts == Counts(3)
    assert prepared.texts("test") == (["a"], ["A@@ B"])
    assert prepared.checksums["train"][str(tmp_path / "text/train.en")]["lines"] == 4
    manifest = json.loads((prepared.folder / "manifest.json").read_text())
    assert manifest["pairs"]["train"] == {"kept": 2, "empty": 1, "long": 1}
    assert manifest["vocabulary"] == prepared.vocabulary.digest


@dataclasses.dataclass(frozen=True)
class Reversed:
    """A source of a user's own: some words and the same ones backwards."""

    data: configs.Data

    def pairs(self, split: sources.Split) -> Iterator[sources.Pair]:
        for word in (split, self.data.name):
            yield word, word[::-1]

    def checksums(self, split: sources.Split) -> sources.Checksums:
        return {self.data.name: {"lines": 2, "sha256": split}}


def test_a_source_is_a_class_and_a_line(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sources.SOURCES, "reversed", Reversed)
    config = make_config(data_name="level", data_train_pairs=0, tokenizer_kind="bytes")
    data = dataclasses.replace(config.data, source="reversed")
    prepared = prepare(dataclasses.replace(config, data=data), tmp_path)
    assert prepared.texts("test") == (["test", "level"], ["tset", "level"])
    assert prepared.checksums["train"] == {"level": {"lines": 2, "sha256": "train"}}
    target = prepared.corpora["train"].target[0]
    assert prepared.vocabulary.target.decode(target) == "niart"


def test_references_have_no_joins(tmp_path: pathlib.Path) -> None:
    write_texts(tmp_path / "text")
    config = text_config(
        tmp_path / "text", tokenizer_kind="whitespace", tokenizer_vocab_size=0
    )
    prepared = prepare(config, tmp_path)
    assert prepared.references("test") == ["AB"]
    assert prepared.references("validation") == ["einszwei", "x", ""]
    assert prepared.texts("test")[1] == ["A@@ B"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"data_max_length": 99}, r"data\.max_length: 256 -> 99"),
        ({"data_train_pairs": 200}, r"data\.train_pairs: 300 -> 200"),
        ({"tokenizer_vocab_size": 119}, r"tokenizer\.vocab_size: 120 -> 119"),
    ],
)
def test_another_configuration_is_refused(
    tmp_path: pathlib.Path, change: dict[str, Any], said: str
) -> None:
    prepare(make_config(), tmp_path)
    with pytest.raises(UserError, match=said):
        prepare(make_config(**change), tmp_path)


def test_a_folder_from_before_a_key_was_there(tmp_path: pathlib.Path) -> None:
    manifest = prepare(make_config(), tmp_path).folder / "manifest.json"
    record = sealed.read_json(manifest, "")
    del record["config"]["data.digits"]
    sealed.write_json(manifest, record)
    prepare(make_config(), tmp_path)
    with pytest.raises(UserError, match=r"data\.digits: 9 -> 3"):
        prepare(make_config(data_digits=3), tmp_path)


def test_a_folder_of_an_earlier_version_is_read(tmp_path: pathlib.Path) -> None:
    manifest = prepare(make_config(), tmp_path, print).folder / "manifest.json"
    values = sealed.read_json(manifest, "")
    assert "data.measure" not in values["config"]  # no part of the pairs
    values["config"]["tokenizer.algorithm"] = "bpe"
    sealed.write_json(manifest, values)
    prepare(make_config(), tmp_path, print)
    values["config"]["tokenizer.algorithm"] = "unigram"
    sealed.write_json(manifest, values)
    with pytest.raises(UserError, match="tokenizer.algorithm: expected 'bpe'"):
        prepare(make_config(), tmp_path, print)


def test_changed_input_is_refused_and_absent_input_is_told(
    tmp_path: pathlib.Path,
) -> None:
    write_texts(tmp_path / "text")
    config = text_config(tmp_path / "text")
    prepare(config, tmp_path)
    path = tmp_path / "text" / "test.en"
    path.write_text("b\n")
    with pytest.raises(UserError, match=r"test\.en.*other content"):
        prepare(config, tmp_path)
    path.unlink()
    said: list[str] = []
    assert len(prepare(config, tmp_path, said.append).corpora["test"]) == 1
    assert "not compare all inputs of test" in said[0] and "test.en" in said[0]
    assert f"data: {path}, from which {tmp_path / 'corpus'} was made, is gone" in said


def test_a_test_set_in_another_cache_is_the_same_input(tmp_path, monkeypatch) -> None:
    write_texts(tmp_path / "text")
    config = text_config(tmp_path / "text", data_test="sacrebleu:wmt13")
    for cache, text in (("old", "a b\n"), ("new", "a b\n"), ("other", "c\n")):
        monkeypatch.setattr(utils, "SACREBLEU_DIR", str(tmp_path / cache))
        folder = tmp_path / cache / "wmt13"
        folder.mkdir(parents=True)
        (folder / "wmt13.en-de.src").write_text(text)
        (folder / "wmt13.en-de.ref").write_text("A\n")
        if cache != "other":
            prepare(config, tmp_path)
    with pytest.raises(UserError, match=r"other/.*\.src: expected .*other content"):
        prepare(config, tmp_path)


@pytest.mark.parametrize("hidden", ["gone", "longer", "empty"])
def test_a_changed_input_is_found_beside_one_that_cannot_be_compared(
    hidden: str, tmp_path: pathlib.Path
) -> None:
    text = tmp_path / "text"
    write_texts(text)
    config = text_config(text)
    prepare(config, tmp_path)
    (text / "train.en").write_text("a b@@ c\n\nlong long long long\nother\n")
    if hidden == "gone":
        (text / "train.de.gz").unlink()
        (text / "test.en").unlink()
    elif hidden == "longer":  # as many lines no more
        (text / "train.en").write_text("a\n" * 5)
    else:
        (text / "train.en").write_text("")
    said: list[str] = []
    with pytest.raises(UserError, match=r"train\.en: expected .*other content"):
        prepare(config, tmp_path, said.append)
    assert "not compare all inputs of train" in said[0] or hidden == "gone"


def test_an_input_that_was_not_there_is_refused(tmp_path: pathlib.Path) -> None:
    write_texts(tmp_path / "text")
    config = text_config(tmp_path / "text")
    prepare(config, tmp_path)
    (tmp_path / "text" / "test.de").write_text("B\n")  # is read before the test.de.gz
    with pytest.raises(UserError, match=r"test\.de: expected .*other content"):
        prepare(config, tmp_path)


def test_a_part_that_is_gone_is_told(tmp_path: pathlib.Path) -> None:
    table = pyarrow.table({"en": ["a b"] * 3, "de": ["c d"] * 3})
    for number in range(2):
        parquet.write_table(table, tmp_path / f"train-{number}.parquet")
    for split in ("validation", "test"):
        parquet.write_table(table, tmp_path / f"{split}.parquet")
    config = text_config(tmp_path, data_source="parquet", data_name="")
    assert len(prepare(config, tmp_path / "run").corpora["train"]) == 6
    gone = tmp_path / "train-1.parquet"
    gone.unlink()
    said: list[str] = []
    assert len(prepare(config, tmp_path / "run", said.append).corpora["train"]) == 6
    folder = tmp_path / "run" / "corpus"
    assert f"data: {gone}, from which {folder} was made, is gone" in said


def test_a_folder_without_the_digests_of_texts_is_compared_by_what_it_has(
    tmp_path: pathlib.Path,
) -> None:
    write_texts(tmp_path / "text")
    path = tmp_path / "text" / "test.en.gz"
    path.write_bytes(gzip.compress((tmp_path / "text" / "test.en").read_bytes()))
    (tmp_path / "text" / "test.en").unlink()
    config = text_config(tmp_path / "text")
    manifest = prepare(config, tmp_path).folder / "manifest.json"
    values = sealed.read_json(manifest, "")
    del values["inputs"]["test"][str(path)]["text_sha256"]
    sealed.write_json(manifest, values)
    prepare(config, tmp_path)
    path.write_bytes(gzip.compress(b"b\n"))
    with pytest.raises(UserError, match=r"test\.en\.gz.*other content"):
        prepare(config, tmp_path)


def test_changed_model_file_is_refused(tmp_path: pathlib.Path) -> None:
    prepared = prepare(make_config(), tmp_path / "first")
    given = tmp_path / "given.model"
    given.write_bytes((prepared.folder / "source.model").read_bytes())
    config = make_config(tokenizer_source_model=str(given))
    assert prepare(config, tmp_path).vocabulary.digest == prepared.vocabulary.digest
    other = prepare(make_config(tokenizer_vocab_size=100), tmp_path / "other")
    given.write_bytes((other.folder / "source.model").read_bytes())
    with pytest.raises(UserError, match=r"given\.model.*other content"):
        prepare(config, tmp_path)


def test_more_training_pairs_than_there_are(tmp_path: pathlib.Path) -> None:
    write_texts(tmp_path / "text")
    config = text_config(tmp_path / "text", data_train_pairs=5)
    with pytest.raises(UserError, match="at most 4.*got 5"):
        prepare(config, tmp_path)
    assert list(tmp_path.iterdir()) == [tmp_path / "text"]


def test_train_pairs_are_counted_once(tmp_path: pathlib.Path) -> None:
    write_texts(tmp_path / "text")
    values = {"tokenizer_kind": "sentencepiece", "tokenizer_vocab_size": 22}
    values |= {"tokenizer_dropout": 0.1, "tokenizer_samples": 2}
    settings = text_config(tmp_path / "text", data_train_pairs=5, **values)
    with pytest.raises(UserError, match="expected at most 4, the training pairs there"):
        prepare(settings, tmp_path)


def test_folder_that_is_not_ours(tmp_path: pathlib.Path) -> None:
    (tmp_path / "corpus").mkdir()
    prepare(make_config(), tmp_path)  # an empty one may be filled
    other = tmp_path / "other"
    (other / "corpus").mkdir(parents=True)
    (other / "corpus" / "thesis.tex").write_text("")
    with pytest.raises(UserError, match=r"manifest\.json"):
        prepare(make_config(), other)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="expected a writable folder"):
        prepare(make_config(), tmp_path / "file")


def test_places_where_no_folder_can_be_made(tmp_path: pathlib.Path) -> None:
    file, link, long = tmp_path / "file", tmp_path / "link", tmp_path / ("x" * 300)
    file.write_text("thesis")
    link.symlink_to(tmp_path / "nothing")
    for place, found in (
        (file, "found a file; remove"),
        (link, "found a broken link; remove"),
        (long, "too long"),
    ):
        with pytest.raises(UserError, match=f"expected a prepared corpus .*{found}"):
            prepare(make_config(data_prepared=str(place)), tmp_path)
    assert file.read_text() == "thesis" and len(os.listdir(tmp_path)) == 2


def test_a_link_to_an_empty_folder_is_filled(tmp_path: pathlib.Path) -> None:
    (tmp_path / "large_disk" / "corpus").mkdir(parents=True)
    (tmp_path / "corpus").symlink_to(tmp_path / "large_disk" / "corpus")
    prepare(make_config(), tmp_path)
    assert (tmp_path / "corpus").is_symlink()
    assert os.listdir(tmp_path / "large_disk") == ["corpus"]
    assert (tmp_path / "large_disk" / "corpus" / "manifest.json").is_file()


@pytest.mark.parametrize("kind", ["bytes", "whitespace"])
@pytest.mark.parametrize("split", ["validation", "test"])
def test_blank_lines_are_nothing_to_measure_with(
    tmp_path: pathlib.Path, split: Split, kind: str
) -> None:
    write_texts(tmp_path / "text")
    config = text_config(tmp_path / "text", tokenizer_kind=kind, tokenizer_vocab_size=0)
    (tmp_path / "text" / f"{split}.en").write_text("a\n\n \t\n")
    target = tmp_path / "text" / f"{split}.de"
    target.write_text("\nb\n\u3000\n")
    with pytest.raises(UserError, match=f"data.{split}: .* got 3, none with text"):
        prepare(config, tmp_path)
    assert os.listdir(tmp_path) == ["text"]
    target.write_text("\nb\nc\n")
    (tmp_path / "text" / f"{split}.en").write_text("a\n\nc\n")
    assert len(prepare(config, tmp_path).corpora[split]) == 3  # one pair is enough


def test_vocabulary_of_another_preparation(tmp_path: pathlib.Path) -> None:
    one = prepare(make_config(), tmp_path / "one")
    two = prepare(make_config(tokenizer_vocab_size=100), tmp_path / "two")
    for name in ("source.model", "vocabulary.json"):
        (one.folder / name).write_bytes((two.folder / name).read_bytes())
    with pytest.raises(UserError, match="vocabulary"):
        prepare(make_config(), tmp_path / "one")


_KILLED = """
    import os, pathlib, signal, sys
    sys.path.insert(0, "tests")
    from support.texts import make_config
    from transformer.prepare import prepare

    def say(line):
        if line.startswith("validation:"):
            os.kill(os.getpid(), signal.SIGKILL)

    prepare(make_config(), pathlib.Path(sys.argv[1]), say)
"""


def test_killed_preparation_is_done_again(tmp_path: pathlib.Path) -> None:
    command = [sys.executable, "-c", textwrap.dedent(_KILLED), str(tmp_path / "run")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True)
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "run" / "corpus").exists()
    left = sorted((tmp_path / "run").iterdir())
    assert len(left) == 2 and ".partial-" in left[0].name
    assert left[1].name == f"{left[0].name}.lock"
    pid = left[0].name.rpartition("-")[2].partition(".")[0]
    elsewhere = (
        tmp_path / "run" / f"corpus.partial-elsewhere-{pid}"
    )  # it may live there
    elsewhere.mkdir()
    after = prepare(make_config(), tmp_path / "run")
    whole = prepare(make_config(), tmp_path / "whole")
    assert contents(after.folder) == contents(whole.folder)
    assert sorted((tmp_path / "run").iterdir()) == [after.folder, elsewhere]


def test_one_that_lives_in_another_container_is_left_alone(
    tmp_path: pathlib.Path,
) -> None:
    """Its host has the same name, and its number is that of no process here."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    folder = tmp_path.resolve() / "corpus"
    theirs = folder.with_name(f"{preparation._partial(folder)}{ended.pid}.0123abcd")
    theirs.mkdir()
    with lock.marking(preparation._mark_of(theirs)):
        preparation._remove_abandoned(folder)
        assert theirs.exists()
        beside = theirs.with_name(f"{theirs.name}.lock").read_bytes()
    theirs.with_name(f"{theirs.name}.lock").write_bytes(beside)  # as a killed one does
    preparation._remove_abandoned(folder)
    assert not list(tmp_path.iterdir())


def test_another_run_finishes_first(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill = preparation._fill

    def and_the_other(*arguments: Any) -> None:
        monkeypatch.setattr(preparation, "_fill", fill)
        fill(*arguments)
        pid = os.getpid()
        monkeypatch.setattr(os, "getpid", lambda: pid + 1)
        prepare(make_config(), tmp_path)
        monkeypatch.undo()

    monkeypatch.setattr(preparation, "_fill", and_the_other)
    prepared = prepare(make_config(), tmp_path)
    assert len(prepared.corpora["train"]) == 300
    assert list(tmp_path.iterdir()) == [prepared.folder]


def test_another_run_finishes_first_with_other_data(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = str(tmp_path / "shared")
    theirs = make_config(data_prepared=shared, data_train_pairs=200)

    def meanwhile(line: str) -> None:
        if line.startswith("validation:"):
            with monkeypatch.context() as patch:
                pid = os.getpid()
                patch.setattr(os, "getpid", lambda: pid + 1)
                prepare(theirs, tmp_path)

    with pytest.raises(UserError, match="data.train_pairs: 200 -> 300; set them back"):
        prepare(make_config(data_prepared=shared), tmp_path, meanwhile)
    assert len(prepare(theirs, tmp_path).corpora["train"]) == 200


def test_a_run_says_where_its_prepared_data_are_not(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for prepared, remedy in {
        "shared": "run this from the folder that the run was trained from",
        str(tmp_path / "shared"): "put it back",
    }.items():
        settings = make_config(data_prepared=prepared)
        folder.write_settings(tmp_path, settings)
        prepare(settings, tmp_path)
        assert open_run(tmp_path)[0] == settings
        os.rename("shared", "elsewhere")
        with pytest.raises(UserError, match=rf"\(data.prepared\), .*; {remedy}"):
            open_run(tmp_path)
        os.rename("elsewhere", "shared")
