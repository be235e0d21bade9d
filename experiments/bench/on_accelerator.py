"""Measure all that README.md says of an accelerator, and print that section.

    python experiments/bench/on_accelerator.py --folder=measured --data=multi30k/bpe \\
        --peers_python=PEERS/bin/python

runs where JAX finds an accelerator, piece by piece, each in processes of its own, and
writes a file of JSON for each piece into the folder. A piece that is there is not
measured again; one that failed, or was stopped, is tried again by the same command.
--list says which there are, what each takes and what has been done; --only=NAME,NAME
runs some; --within=SECONDS starts none that would not end in time; --report prints the
section from what is there. Without --data (Multi30k, segmented) and without PyTorch
(in --peers_python) the pieces that need them are skipped, and say so. --tiny tries the
script where there is no accelerator: its numbers mean nothing.

    python experiments/bench/on_accelerator.py --folder=cpu --write_losses

makes on a CPU the losses that a device is compared with.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import report
import sizes
import worker
from side_by_side import GPU_GROUPS, HERE, ROOT, our_environment

LIMIT = 600  # seconds that a piece may take
LOSSES = HERE / "losses_cpu.json"
STEPS = 20  # whose losses are compared
# Nats a token, between two devices. Rounding to bfloat16 alone moves these losses by up
# to 1.3e-3 on a CPU; accelerators also round the operands of attention.
ALLOWED = {"float32": 1e-3, "bfloat16": 4e-3}
DETERMINISTIC = "--xla_gpu_deterministic_ops=true"  # reductions, scatters, cuDNN
_LAST_LINES = 15  # of a command that failed


@dataclasses.dataclass(frozen=True)
class Scale:
    """How large everything is.

    Attributes:
      peak: size of square matrices, and products in a row.
      lengths: of sentences.
      blocks: values of ``loss.block`` beside the configuration's own, by length.
      sentences: of a search.
      steps: of the runs that are killed and resumed.
      base, big, numbers: flags that make a configuration smaller.
      bench: flags of each bench.
    """

    peak: tuple[int, int] = (8192, 16)
    lengths: tuple[int, int] = (32, 256)
    blocks: tuple[tuple[int, ...], ...] = ((512, 25_000), (25_000,))
    sentences: tuple[int, int, int] = (1, 128, 2048)
    steps: int = 120
    base: tuple[str, ...] = ()
    big: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    bench: tuple[str, ...] = ()


def _flags(**changes: object) -> tuple[str, ...]:
    keys = ((key.replace("__", "."), value) for key, value in changes.items())
    return tuple(f"--config.{key}={value}" for key, value in keys)


_LITTLE = _flags(model__layers=1, model__d_model=16, model__d_ff=32, model__heads=2)
_LITTLE += _flags(model__d_k=8, model__d_v=8)
_SHORT = _flags(tokenizer__vocab_size=60, batch__tokens=64, data__max_length=8)
_FEW = _flags(data__train_pairs=300, batch__tokens=512, decode__tokens=512)
TINY = Scale(
    peak=(64, 2),
    lengths=(8, 16),
    blocks=((16,), ()),
    sentences=(1, 2, 3),
    steps=12,
    base=_LITTLE + _SHORT,
    big=_LITTLE + _SHORT,
    numbers=_LITTLE + _FEW + _flags(train__steps=6, train__evaluate_every=6),
    bench=("--rounds=1",),
)


class Failed(Exception):
    """A command ended otherwise than it should."""


class Skipped(Exception):
    """A piece cannot be measured here."""


@dataclasses.dataclass(frozen=True)
class Place:
    """Where and how large a piece is measured; runs its commands.

    Attributes:
      folder: for results.
      scale: how large.
      data: folder of Multi30k, segmented.
      peers: Python that has the peers.
      ends: on ``time.monotonic``'s clock, when the piece has to be done.
    """

    folder: Path
    scale: Scale = Scale()
    data: Path | None = None
    peers: str = sys.executable
    ends: float = math.inf

    def command(self, *arguments: str, **environment: str) -> str:
        """Run a program of this project to its end; return its standard output."""
        line = [sys.executable, *arguments]
        say(" ".join(arguments))
        try:
            run = subprocess.run(
                line,
                capture_output=True,
                text=True,
                env=self._environment(environment),
                timeout=min(LIMIT, max(1.0, self.ends - time.monotonic())),
            )
        except subprocess.TimeoutExpired:
            raise Failed(f"no end within {LIMIT} s: {' '.join(arguments)}") from None
        if run.returncode:
            _fail(arguments, run.returncode, run.stdout + run.stderr)
        return run.stdout

    def stop(self, how: signal.Signals, mark: str, *arguments: str, **env: str) -> None:
        """Run a program until a line begins so, then send it a signal."""
        line = [sys.executable, *arguments]
        say(f"{' '.join(arguments)} (until {mark!r}, then {how.name})")
        process = subprocess.Popen(
            line,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self._environment(env | {"PYTHONUNBUFFERED": "1"}),
        )
        assert process.stdout is not None
        left = min(LIMIT, max(1.0, self.ends - time.monotonic()))
        clock = threading.Timer(left, process.kill)
        clock.start()
        lines, reached = [], False
        with process:
            for one in process.stdout:
                lines.append(one)
                reached = one.startswith(mark)
                if reached:
                    process.send_signal(how)
                    process.communicate()
                    break
        clock.cancel()
        if not reached:
            _fail(arguments, process.returncode, "".join(lines))

    def transformer(self, *arguments: str, **environment: str) -> str:
        """Run ``transformer COMMAND``."""
        return self.command("-m", "transformer", *arguments, **environment)

    def bench(self, name: str, *arguments: str, **environment: str) -> dict[str, Any]:
        """Run ``transformer bench``, or read what it has written under this name."""
        output = self.folder / "bench" / f"{name}.json"
        output.parent.mkdir(exist_ok=True)
        if not output.exists():
            flags = (*arguments, *self.scale.bench, f"--output={output}")
            printed = self.transformer("bench", *flags, **environment)
            output.with_suffix(".txt").write_text(printed)  # the profile's costliest
        return json.loads(output.read_text())

    def inside(self, work: str, *arguments: str) -> dict[str, Any]:
        """Run ``on_device.py``."""
        output = self.folder / f"{work}.inside.json"
        self.command(str(HERE / "on_device.py"), work, f"--output={output}", *arguments)
        return json.loads(output.read_text())

    def workdir(self, name: str) -> Path:
        """Return a folder for a run."""
        return self.folder / "runs" / name

    def experiment(self, name: str) -> str:
        """Return the flag that names a configuration."""
        return f"--config={ROOT / 'experiments' / name}"

    def corpus(self, name: str) -> str:
        """Return the flag with which runs share a corpus."""
        return f"--config.data.prepared={self.folder / 'corpus' / name}"

    def _environment(self, given: Mapping[str, str]) -> dict[str, str]:
        cache = {"JAX_COMPILATION_CACHE_DIR": str(self.folder / "xla")}
        return {**os.environ, **our_environment(), **cache, **given}


def _fail(arguments: Sequence[str], code: int, text: str) -> None:
    last = "\n".join(text.strip().splitlines()[-_LAST_LINES:])
    raise Failed(f"exit code {code}: {' '.join(arguments)}\n{last}")


def say(text: str) -> None:
    """Print a line beside the section on standard output."""
    print(text, file=sys.stderr, flush=True)


# ---- the pieces ----------------------------------------------------------------------


def peaks(place: Place) -> dict[str, Any]:
    """Read versions and flags; measure the rates of products and of memory."""
    size, count = place.scale.peak
    return place.inside("peaks", f"--size={size}", f"--count={count}")


def fused(place: Place) -> dict[str, Any]:
    """Compare the fused attention and its gradients with attention written out."""
    cases = place.inside("attention")
    if "skipped" in cases:
        raise Skipped(cases["skipped"])
    passed = all(case["passed"] for case in cases.values())
    return {"cases": cases, "passed": passed}


def dropout(place: Place) -> dict[str, Any]:
    """Compare the masks of dropout with the CPU's."""
    same = place.inside("dropout")
    return {"passed": same}


def losses(place: Place) -> dict[str, Any]:
    """Compare the first losses of number words with a CPU's, in both forms."""
    expected = json.loads(LOSSES.read_text())
    found: dict[str, Any] = {}
    for dtype, allowed in ALLOWED.items():
        made = first_losses(place, dtype)
        pairs = zip(made, expected[dtype], strict=True)
        most = max(abs(a - b) for a, b in pairs)
        found[dtype] = {"losses": made, "difference": most, "passed": most <= allowed}
    found["passed"] = all(found[dtype]["passed"] for dtype in ALLOWED)
    return found


def first_losses(place: Place, dtype: str, **environment: str) -> list[float]:
    """Train on number words for ``STEPS`` steps; return the loss of each."""
    workdir = place.workdir(f"losses_{dtype}")
    metrics = workdir / "metrics.jsonl"
    if not metrics.exists():
        place.stop(
            signal.SIGTERM,
            f"step {STEPS}/",
            *("-m", "transformer", "train", place.experiment("number_words.py")),
            f"--workdir={workdir}",
            *(place.corpus("losses"), f"--config.model.dtype={dtype}"),
            *_flags(train__log_every=1, train__checkpoint_every=1000),
            "--config.train.evaluate_every=1000",
            **environment,
        )
    lines = map(json.loads, metrics.read_text().splitlines())
    return [line["loss"] for line in lines if "loss" in line][:STEPS]


def check(place: Place) -> dict[str, Any]:
    """Let ``transformer check`` look for leaks in base and in number words' model."""
    found = {}
    for name, flags in (
        ("base.py", place.scale.base),
        ("number_words.py", place.scale.numbers),
    ):
        found[name] = place.transformer("check", place.experiment(name), *flags)
    return {"said": found, "passed": True}  # else its exit code is 1


def number_words(place: Place) -> dict[str, Any]:
    """Train on number words to the end."""
    return _train(place, "numbers", "number_words.py", place.scale.numbers)


_NO_DATA = "no --data, the folder of Multi30k, segmented"


def multi30k(place: Place) -> dict[str, Any]:
    """Train on Multi30k, ``:tiny``, to the end."""
    if place.data is None:
        raise Skipped(_NO_DATA)
    flags: tuple[str, ...] = (f"--config.data.dir={place.data}",)
    if place.scale is TINY:
        flags += _LITTLE + _flags(train__steps=4, decode__beam=1)
    return _train(place, "multi30k", "multi30k.py:tiny", flags)


def _train(
    place: Place, name: str, config: str, flags: Sequence[str]
) -> dict[str, Any]:
    workdir = place.workdir(name)
    again = (workdir / "checkpoints").exists()
    place.transformer("train", place.experiment(config), f"--workdir={workdir}", *flags)
    results = json.loads((workdir / "results.json").read_text())
    record = json.loads((workdir / "record.json").read_text())
    started, ended = (
        datetime.datetime.fromisoformat(record[key]) for key in ("started", "ended")
    )
    return {
        "config": config,
        "steps": results["step"],
        "training seconds": (ended - started).total_seconds(),
        "in several calls": again,
        "scores": {
            which: {
                "perplexity": results[which]["perplexity"],
                "exact": results[which]["exact_match"],
                "bleu": {
                    variant: score["value"]
                    for variant, score in results[which]["bleu"].items()
                },
            }
            for which in ("average", "last")
            if which in results
        },
    }


def resume(place: Place) -> dict[str, Any]:
    """Kill a run, resume it, and compare it with one that was not, in bits."""
    found = {"no flags": _resume(place, "default", {})}
    if _platform(place) == "gpu":
        found[DETERMINISTIC] = _resume(place, "deterministic", _deterministic())
    return {"runs": found}


def _deterministic() -> dict[str, str]:
    given = os.environ.get("XLA_FLAGS", "")
    return {"XLA_FLAGS": f"{given} {DETERMINISTIC}".strip()}


def _resume(place: Place, name: str, environment: dict[str, str]) -> dict[str, Any]:
    steps = place.scale.steps
    flags = (
        *(place.corpus("resume"), *place.scale.numbers),
        *_flags(train__steps=steps, train__checkpoint_every=steps // 3),
        *_flags(train__evaluate_every=steps // 3, train__log_every=steps // 6),
        *_flags(decode__average=1, decode__beam=1),
    )
    command = ("train", place.experiment("number_words.py"), *flags)
    runs = [place.workdir(f"{how}_{name}") for how in ("unbroken", "killed")]
    unbroken, killed = (f"--workdir={run}" for run in runs)
    place.transformer(*command, unbroken, **environment)
    if not (runs[1] / "results.json").exists():
        mark = f"step {steps // 2}/"
        kill = signal.SIGKILL
        place.stop(kill, mark, "-m", "transformer", *command, killed, **environment)
    place.transformer(*command, killed, **environment)
    return place.inside("compare", "--runs", *map(str, runs))


def steps_of(config: str, which: int) -> Callable[[Place], dict[str, Any]]:
    """Return the piece that measures training steps of a configuration.

    Args:
      config: "base" or "big".
      which: of the two lengths.
    """

    def piece(place: Place) -> dict[str, Any]:
        """Measure training steps: time, peaks' shares, memory, a profile."""
        length = place.scale.lengths[which]
        name = f"{config}-{length}"
        flags = (place.experiment(f"{config}.py"), *getattr(place.scale, config))
        flags += (f"--length={length}",)
        profile = place.folder / "profiles" / name
        found = {
            "configured": place.bench(name, *flags, f"--profile={profile}"),
        }
        for block in place.scale.blocks[which] if config == "base" else ():
            found[f"loss.block={block}"] = place.bench(
                f"{name}-block-{block}", *flags, f"--config.loss.block={block}"
            )
        if config == "base" and which == 0 and _platform(place) == "gpu":
            found[DETERMINISTIC] = place.bench(
                f"{name}-deterministic", *flags, **_deterministic()
            )
        return {"length": length, "variants": found}

    return piece


def loop(place: Place) -> dict[str, Any]:
    """Measure the training loop of base on number words, cold and warm.

    Every machine has that text. The model keeps its 37,000 ids; there are few shapes of
    batch, because a cold start compiles each.
    """
    words = _flags(data__source="numbers", data__name="", data__train_pairs=100_000)
    words += _flags(data__max_length=64, tokenizer__vocab_size=300, batch__shapes=3)
    words += _flags(model__vocab_size=37_000)
    if place.scale is TINY:
        words += _FEW
    return _loop(place, "base.py", (*place.scale.base, *words))


def multi30k_loop(place: Place) -> dict[str, Any]:
    """Measure the training loop of Multi30k ``:tiny``, cold and warm."""
    if place.data is None:
        raise Skipped(_NO_DATA)
    flags = (f"--config.data.dir={place.data}",)
    return _loop(place, "multi30k.py:tiny", flags)


def _loop(place: Place, config: str, flags: Sequence[str]) -> dict[str, Any]:
    """Measure twice: nothing prepared or compiled before the first time."""
    name = config.partition(".")[0]
    corpus = place.corpus(f"loop-{name}")
    cache = str(place.folder / f"xla-loop-{name}")
    found = {
        f"{config}, {turn}": place.bench(
            f"loop-{name}-{turn}",
            *("--what=loop", place.experiment(config), *flags, corpus),
            JAX_COMPILATION_CACHE_DIR=cache,
        )
        for turn in ("cold", "warm")
    }
    return {"loops": found}


def search(place: Place) -> dict[str, Any]:
    """Measure greedy and beam search of base, at three sizes of batch."""
    length = place.scale.lengths[0]
    found = {
        f"{what}, {sentences}": place.bench(
            f"{what}-{sentences}",
            *(place.experiment("base.py"), *place.scale.base, f"--what={what}"),
            *(f"--tokens={sentences * length}", f"--length={length}"),
        )
        for what in ("greedy", "beam")
        for sentences in place.scale.sentences
    }
    return {"searches": found}


def beside(*tables: str) -> Callable[[Place], dict[str, Any]]:
    """Return the piece that measures groups of lines side by side with the peers."""

    def piece(place: Place) -> dict[str, Any]:
        """Measure side by side with PyTorch and transformers."""
        if place.scale is TINY or _platform(place) != "gpu":
            raise Skipped("the peers are measured on CUDA GPUs")
        look = "import torch; print(torch.cuda.is_available())"
        run = subprocess.run([place.peers, "-c", look], capture_output=True, text=True)
        if run.stdout.strip() != "True":
            raise Skipped(f"no PyTorch with CUDA in {place.peers}")
        output = place.folder / f"beside-{tables[0]}.numbers.json"
        table = place.command(
            *(str(HERE / "side_by_side.py"), "--device=gpu", "--table", *tables),
            *(f"--peers_python={place.peers}", f"--output={output}"),
        )
        return {"table": table, "numbers": json.loads(output.read_text())}

    return piece


class Piece(NamedTuple):
    """One of the measurements.

    Attributes:
      minutes: that it takes on an H200, by estimate.
      run: measures.
    """

    minutes: float
    run: Callable[[Place], dict[str, Any]]


PIECES = {
    "peaks": Piece(1, peaks),
    "attention": Piece(1, fused),
    "dropout": Piece(0.5, dropout),
    "losses": Piece(1.5, losses),
    "check": Piece(1, check),
    "numbers": Piece(2, number_words),
    "multi30k": Piece(4, multi30k),
    "resume": Piece(4, resume),
    "base-32": Piece(4, steps_of("base", 0)),
    "base-256": Piece(2, steps_of("base", 1)),
    "big-32": Piece(1.5, steps_of("big", 0)),
    "big-256": Piece(1.5, steps_of("big", 1)),
    "loop": Piece(3, loop),
    "loop-multi30k": Piece(4, multi30k_loop),
    "search": Piece(4, search),
    "beside-training": Piece(5, beside("train-32", "train-256")),
    "beside-search": Piece(4, beside(*(n for n in GPU_GROUPS if "train" not in n))),
}


def _platform(place: Place) -> str:
    """Return the platform that ``peaks`` saw."""
    path = place.folder / "peaks.json"
    if not path.exists():
        raise Failed("expected peaks.json: measure the piece `peaks` first")
    kind = json.loads(path.read_text())["found"]["machine"]["platform"].lower()
    if "cuda" in kind:
        return "gpu"
    return "tpu" if "tpu" in kind else kind


# ---- the section ---------------------------------------------------------------------


def section(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Write the section of README.md.

    Args:
      found: the file of each piece, by its name.
    """
    parts = ["## On an accelerator"]
    for name, write in _PARTS.items():
        one = found.get(name, {"skipped": "not tried yet"})
        if "skipped" in one:
            parts.append(f"{name}: not measured, {one['skipped']}.")
        elif "failed" in one:
            parts.append(f"{name}: **FAILED**, {one['failed'].splitlines()[0]}")
        else:
            if name == "peaks":
                parts.append(_where(one))
            parts.append("\n".join(write(one["found"])))
    return "\n\n".join(parts) + "\n"


def _where(piece: Mapping[str, Any]) -> str:
    """Say when, on what and with what it was measured."""
    machine = piece["found"]["machine"]
    versions = machine["versions"]
    names = ("jax", "jaxlib", "libtpu")
    used = [f"{name} {versions[name]}" for name in names if name in versions]
    used += [
        f"{name.removeprefix('nvidia-')} {version}"
        for name, version in versions.items()
        if name.startswith(("nvidia-cudnn", "nvidia-cuda-runtime"))
    ]
    if machine["driver"]:
        used.append(f"driver {machine['driver']}")
    flags = ", ".join(f"{k}={v}" for k, v in machine["flags"].items()) or "none"
    return (
        f"Measured on {piece['date']} on {len(machine['devices'])} x "
        f"{machine['devices'][0]} ({piece['host']}): {', '.join(used)}; flags: {flags}."
    )


def _peaks_lines(found: Mapping[str, Any]) -> Iterator[str]:
    sheet = found["datasheet"]
    for dtype, rate in found["products"].items():
        line = f"Products of {found['size']} x {found['size']} {dtype}: {_tera(rate)}"
        if sheet and dtype == "bfloat16":
            line += f", {rate / sheet['operations']:.0%} of the datasheet's"
            line += f" {_tera(sheet['operations'])}"
        yield line + "."
    line = f"Memory: {found['bandwidth'] / 1e12:.2f} TB/s read and written"
    if sheet:
        line += f", {found['bandwidth'] / sheet['bandwidth']:.0%} of the datasheet's"
        line += f" {sheet['bandwidth'] / 1e12:.2f}"
    yield line + "."


def _attention_lines(found: Mapping[str, Any]) -> Iterator[str]:
    yield "| attention | taken | fused - float32 | written out - float32 | |"
    yield "|---|---|---:|---:|---|"
    for name, case in found["cases"].items():
        taken = "fused" if case["taken"] else "written out"
        verdict = "pass" if case["passed"] else "**FAIL**"
        if "refused" in case:
            yield f"| {name} | {taken} | refused: {case['refused']} | | {verdict} |"
            continue
        most = [max(case[kind].values()) for kind in ("fused", "written out")]
        yield f"| {name} | {taken} | {most[0]:.1e} | {most[1]:.1e} | {verdict} |"


def _dropout_lines(found: Mapping[str, Any]) -> Iterator[str]:
    which = "those of a CPU" if found["passed"] else "**NOT those of a CPU**"
    yield f"Dropout masks are {which}."


def _losses_lines(found: Mapping[str, Any]) -> Iterator[str]:
    for dtype, allowed in ALLOWED.items():
        one = found[dtype]
        verdict = "" if one["passed"] else f", **more than {allowed}**"
        yield (
            f"The first {STEPS} losses of number words in {dtype} differ from a CPU's "
            f"by at most {one['difference']:.1e} nats a token{verdict}."
        )


def _check_lines(found: Mapping[str, Any]) -> Iterator[str]:
    for name, said in found["said"].items():
        verdict = said.strip().splitlines()[-1]
        yield f"`transformer check --config=experiments/{name}`: {verdict}."


def _scores_lines(found: Mapping[str, Any]) -> Iterator[str]:
    several = ", in several calls" if found["in several calls"] else ""
    yield (
        f"`{found['config']}`: {found['steps']:,} steps in "
        f"{found['training seconds']:.0f} s, compilation included{several}."
    )
    for which, one in found["scores"].items():
        bleu = ", ".join(f"{k} {v:.2f}" for k, v in one["bleu"].items())
        yield (
            f"{which}: {100 * one['exact']:.1f} % exact, perplexity "
            f"{one['perplexity']:.3f}, BLEU {bleu}."
        )


def _resume_lines(found: Mapping[str, Any]) -> Iterator[str]:
    for flags, one in found["runs"].items():
        end = "the same bits as a run never stopped."
        if not one["same"]:
            end = (
                f"{one['arrays that differ']} of {one['arrays']} arrays differ, by at "
                f"most {one['largest difference']:.1e} of the largest number; metrics "
                f"from step {one['first step that differs']} on."
            )
        yield f"Killed and resumed, {flags}: {end}"


def _steps_lines(config: str, steps: int) -> Callable[[Mapping[str, Any]], Any]:
    def lines(found: Mapping[str, Any]) -> Iterator[str]:
        yield (
            f"| {config}, a side | | ms a step | target tokens/s | of the measured "
            f"peak | of the datasheet's | GB | {steps:,} steps, h |"
        )
        yield "|---|---|---:|---:|---:|---:|---:|---:|"
        for name, one in found["variants"].items():
            seconds = one["step, s (median)"]
            sheet = one.get("share of the datasheet's")
            memory = one.get("peak memory of the device, MB")
            cells = [
                one["batch"],
                name,
                f"{1e3 * seconds:.1f}",
                f"{one['real target tokens/s']:,.0f}",
                f"{one['share of that']:.0%}",
                "" if sheet is None else f"{sheet:.0%}",
                "" if memory is None else f"{memory / 1e3:.1f}",
                f"{steps * seconds / 3600:.2f}",
            ]
            yield "|" + "".join(f" {cell} |" if cell else " |" for cell in cells)

    return lines


_BUSY = "share of the loop's time in such steps"
_IDLE = "share in which the device did, at most"


def _loop_lines(found: Mapping[str, Any]) -> Iterator[str]:
    yield (
        "| loop | first step after, s | ms a step | target tokens/s | in bare steps | "
        "waited for input, at most |"
    )
    yield "|---|---:|---:|---:|---:|---:|"
    for name, one in found["loops"].items():
        yield (
            f"| {name} | {one['start of training to first step done, s']:.1f} | "
            f"{1e3 * one['step, s (median)']:.1f} | "
            f"{one['real target tokens/s']:,.0f} | "
            f"{one[_BUSY]:.0%} | {one[_IDLE]:.1%} |"
        )


def _search_lines(found: Mapping[str, Any]) -> Iterator[str]:
    yield "| search | tokens a sentence | ms a batch | sentences/s |"
    yield "|---|---:|---:|---:|"
    for name, one in found["searches"].items():
        yield (
            f"| {name} | {one['tokens a sentence']} | "
            f"{1e3 * one['batch, s (median)']:.1f} | {one['sentences/s']:,.0f} |"
        )


def _beside_lines(found: Mapping[str, Any]) -> Iterator[str]:
    yield found["table"].strip()


def _tera(rate: float) -> str:
    return f"{rate / 1e12:,.1f} 10^12/s"


_PARTS: dict[str, Callable[[Mapping[str, Any]], Iterator[str]]] = {
    "peaks": _peaks_lines,
    "attention": _attention_lines,
    "dropout": _dropout_lines,
    "losses": _losses_lines,
    "check": _check_lines,
    "numbers": _scores_lines,
    "multi30k": _scores_lines,
    "resume": _resume_lines,
    "base-32": _steps_lines("base", 100_000),
    "base-256": _steps_lines("base", 100_000),
    "big-32": _steps_lines("big", 300_000),
    "big-256": _steps_lines("big", 300_000),
    "loop": _loop_lines,
    "loop-multi30k": _loop_lines,
    "search": _search_lines,
    "beside-training": _beside_lines,
    "beside-search": _beside_lines,
}


# ---- the command ---------------------------------------------------------------------


def main(arguments: Sequence[str]) -> int:
    """Measure what is missing and print the section; 1 if something failed."""
    values = _parse(arguments)
    values.folder.mkdir(parents=True, exist_ok=True)
    place = Place(
        values.folder.resolve(),
        TINY if values.tiny else Scale(),
        values.data and values.data.resolve(),
        values.peers_python,
    )
    if values.write_losses:
        write_losses(place)
        return 0
    if values.list:
        for name, piece in PIECES.items():
            about = (piece.run.__doc__ or "").partition("\n")[0]
            print(f"{name:16} {piece.minutes:4} min  {_state(place, name):12} {about}")
        return 0
    if not values.report:
        measure(place, values.only or list(PIECES), values.within)
    found = read(place.folder)
    print(section(found))
    troubled = [
        name
        for name, one in found.items()
        if "failed" in one or not one.get("found", {}).get("passed", True)
    ]
    if troubled:
        say(f"failed: {', '.join(troubled)}")
    return int(bool(troubled))


def measure(place: Place, names: Sequence[str], within: float) -> None:
    """Measure pieces, in their order, but those that have been.

    Args:
      place: where.
      names: of pieces.
      within: seconds after which nothing shall go on.
    """
    end = time.monotonic() + within
    for name, piece in PIECES.items():
        if name not in names or _state(place, name) == "measured":
            continue
        if time.monotonic() + 60 * piece.minutes > end:
            say(f"--- {name}: no time left for {piece.minutes} minutes")
            continue
        say(f"--- {name}")
        begun = time.monotonic()
        here = dataclasses.replace(place, ends=min(begun + LIMIT, end))
        try:
            result: dict[str, Any] = {"found": piece.run(here)}
        except Skipped as reason:
            result = {"skipped": str(reason)}
        except Failed as reason:
            result = {"failed": str(reason)}
        except Exception as error:  # the other pieces shall not wait for its repair
            traceback.print_exc()
            result = {"failed": f"{type(error).__name__}: {error}"}
        for kind in ("skipped", "failed"):
            if kind in result:
                say(f"{name} {kind}: {result[kind]}")
        result |= {
            "date": str(datetime.date.today()),
            "host": f"{sizes.cores()} cores of {report.cpu()}",
            "seconds": time.monotonic() - begun,
        }
        path = place.folder / f"{name}.json"
        path.write_text(json.dumps(result, indent=1) + "\n")
        say(f"{name}: {result['seconds']:.0f} s")
        if name == "peaks" and place.scale is not TINY and "found" in result:
            _require_accelerator(place)


def _require_accelerator(place: Place) -> None:
    if _platform(place) == "cpu":
        (place.folder / "peaks.json").unlink()
        say("expected an accelerator, got a CPU; --tiny tries the script without one")
        sys.exit(2)


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the files of all pieces that have one, by name."""
    paths = {name: folder / f"{name}.json" for name in PIECES}
    return {n: json.loads(p.read_text()) for n, p in paths.items() if p.exists()}


def _state(place: Place, name: str) -> str:
    one = read(place.folder).get(name)
    if one is None:
        return "missing"
    return next(k for k in ("failed", "skipped", "found") if k in one).replace(
        "found", "measured"
    )


def write_losses(place: Place) -> None:
    """Make on a CPU the file that ``losses`` compares with."""
    found: dict[str, Any] = {
        "config": "experiments/number_words.py",
        "host": f"{sizes.cores()} cores of {report.cpu()}",
        "date": str(datetime.date.today()),
        "versions": worker.versions("jax", "jaxlib"),
    }
    for dtype in ALLOWED:
        found[dtype] = first_losses(place, dtype, JAX_PLATFORMS="cpu")
    LOSSES.write_text(json.dumps(found, indent=1) + "\n")


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    summary = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(description=summary)

    def pieces(text: str) -> list[str]:
        names = text.split(",")
        for name in names:
            if name not in PIECES:
                raise argparse.ArgumentTypeError(
                    f"expected of {', '.join(PIECES)}, got {name}"
                )
        return names

    add = parser.add_argument
    add("--folder", type=Path, required=True, help="for results")
    add("--data", type=Path, help="folder of Multi30k, segmented (BPE)")
    add("--peers_python", default=sys.executable, help="Python that has PyTorch")
    add("--only", type=pieces, help="NAME,NAME (default: all)")
    add("--within", type=float, default=math.inf, help="seconds of this call")
    add("--list", action="store_true", help="print the pieces and their state")
    add("--report", action="store_true", help="measure nothing, print the section")
    add("--tiny", action="store_true", help="try the script; its numbers mean nothing")
    add("--write_losses", action="store_true", help="make losses_cpu.json on a CPU")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
