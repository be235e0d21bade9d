"""Where the campaign works: a small trained run, files of a user, calls of commands."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gzip
import hashlib
import io
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.runs import command, compiling_once, tiny_run

STEPS, STOPPED = 8, 5
SETTINGS = {
    "name": "table3/base/numbers/x1",  # a run that report knows
    "train.steps": STEPS,
    "train.checkpoint_every": 2,
    "train.evaluate_every": 4,
    "train.keep": 3,
    "batch.shapes": 1,
    "decode.average": 2,
}
ERROR = "transformer: error: "
_SECONDS = 120  # a call that takes longer counts as hanging


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome of one trial.

    Attributes:
      kind: the kind of trial, a row of the table.
      what: what was tried.
      problem: what was not as expected, "" = nothing.
      lost: whether something that the user had is changed or gone.
      traceback: whether it ended with a traceback.
      skipped: why it was not tried, "" = it was.
    """

    kind: str
    what: str
    problem: str = ""
    lost: bool = False
    traceback: bool = False
    skipped: str = ""


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a call ended: exit code (None after an exception) and what was printed."""

    code: int | None
    out: str
    err: str

    @property
    def traceback(self) -> bool:
        return self.code is None or "Traceback (most recent call last)" in self.err

    @property
    def errors(self) -> list[str]:
        """The messages to the user."""
        lines = self.err.splitlines()
        return [x.removeprefix(ERROR) for x in lines if x.startswith(ERROR)]

    def refusal(self) -> str:
        """Return what keeps this from being a refusal in one line, "" = nothing."""
        if self.traceback:
            return f"a traceback: {self.err.strip().splitlines()[-1][:300]}"
        if self.code != 2:
            return f"exit code {self.code}; {self.err[-200:]!r}"
        if len(self.errors) != 1 or not self.err.splitlines()[-1].startswith(ERROR):
            return f"other than one line: {self.err[-300:]!r}"
        return ""


def call(arguments: list[str], standard_input: bytes = b"one two\n") -> Ended:
    """Call the command line in this process."""
    from transformer.cli import main as cli

    out, err = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        _alarm(),
    ):
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(standard_input)))
        try:
            code: int | None = cli.main(arguments)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            code = None
            err.write(traceback.format_exc())
    return Ended(code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def _alarm() -> Iterator[None]:
    def ring(*_: object) -> None:
        raise TimeoutError(f"it hangs: {_SECONDS} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def contents(folder: Path) -> dict[str, str]:
    """Return a digest of each file of a folder; links are not followed."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = f"-> {os.readlink(path)}"
        elif path.is_dir():
            found[name] = "folder"
        elif path.name != "lock":  # says who held the folder last
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def lost(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Return the names of what is changed or gone."""
    return [name for name in before if after.get(name) != before[name]]


def left(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Return the names of scratch files that were left."""
    return [name for name in after if name not in before and "partial" in name]


@contextlib.contextmanager
def quick(cache: Path) -> Iterator[None]:
    """Leave the devices of this process alone; compile a program once."""
    from transformer import parallel

    with compiling_once(cache) as patch:
        patch.setattr(parallel, "start", lambda device: f"devices: {device}")
        yield


@dataclasses.dataclass(frozen=True)
class Place:
    """A folder with everything that calls use, which is put back after each.

    Attributes:
      root: of the folder. In it: data (texts), run (a finished run), stopped (one that
        can be resumed), own (files of the user), bad (files that cannot be used).
      settings: of both runs.
    """

    root: Path
    settings: Any

    @property
    def pristine(self) -> Path:
        return self.root.with_name(f"{self.root.name}.pristine")

    @functools.cached_property
    def before(self) -> dict[str, str]:
        """What is in it before anything is tried."""
        return contents(self.root)

    def train(self, workdir: str, *more: str) -> list[str]:
        """Return the arguments that train these settings in a workdir."""
        return command(self.settings, self.root / workdir, *more)

    def put_back(self) -> None:
        """Put everything back as it was."""
        shutil.rmtree(self.root)
        shutil.copytree(self.pristine, self.root, symlinks=True)


def make(root: Path) -> Place:
    """Train the two runs and write the files of a user."""
    root.mkdir(parents=True)
    settings = tiny_run(root / "data", **SETTINGS)
    place = Place(root, settings)
    ended = call(place.train("run"))
    assert ended.code == 0, ended.err
    stop(settings, root / "stopped")
    _write_files(root)
    shutil.copytree(root, place.pristine, symlinks=True)
    assert place.before  # computed while everything is as it was
    return place


def stop(settings: Any, workdir: Path) -> None:
    """Train a run up to the middle."""
    from transformer import train

    def say(line: str) -> None:
        if line.startswith(f"step {STOPPED}/"):
            os.kill(os.getpid(), signal.SIGTERM)

    workdir.mkdir()
    with contextlib.redirect_stderr(io.StringIO()):
        assert train.train(settings, workdir, say) is None


def _write_files(root: Path) -> None:
    own, bad = root / "own", root / "bad"
    (own / "folder").mkdir(parents=True)
    (own / "folder" / "letter.txt").write_text("dear reader\n")
    (own / "in.txt").write_text("one two\nthree four five\n")
    (own / "other.txt").write_text("eins zwei\ndrei vier fünf\n")
    (own / "short.txt").write_text("eins\n")
    (own / "out.txt").write_text("kept since 2017\n")
    (own / "link.txt").symlink_to("in.txt")
    for form in ("png", "html", "md", "json", "svg"):
        (own / f"out.{form}").write_text("kept since 2017\n")
    bad.mkdir()
    (bad / "latin.txt").write_bytes("one two\nfünf\n".encode("latin-1"))
    (bad / "binary.txt").write_bytes(bytes(range(256)) * 9)
    (bad / "utf16.txt").write_bytes("one two\n".encode("utf-16"))
    (bad / "late.txt").write_bytes(b"one two\n" * 50 + b"three \xff\n")
    _write_texts(root / "data", bad)
    _write_workdirs(root, bad)
    _write_configs(bad / "configs")


def _write_texts(data: Path, bad: Path) -> None:
    """Write folders of texts, each with one file that cannot be used."""
    for stem in ("train", "validation", "test"):
        text = (data / f"{stem}.de").read_bytes()
        damaged = {
            "gone": None,
            "latin": "fünf\n".encode("latin-1") + text,
            "blank": b"\n" * text.count(b"\n"),
            "empty": b"",
            "fewer": text[: text.rindex(b"\n", 0, -1) + 1],
            "gz": gzip.compress(text)[:-9],
            "no_gz": text,
        }
        for kind, content in damaged.items():
            folder = bad / "texts" / f"{stem}_{kind}"
            shutil.copytree(data, folder)
            (folder / f"{stem}.de").unlink()
            name = f"{stem}.de.gz" if kind.endswith("gz") else f"{stem}.de"
            if content is not None:
                (folder / name).write_bytes(content)
        folder = bad / "texts" / f"{stem}_folder"
        shutil.copytree(data, folder)
        (folder / f"{stem}.de").unlink()
        (folder / f"{stem}.de").mkdir()


def _write_workdirs(root: Path, bad: Path) -> None:
    workdirs = bad / "workdirs"
    (workdirs / "empty").mkdir(parents=True)
    (workdirs / "file").write_text("no folder\n")
    config = (root / "run" / "config.json").read_bytes()
    files = {
        "no_checkpoints": config,
        "half": config[: len(config) // 2],
        "list": b"[]\n",
        "no_keys": b"{}\n",
        "binary": bytes(range(256)),
        "deep": b"[" * 100_000,
        "digit": config.replace(b'"heads": 2', b'"heads": 4'),
    }
    for name, content in files.items():
        (workdirs / name).mkdir()
        (workdirs / name / "config.json").write_bytes(content)
    (workdirs / "folder" / "config.json").mkdir(parents=True)
    (workdirs / "linked").mkdir()
    (workdirs / "linked" / "lock").symlink_to(root / "own" / "in.txt")
    for name in ("corpus", "checkpoints", "averaged", "metrics.jsonl"):
        folder = workdirs / f"other_{name}"
        shutil.copytree(root / "run", folder)
        if (folder / name).is_dir():
            shutil.rmtree(folder / name)
            (folder / name).write_text("no folder\n")
        else:
            (folder / name).unlink()
            (folder / name).mkdir()


_CONFIGS = {
    "syntax": "def get_config(:",
    "imports": "\nimport no_such_module",
    "undefined": "def get_config():\n  return undefined",
    "types": "def get_config():\n  return 1 + 'a'",
    "opens": "def get_config():\n  open('/no/such')",
    "nothing": "x = 1",
    "none": "def get_config():\n  pass",
    "number": "def get_config():\n  return 3",
    "few": "from ml_collections import ConfigDict\ndef get_config():\n"
    "  return ConfigDict({'name': 'x'})",
    "exits": "import sys\ndef get_config():\n  sys.exit(0)",
    "exits_early": "raise SystemExit('bye')",
    "recursive": "def get_config():\n  return get_config()",
    "interrupts": "def get_config():\n  assert False",
    "divides": "def get_config():\n  return 1 / 0",
    "needs_two": "def get_config(a, b):\n  return a",
}


def _write_configs(folder: Path) -> None:
    folder.mkdir()
    for name, text in _CONFIGS.items():
        (folder / f"{name}.py").write_text(text + "\n")
    (folder / "binary.py").write_bytes(bytes(range(256)))
    (folder / "text.txt").write_text("no program\n")
