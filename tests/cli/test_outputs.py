"""What is read and written: lines in, and outputs that are whole or as they were."""

import errno
import io
import os
import sys
import threading
from pathlib import Path

import pytest
from support.calls import error, programme
from support.paths import EXPERIMENTS

from transformer.cli import files
from transformer.cli import main as cli
from transformer.config import UserError
from transformer.parallel import hosts

pytestmark = pytest.mark.usefixtures("started")


def test_text_keeps_its_lines(monkeypatch, capsys, trained):
    def translate_stream(workdir, source, output, **options):
        assert workdir == trained
        seen.extend(source)
        print("ä\u2028b", file=output)

    seen: list[str] = []
    programme(monkeypatch, "stream", translate_stream=translate_stream)
    text = "\ufeffa\u2028b\x0b c\r\n\n ä ".encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    call = ["translate", f"--workdir={trained}"]
    assert cli.main(call) == 0
    assert seen == ["a\u2028b\x0b c", "", " ä "]
    assert capsys.readouterr().out == "ä\u2028b\n"
    seen.clear()
    (trained / "in").write_bytes(text)
    call += [f"--input={trained / 'in'}", f"--output={trained / 'out'}"]
    assert cli.main(call) == 0
    assert seen == ["a\u2028b\x0b c", "", " ä "]
    assert (trained / "out").read_bytes() == "ä\u2028b\n".encode()
    (trained / "in").write_bytes(b"good\nb\xffd\n")
    seen.clear()
    assert cli.main(call) == 2
    assert "in, line 2: expected UTF-8, got byte 0xff at position 1" in (
        capsys.readouterr().err
    )


def test_files_that_cannot_be_opened(capsys, monkeypatch, trained):
    programme(monkeypatch, "stream", translate_stream=pytest.fail)
    call = ["translate", f"--workdir={trained}"]
    assert "expected a text file, got nowhere" in error(
        capsys, *call, "--input=nowhere"
    )
    bad = f"--output={trained / 'no' / 'folder'}"
    assert "expected a writable file" in error(capsys, *call, bad)


# ---- whole or not at all -------------------------------------------------------------


def translated(monkeypatch, lines, error=None):
    """Let translation write lines, and then fail."""

    def translate_stream(workdir, source, output, **options):
        output.writelines(f"{line}\n" for line in lines)
        output.flush()
        if error is not None:
            raise error

    programme(monkeypatch, "stream", translate_stream=translate_stream)


@pytest.mark.parametrize(
    "failure, code", [(UserError("bad line"), 2), (KeyboardInterrupt(), 130)]
)
def test_an_older_output_stays_where_something_fails(
    monkeypatch, trained, failure, code
):
    old, given = trained / "old", trained / "in"
    old.write_text("precious\n")
    given.write_text("a\n")
    before = sorted(os.listdir(trained))
    call = ["translate", f"--workdir={trained}", f"--input={given}", f"--output={old}"]
    translated(monkeypatch, ["half"], failure)
    assert cli.main(call) == code
    assert old.read_text() == "precious\n" and sorted(os.listdir(trained)) == before
    translated(monkeypatch, ["whole"])
    assert cli.main(call) == 0
    assert old.read_text() == "whole\n" and sorted(os.listdir(trained)) == before


def test_of_several_processes_one_writes(monkeypatch, trained):
    old, given = trained / "old", trained / "in"
    old.write_text("of the first\n")
    given.write_text("a\n")
    translated(monkeypatch, [])
    monkeypatch.setattr(hosts, "primary", lambda: False)
    call = ["translate", f"--workdir={trained}", f"--input={given}", f"--output={old}"]
    assert cli.main(call) == 0 and old.read_text() == "of the first\n"


def test_a_full_disk_leaves_the_older_output(monkeypatch, tmp_path):
    (tmp_path / "old").write_bytes(b"precious")

    def full(number):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError):
        files.write(str(tmp_path / "old"), "new")
    assert (tmp_path / "old").read_bytes() == b"precious"
    assert os.listdir(tmp_path) == ["old"]


def test_a_folder_that_may_not_be_entered_is_told_in_a_line(monkeypatch, capsys):
    def closed(self, *given, **named):
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(Path, "exists", closed)  # the super-user may enter any
    assert cli.main(["translate", "--workdir=theirs/run"]) == 2
    assert capsys.readouterr().err == (
        "transformer: error: [Errno 13] Permission denied: 'theirs/run/config.json'; "
        "change its permissions or choose another\n"
    )


def test_a_link_is_kept_and_what_it_points_to_is_replaced(tmp_path):
    (tmp_path / "far").mkdir()
    target, link = tmp_path / "far" / "file", tmp_path / "link"
    link.symlink_to(target)
    for content in ("first", "second"):  # the link points to nothing at first
        files.write(str(link), content)
        assert link.is_symlink() and target.read_text() == content
    assert os.listdir(target.parent) == ["file"]


def test_permissions_are_kept_and_write_protection_is_respected(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(0o640)
    files.write(str(path), "new")
    assert path.read_text() == "new" and path.stat().st_mode & 0o777 == 0o640
    monkeypatch.setattr(os, "access", lambda *_: False)  # the super-user may always
    with pytest.raises(UserError, match="a writable file, got .*: Permission denied"):
        files.write(str(path), "newer")
    assert path.read_text() == "new"


def test_a_pipe_and_a_device_are_written_as_they_are(tmp_path):
    pipe, found = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: found.append(pipe.read_text()))
    reader.start()
    with files.writing(str(pipe)) as output:
        output.write("ä\n")
    reader.join(10)
    assert found == ["ä\n"] and pipe.is_fifo()
    files.write(os.devnull, "x")
    assert not os.path.isfile(os.devnull)


def test_what_a_shell_has_opened_is_added_to(tmp_path):
    with open(tmp_path / "log", "wb") as log:
        log.write(b"before\n")
        log.flush()
        files.write(f"/dev/fd/{log.fileno()}", "output\n")
        log.seek(0, os.SEEK_END)
        log.write(b"after\n")
    assert (tmp_path / "log").read_text() == "before\noutput\nafter\n"


# ---- refused before anything is read -------------------------------------------------


def calls_with_inputs(trained, tmp_path):
    """Return calls that name the file ``x.py`` to read, with the flag that does."""
    x, run = tmp_path / "x.py", f"--workdir={trained}"
    return {
        "translate": (["translate", run, f"--input={x}"], "input"),
        "source": (["score", run, f"--source={x}", f"--target={trained}"], "source"),
        "target": (["score", run, f"--source={trained}", f"--target={x}"], "target"),
        "means": (["visualize", run, "--statistics", f"--input={x}"], "input"),
        "outputs": (
            ["visualize", run, "--statistics", f"--translations={x}"],
            "translations",
        ),
        "words": (
            ["plot", "--what=embeddings", run, f"--input={x}"],
            "input",
        ),
        "bench": (["bench", f"--config={x}"], "config"),
        "plan": (["plan", f"--config={x}:as_run"], "config"),
        "report": (["report", "--static", f"--config={x}"], "config"),
    }


@pytest.mark.parametrize("how", ["same", "link", "hard", "dots"])
@pytest.mark.parametrize("call", calls_with_inputs("", EXPERIMENTS))
def test_an_output_that_is_an_input_is_refused(capsys, trained, started, call, how):
    arguments, flag = calls_with_inputs(trained, trained)[call]
    x, output = trained / "x.py", trained / "y"
    x.write_text((EXPERIMENTS / "base.py").read_text())
    if how == "link":
        output.symlink_to(x)
    elif how == "hard":
        output.hardlink_to(x)
    else:
        output = x if how == "same" else trained / ".." / trained.name / "x.py"
    text = error(capsys, *arguments, f"--output={output}")
    assert text.startswith(f"--output: expected a file other than --{flag}, got ")
    assert not started and x.read_text().startswith('"""')


def test_a_sentence_is_no_file(capsys, trained, monkeypatch):
    monkeypatch.chdir(trained)
    call = ["visualize", f"--workdir={trained / 'no'}", "--source=a.html"]
    text = error(capsys, *call, "--output=a.html")
    assert "expected the folder of a training run" in text


@pytest.mark.parametrize("place", ["config.json", "metrics.jsonl", "corpus/x", "link"])
def test_a_file_of_a_run_is_no_output(capsys, trained, place):
    (trained / "corpus").mkdir()
    (trained / "link").symlink_to(trained / "config.json")
    before = (trained / "config.json").read_text()
    text = error(capsys, "report", "--static", f"--output={trained / place}")
    assert text.startswith("--output: expected a path that is not part of the run in ")
    assert (trained / "config.json").read_text() == before


COMMANDS = [
    name
    for name, one in cli.COMMANDS.items()
    if "output" in one.flags() and not one.flags()["output"].folder
]


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize(
    "place, why",
    [
        ("no/x.png", "there is no folder "),
        (".", "Is a directory"),
        ("f/x", "no folder "),
    ],
)
def test_the_folder_of_an_output_is_looked_for_first(
    capsys, trained, started, name, place, why
):
    (trained / "f").write_text("")
    needed = {
        "config": f"--config={EXPERIMENTS / 'base.py'}",
        "workdir": f"--workdir={trained}",
        "source": f"--source={trained / 'f'}",
        "target": f"--target={trained / 'f'}",
        "what": "--what=schedule",
        "to": "--to=ctranslate2",
    }
    command = cli.COMMANDS[name]
    required = [needed[x] for x in command.required if x != "output"]
    required += [str(trained / "f") for _ in command.positional]
    text = error(capsys, name, *required, f"--output={trained / place}")
    if command.flags()["output"].creates:
        what, why = "new folder", "File exists" if place == "." else why
    else:
        what = "writable file"
    assert text.startswith(f"--output: expected a {what}, got ")
    assert why in text and text.endswith("; choose another") and not started


# ---- standard streams that are closed ------------------------------------------------


@pytest.mark.parametrize("arguments", [["--help"], ["plan", "--help"], ["trian"]])
def test_a_closed_standard_output_is_one_line(monkeypatch, capsys, arguments):
    monkeypatch.setattr(sys, "stdout", None)
    assert cli.main(arguments) == 2
    text = capsys.readouterr().err
    assert text.startswith("transformer: error: standard output: expected it open")
    assert text.count("\n") == 1


def test_a_closed_standard_input_is_one_line(monkeypatch, capsys, trained):
    monkeypatch.setattr(sys, "stdin", None)
    text = error(capsys, "translate", f"--workdir={trained}")
    assert text.startswith("standard input: expected lines of text, found it closed")
