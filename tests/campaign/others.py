"""What happens around a run: full disks, a second process, a clock set back, links."""

from __future__ import annotations

import functools
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.paths import ROOT

from campaign.kills import Run, end, environment
from campaign.place import ERROR, Ended, Outcome, Place, call, contents, lost

_SECONDS = 180


def outcomes(place: Place, cache: Path) -> Iterator[Outcome]:
    """Try everything here."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        unbroken = Run(place.train(str(folder / "unbroken")), environment(cache))
        assert unbroken.end() == 0, unbroken.said
        expected = end(place, folder / "unbroken", unbroken.said)
        yield from _limited_files(place, folder, cache, expected)
        yield from _full_disks(place, folder, cache, expected)
        yield from _two_processes(place, folder, cache)
        yield from _clocks(place, folder, cache, expected)
    yield from _links(place)
    yield _closed_output(place)


# ---- no room -------------------------------------------------------------------------


_LIMITED = """
import os, resource, sys
largest, hard = int(sys.argv[1]), resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (largest, hard))
os.execv(sys.executable, [sys.executable, "-m", "transformer", *sys.argv[2:]])
"""
_LINES = "one two\n" * 2000


def _run(arguments: list[str], cache: Path, largest: int = 0) -> Ended:
    """Run a command that may write files of at most ``largest`` bytes, 0 = any."""
    program = ["-c", _LIMITED, str(largest)] if largest else ["-m", "transformer"]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "cache"  # a program in it may end half written
        shutil.copytree(cache, copy)
        done = subprocess.run(
            [sys.executable, *program, *arguments],
            cwd=ROOT,
            env=environment(copy),
            input=_LINES,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
        )
    return Ended(done.returncode, done.stdout, done.stderr)


def _limited_files(
    place: Place, folder: Path, cache: Path, expected: Any
) -> Iterator[Outcome]:
    """Limit files to less than a corpus, a checkpoint or an output needs."""
    for what, largest in (("preparation", 1 << 10), ("checkpoint", 16 << 10)):
        workdir = folder / f"limited_{what}"
        train = place.train(str(workdir))
        ended = _run(train, cache, largest)
        problem = ended.refusal() or _resumed(place, workdir, train, cache, expected)
        yield Outcome(
            "full disks", f"{what}, limited files", problem, False, ended.traceback
        )
    yield _limited_output(place, cache)


def _limited_output(place: Place, cache: Path) -> Outcome:
    before, output = contents(place.root), place.root / "own" / "out.txt"
    line = ["translate", f"--workdir={place.root / 'run'}", f"--output={output}"]
    ended = _run([*line, "--scores"], cache, 1 << 10)
    gone = lost(before, contents(place.root))
    place.put_back()
    problem = ended.refusal() or (f"lost {gone}" if gone else "")
    what = "output, limited files"
    return Outcome("full disks", what, problem, bool(gone), ended.traceback)


def _full_disks(
    place: Place, folder: Path, cache: Path, expected: Any
) -> Iterator[Outcome]:
    """Let a small disk be full when a stage begins."""
    disk = folder / "disk"
    disk.mkdir()
    for what, room in (("preparation", 8 << 10), ("checkpoint", 160 << 10)):
        reason = _mount(disk, room)
        if reason:
            yield Outcome("full disks", f"{what}, a disk", skipped=reason)
            continue
        try:
            yield _filled(place, disk, cache, expected, what)
        finally:
            subprocess.run(["umount", disk], check=True)
    reason = _mount(disk, 4 << 10)
    if reason:
        yield Outcome("full disks", "output, a disk", skipped=reason)
        return
    try:
        yield _filled_output(place, disk, cache)
    finally:
        subprocess.run(["umount", disk], check=True)


def _mount(disk: Path, size: int) -> str:
    """Mount a small disk; return why that failed, "" = it did not."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "campaign", str(disk)]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        return str(error)
    return done.stderr.strip() if done.returncode else ""


def _filled(place: Place, disk: Path, cache: Path, expected: Any, what: str) -> Outcome:
    train = place.train(str(disk / "run"))
    ended = _run(train, cache)
    problem = ended.refusal()
    command = ["mount", "-o", "remount,size=64m", str(disk)]
    subprocess.run(command, check=True, capture_output=True)
    problem = problem or _resumed(place, disk / "run", train, cache, expected)
    return Outcome("full disks", f"{what}, a disk", problem, False, ended.traceback)


def _filled_output(place: Place, disk: Path, cache: Path) -> Outcome:
    output = disk / "out.txt"
    output.write_text("kept since 2017\n")
    line = ["translate", f"--workdir={place.root / 'run'}", f"--output={output}"]
    ended = _run([*line, "--scores", "--input=/dev/stdin"], cache)
    gone = output.read_text() != "kept since 2017\n"
    problem = ended.refusal() or ("lost the old output" if gone else "")
    if not problem and list(disk.iterdir()) != [output]:
        problem = f"left {list(disk.iterdir())}"
    return Outcome("full disks", "output, a disk", problem, gone, ended.traceback)


def _resumed(
    place: Place, workdir: Path, train: list[str], cache: Path, expected: Any
) -> str:
    """Train to the end after making room; return what is wrong with the run."""
    ended = _run(train, cache)
    if ended.code != 0:
        return f"not resumed: {ended.err[-300:]}"
    done = end(place, workdir, ended.out)
    other = [name for name in expected if done[name] != expected[name]]
    return f"other bits: {', '.join(other)}" if other else ""


# ---- a second process ----------------------------------------------------------------


def _two_processes(place: Place, folder: Path, cache: Path) -> Iterator[Outcome]:
    """Call each command that writes in a workdir while a run holds it."""
    workdir = folder / "held"
    train = place.train(str(workdir), "--config.train.steps=1000000")
    first = Run(train, environment(cache))
    try:
        assert first.wait(lambda: first.has_begun("step 8: validation")), first.said
        commands = {
            "train": train,
            "evaluate": ["evaluate", f"--workdir={workdir}"],
            "average": ["average", f"--workdir={workdir}"],
        }
        for name, line in commands.items():
            ended = call(line)
            problem = ended.refusal() or _names_the_holder(ended, first.process.pid)
            yield Outcome("two processes", name, problem, False, ended.traceback)
        alive = first.process.poll() is None
        problem = "" if alive else f"the first one ended: {first.said[-300:]}"
        yield Outcome("two processes", "the first goes on", problem)
    finally:
        first.kill()
    ended = call(["evaluate", f"--workdir={workdir}"])
    problem = "" if ended.code == 0 else f"still held: {ended.err[-300:]}"
    what = "a killed one blocks nobody"
    yield Outcome("two processes", what, problem, False, ended.traceback)


def _names_the_holder(ended: Ended, process: int) -> str:
    (message,) = ended.errors
    wanted = [socket.gethostname(), str(process)]
    absent = [name for name in wanted if not re.search(rf"\b{name}\b", message)]
    return f"{absent} not in {message!r}" if absent else ""


# ---- the clock -----------------------------------------------------------------------

_SET_BACK = """
import time
for name, unit in (("time", 1), ("time_ns", 10**9)):
    real = getattr(time, name)
    setattr(time, name, lambda real=real, unit=unit: real() - {seconds} * unit)
"""
_YEAR = 365 * 24 * 3600


def _clocks(
    place: Place, folder: Path, cache: Path, expected: Any
) -> Iterator[Outcome]:
    """Resume a killed run with a clock set back or ahead, or files of the future."""
    for what, seconds in (("set back", _YEAR), ("set ahead", -_YEAR), ("files", 0)):
        workdir, lies = folder / f"clock_{seconds}", folder / f"lies_{seconds}"
        lies.mkdir()
        (lies / "sitecustomize.py").write_text(_SET_BACK.format(seconds=seconds))
        train = place.train(str(workdir))
        first = Run(train, environment(cache))
        begun = functools.partial(first.has_begun, "step 5/")
        assert first.wait(begun), first.said
        first.kill()
        if not seconds:
            _move_to_the_future(workdir)
        path = os.pathsep.join([str(lies), os.environ.get("PYTHONPATH", "")])
        second = Run(train, environment(cache) | {"PYTHONPATH": path})
        if second.end() == 0:
            done = end(place, workdir, second.said)
            other = [name for name in expected if done[name] != expected[name]]
            problem = f"other bits: {', '.join(other)}" if other else ""
        else:
            problem = f"not resumed: {second.said[-300:]}"
        named = {"files": "files of the next year"}.get(what, f"clock {what} a year")
        yield Outcome("clocks", named, problem, traceback="Traceback" in second.said)


def _move_to_the_future(workdir: Path) -> None:
    for path in workdir.rglob("*"):
        at = path.stat().st_mtime + _YEAR
        os.utime(path, (at, at))


# ---- links, and an output that nobody reads ------------------------------------------

_LINKED = [
    "config.json",
    "config.json.partial",
    "record.json",
    "record.json.partial",
    "metrics.jsonl",
    "results.json",
    "lock",
]


def _links(place: Place) -> Iterator[Outcome]:
    """Train in a folder where a link to a file of the user is in the way."""
    before, workdir = place.before, place.root / "linked"
    for name in _LINKED:
        workdir.mkdir()
        (workdir / name).symlink_to(place.root / "own" / "out.txt")
        ended = call(place.train("linked"))
        gone = lost(before, contents(place.root))
        problem = ended.refusal() if ended.code != 0 else ""
        if gone:
            problem = f"wrote through it: {gone}; {problem}"
        yield Outcome("links", name, problem, bool(gone), ended.traceback)
        place.put_back()


def _closed_output(place: Place) -> Outcome:
    """Close standard output, as ``>&-`` of a shell does."""
    command = f'"{sys.executable}" -m transformer translate --workdir="{{}}" >&-'
    done = subprocess.run(
        ["sh", "-c", command.format(place.root / "run")],
        cwd=ROOT,
        input="one two\n",
        capture_output=True,
        text=True,
        timeout=_SECONDS,
    )
    ended = Ended(done.returncode, done.stdout, done.stderr)
    problem = ended.refusal()
    if done.stderr.count(ERROR) == 0 and not problem:
        problem = "not a word"
    return Outcome(
        "closed outputs", "standard output closed", problem, False, ended.traceback
    )
