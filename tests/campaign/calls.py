"""Malformed calls: what is typed, and what the one line has to say.

Every call ends with exit code 2 and one line, and leaves the user's files unchanged. In
the arguments ``{run}`` is a finished run, ``{own}`` and ``{bad}`` are the user's files,
and ``{new}`` does not exist yet.
"""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from collections.abc import Iterator

from support.paths import EXPERIMENTS, ROOT

from campaign import families
from campaign.place import Ended, Outcome, Place, call, contents, left, lost

_MEMORY = 8 << 30  # bytes that a call in a separate process may take
_SECONDS = 60


@dataclasses.dataclass(frozen=True)
class Call:
    """A call that has to be refused.

    Attributes:
      what: what it is about.
      arguments: what is typed; TRAIN stands for those that train the small model.
      says: a regular expression for the message.
      given: on standard input.
      apart: in a separate process with little memory, as it used to hang or to die.
    """

    what: str
    arguments: list[str]
    says: str
    given: bytes = b"one two\n"
    apart: bool = False


def _calls(what: str, rows: list[tuple[str, str]]) -> Iterator[Call]:
    """Yield calls that are written as on a command line."""
    for line, says in rows:
        yield Call(what, line.split(), says)


def _typed() -> Iterator[Call]:
    run, text = "--workdir={run}", "--input={own}/in.txt"
    translate, out = f"translate {run} {text}", "--output={own}/out.txt"
    score = f"score {run} --source={{own}}/in.txt --target={{own}}/other.txt"
    yield from _calls(
        "flags without effect",
        [
            (f"{translate} --temperature=0.5", "temperature.*--sample"),
            (f"{translate} --top_k=3", "top_k.*--sample"),
            (f"{translate} --top_p=0.5", "top_p.*--sample"),
            (f"{translate} --sample --beam=4", "beam.*--sample|--sample.*beam"),
            (f"{translate} --layer=1", "layer.*--alignments"),
            (f"visualize {run} --statistics {text} --layers=1", "layers.*--statistics"),
            (
                f"visualize {run} --source=one --input={{own}}/in.txt {out}",
                "input|output",
            ),
            (f"{translate} --seed=18446744073709551616", "seed.*expected"),
            (f"{translate} --sample --seed=4294967296", "seed.*expected"),
            (f"{translate} --alpha=inf", "alpha.*expected"),
            (f"{translate} --alpha=nan", "alpha.*expected"),
            (f"{translate} --sample --temperature=inf", "temperature.*expected"),
            (f"{translate} --sample --temperature=nan", "temperature.*expected"),
            (f"{translate} --sample --top_p=nan", "top_p.*expected"),
            (f"{translate} --sample --top_p=inf", "top_p.*expected"),
            (f"report --workdir={{run}} --timed {out}", "--static"),
            (f"report --workdir={{run}} --config={EXPERIMENTS}/table3.py", "--static"),
            (f"plan --config={EXPERIMENTS}/base.py --what=train", "--target"),
            (f"plan --config={EXPERIMENTS}/base.py --shapes=all", "--target"),
            (f"visualize {run} --beam --statistics {text}", "beam|source|output"),
            (f"visualize {run}", "--source.*--statistics"),
            (f"visualize {run} --source=one --statistics", "--source.*--statistics"),
            (f"check {run} --config={EXPERIMENTS}/base.py", "--workdir.*--config"),
        ],
    )
    yield from _calls(
        "out of range",
        [
            (f"{translate} --n_best=9 {out}", "n_best.*expected|expected.*n_best"),
            (f"{translate} --step=999 {out}", "999"),
            (f"{score} --step=999 {out}", "999"),
            (f"{translate} --alignments --layer=99 {out}", "layer.*99|99.*layer"),
            (f"evaluate {run} --step=999", "999"),
            (f"evaluate {run} --average=999", "expected 999 checkpoints"),
            (f"average {run} --last=999", "expected 999 checkpoints"),
            (f"visualize {run} --source=one --layers=9 {out[:-3]}html", "9"),
            (f"visualize {run} --source=one --heads=9 {out[:-3]}html", "9"),
            (f"visualize {run} --source=one --layers=0 {out[:-3]}html", "expected"),
            (f"visualize {run} --source=one --heads=x {out[:-3]}html", "heads.*exp"),
            (f"visualize {run} --source=one --word=six {out[:-3]}png", "six"),
            (f"visualize {run} --source=one --step=999 {out[:-3]}html", "999"),
            (f"plot --what=positions --d_model=7 {out[:-3]}png", "d_model.*even|even"),
            (f"plot --what=positions --d_model=x {out[:-3]}png", "d_model.*expected"),
            (f"plot --what=schedule --d_model=0 {out[:-3]}png", "d_model.*expected"),
            (f"plot --what=schedule --warmup=-1 {out[:-3]}png", "warmup.*expected"),
            (f"plot --what=smoothing --smoothing=2 {out[:-3]}png", "smoothing.*2"),
            (f"plot --what=smoothing --smoothing=nan {out[:-3]}png", "smoothing.*nan"),
            (f"plot --what=curves {out[:-3]}png", "--workdir"),
            (f"plot --what=embeddings {run} {out[:-3]}png", "--words.*--input"),
            (f"plot --what=schedule {out}", "expected.*png"),
            (f"visualize {run} --source=one {out}", "expected.*html"),
        ],
    )
    yield from _calls(
        "outputs that are inputs",
        [
            (f"{translate} --output={{own}}/in.txt", "in.txt"),
            (f"{translate} --output={{own}}/folder/../in.txt", "in.txt"),
            (f"{translate} --output={{own}}/link.txt", "link.txt|in.txt"),
            (f"{score} --output={{own}}/in.txt", "in.txt"),
            (f"{score} --output={{own}}/other.txt", "other.txt"),
            (f"{score} --output={{own}}/folder/../other.txt", "other.txt"),
            (
                f"visualize {run} --statistics --input={{own}}/out.md "
                "--output={own}/out.md",
                "out.md",
            ),
        ],
    )
    yield from _calls("commands", [("trian", "train"), ("--workdir=x", "expected")])
    for flag, says in {
        "--coordinator=nowhere": "--coordinator: expected HOST:PORT",
        "--num_processes=2": "--num_processes: expected with --coordinator only",
        "--process_id=0": "--process_id: expected with --coordinator only",
    }.items():
        yield Call("processes", ["TRAIN", flag], says)
    line = [*translate.split(), "--coordinator=auto"]
    yield Call("processes", line, "--coordinator|Slurm|processes")


def _inputs() -> Iterator[Call]:
    """Yield each flag that names a text with each text that cannot be read."""
    run = "--workdir={run}"
    flags = {
        "--input": ["translate", run],
        "--source": ["score", run, "--target={own}/other.txt"],
        "--target": ["score", run, "--source={own}/in.txt"],
        "--input of statistics": ["visualize", run, "--statistics"],
        "--translations": ["visualize", run, "--statistics", "--input={own}/in.txt"],
    }
    texts = {
        "{own}/nowhere.txt": "nowhere.txt",
        "{own}/folder": "folder",
        "{own}/in.txt/below": "below",
        "{bad}/latin.txt": "latin.txt, line 2: expected UTF-8",
        "{bad}/binary.txt": "binary.txt, line 1.*: expected UTF-8|binary.txt, line",
        "{bad}/utf16.txt": "utf16.txt, line 1: expected UTF-8",
        "{bad}/late.txt": "late.txt, line 51: expected UTF-8|as many translations",
    }
    for flag, arguments in flags.items():
        end = "md" if arguments[0] == "visualize" else "txt"
        for path, says in texts.items():
            line = [
                *arguments,
                f"{flag.split()[0]}={path}",
                f"--output={{own}}/out.{end}",
            ]
            yield Call("texts", line, says)
    line = ["score", run, "--source={own}/in.txt", "--target={own}/short.txt"]
    yield Call("texts", [*line, "--output={own}/out.txt"], "as many target as source")
    line = ["translate", run, "--output={own}/out.txt"]
    yield Call("texts", line, "standard input, line 2: exp", b"one\n\xff\n")
    for end in ("empty", "fewer", "latin", "gone", "blank", "gz", "no_gz", "folder"):
        for stem in ("train", "validation", "test"):
            line = ["TRAIN", f"--config.data.dir={{bad}}/texts/{stem}_{end}"]
            yield Call("training texts", line, f"{stem}|data.dir")


def _outputs() -> Iterator[Call]:
    """Yield each command that writes with each place that cannot be written."""
    run, config = "--workdir={run}", f"--config={EXPERIMENTS}/number_words.py"
    writers = {
        "txt": [
            ["translate", run, "--input={own}/in.txt"],
            ["score", run, "--source={own}/in.txt", "--target={own}/other.txt"],
        ],
        "json": [["bench", config], ["plan", config, "--target=cuda"]],
        "md": [
            ["plan", config, "--simulate=0"],
            ["report", run],
            ["visualize", run, "--statistics", "--input={own}/in.txt"],
        ],
        "html": [["visualize", run, "--source=one two"]],
        "png": [["plot", "--what=schedule"], ["plot", "--what=curves", run]],
    }
    for form, commands in writers.items():
        for one in commands:
            for path in ("nowhere/x", "in.txt/x", "folder"):
                end = "" if path == "folder" else f".{form}"
                says = f"expected.*({path}|--output)"
                line = [*one, f"--output={{own}}/{path}{end}"]
                yield Call("outputs", line, says)


def _workdirs() -> Iterator[Call]:
    """Yield each command that needs a run with each folder that has none."""
    readers = {
        "evaluate": [],
        "translate": ["--input={own}/in.txt", "--output={own}/out.txt"],
        "score": ["--source={own}/in.txt", "--target={own}/other.txt"],
        "average": [],
        "check": [],
        "visualize": ["--source=one", "--output={own}/out.html"],
        "plot": ["--what=embeddings", "--words=one,two", "--output={own}/out.png"],
    }
    broken = "half list no_keys binary deep folder digit".split()
    for name, more in readers.items():
        for kind in ("nowhere", "file", "empty", "file/below"):
            line = [name, f"--workdir={{bad}}/workdirs/{kind}", *more]
            yield Call("workdirs", line, "expected the folder of a.*run, (got|found)")
        for kind in broken:
            line = [name, f"--workdir={{bad}}/workdirs/{kind}", *more]
            yield Call("workdirs", line, "config")
        line = [name, "--workdir={bad}/workdirs/no_checkpoints", *more]
        yield Call("workdirs", line, "expected")
        line = [name, "--workdir={bad}/workdirs/other_corpus", *more]
        yield Call("workdirs", line, "corpus")
    for name in ("evaluate", "average"):
        line = [name, "--workdir={bad}/workdirs/other_checkpoints"]
        yield Call("workdirs", line, "checkpoints")
    line = ["translate", "--workdir={bad}/workdirs/other_averaged"]
    yield Call("workdirs", line, "averaged")
    for kind in ("nowhere", "file", "empty"):
        line = ["report", f"--workdir={{bad}}/workdirs/{kind}"]
        yield Call("workdirs", line, f"workdirs/{kind}.*expected")
        line = ["plot", "--what=curves", f"--workdir={{bad}}/workdirs/{kind}"]
        yield Call("workdirs", [*line, "--output={own}/out.png"], f"workdirs/{kind}")
    line = ["plot", "--what=curves", "--workdir={bad}/workdirs/other_metrics.jsonl"]
    yield Call("workdirs", [*line, "--output={own}/out.png"], "metrics.jsonl")
    for kind, says in {
        "file": "--workdir: expected a writable folder",
        "file/below": "--workdir: expected a writable folder",
        "other_corpus": "corpus",
        "other_checkpoints": "checkpoints",
        "folder": "config.json",
        "other_metrics.jsonl": "metrics.jsonl",
    }.items():
        line = ["TRAIN", f"--workdir={{bad}}/workdirs/{kind}"]
        yield Call("workdirs", line, says)
    for change in families.OF_ANOTHER_RUN:
        key = change.split("=")[0]
        line = ["TRAIN", "--workdir={run}", *(f"--config.{x}" for x in change.split())]
        yield Call("another configuration", line, f"{re.escape(key)}: .* -> ")


def _exploding() -> Iterator[Call]:
    limit = ["TRAIN", "--config.optimizer.nonfinite_limit=2"]
    for change in ("optimizer.scale=1e38", "optimizer.scale=1e30"):
        yield Call("exploding losses", [*limit, f"--config.{change}"], "finite")
    line = ["TRAIN", "--workdir={bad}/workdirs/linked"]
    yield Call("links", line, "lock")


def _heavy() -> Iterator[Call]:
    """Yield calls that used to hang or to take all memory."""
    run = "--workdir={run}"
    config = f"--config={EXPERIMENTS}/number_words.py"
    rows = [
        (["translate", run, "--beam=5000", "--input={own}/in.txt"], "beam.*expected"),
        (["translate", run, "--beam=10000000"], "beam.*expected"),
        (["TRAIN", "--config.model.d_model=10000000"], "d_model|fit into"),
        (["TRAIN", "--config.model.d_ff=100000000000"], "d_ff|fit into"),
        (["TRAIN", f"--config.batch.tokens={2**63}"], "batch.tokens.*expected"),
        (["bench", config, "--length=4096", "--tokens=64"], "length.*tokens"),
    ]
    for arguments, says in rows:
        yield Call("sizes", arguments, says, apart=True)


def table() -> list[Call]:
    """Return every call."""
    made = [Call(*row) for row in families.rows()]
    return [
        *_typed(),
        *_inputs(),
        *_outputs(),
        *_workdirs(),
        *_exploding(),
        *made,
        *_heavy(),
    ]


def _arguments(place: Place, one: Call) -> list[str]:
    names = {name: str(place.root / name) for name in ("run", "own", "bad", "new")}
    filled = [x.format(**names) for x in one.arguments]
    if filled[0] != "TRAIN":
        return filled
    # Of two flags of the same name the last one counts.
    return place.train("new", *filled[1:])


_LIMITED = """
import os, resource, sys
most = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_DATA, (most, most))
os.execv(sys.executable, [sys.executable, "-m", "transformer", *sys.argv[2:]])
"""


def _apart(arguments: list[str]) -> Ended:
    """Call the command line in a process with limited memory and time."""
    try:
        run = subprocess.run(
            [sys.executable, "-c", _LIMITED, str(_MEMORY), *arguments],
            cwd=ROOT,
            input="one two\n",
            capture_output=True,
            text=True,
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return Ended(None, "", f"it hangs: {_SECONDS} s")
    return Ended(run.returncode, run.stdout, run.stderr)


def attempt(place: Place, one: Call) -> Outcome:
    """Make a call, judge how it ended, and put the place back."""
    before, arguments = place.before, _arguments(place, one)
    ended = _apart(arguments) if one.apart else call(arguments, one.given)
    after = contents(place.root)
    gone, scratch = lost(before, after), left(before, after)
    problem = ended.refusal()
    if not problem and not re.search(one.says, ended.errors[0]):
        problem = f"expected {one.says!r} in {ended.errors[0]!r}"
    if scratch:
        problem = f"left {scratch}; {problem}"
    if gone:
        problem = f"lost {gone}; {problem}"
    if before != after:
        place.put_back()
    what = " ".join(one.arguments)
    return Outcome(f"calls, {one.what}", what, problem, bool(gone), ended.traceback)


def outcomes(place: Place, every: int = 1) -> Iterator[Outcome]:
    """Make every call, or one in ``every``."""
    for one in table()[::every]:
        yield attempt(place, one)
