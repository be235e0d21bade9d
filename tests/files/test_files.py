"""What is written is there whole or not at all, and read as it was written or not."""

import gzip
import io
import json
import os
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer.config import UserError
from transformer.files import digests, lines, lock, sealed, whole

# ------------------------------------------------------------------------------- whole


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError), whole.replacing(path) as file:
        file.write(b"new")
        raise RuntimeError
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_link_is_replaced_not_followed(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"old")
    path = tmp_path / "file"
    path.symlink_to(elsewhere)
    whole.write_whole(path, b"new")
    assert elsewhere.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert not path.is_symlink()


# ------------------------------------------------------------------------------ sealed

VALUE = {"a": 1, "b": [0.1, "ä"], "c": {"d": None}}


def test_json_comes_back_as_it_was_written(tmp_path):
    sealed.write_json(tmp_path / "x.json", VALUE)
    assert sealed.read_json(tmp_path / "x.json", "help") == VALUE


def test_every_flipped_bit_is_noticed_or_changes_nothing(tmp_path):
    path = tmp_path / "x.json"
    sealed.write_json(path, VALUE)
    content = path.read_bytes()
    for place in range(len(content)):
        for bit in range(8):
            damaged = bytearray(content)
            damaged[place] ^= 1 << bit
            path.write_bytes(damaged)
            try:
                assert sealed.read_json(path, "make it anew") == VALUE
            except UserError as error:
                message = str(error)
                assert message.startswith(f"{path}: expected")
                assert message.endswith("; make it anew")


@given(st.data())
def test_every_truncation_is_noticed(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("json") / "x.json"
    sealed.write_json(path, VALUE)
    content = path.read_bytes()
    path.write_bytes(content[: data.draw(st.integers(0, len(content) - 2))])
    with pytest.raises(UserError, match="expected"):
        sealed.read_json(path, "help")


def test_json_of_an_earlier_version_has_no_seal(tmp_path):
    path = tmp_path / "x.json"
    path.write_text(json.dumps(VALUE))
    assert sealed.read_json(path, "help") == VALUE


@pytest.mark.parametrize("content", [b"[]", b"1", b"\xff", b"[" * 100_000, b""])
def test_what_is_no_object_is_refused(tmp_path, content):
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=re.escape(f"{path}: expected")):
        sealed.read_json(path, "help")


def test_a_folder_or_nothing_in_place_of_a_file_is_refused(tmp_path):
    (tmp_path / "file").touch()
    for path, expected in {
        tmp_path: "a readable file, got: Is a directory",
        tmp_path / "absent": "a file, found none",
        tmp_path / "file" / "below": "a readable file, got: Not a directory",
    }.items():
        with pytest.raises(UserError, match=f"expected {expected}; help"):
            sealed.read_json(path, "help")


# ------------------------------------------------------------------------------- lines


def test_lines_are_those_of_training_also_from_windows():
    raw = [b"\xef\xbb\xbfa\r\n", b"b\r\r\n", b"c \xc2\x85d\n", b"\xef\xbb\xbfe"]
    assert [*lines.decoded(raw, "x")] == ["a", "b\r", "c \x85d", "\ufeffe"]


def test_the_line_that_is_no_utf8_is_named():
    with pytest.raises(UserError, match="x, line 2: expected UTF-8, got byte 0xff at"):
        list(lines.decoded([b"a\n", b"b\xff\n"], "x"))
    compressed = gzip.compress(b"a\n")
    with pytest.raises(UserError, match="x: expected text, got a .gz file; decompress"):
        list(lines.decoded(io.BytesIO(compressed), "x"))


@given(st.text())
def test_one_line_is_one_line(text):
    assert len(lines.one_line(text).splitlines()) <= 1
    if len(text.splitlines()) <= 1 and not text.endswith("\n"):
        assert lines.one_line(text).strip() == text.strip()


# ----------------------------------------------------------------------------- digests


@pytest.fixture
def big(tmp_path):
    path = tmp_path / "big"
    path.write_bytes(os.urandom(3 * digests.BLOCK + 17))
    return path


def test_blocks_are_verified_when_they_are_read(big):
    record = digests.record_of(big)
    content = bytearray(big.read_bytes())
    content[2 * digests.BLOCK + 5] ^= 1
    big.write_bytes(content)
    file = digests.Verified(big, record, "prepare anew")
    first = digests.BLOCK
    assert file.read(first - 3, 10) == content[first - 3 : first + 7]
    for start, count in [(2 * first, 1), (2 * first - 1, 2), (0, len(content))]:
        with pytest.raises(UserError, match=r"block 3 of 4.*; prepare anew"):
            file.read(start, count)
    with pytest.raises(UserError, match="block 3 of 4"):
        file.verify()
    digests.Verified(big, digests.record_of(big), "").verify()


def test_another_size_and_absence_are_refused_at_once(big):
    record = digests.record_of(big)
    os.truncate(big, 5)
    with pytest.raises(UserError, match="expected 3,145,745 bytes, got 5"):
        digests.Verified(big, record, "help")
    with pytest.raises(UserError, match="expected a readable file"):
        digests.Verified(big.with_name("absent"), record, "help")


# -------------------------------------------------------------------------------- lock

HOLD = """
import sys, time
from pathlib import Path
from transformer.files import lock
with lock.holding(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_the_second_is_told_of_the_first_and_a_killed_one_holds_nothing(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout
    with holder:
        try:
            assert holder.stdout.readline() == "held\n"
            with (
                pytest.raises(UserError, match=rf"process {holder.pid} on .* since 20"),
                lock.holding(tmp_path),
            ):
                pass
        finally:
            holder.kill()
    with lock.holding(tmp_path):
        assert json.loads((tmp_path / "lock").read_text())["process"] == os.getpid()


def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("content")
    (tmp_path / "lock").symlink_to(elsewhere)
    with pytest.raises(UserError, match="; remove it$"), lock.holding(tmp_path):
        pass
    assert elsewhere.read_text() == "content"


def test_in_a_folder_that_cannot_be_written_the_lock_is_not_to_blame(
    tmp_path, monkeypatch
):
    (tmp_path / "lock").mkdir()
    monkeypatch.setattr(os, "access", lambda *_: False)  # the super-user always may
    with pytest.raises(UserError, match="folder writable$"), lock.holding(tmp_path):
        pass
