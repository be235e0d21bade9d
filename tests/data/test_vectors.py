"""Arrays in place of source lines: what is read, how it is kept, what is refused."""

import dataclasses
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.configs import base, changed

from transformer import config
from transformer.config import Config, UserError
from transformer.data import sources, vectors
from transformer.data.batches import Batches, Group
from transformer.data.tokenizers import Vectors, load_vocabulary
from transformer.prepare import Prepared, prepare
from transformer.tools import strips

LENGTHS = {"train": [3, 1, 4, 1, 5, 2], "validation": [2, 2], "test": [6]}
WORDS = "one two three four five six".split()
F = 3


def write(folder: Path) -> dict[str, list[np.ndarray]]:
    """Write arrays of LENGTHS, and a line of as many words for each."""
    draw = np.random.default_rng(0)
    every = {}
    for split, lengths in LENGTHS.items():
        (folder / split).mkdir(parents=True)
        every[split] = [draw.normal(size=(n, F)).astype(np.float32) for n in lengths]
        for i, array in enumerate(every[split]):
            np.save(folder / split / f"{i}.npy", array)
        (folder / f"{split}.txt").write_text(
            "".join(" ".join(WORDS[:n]) + "\n" for n in lengths)
        )
    return every


def settings_of(folder: Path, **changes: object) -> Config:
    run = {
        "data.source": "vectors",
        "data.dir": str(folder),
        "data.name": "",
        "data.max_length": 6,
        "tokenizer.kind": "whitespace",
        "tokenizer.vocab_size": 0,
        "tokenizer.joint": False,
        "model.tying": "two",
        "batch.tokens": 48,
        "batch.shapes": 2,
        "batch.multiple": 1,
        "batch.length_multiple": 1,
    }
    return base(**(run | changes))


@pytest.fixture
def arrays(tmp_path: Path) -> dict[str, list[np.ndarray]]:
    return write(tmp_path / "data")


def prepared(tmp_path: Path, **changes: object) -> Prepared:
    return prepare(settings_of(tmp_path / "data", **changes), tmp_path / "run")


# ---- what is kept --------------------------------------------------------------------


def test_a_prepared_corpus_is_the_arrays(arrays, tmp_path):
    found = prepared(tmp_path)
    for split in sources.SPLITS:
        kept: Any = found.corpora[split].source
        np.testing.assert_array_equal(kept.lengths, LENGTHS[split])
        for one, array in zip(kept, arrays[split], strict=True):
            np.testing.assert_array_equal(one, array)
            assert one.dtype == np.float32
    names, targets = found.texts("test")
    assert names == [str(tmp_path / "data/test/0.npy")]
    assert targets == ["one two three four five six"]
    (read,) = found.inputs("test")
    np.testing.assert_array_equal(read, arrays["test"][0])
    assert found.vocabulary.source.size == F
    again = load_vocabulary(tmp_path / "run" / "corpus")
    assert again.digest == found.vocabulary.digest


def test_batches_have_a_mark_the_features_and_zeros(arrays, tmp_path):
    found = prepared(tmp_path)
    settings = settings_of(tmp_path / "data")
    plan = Batches(found.corpora["train"], settings.batch, 0)
    seen = []
    for number in range(plan.per_epoch):
        batch, (rows, s, _) = plan.batch_at(number), plan.shape_at(number)
        assert batch["source"].shape == (rows, s, 1 + F)
        assert batch["source"].dtype == np.float32
        for source, target in zip(batch["source"], batch["target"], strict=True):
            frames = source[source[:, 0] == 1, 1:]
            same = [
                i for i, x in enumerate(arrays["train"]) if np.array_equal(x, frames)
            ]
            assert len(frames) == max((target != 0).sum() - 1, 0)  # as many words
            np.testing.assert_array_equal(source[: len(frames), 1:], frames)
            assert not source[len(frames) :].any()
            seen += same
    assert sorted(seen) == list(range(6))
    group = Group(np.array([4, 0]), 3, 7)
    in_group = group.padded(found.corpora["train"].source)
    by_rows = found.corpora["train"].source.padded(group.rows, (3, 7))
    np.testing.assert_array_equal(in_group, by_rows)
    assert in_group[:, :, 0].sum(1).tolist() == [5, 3, 0]


def test_a_frame_more_than_the_longest_is_left_out(arrays, tmp_path):
    # Of 5 words and EOS there is no room for: of 5 frames there would be.
    found = prepared(tmp_path, **{"data.max_length": 5})
    assert found.corpora["train"].source.lengths.max() == 4
    assert found.corpora["train"].counts.long == 1


def test_as_many_frames_as_the_longest_are_kept(arrays, tmp_path):
    # They have no EOS to make room for.
    (tmp_path / "data/train.txt").write_text("one\n" * len(LENGTHS["train"]))
    found = prepared(tmp_path, **{"data.max_length": 5})
    assert found.corpora["train"].source.lengths.max() == 5
    assert found.corpora["train"].counts.long == 0


def test_inputs_that_changed_are_refused(arrays, tmp_path):
    prepared(tmp_path)
    np.save(tmp_path / "data/train/0.npy", arrays["train"][0] + 1)
    with pytest.raises(UserError, match="got other content"):
        prepared(tmp_path)


def test_other_numbers_become_float32(tmp_path):
    for dtype in (np.uint8, np.float16, np.int64, bool):
        np.save(tmp_path / "x.npy", np.ones((2, 3), dtype))
        found = vectors.read(tmp_path / "x.npy", 3)
        assert found.dtype == np.float32 and found.tolist() == [[1.0] * 3] * 2


# ---- what is refused -----------------------------------------------------------------


def said(call, *arguments: object) -> str:
    with pytest.raises(UserError) as error:
        call(*arguments)
    assert "\n" not in str(error.value)
    return str(error.value)


BAD = {
    "a vector": (np.ones(3), r"the shape (3,)"),
    "a picture": (np.ones((2, 3, 4)), r"the shape (2, 3, 4)"),
    "no frame": (np.ones((0, 3)), r"the shape (0, 3)"),
    "other features": (np.ones((2, 4)), "expected 3 features per frame"),
    "not finite": (np.array([[1, 2, 3], [1, np.nan, 3.0]]), "in frame 1"),
    "too large": (np.full((2, 3), 1e300), "in frame 0"),
    "complex": (np.ones((2, 3), complex), "complex128"),
    "text": (np.array([["a", "b", "c"]]), "<U1"),
    "objects": (np.array([[1, 2, None]], object), "Object arrays cannot be loaded"),
}


@pytest.mark.parametrize("case", BAD)
def test_an_array_that_is_none_of_frames_and_features(tmp_path, case):
    array, expected = BAD[case]
    np.save(tmp_path / "x.npy", array, allow_pickle=True)
    message = said(vectors.read, tmp_path / "x.npy", F)
    assert message.startswith(str(tmp_path / "x.npy")) and expected in message


class _Trap:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was run",))


def _header(shape: tuple[int, ...]) -> bytes:
    text = io.BytesIO()
    described = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(text, described)
    return text.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"three hundred",
        pickle.dumps(_Trap()),
        b"\x93NUMPY\x01\x00\x05\x00junk\n",
        _header((2**62, 2**62)),
        b"\x93NUMPY\x01\x00\x60\xea" + b"1+" * 29_999 + b"1\n",
        _header((2, 3)).replace(b"<f4", b"<,4"),
    ],
    ids=["empty", "text", "pickle", "header", "size", "depth", "dtype"],
)
def test_a_file_that_is_no_array(tmp_path, content):
    (tmp_path / "x.npy").write_bytes(content)
    assert "expected a .npy array of numbers" in said(vectors.read, tmp_path / "x.npy")


def test_half_a_file_and_none(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((20, 3)))
    content = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "x.npy").write_bytes(content[:-100])
    assert "expected a .npy array" in said(vectors.read, tmp_path / "x.npy")
    assert "No such file" in said(vectors.read, tmp_path / "y.npy")


def test_a_link_to_nothing_and_a_folder_are_no_arrays(arrays, tmp_path):
    place = tmp_path / "data/train/0.npy"
    place.unlink()
    place.symlink_to(tmp_path / "nothing")
    assert f"{place}: expected an array written by numpy.save" in said(
        prepared, tmp_path
    )
    place.unlink()
    place.mkdir()
    assert f"{place}: expected an array written by numpy.save" in said(
        prepared, tmp_path
    )


def test_an_array_more_or_less_is_another_input(arrays, tmp_path):
    prepared(tmp_path)
    np.save(tmp_path / "data/train/x.npy", arrays["train"][0])
    assert "train: expected the content that" in said(prepared, tmp_path)


def test_folders_that_do_not_fit(arrays, tmp_path):
    folder = tmp_path / "data"
    (folder / "test.txt").write_text("one\ntwo\n")
    assert "got 2 and 1; give each array one line" in said(prepared, tmp_path)
    (folder / "test.txt").unlink()
    assert "test.txt, found none" in said(prepared, tmp_path)
    (folder / "test.txt").write_text("one\n")
    (folder / "test/0.npy").unlink()
    assert "expected .npy arrays, found none" in said(prepared, tmp_path)
    np.save(folder / "test" / "a\nb.npy", np.ones((2, 3)))
    assert "printable names" in said(prepared, tmp_path)
    np.save(folder / "train/1.npy", np.ones((2, 4)))
    (folder / "test" / "a\nb.npy").rename(folder / "test/0.npy")
    assert "train/1.npy: expected 3 features" in said(prepared, tmp_path)
    assert "no_such" in said(lambda: prepared(tmp_path, **{"data.test": "no_such"}))
    for nameless in ("train+", "train+.", "train+/"):
        told = said(lambda name=nameless: prepared(tmp_path, **{"data.train": name}))
        assert (
            f"data.train: expected names of folders joined by '+', got {nameless!r}"
            in told
        )
    assert not (tmp_path / "run").exists() or not list((tmp_path / "run").iterdir())


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("tokenizer.joint", True, "tokenizer.joint: expected False with data.source"),
        ("tokenizer.source_model", "a.model", "tokenizer.source_model: expected ''"),
        ("tokenizer.kind", "marian", "tokenizer.kind: expected sentencepiece, whitesp"),
        ("model.vocab_size", 64, "model.vocab_size: expected 0 with data.source"),
        ("model.tying", "three", "model.tying: expected two or none"),
        ("tokenizer.target_kind", "tagged", "tokenizer.target_kind: expected same"),
    ],
)
def test_keys_that_text_alone_has(tmp_path, key, value, message):
    values = changed(dict(config.flatten(settings_of(tmp_path))) | {key: value})
    assert said(config.resolve, values).startswith(f"config: {message}")


def test_vectors_have_no_words():
    for call in (Vectors(3).words, Vectors(3).labels, Vectors(3).decode):
        assert "expected a run whose sources are text" in said(call, [1, 2])
    assert Vectors(3).digest != Vectors(4).digest


# ---- the strips of digits ------------------------------------------------------------


SMALL = {
    "train": strips.Made(60, 40, least=1, moved=1),
    "validation": strips.Made(40, 5),
    "test": strips.Made(60, 20),
}


def test_strips_show_their_numbers_by_images_of_their_split_alone(tmp_path):
    used = strips.write(tmp_path / "a", SMALL)
    again = strips.write(tmp_path / "b", SMALL)
    assert used == again
    for one in sorted((tmp_path / "a").rglob("*.*")):
        other = tmp_path / "b" / one.relative_to(tmp_path / "a")
        assert one.read_bytes() == other.read_bytes()
    for split in ("train", "validation"):
        assert not used[split] & used["test"]
    data = dataclasses.replace(settings_of(tmp_path / "a").data, train_pairs=30)
    source = sources.open_source(data)
    assert len([*source.pairs("train")]) == 30
    from sklearn import datasets

    images, labels = datasets.load_digits(return_X_y=True)
    for path, line in source.pairs("test"):
        strip = vectors.read(Path(path), strips.SIZE)
        assert 24 <= len(strip) <= 36 and 0 <= strip.min() and strip.max() <= 1
        assert "hundred" in line
        # The first image of the strip is one of the digit that is said first.
        first = line.split()[0]
        want = "zero one two three four five six seven eight nine".split().index(first)
        own = [i for i in used["test"] if labels[i] == want]
        found = [
            i
            for i in own
            for at in range(4)
            if np.array_equal(strip[at : at + 8].T.ravel() * 16, images[i])
        ]
        assert found
    assert "expected a new folder" in said(strips.write, tmp_path / "a", SMALL)
