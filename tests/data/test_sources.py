"""Sources: numbers, text files and tensorflow_datasets."""

import dataclasses
import gzip
import hashlib
import pathlib
import subprocess
import sys
import textwrap

import pytest
from support.paths import ROOT

from transformer.config import Data, UserError
from transformer.data import sources
from transformer.data.sources import number_words

DATA = Data(
    source="numbers",
    dir="",
    name="",
    source_language="en",
    target_language="de",
    train="train",
    validation="validation",
    test="test",
    train_pairs=0,
    digits=9,
    test_digits=0,
    max_length=100,
    prepared="",
    measure="bleu",
)


def numbers(**changes: object) -> number_words.Numbers:
    data = dataclasses.replace(DATA, **changes)  # type: ignore[arg-type]
    source = sources.open_source(data)
    assert isinstance(source, number_words.Numbers)
    return source


# ---- numbers


def test_a_source_that_is_not_there_is_refused() -> None:
    with pytest.raises(UserError, match="one of numbers, parquet, text, .*, got 'x'"):
        sources.open_source(dataclasses.replace(DATA, source="x"))


def test_number_words_of_both_languages() -> None:
    pairs = dict(numbers(train_pairs=3000).pairs("train"))
    assert pairs["four hundred and twenty-one"] == "vierhunderteinundzwanzig"
    assert pairs["zero"] == "null"


def test_numbers_are_distinct_disjoint_and_as_many_as_promised() -> None:
    sets = {split: list(numbers().numbers(split)) for split in sources.SPLITS}
    assert {k: len(v) for k, v in sets.items()} == {
        "train": 40_000,
        "validation": 500,
        "test": 1_000,
    }
    together = [n for numbers in sets.values() for n in numbers]
    assert len(set(together)) == 41_500
    assert min(together) == 0 and max(together) <= 999_999_999
    assert max(together) > 990_000_000


def test_numbers_of_a_split_do_not_depend_on_how_many_train() -> None:
    few, many = numbers(train_pairs=10), numbers(train_pairs=5000)
    assert list(few.numbers("test")) == list(many.numbers("test"))
    assert list(few.numbers("train")) == list(many.numbers("train"))[:10]
    assert few.checksums("train") != many.checksums("train")


def test_every_magnitude_is_covered() -> None:
    train = list(numbers().numbers("train"))
    assert set(range(100)) <= set(train)  # the words that all others are made of
    digits = [sum(len(str(n)) == d for n in train) for d in range(1, 10)]
    assert min(digits[4:]) > 6_000
    test = list(numbers().numbers("test"))
    assert all(sum(len(str(n)) == d for n in test) > 40 for d in range(3, 10))


def test_a_walk_visits_every_number_once() -> None:
    every = number_words._numbers(number_words._whole(range(1, 5)))
    assert sorted(every) == list(range(10_000))


def test_short_numbers_fall_into_the_splits_of_all_numbers() -> None:
    short = {split: set(numbers(digits=3).numbers(split)) for split in sources.SPLITS}
    assert set.union(*short.values()) == set(range(1000))
    for split, own in short.items():
        assert {number_words.number_split(n) for n in own} == {split}


def test_numbers_of_the_test_may_be_longer() -> None:
    longer = numbers(digits=6, test_digits=9)
    train, validation, test = (set(longer.numbers(s)) for s in sources.SPLITS)
    assert validation == set(numbers(digits=6).numbers("validation"))
    long = {n for n in train if n > 999_999}
    assert len(train) == 40_000 and len(long) > 15_000
    groups = [(n // 10**6, n // 1000 % 1000, n % 1000) for n in long]
    assert all(sum(group > 99 for group in of) <= 1 for of in groups)
    assert min(sum(of[i] > 99 for of in groups) for i in range(3)) > 1_000
    counts = [sum(len(str(n)) == d for n in test) for d in (7, 8, 9)]
    assert sum(counts) == len(test) == 1_000 and min(counts) > 300
    lengths = [
        [len(number_words.words(n, "en").split()) for n in part]
        for part in (train, test)
    ]
    assert max(lengths[0]) == 9 and min(lengths[1]) == 11
    known, asked = (
        {w.strip(",") for n in part for w in number_words.words(n, "en").split()}
        for part in (train, test)
    )
    assert asked <= known and "million" in asked


def test_language_that_num2words_lacks() -> None:
    with pytest.raises(UserError, match="got 'xx'; change"):
        numbers(target_language="xx")


def test_a_language_that_num2words_writes_in_part() -> None:
    assert number_words.words(1, "am")
    with pytest.raises(UserError, match="got 'am', in which it cannot write 6890; ch"):
        number_words.words(6890, "am")


# ---- text


def text(folder: pathlib.Path, **changes: object) -> sources.Source:
    changes = {"source": "text", "dir": str(folder), **changes}
    return sources.open_source(dataclasses.replace(DATA, **changes))  # type: ignore[arg-type]


def write(path: pathlib.Path, content: bytes) -> None:
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def test_text_pairs_line_by_line_plain_and_compressed(tmp_path: pathlib.Path) -> None:
    write(tmp_path / "train.en", b"one\ntwo\n")
    write(tmp_path / "train.de.gz", "eins\nzwölf".encode())
    pairs = list(text(tmp_path).pairs("train"))
    assert pairs == [("one", "eins"), ("two", "zwölf")]


def test_only_newline_ends_a_line(tmp_path: pathlib.Path) -> None:
    odd = "a\u2028b\u0085c\x0bd\x0ce\x1cf\u00a0 "
    write(tmp_path / "test.en", f"{odd}\nlast\n".encode())
    write(tmp_path / "test.de", b"x\r\ny\r\r\n")
    pairs = list(text(tmp_path).pairs("test"))
    assert pairs == [(odd, "x"), ("last", "y\r")]


def test_byte_order_mark_only_at_the_start(tmp_path: pathlib.Path) -> None:
    write(tmp_path / "test.en", "\ufeffa\n\ufeffb\n".encode())
    write(tmp_path / "test.de", b"x\ny\n")
    assert list(text(tmp_path).pairs("test")) == [("a", "x"), ("\ufeffb", "y")]


def test_empty_lines_are_lines(tmp_path: pathlib.Path) -> None:
    write(tmp_path / "test.en", b"\n\na\n\n")
    write(tmp_path / "test.de", b"x\n\n\n\n")
    pairs = [("", "x"), ("", ""), ("a", ""), ("", "")]
    assert list(text(tmp_path).pairs("test")) == pairs


def test_stems_are_joined_and_files_named_outright(tmp_path: pathlib.Path) -> None:
    for stem in ("a", "b.c"):
        write(tmp_path / f"{stem}.en", f"{stem}\n".encode())
        write(tmp_path / f"{stem}.de", f"{stem}!\n".encode())
    files = f"{tmp_path / 'b.c.de'},{tmp_path / 'a.en'}"
    source = text(tmp_path, train=f"a+b.c+{files}")
    expected = [("a", "a!"), ("b.c", "b.c!"), ("b.c!", "a")]
    assert list(source.pairs("train")) == expected
    assert list(text(tmp_path, train="a+b.c", train_pairs=1).pairs("train")) == [
        ("a", "a!")
    ]


@pytest.mark.parametrize(
    "test, remedy",
    [
        ("held", "set data.dir and data.test"),
        ("held.en", "set data.test to a name without extension, held"),
        ("held.en,held.de", "give the paths of two files from the current folder"),
    ],
)
def test_a_missing_file_is_told_by_how_it_was_named(
    tmp_path: pathlib.Path, test: str, remedy: str
) -> None:
    with pytest.raises(UserError, match=f"found none; {remedy}$"):
        list(text(tmp_path, test=test).pairs("test"))


def test_checksums_are_of_the_files_as_they_lie_and_of_a_gz_of_its_text_too(
    tmp_path: pathlib.Path,
) -> None:
    write(tmp_path / "test.en.gz", b"a\nb")
    write(tmp_path / "test.de", b"x\ny\n")
    sums = text(tmp_path).checksums("test")
    stored = (tmp_path / "test.en.gz").read_bytes()
    assert sums == {
        str(tmp_path / "test.en.gz"): {
            "lines": 2,
            "sha256": hashlib.sha256(stored).hexdigest(),
            "text_sha256": hashlib.sha256(b"a\nb").hexdigest(),
        },
        str(tmp_path / "test.de"): {
            "lines": 2,
            "sha256": hashlib.sha256(b"x\ny\n").hexdigest(),
        },
    }


def test_checksums_of_trees_are_of_the_text_too(tmp_path: pathlib.Path) -> None:
    content = b"(S (N a))\n(S (N b))\n"
    data = dataclasses.replace(DATA, source="trees", dir=str(tmp_path), test="plain")
    write(tmp_path / "plain.trees", content)
    write(tmp_path / "packed.trees.gz", content)
    (plain,) = sources.open_source(data).checksums("test").values()
    assert plain == {"lines": 2, "sha256": hashlib.sha256(content).hexdigest()}
    data = dataclasses.replace(data, test="packed")
    (packed,) = sources.open_source(data).checksums("test").values()
    assert packed["lines"] == 2 and packed["sha256"] != plain["sha256"]
    assert packed["text_sha256"] == plain["sha256"]


@pytest.mark.parametrize("read", ["pairs", "checksums"])
def test_unequal_line_counts(tmp_path: pathlib.Path, read: str) -> None:
    write(tmp_path / "test.en", b"a\nb\nc\n")
    write(tmp_path / "test.de", b"x\ny\n")
    with pytest.raises(UserError) as error:
        list(getattr(text(tmp_path), read)("test"))
    message = str(error.value)
    assert "test.de" in message and "got 2 and 3" in message and "line 3" in message


def test_invalid_utf8_names_file_and_line(tmp_path: pathlib.Path) -> None:
    write(tmp_path / "test.en", b"a\nb\n")
    write(tmp_path / "test.de", b"x\nM\xfcller\n")
    with pytest.raises(UserError, match=r"test\.de, line 2: .*0xfc at position 1"):
        list(text(tmp_path).pairs("test"))


def test_missing_file_names_what_was_looked_for(tmp_path: pathlib.Path) -> None:
    write(tmp_path / "train.en", b"a\n")
    with pytest.raises(UserError, match=r"train\.de or .*train\.de\.gz"):
        list(text(tmp_path).pairs("train"))


@pytest.mark.parametrize("value", ["", "a+", "x,y,z"])
def test_split_that_names_no_files(tmp_path: pathlib.Path, value: str) -> None:
    with pytest.raises(UserError, match=r"data\.train"):
        list(text(tmp_path, train=value).pairs("train"))


def test_empty_files(tmp_path: pathlib.Path) -> None:
    write(tmp_path / "test.en", b"")
    write(tmp_path / "test.de", b"")
    with pytest.raises(UserError, match="empty"):
        text(tmp_path).checksums("test")


def test_damaged_gzip(tmp_path: pathlib.Path) -> None:
    whole = gzip.compress(b"line\n" * 1000)
    (tmp_path / "test.en.gz").write_bytes(whole[:-12])
    write(tmp_path / "test.de", b"x\n" * 1000)
    with pytest.raises(UserError, match=r"test\.en\.gz"):
        list(text(tmp_path).pairs("test"))


# ---- tensorflow_datasets

# In a process of its own: it shows that nothing imports tensorflow on the way.
_TFDS = """
    import sys
    import tensorflow_datasets as tfds
    from transformer.config import Data, UserError
    from transformer.data import sources

    class Tiny(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            features = tfds.features.Translation(languages=("de", "en"))
            return tfds.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, downloads):
            sizes = {"train": 20, "test": 3}
            return {name: self._generate_examples(n) for name, n in sizes.items()}

        def _generate_examples(self, n):
            for i in range(n):
                yield i, {"de": f"Zahl\\n{i} ü", "en": f"number {i}"}

    class Many(Tiny):
        def _info(self):
            text = tfds.features.TranslationVariableLanguages(languages=["de", "en"])
            features = tfds.features.FeaturesDict({"texts": text})
            return tfds.core.DatasetInfo(builder=self, features=features)

        def _generate_examples(self, n):
            for i in range(n):
                yield i, {"texts": {"en": "a", **({"de": f"{i}"} if i % 2 else {})}}

    def source(**changes):
        values = dict(
            source="tfds", dir=sys.argv[1], name="tiny", source_language="en",
            target_language="de", train="train", validation="train[:2]", test="test",
            train_pairs=0, digits=9, test_digits=0, max_length=9, prepared="",
            measure="bleu",
        )
        return sources.open_source(Data(**(values | changes)))

    def error(**changes):
        try:
            list(source(**changes).pairs("train"))
        except UserError as error:
            return str(error)

    tiny = source()
    expected = {(f"number {i}", f"Zahl {i} ü") for i in range(20)}
    assert set(tiny.pairs("train")) == expected
    assert list(tiny.pairs("train")) == list(source().pairs("train"))
    assert list(tiny.pairs("validation")) == list(tiny.pairs("train"))[:2]
    assert len(list(source(train="train+test").pairs("train"))) == 23
    assert len(list(source(train_pairs=7).pairs("train"))) == 7
    [(name, record)] = tiny.checksums("test").items()
    assert "array_record" in name and record["lines"] == 3
    assert len(record["sha256"]) == 64

    many = source(name="many")
    assert set(many.pairs("train")) == {("a", f"{i}") for i in range(1, 20, 2)}

    assert "'absent'" in error(name="absent")
    assert "'dev'" in error(train="dev")
    assert "de, en" in error(target_language="fr")
    assert "\\n" not in error(train="dev")
    wmt = source(name="wmt14_translate/de-en")  # known although never imported here
    assert wmt._builder.name == "wmt14_translate"
    assert wmt._builder.url_infos  # what a download begins with
    assert "tensorflow" not in sys.modules
"""


def test_tfds_builder_without_tensorflow(tmp_path: pathlib.Path) -> None:
    command = [sys.executable, "-c", textwrap.dedent(_TFDS), str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
