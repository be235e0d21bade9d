"""Measure this project side by side with its peers, and print tables of docs/speed.md.

    python experiments/bench/side_by_side.py --peers_python=PEERS/bin/python \\
        --workdir=runs/multi30k --input=runs/multi30k/corpus/test.source.txt

The peers (the extra "peers": PyTorch, transformers, CTranslate2) may have a Python of
their own. One that is not installed is logged and left out. Without --workdir
and --input, a finished run and sentences for it, the lines about real text are left
out. --table names single groups of lines:

    train-base, train-small    updates on 64 sentences of 32 tokens
    greedy-base, beam-base     32 sentences of 32 tokens into 32 tokens each
    greedy-base-1, beam-base-1 one such sentence
    train-cgru, train-luong    updates of recurrent models on 32 sentences of 16 tokens
    train-convs2s              updates of a ConvS2S on 64 such sentences
    greedy-cgru, beam-cgru     1,000 sentences as long as captions into as many tokens
    greedy-luong, beam-luong   the same
    greedy-convs2s, beam-convs2s
    product-cgru, product-luong  of gates in a step of these searches
    text-greedy, text-beam     the sentences of --input by the run of --workdir
    start-small                from `transformer train` to its first step done

All of that runs on the CPU, with as many threads as there are cores. On one without
units for bfloat16, PyTorch emulates it in minutes per update: --dtypes=float32 leaves
these lines out. With --device=gpu, in bfloat16 on a CUDA GPU, one process after
another:

    train-32, train-256        updates of base on 776 x 32 and 96 x 256 tokens
    greedy-32, greedy-256      as many sentences into as many tokens each
    beam-32, beam-256          the same with four beams
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import arena
import report
import sizes
import weights
from arena import Worker

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PROGRAMS = {
    "ours": "ours.py",
    "PyTorch": "peer_torch.py",
    "transformers": "peer_transformers.py",
    "CTranslate2": "peer_ctranslate2.py",
}
COMPOSED = {"ours": "ours_composed.py", "PyTorch": "peer_torch_composed.py"}
BOTH, SINGLE = ("bfloat16", "float32"), ("float32",)
TRANSLATORS = {"transformers": BOTH, "CTranslate2": ("float32", "int8")}


@dataclasses.dataclass(frozen=True)
class Group:
    """Workers that are measured in one arena, and their lines in the table.

    Attributes:
      title: what the work is.
      dtypes: our forms, one per line.
      tasks: program and arguments of each worker by its name, "SYSTEM FORM".
    """

    title: str
    dtypes: tuple[str, ...]
    tasks: dict[str, list[str]]


def training(size: str, dtypes: tuple[str, ...]) -> Group:
    """Return the workers that make updates on a CPU."""
    tasks = _trainers(dtypes, size, sizes.ROWS, sizes.LENGTH, "cpu")
    return Group(f"training, {size}", dtypes, tasks)


def _trainers(
    dtypes: tuple[str, ...], size: str, rows: int, length: int, device: str
) -> dict[str, list[str]]:
    systems = dict.fromkeys(("ours", "transformers"), dtypes)
    options = {"size": size, "rows": rows, "length": length, "device": device}
    tasks = _tasks("train", systems, **options)
    return tasks | _tasks("train", {"PyTorch": dtypes}, **options, compiled=0)


def searching(size: str, sentences: int, beam: int) -> Group:
    """Return the workers that translate sentences of one length on a CPU."""
    count = "1 sentence" if sentences == 1 else f"{sentences} sentences"
    options = {"size": size, "sentences": sentences, "beam": beam}
    tasks = _tasks("search", {"CTranslate2": TRANSLATORS["CTranslate2"]}, **options)
    options |= {"length": sizes.LENGTH, "device": "cpu"}
    tasks |= _tasks("search", dict.fromkeys(("ours", "transformers"), BOTH), **options)
    return Group(f"{_search_name(beam)}, {size}, {count}", BOTH, tasks)


def training_on_gpu(rows: int, length: int) -> Group:
    """Return the workers that make updates of base on a GPU."""
    half = ("bfloat16",)
    tasks = _trainers(half, "base", rows, length, "gpu")
    program, work, *flags = tasks["PyTorch bfloat16"]
    tasks["PyTorch compiled bfloat16"] = [program, work, *flags[:-1], "--compiled=1"]
    return Group(f"training, base, {rows} x {length}", half, tasks)


def searching_on_gpu(sentences: int, length: int, beam: int) -> Group:
    """Return the workers that translate sentences of one length by base on a GPU."""
    half = ("bfloat16",)
    tasks = _tasks(
        "search",
        {"ours": half, "transformers": half},
        size="base",
        sentences=sentences,
        beam=beam,
        length=length,
        device="gpu",
    )
    return Group(f"{_search_name(beam)}, base, {sentences} x {length}", half, tasks)


def training_composed(size: str) -> Group:
    """Return the workers that update a model that torch only has the parts of."""
    tasks = _tasks("train", dict.fromkeys(COMPOSED, SINGLE), COMPOSED, size=size)
    rows, length = sizes.COMPOSED_ROWS[size], sizes.COMPOSED_LENGTH
    return Group(f"training, {size}, {rows} x {length}", SINGLE, tasks)


def searching_composed(size: str, beam: int) -> Group:
    """Return the workers that search with a model that torch only has the parts of."""
    systems = dict.fromkeys(COMPOSED, BOTH)
    tasks = _tasks("captions", systems, COMPOSED, size=size, beam=beam)
    count = f"{sizes.CAPTIONS:,} sentences"
    return Group(f"{_search_name(beam)}, {size}, {count}", BOTH, tasks)


def multiplying(rows: int, inner: int, outer: int) -> Group:
    """Return the workers that multiply matrices."""
    systems = dict.fromkeys(("ours", "PyTorch"), BOTH)
    tasks = _tasks("product", systems, rows=rows, inner=inner, outer=outer)
    return Group(f"product, {rows} x {inner} by {inner} x {outer}", BOTH, tasks)


def translating(workdir: Path, text: Path, exported: Path, beam: int) -> Group:
    """Return the workers that translate text, all by the same parameters.

    Args:
      workdir: the run.
      text: sentences, one per line.
      exported: what ``export.py`` makes of both.
      beam: 1 for greedy search.
    """
    settings = json.loads((workdir / "config.json").read_text())
    dtypes: tuple[str, ...] = BOTH
    others: Mapping[str, tuple[str, ...]] = TRANSLATORS
    programs = PROGRAMS
    if settings["model"].get("kind") == "rnn":
        dtypes, others, programs = SINGLE, {"PyTorch": SINGLE}, COMPOSED
    own = {"workdir": workdir, "input": text}
    tasks = _tasks("translate", {"ours": dtypes}, **own, beam=beam)
    tasks |= _tasks("translate", others, programs, folder=exported, beam=beam)
    title = f"`translate`, {settings['name']}, {_search_name(beam)}"
    return Group(title, dtypes, tasks)


def _search_name(beam: int) -> str:
    return "greedy" if beam == 1 else f"beam {beam}"


def _tasks(
    work: str,
    systems: Mapping[str, tuple[str, ...]],
    programs: Mapping[str, str] = PROGRAMS,
    /,
    **options: object,
) -> dict[str, list[str]]:
    flags = [f"--{name}={value}" for name, value in options.items()]
    return {
        f"{system} {dtype}": [programs[system], work, f"--dtype={dtype}", *flags]
        for system, dtypes in systems.items()
        for dtype in dtypes
    }


GROUPS = {
    "train-base": training("base", BOTH),
    "train-small": training("small", BOTH),
    "greedy-base": searching("base", 32, 1),
    "beam-base": searching("base", 32, 4),
    "greedy-base-1": searching("base", 1, 1),
    "beam-base-1": searching("base", 1, 4),
    **{f"train-{size}": training_composed(size) for size in sizes.COMPOSED},
    **{
        f"{name}-{size}": searching_composed(size, beam)
        for size in sizes.COMPOSED
        for name, beam in (("greedy", 1), ("beam", 5))
    },
    **{
        f"product-{name}": multiplying(*shape) for name, shape in sizes.PRODUCTS.items()
    },
}
GPU_GROUPS = {
    f"train-{length}": training_on_gpu(rows, length)
    for rows, length in sizes.ACCELERATED
} | {
    f"{name}-{length}": searching_on_gpu(rows, length, beam)
    for name, beam in (("greedy", 1), ("beam", 4))
    for rows, length in sizes.ACCELERATED
}
TEXT = ("text-greedy", "text-beam")
START = "start-small"


# ---- measuring -----------------------------------------------------------------------


def main(arguments: Sequence[str]) -> int:
    """Measure and print; return 1 if an installed worker failed."""
    values = _parse(arguments)
    measured: dict[str, dict[str, Worker]] = {}
    rows: list[list[str]] = []
    losses: list[str] = []
    scores: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        groups = GROUPS | GPU_GROUPS | _text_groups(values, Path(folder))
        for name in (name for name in values.table if name != START):
            say(f"--- {name}")
            group, device = lines_of(groups[name], values.dtypes), values.device
            turns = arena.take_turns if device == "cpu" else arena.one_by_one
            workers = measure(group, values.rounds, values.peers_python, turns)
            for dtype in group.dtypes:
                rows.append(report.ratio_row(group.title, dtype, workers, device))
            if name in TEXT:  # scores do not depend on the search: one note is enough
                scores = report.score_notes(weights.load_task(Path(folder)), workers)
            losses += report.loss_notes(group.title, workers)
            measured[name] = workers
    starts = measure_start(values.rounds) if START in values.table else {}
    if starts:
        rows.append(report.start_row("start of `transformer train`, small", starts))
    everyone = [one for workers in measured.values() for one in workers.values()]
    about = report.caption(values.rounds, everyone, values.device)
    print("\n\n".join([report.table(rows, values.device), *losses, *scores, about]))
    if values.output:
        facts = {"about": about, "groups": _records(measured), START: starts}
        values.output.write_text(json.dumps(facts, indent=1) + "\n")
    return int(any(one.trouble and not one.missing for one in everyone))


def lines_of(group: Group, dtypes: Sequence[str]) -> Group:
    """Return a group with the lines of some dtypes and the workers that they compare.

    Columns that name a form stay, as every line is compared with them.
    """
    others = tuple(f" {dtype}" for dtype in BOTH if dtype not in dtypes)
    columns = report.PEERS["cpu"]
    kept = {
        name: task
        for name, task in group.tasks.items()
        if name in columns or not name.endswith(others)
    }
    lines = tuple(dtype for dtype in group.dtypes if dtype in dtypes)
    return dataclasses.replace(group, dtypes=lines, tasks=kept)


def say(text: str) -> None:
    """Log progress on standard error, beside the table on standard output."""
    print(text, file=sys.stderr, flush=True)


def measure(
    group: Group, rounds: int, peers_python: str, turns: Callable[..., None]
) -> dict[str, Worker]:
    """Measure the workers of a group; return them by name.

    Args:
      group: the workers.
      rounds: number of counted rounds.
      peers_python: Python that has the peers.
      turns: decides who works when.
    """
    workers = {}
    for name, (program, *arguments) in group.tasks.items():
        ours = name.startswith("ours ")
        python = sys.executable if ours else peers_python
        command = [python, str(HERE / program), *arguments]
        workers[name] = Worker(name, command, our_environment() if ours else {})
    try:
        turns(list(workers.values()), rounds, say)
    finally:
        for worker in workers.values():
            worker.close()
    return workers


def our_environment() -> dict[str, str]:
    """Return an environment that can import this project, installed or not."""
    others = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": f"{ROOT}{os.pathsep}{others}" if others else str(ROOT)}


def measure_start(rounds: int) -> dict[str, Any]:
    """Return what ``transformer bench --what=startup`` reports for the small size."""
    size = sizes.SIZES["small"]
    model = {
        "vocab_size": size.vocabulary,
        "layers": size.layers,
        "d_model": size.d_model,
        "d_ff": size.d_ff,
        "heads": size.heads,
        "d_k": size.d_model // size.heads,
        "d_v": size.d_model // size.heads,
    }
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "start.json"
        _run_ours(
            *("-m", "transformer", "bench", "--what=startup", f"--rounds={rounds}"),
            f"--config={ROOT / 'experiments' / 'number_words.py'}",
            *(f"--config.model.{name}={value}" for name, value in model.items()),
            f"--config.batch.tokens={sizes.ROWS * sizes.LENGTH}",
            f"--output={output}",
        )
        return json.loads(output.read_text())


def _text_groups(values: argparse.Namespace, exported: Path) -> dict[str, Group]:
    """Export the run if there is one to measure, and return the groups about it."""
    if not set(TEXT) & set(values.table):
        return {}
    _run_ours(
        str(HERE / "export.py"),
        f"--workdir={values.workdir}",
        f"--input={values.input}",
        f"--output={exported}",
    )
    settings = json.loads((values.workdir / "config.json").read_text())
    beams = (1, settings["decode"]["beam"])
    return {
        name: translating(values.workdir, values.input, exported, beam)
        for name, beam in zip(TEXT, beams, strict=True)
    }


def _run_ours(*arguments: str) -> None:
    """Run a program of this project to its end; stop if it fails."""
    run = subprocess.run(
        [sys.executable, *arguments],
        stdout=sys.stderr,
        env=os.environ | our_environment(),
    )
    if run.returncode:
        sys.exit(run.returncode)


def _records(measured: Mapping[str, Mapping[str, Worker]]) -> dict[str, Any]:
    """Return all that is known about each worker except its translations."""
    return {
        group: {
            name: {
                "seconds": worker.seconds,
                "trouble": worker.trouble,
                **{k: v for k, v in worker.info.items() if not isinstance(v, list)},
            }
            for name, worker in workers.items()
        }
        for group, workers in measured.items()
    }


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    summary = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(description=summary)
    every = {"cpu": [*GROUPS, *TEXT, START], "gpu": [*GPU_GROUPS]}
    add = parser.add_argument
    add("--rounds", type=int, default=5, help="turns of each worker (default: 5)")
    add("--device", choices=every, default="cpu", help="where to compute")
    names = [name for names in every.values() for name in names]
    add("--table", nargs="+", choices=names, help="groups of lines (default: all)")
    add("--dtypes", nargs="+", choices=BOTH, default=BOTH, help="lines (default: both)")
    add("--peers_python", default=sys.executable, help="Python that has the peers")
    add("--workdir", type=Path, help="a finished run, for the lines about real text")
    add("--input", type=Path, help="sentences to translate with it, one per line")
    add("--output", type=Path, help="file for every number as JSON")
    values = parser.parse_args(arguments)
    has_text = values.workdir is not None and values.input is not None
    mine = every[values.device]
    fixed = GROUPS | GPU_GROUPS
    empty = {x for x in fixed if not lines_of(fixed[x], values.dtypes).dtypes}
    if values.table is None:
        absent = empty if has_text else {*empty, *TEXT}
        values.table = [name for name in mine if name not in absent]
    for name in values.table:
        if name not in mine:
            parser.error(
                f"--table: expected {', '.join(mine)} with --device={values.device}, "
                f"got {name}; leave it out"
            )
        if name in empty:
            parser.error(
                f"--dtypes: expected {', '.join(fixed[name].dtypes)} for {name}, got "
                f"{', '.join(values.dtypes)}; change it, or leave {name} out of --table"
            )
    if set(TEXT) & set(values.table) and not has_text:
        parser.error(f"{', '.join(TEXT)}: expected --workdir and --input; give both")
    if shutil.which(values.peers_python) is None:
        parser.error(
            f"--peers_python: expected a Python, got {values.peers_python}, which "
            "cannot be run; give the path of one"
        )
    output = values.output
    if output is not None and not output.absolute().parent.is_dir():
        parser.error(
            f"--output: expected a file in a folder that is there, got {output}; "
            "change it"
        )
    if values.rounds < 1:
        parser.error(f"--rounds: expected 1 or more, got {values.rounds}; raise it")
    return values


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
