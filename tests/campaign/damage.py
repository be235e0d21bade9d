"""Damage: each file of a workdir, damaged in each way, then read by each command.

Either the command refuses in one line that names the file, or it does what it would
have done: the same numbers, bit for bit.
"""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from support.ends import end_of, results_of

from campaign.place import STEPS, Ended, Outcome, Place, call

SEED = 18
_KEPT = ("tensorboard", "lock")  # not read later


def _flip(path: Path, draw: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)


def _truncate(path: Path, draw: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: draw.randrange(1, len(content))])


def _digit(path: Path, draw: random.Random) -> None:
    """Change a digit, so that JSON stays JSON."""
    content = bytearray(path.read_bytes())
    places = [i for i, byte in enumerate(content) if chr(byte).isdigit()]
    place = draw.choice(places)
    content[place] = ord(str((content[place] - ord("0") + 1 + draw.randrange(8)) % 10))
    path.write_bytes(content)


def _empty(path: Path, draw: random.Random) -> None:
    path.write_bytes(b"")


def _delete(path: Path, draw: random.Random) -> None:
    path.unlink()


def _folder(path: Path, draw: random.Random) -> None:
    path.unlink()
    path.mkdir()


WAYS: dict[str, Callable[[Path, random.Random], None]] = {
    "a flipped bit": _flip,
    "another flipped bit": _flip,
    "a changed digit": _digit,
    "truncated": _truncate,
    "emptied": _empty,
    "deleted": _delete,
    "replaced by a folder": _folder,
}


def readers_of(name: str) -> list[str]:
    """Return the commands that read a file of a workdir, by its name there."""
    if name.startswith("averaged/"):
        return ["translate"]
    if name.startswith("checkpoints/"):
        return ["train", "evaluate"]
    if re.match("corpus/(train|validation)[.]", name):
        return ["train"]
    if name.startswith("corpus/test."):
        return ["evaluate"]
    if name.startswith("metrics"):
        return ["train", "report"]
    if name.startswith("record"):
        return ["train", "report"]
    if name.startswith("results"):
        return ["report"]
    return ["translate", "evaluate", "train"]


def _whose(command: str) -> str:
    return "stopped" if command == "train" else "run"


# The files of a checkpoint are all verified by the same digests.
_OF_CHECKPOINTS = ("a flipped bit", "deleted")


def _fits(way: str, name: str, content: bytes) -> bool:
    """Return whether a file can be damaged in this way and that tells something new."""
    if name.startswith("checkpoints/"):
        return way == "deleted" or (way in _OF_CHECKPOINTS and bool(content))
    if not content:
        return way in ("deleted", "replaced by a folder")
    if way == "a changed digit":
        return name.endswith(("json", "jsonl")) and name.count("/") < 2
    return way != "another flipped bit" or not name.startswith("averaged/")


def trials(place: Place) -> list[tuple[str, str, str]]:
    """Return the command, file and way of each trial."""
    found = []
    asked = {"run": ["translate", "evaluate", "report"], "stopped": ["train"]}
    for workdir, commands in asked.items():
        for name in _files(place.root / workdir):
            content = (place.root / workdir / name).read_bytes()
            for way in (way for way in WAYS if _fits(way, name, content)):
                for command in set(readers_of(name)) & set(commands):
                    found.append((command, name, way))
    return sorted(found)


def _files(workdir: Path) -> Iterator[str]:
    """Yield the files that are read later; of the checkpoints only the last."""
    steps = sorted(int(path.name) for path in (workdir / "checkpoints").iterdir())
    for path in sorted(workdir.rglob("*")):
        parts = path.relative_to(workdir).parts
        older = parts[0] == "checkpoints" and parts[1:2] != (str(steps[-1]),)
        if path.is_file() and not {*_KEPT} & {*parts} and not older:
            yield "/".join(parts)


def _run(place: Place, command: str, workdir: Path) -> tuple[Ended, Any]:
    """Run a command in a workdir; return how it ended and its result."""
    if command == "train":
        ended = call(place.train(workdir.name))
        if ended.code != 0:
            return ended, None
        results = results_of(ended.out)
        return ended, end_of(place.settings, workdir) | {"results": results}
    if command == "translate":
        ended = call(["translate", f"--workdir={workdir}", "--scores", "--n_best=1"])
        return ended, ended.out
    if command == "report":
        ended = call(["report", f"--workdir={workdir}", "--format=csv"])
        return ended, ended.out
    ended = call(["evaluate", f"--workdir={workdir}"])
    return ended, results_of(ended.out) if ended.code == 0 else None


def _attempt(
    place: Place, trial: tuple[str, str, str], expected: dict[str, Any]
) -> Outcome:
    command, name, way = trial
    original = place.root / _whose(command)
    workdir = place.root / "damaged"
    shutil.copytree(original, workdir)
    WAYS[way](workdir / name, random.Random(f"{SEED} {name} {way}"))
    ended, done = _run(place, command, workdir)
    shutil.rmtree(workdir)
    what = f"{command} with {name} {way}"
    problem = "" if ended.code == 0 else ended.refusal()
    if not problem and ended.code == 2 and not _names(name, ended.errors[0]):
        problem = f"the file is not named: {ended.errors[0]}"
    went_back = command == "evaluate" and "is damaged" in ended.out
    like = "the checkpoint before" if went_back else command
    if not problem and ended.code == 0 and done != expected[like]:
        problem = "silently other numbers"
    return Outcome(f"damage, {command}", what, problem, traceback=ended.traceback)


def _names(name: str, message: str) -> bool:
    """Return whether a message names a file, or the checkpoint that it belongs to."""
    parts = name.split("/")
    if parts[0] in ("checkpoints", "averaged"):
        return parts[1] in re.findall(r"\d+", message) or parts[0] in message
    return Path(name).stem in message


def _undamaged(place: Place) -> dict[str, Any]:
    """Return the result of each command without damage."""
    found, workdir = {}, place.root / "damaged"
    for command in ("train", "translate", "evaluate", "report"):
        shutil.copytree(place.root / _whose(command), workdir)
        ended, found[command] = _run(place, command, workdir)
        assert ended.code == 0, (command, ended.err)
        shutil.rmtree(workdir)
    shutil.copytree(place.root / "run", workdir)
    before = STEPS - place.settings.train.checkpoint_every
    ended = call(["evaluate", f"--workdir={workdir}", f"--step={before}"])
    found["the checkpoint before"] = results_of(ended.out)
    shutil.rmtree(workdir)
    return found


def outcomes(place: Place) -> Iterator[Outcome]:
    """Damage every file in every way, and read it."""
    expected = _undamaged(place)
    for trial in trials(place):
        yield _attempt(place, trial, expected)
