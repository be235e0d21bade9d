"""Corpora by other names: weights, tags, Parquet, sacreBLEU's cache, whole symbols."""

import dataclasses
import pathlib
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet
from sacrebleu import utils
from sacrebleu.dataset import DATASETS
from sacrebleu.dataset.wmt_xml import WMTXMLDataset
from support.texts import make_config

from transformer.config import Data, UserError
from transformer.data import sources
from transformer.data.sources import sacrebleu_sets
from transformer.data.tokenizers.sentence_piece import SentencePiece

DATA = make_config().data


def opened(folder: pathlib.Path, source: str, **changes: object) -> sources.Source:
    own = {"source": source, "dir": str(folder), "name": "", "train_pairs": 0}
    data: Data = dataclasses.replace(DATA, **(own | changes))  # type: ignore[arg-type]
    return sources.open_source(data)


def write_text(folder: pathlib.Path, stem: str, *pairs: tuple[str, str]) -> None:
    for language, lines in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
        text = "".join(f"{line}\n" for line in lines)
        (folder / f"{stem}.{language}").write_bytes(text.encode())


# ---- weights and tags ----------------------------------------------------------------


@pytest.fixture
def corpora(tmp_path: pathlib.Path) -> pathlib.Path:
    write_text(tmp_path, "ep", ("a", "A"), (" ", "B"))
    write_text(tmp_path, "news", ("c", "C"))
    return tmp_path


def test_a_corpus_is_read_as_often_as_it_weighs(corpora):
    source = opened(corpora, "text", train="ep*2+news#<n>+news*1")
    ep = [("a", "A"), (" ", "B")]
    assert [*source.pairs("train")] == [*ep, *ep, ("<n> c", "C"), ("c", "C")]
    assert len(source.checksums("train")) == 4
    first = opened(corpora, "text", train="ep*2+news", train_pairs=3)
    assert [*first.pairs("train")] == [*ep, ep[0]]


def test_a_tag_stands_before_a_sentence_and_not_before_none(corpora):
    source = opened(corpora, "text", train="ep*2#2de", test="news#<n>")
    assert [x for x, _ in source.pairs("train")] == ["2de a", " ", "2de a", " "]
    assert [*source.pairs("test")] == [("<n> c", "C")]


def test_files_named_outright_have_weights_too(corpora):
    files = f"{corpora / 'ep.de'},{corpora / 'ep.en'}"
    source = opened(corpora, "text", train=f"{files}*3#<r>")
    assert [*source.pairs("train")] == [("<r> A", "a"), ("<r> B", " ")] * 3


def test_the_root_is_no_file_stem(corpora):
    with pytest.raises(
        UserError, match=r"data\.train: expected file stems such as tra"
    ):
        list(opened(corpora, "text", train="ep+/").pairs("train"))


@pytest.mark.parametrize("value", ["ep*0", "ep#", "ep#a#b", "ep#a*2", "#a", "ep#a b"])
def test_what_is_no_weight_and_no_tag(corpora, value):
    with pytest.raises(UserError, match=r"data\.train: expected file stems.*NAME\*TIM"):
        list(opened(corpora, "text", train=value).pairs("train"))


def test_test_sentences_are_read_once(corpora):
    with pytest.raises(UserError, match=r"data\.test: .*got 'ep\*2'; leave \*2 out"):
        list(opened(corpora, "text", test="ep*2").pairs("test"))


# ---- Parquet -------------------------------------------------------------------------

PAIRS = [{"de": f"Satz\n{i} ü", "en": f"line\r\n{i}"} for i in range(5)]


def test_translations_of_a_struct_as_wmt14_has_them(tmp_path):
    for number, rows in enumerate((PAIRS[:3], PAIRS[3:])):
        table = pyarrow.table({"id": range(len(rows)), "translation": rows})
        parquet.write_table(table, tmp_path / f"train-0000{number}-of-00002.parquet")
    source = opened(tmp_path, "parquet", train="train")
    expected = [(f"line {i}", f"Satz {i} ü") for i in range(5)]
    assert [*source.pairs("train")] == expected
    lines = [record["lines"] for record in source.checksums("train").values()]
    assert lines == [3, 2]
    turned = opened(
        tmp_path, "parquet", source_language="de", target_language="en", train_pairs=1
    )
    assert [*turned.pairs("train")] == [("Satz 0 ü", "line 0")]
    weighed = opened(tmp_path, "parquet", train="train-*1-of-00002.parquet*2#<t>")
    second = [("<t> line 3", "Satz 3 ü"), ("<t> line 4", "Satz 4 ü")]
    assert [*weighed.pairs("train")] == second * 2


@pytest.mark.parametrize(
    "columns, name", [(("en", "de"), ""), (("src", "a.ref"), "src,a.ref")]
)
def test_two_columns_of_text(tmp_path, columns, name):
    source, (target, *field) = columns[0], columns[1].split(".")
    targets = ["A", None, "C"]
    wrapped = [{field[0]: x} for x in targets] if field else targets
    wrapped = [*wrapped[:2], None] if field else wrapped  # a struct may be absent
    table = pyarrow.table({target: wrapped, source: ["a", "b", None]})
    parquet.write_table(table, tmp_path / "test.parquet")
    found = [*opened(tmp_path, "parquet", name=name).pairs("test")]
    assert found == [("a", "A"), ("b", ""), ("", "" if field else "C")]


def test_columns_with_a_dot_in_their_own_names(tmp_path):
    flat = {"translation.en": ["a"], "translation.de": ["A"], "de": ["other"]}
    nested = {"translation": [{"fr": "b"}], "translation.de": ["B"]}
    for columns, language, expected in ((flat, "en", "a"), (nested, "fr", "b")):
        parquet.write_table(pyarrow.table(columns), tmp_path / "test.parquet")
        source = opened(tmp_path, "parquet", source_language=language)
        assert [*source.pairs("test")] == [(expected, expected.upper())]


def test_text_of_every_kind(tmp_path):
    words = ["a", None, "a"]
    kinds = pyarrow.large_string(), pyarrow.string_view()
    columns = [pyarrow.array(words, kind) for kind in kinds]
    columns += [pyarrow.array(words).dictionary_encode()]
    for number, column in enumerate(columns):
        fields = pyarrow.StructArray.from_arrays([column], ["de"])
        table = pyarrow.table({"en": column, "de": fields})
        parquet.write_table(table, tmp_path / f"train-{number}.parquet")
    source = opened(tmp_path, "parquet", train="train", name="en,de.de")
    assert [*source.pairs("train")] == [(x or "", x or "") for x in words] * 3


def test_more_rows_than_are_read_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr("transformer.data.sources.parquet._ROWS", 2)
    parquet.write_table(pyarrow.table({"translation": PAIRS}), tmp_path / "x.parquet")
    found = opened(tmp_path, "parquet", train="x.parquet").pairs("train")
    assert [source for source, _ in found] == [f"line {i}" for i in range(5)]


def test_mistakes_in_parquet_are_told(tmp_path):
    with pytest.raises(
        UserError, match=r"train\.parquet or train-\*\.parquet in .*fou"
    ):
        opened(tmp_path, "parquet").checksums("train")
    table = pyarrow.table({"en": ["a"], "de": [1]})
    parquet.write_table(table, tmp_path / "train.parquet")
    expected = (
        r"translation\.en,translation\.de or en,de, got en \(string\), de \(int64"
    )
    with pytest.raises(UserError, match=expected):
        opened(tmp_path, "parquet").checksums("train")
    with pytest.raises(UserError, match=r"wmt14/de-en, got .*set data\.name to"):
        list(opened(tmp_path, "parquet", name="wmt14/de-en").pairs("train"))
    parquet.write_table(table[:0], tmp_path / "test.parquet")
    with pytest.raises(UserError, match="got no rows"):
        opened(tmp_path, "parquet", name="en,en").checksums("test")
    broken = pyarrow.StringArray.from_buffers(
        1,
        pyarrow.array([0, 1], pyarrow.int32()).buffers()[1],
        pyarrow.py_buffer(b"\xe4"),
    )
    table = pyarrow.table({"en": ["a"], "de": broken})
    parquet.write_table(table, tmp_path / "train.parquet")
    with pytest.raises(UserError, match=r"readable Parquet file, got: 'utf-8' codec"):
        list(opened(tmp_path, "parquet").pairs("train"))
    whole = (tmp_path / "train.parquet").read_bytes()
    (tmp_path / "train.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"train\.parquet: expected a readable Parquet"):
        list(opened(tmp_path, "parquet").pairs("train"))


def test_a_page_that_is_not_as_it_was_written_is_found(tmp_path):
    table = pyarrow.table({"en": ["word one", "word two"], "de": ["eins", "zwei"]})
    path = tmp_path / "train.parquet"
    how: dict[str, Any] = {"write_page_checksum": True, "compression": "none"}
    parquet.write_table(table, path, use_dictionary=False, **how)
    assert len(list(opened(tmp_path, "parquet").pairs("train"))) == 2
    path.write_bytes(path.read_bytes().replace(b"word two", b"WORD two"))
    with pytest.raises(UserError, match=r"readable Parquet file, got: .*CRC"):
        list(opened(tmp_path, "parquet").pairs("train"))


# ---- sacreBLEU's test sets -----------------------------------------------------------


def test_a_test_set_out_of_the_cache(corpora, tmp_path, monkeypatch):
    monkeypatch.setattr(utils, "SACREBLEU_DIR", str(tmp_path / "cache"))
    folder = tmp_path / "cache" / "wmt14" / "full"
    folder.mkdir(parents=True)
    source = opened(corpora, "text", train="ep", test="sacrebleu:wmt14/full")
    hint = (
        r"found no wmt14_full\.en-de; fetch it once by sacrebleu -t wmt14/full -l en-"
    )
    with pytest.raises(UserError, match=hint):
        source.checksums("test")
    (folder / "wmt14_full.en-de.src").write_text("one\ntwo\n")
    (folder / "wmt14_full.en-de.ref").write_text("eins\nzwei\n")
    assert [*source.pairs("test")] == [("one", "eins"), ("two", "zwei")]
    assert [*source.pairs("train")] == [("a", "A"), (" ", "B")]
    digests = source.checksums("test")
    assert [record["lines"] for record in digests.values()] == [2, 2]


def test_the_reference_is_the_one_that_the_test_set_means(
    corpora, tmp_path, monkeypatch
):
    monkeypatch.setattr(utils, "SACREBLEU_DIR", str(tmp_path))
    folder = tmp_path / "wmt21" / "B"
    folder.mkdir(parents=True)
    for field in ("src", "ref", "ref-A", "ref-B", "reference-system"):
        (folder / f"wmt21_B.cs-en.{field}").write_text(f"{field}\n")
    languages = {"source_language": "cs", "target_language": "en"}
    source = opened(corpora, "text", test="sacrebleu:wmt21/B", **languages)
    assert [*source.pairs("test")] == [("src", "ref-B")]


def test_the_references_are_those_of_sacrebleu():
    for name, dataset in DATASETS.items():
        for pair in dataset.langpairs:
            if isinstance(dataset, WMTXMLDataset):
                theirs = dataset._get_langpair_allowed_refs(pair)
            else:
                fields = dataset.fieldnames(pair)
                theirs = [x for x in fields if x.startswith("ref")]
            ours = sacrebleu_sets.fields(dataset, pair)
            assert theirs[0].replace(":", "-") in ours, (name, pair)
            if isinstance(dataset, WMTXMLDataset):
                assert ours == [x.replace(":", "-") for x in theirs], (name, pair)


@pytest.mark.parametrize(
    "split, name, language, told",
    [
        ("test", "sacrebleu:wmt14/ful", "de", "did you mean wmt14/full"),
        ("validation", "sacrebleu:wmt13", "xx", "expected languages .* got en-xx"),
        ("train", "sacrebleu:wmt13", "de", "expected pairs to train on"),
    ],
)
def test_test_sets_that_cannot_be(corpora, split, name, language, told):
    with pytest.raises(UserError, match=told):
        changes = {split: name, "target_language": language}
        opened(corpora, "text", **changes).checksums(split)


# ---- symbols -------------------------------------------------------------------------


def test_symbols_are_kept_whole_wherever_they_stand():
    settings = make_config(
        tokenizer_vocab_size=60, tokenizer_symbols="<ep>,__x"
    ).tokenizer
    texts = [("some words to learn from", "einige Wörter zum Lernen")] * 3
    model = SentencePiece.build(texts, settings, "")
    assert "<ep>" in model.pieces(model.encode("<ep> some"))
    assert model.pieces(model.encode("words__xlearn")).count("__x") == 1
    assert model.decode(model.encode("<ep> some words")) == "<ep> some words"
    plain = SentencePiece.build(
        texts, make_config(tokenizer_vocab_size=60).tokenizer, ""
    )
    assert "<ep>" not in plain.pieces(plain.encode("<ep> some"))


@pytest.mark.parametrize(
    "changes, told",
    [
        ({"tokenizer_symbols": "a,,b"}, "distinct symbols joined by commas"),
        ({"tokenizer_symbols": "a b"}, "without white space"),
        ({"tokenizer_symbols": "a,a"}, "distinct symbols"),
        ({"tokenizer_symbols": "a,</s>"}, "none of <pad>, <unk>"),
        ({"tokenizer_symbols": "a", "tokenizer_kind": "bytes"}, "no sentencepiece"),
        ({"tokenizer_symbols": "a", "tokenizer_source_model": "x"}, "no sentencepiece"),
    ],
)
def test_symbols_that_cannot_be(changes, told):
    with pytest.raises(UserError, match=rf"tokenizer\.symbols: .*{told}"):
        make_config(**changes)
