"""What a configuration costs on a machine that is not here, before anybody pays for it.

For a TPU its programs are compiled, and what the compiler says of them is set beside
the device's datasheet. A step takes no less time than the longer of two (the roofline):

    operations / (operations a second)    bytes moved / (bytes a second)

This is a bound and no measurement: nothing overlaps so well, and no program reaches
both figures of a datasheet. Communication between devices is counted, but is no part
of it. Source: Williams et al., Roofline, doi:10.1145/1498765.1498785.
"""

from __future__ import annotations

import collections
import dataclasses
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from transformer import parallel
from transformer.config import Config
from transformer.data.batches import Batches, Shape, in_order
from transformer.models.transformer import (
    abstract_params,
    configured_vocabulary,
    make_model,
)
from transformer.nn.hardware import Hardware, of
from transformer.parallel import sizes
from transformer.pictures.tables import Table, digits, markdown
from transformer.prepare import is_prepared, prepare
from transformer.run.records import announce, write_json
from transformer.tools import flops, hlo, targets, traces
from transformer.tools.targets import CHIPS, TARGETS, Chip

_LENGTH = 32  # of sentences, where nothing is known of them
TRACES = {
    "train": traces.train_step,
    "evaluate": traces.evaluation,
    "search": traces.search,
}


class Work(NamedTuple):
    """What the programs of a configuration work on."""

    sizes: tuple[int, int]  # rows of the source's and of the target's table
    shapes: Mapping[Shape, float]  # (R, S, T) of a step's batch -> share of the steps
    longest: int  # tokens of a side
    programs: int  # train steps to compile, one a shape
    origin: str  # says where the shapes come from


class Counts(NamedTuple):
    """What a program does on each device, by its text, see ``programs``."""

    operations: int  # of products, 2 a multiply-add
    moved: int  # bytes, to and from the main memory
    sent: int  # bytes, to other devices

    @classmethod
    def of(cls, text: str) -> Counts | None:
        """Count; None if a loop turns until its sentences end, as that of a search."""
        try:
            return cls(hlo.operations(text), hlo.moved(text), hlo.sent(text))
        except ValueError:
            return None


class Program(NamedTuple):
    """What the compiler says of a program; each figure is of one device."""

    kind: str  # of TRACES
    shape: Shape
    compile_seconds: float  # on this machine
    arguments: int  # bytes
    outputs: int  # bytes, without those that are arguments too
    temporaries: int  # bytes
    code: int  # bytes
    accessed: float  # bytes by XLA's own count: loops once, other memories too
    counts: Counts | None  # None = known only when it runs, of a search

    @property
    def memory(self) -> int:
        """Bytes of a device's memory while it runs."""
        return self.arguments + self.outputs + self.temporaries + self.code


def bound(chip: Chip, operations: float, moved: float) -> tuple[float, str]:
    """Return the least seconds that a device takes, and what it waits for.

    Args:
      chip: the device.
      operations: of products, 2 a multiply-add.
      moved: bytes to and from its memory.

    >>> chip = Chip("one", peak=1e12, bandwidth=1e9, memory=1e9)
    >>> bound(chip, operations=3e12, moved=2e9), bound(chip, operations=1e12, moved=2e9)
    ((3.0, 'operations'), (2.0, 'memory'))
    """
    return max(
        (operations / chip.peak, "operations"), (moved / chip.bandwidth, "memory")
    )


def plan(
    settings: Config,
    target: str,
    what: str = "all",
    *,
    tokens: int | None = None,
    length: int | None = None,
    every: bool = False,
    output: Path | None = None,
    progress: Callable[[str], None] = lambda line: None,
    say: Callable[[str], None] = announce,
) -> dict[str, Any]:
    """Compile the programs of a configuration for a machine, and print what they cost.

    Args:
      settings: the resolved configuration.
      target: of ``targets.TARGETS``, or "cuda", for which programs are lowered only.
      what: "all", or one of TRACES.
      tokens: slots a side of a step's batch, None = the configuration's.
      length: of sentences on both sides, None = those of the data, see ``work_of``.
      every: compile the step for all shapes of batches, not for the largest only.
      output: file for the same figures as JSON.
      progress: is told before each compilation, which may take minutes.
      say: is told the results.

    Returns:
      What is printed, by name.

    Raises:
      UserError: if libtpu is not here, or the vocabulary is known only once the data
        are prepared.
    """
    if tokens is not None:
        batch = dataclasses.replace(settings.batch, tokens=tokens)
        settings = dataclasses.replace(settings, batch=batch)
    work = work_of(settings, length, progress)
    on_paper = {"target": target} | _of_config(settings, work)
    found = _lowered if target == "cuda" else _compiled
    kinds = [*TRACES] if what == "all" else [what]
    rows, table = found(settings, target, work, kinds, every, progress)
    rows = on_paper | rows
    width = max(len(name) for name in rows if name != "programs")
    for name, value in rows.items():
        if name != "programs":
            say(f"{name:{width}}  {_text(value)}")
    if table is not None:
        say("")
        say(markdown(table).rstrip())
    if output is not None:
        write_json(output, rows)
    return rows


def _text(value: Any) -> str:
    if isinstance(value, float):
        return digits(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


# ---- what there is to do -------------------------------------------------------------


def work_of(settings: Config, length: int | None, say: Callable[[str], None]) -> Work:
    """Return what the programs of a configuration work on.

    The shapes of batches are those of the data, if they are prepared or generated.
    Otherwise, or with a length given, all sentences have that length, or 32 tokens. A
    step of several batches is taken as one with the rows of all.

    Args:
      settings: the configuration.
      length: of sentences on both sides, None = as in the data.
      say: is told of the preparation of data.

    Raises:
      UserError: if the size of the vocabulary is not known.
    """
    known = is_prepared(settings)
    if length is None and (known or settings.data.source == "numbers"):
        return _work_of_data(settings, known, say)
    origin = "given" if length else "assumed: the data are not prepared"
    slots, batch = length or _LENGTH, settings.batch
    rows = max(batch.tokens // slots // batch.multiple, 1) * batch.multiple
    size = configured_vocabulary(settings)
    shapes = {(rows, slots, slots): 1.0}
    return Work((size, size), shapes, slots, batch.shapes, origin)


def _work_of_data(settings: Config, known: bool, say: Callable[[str], None]) -> Work:
    data = settings.data if known else dataclasses.replace(settings.data, prepared="")
    with tempfile.TemporaryDirectory() as folder:
        prepared = prepare(dataclasses.replace(settings, data=data), folder, say)
        corpus = prepared.corpora["train"]
        batches = Batches(corpus, settings.batch, settings.seed)
        counts = collections.Counter(map(batches.shape_at, range(batches.per_epoch)))
    shares = {
        (rows * batches.lengths, s, t): count / batches.per_epoch
        for (rows, s, t), count in counts.items()
    }
    both = prepared.vocabulary.source.size, prepared.vocabulary.target.size
    longest = max(max(s, t) for _, s, t in shares)
    return Work(both, shares, longest, len(shares), "of the data")


def _largest(shapes: Mapping[Shape, float]) -> Shape:
    return max(shapes, key=lambda shape: (shape[0] * (shape[1] + shape[2]), shape))


def _of_config(settings: Config, work: Work) -> dict[str, Any]:
    """Return what is known of a configuration without compiling it."""
    c, shape = settings.model, _largest(work.shapes)
    tree = abstract_params(make_model(c, *work.sizes))
    groups = in_order(range(1, work.longest + 1), work.longest)
    lengths = {group.length for group in groups}
    again = flops.recomputed(c, shape[1], shape[2], settings.parallel.remat)
    operations = flops.train_step(c, *shape, work.sizes[1]) + shape[0] * again
    return {
        "configuration": settings.name,
        "largest batch, rows x source x target": f"{_by(shape)}, {work.origin}",
        "shapes of batches, a program each": work.programs,
        "lengths of evaluation and search, a program each or more": len(lengths),
        "rows of the tables of embeddings": _by(work.sizes),
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(tree)),
        "layers": settings.parallel.layers,
        "largest step, 10^12 operations by formula": operations / 1e12,
    }


def _by(numbers: Sequence[int]) -> str:
    return " x ".join(map(str, numbers))


# ---- for a TPU -----------------------------------------------------------------------


def compiled(kind: str, shape: Shape, traced: jax.stages.Traced) -> Program:
    """Compile a program and read it.

    Args:
      kind: of TRACES.
      shape: of what it works on.
      traced: the program, for devices.
    """
    start = time.perf_counter()
    program = traces.compile_anew(traced)
    seconds = time.perf_counter() - start
    memory = program.memory_analysis()
    return Program(
        kind,
        shape,
        seconds,
        memory.argument_size_in_bytes,
        memory.output_size_in_bytes - memory.alias_size_in_bytes,
        memory.temp_size_in_bytes,
        memory.generated_code_size_in_bytes,
        program.cost_analysis()["bytes accessed"],
        Counts.of(program.as_text()),
    )


def _compiled(
    settings: Config,
    target: str,
    work: Work,
    kinds: Sequence[str],
    every: bool,
    say: Callable[[str], None],
) -> tuple[dict[str, Any], Table | None]:
    """Compile for a TPU."""
    devices = targets.devices(target)
    chip, note = CHIPS[TARGETS[target].chip], TARGETS[target].note
    parallel.check(settings, parallel.axis_sizes(settings.parallel, len(devices)))
    kind_of_chip, memory = of(devices[0]), int(chip.memory)
    settings = sizes.follow(settings, kind_of_chip, memory, work.sizes[1])
    rows: dict[str, Any] = {
        **traces.choices(settings, kind_of_chip, _largest(work.shapes)[1:]),
        "at a time": sizes.line(settings).removeprefix("at a time: "),
        "devices": f"{len(devices)} x {chip.name}, each {chip.peak / 1e12:,.4g} 10^12 "
        f"operations/s, {chip.bandwidth / 1e9:,.4g} GB/s, {chip.memory / 1e9:,.4g} GB"
        + (f"; {note}" if note else ""),
    }
    found, refused = [], ""
    for kind, shape in _wanted(settings, work, kinds, every, len(devices)):
        say(f"compiling {kind}, {_by(shape)}, for {target}")
        traced = TRACES[kind](settings, work.sizes, shape, devices)
        try:
            found.append(compiled(kind, shape, traced))
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            refused = f"no: {kind}, {_by(shape)}: {str(error).splitlines()[0]}"
            break
    if found:
        most = max(program.memory for program in found)
        share = f"{most / 1e9:,.3g} of {chip.memory / 1e9:,.3g} GB"
    rows["fits"] = refused or f"yes: {share}"
    steps = {p.shape: p for p in found if p.kind == "train"}
    if not refused and steps:
        rows |= _step(settings, chip, work, steps)
    rows["programs"] = [_record(p) for p in found]
    return rows, _table(chip, found) if found else None


def _record(program: Program) -> dict[str, Any]:
    """Return a program's figures by name, for JSON."""
    rest = program._asdict() | {"memory": program.memory}
    counts = rest.pop("counts")
    return rest | (counts._asdict() if counts else {})


def _wanted(
    settings: Config, work: Work, kinds: Sequence[str], every: bool, devices: int
) -> list[tuple[str, Shape]]:
    """Return kind and shape of each program to compile."""
    decoding, longest = settings.decode, [work.longest]
    wanted: list[tuple[str, Shape]] = []
    if "train" in kinds:
        shapes = sorted(work.shapes) if every else [_largest(work.shapes)]
        wanted += [("train", shape) for shape in shapes]
    if "evaluate" in kinds:
        parts = parallel.row_shards(parallel.axis_sizes(settings.parallel, devices))
        (group,) = in_order(longest, decoding.tokens * parts, parts)
        wanted += [("evaluate", (group.height, group.length, group.length))]
    if "search" in kinds:
        (group,) = in_order(longest, decoding.tokens * devices, devices)
        limit = group.length + decoding.extra_tokens
        wanted += [("search", (group.height, group.length, limit))]
    return wanted


def _step(
    settings: Config, chip: Chip, work: Work, found: Mapping[Shape, Program]
) -> dict[str, Any]:
    """Return the bound on the time of a step, the mean over the shapes of batches."""
    counts = {shape: p.counts for shape, p in found.items() if p.counts}
    bounds = {shape: bound(chip, n.operations, n.moved) for shape, n in counts.items()}
    shares = {shape: work.shapes[shape] for shape in bounds}
    mean = sum(shares[x] * bounds[x][0] for x in bounds) / sum(shares.values())
    largest = _largest(shares)
    one, steps = counts[largest], settings.train.steps
    seconds = sum(p.compile_seconds for p in found.values()) / len(found)
    return {
        "largest step, 10^12 operations a device": one.operations / 1e12,
        "  GB to and from its memory": one.moved / 1e9,
        "  GB by XLA's count, loops once and on-chip memory too": (
            found[largest].accessed / 1e9
        ),
        "  GB sent": one.sent / 1e9,
        "  bound by": bounds[largest][1],
        "a step takes at least, s (a bound, not measured)": mean,
        f"{steps:,} steps take at least, h (a bound, not measured)": (
            mean * steps / 3600
        ),
        f"compilation of {work.programs} train steps in a row here, s": (
            seconds * work.programs
        ),
    }


def _table(chip: Chip, found: Sequence[Program]) -> Table:
    def megabytes(*counts: float) -> list[str]:
        return [digits(count / 1e6) for count in counts]

    cells = []
    for p in found:
        counted = [""] * 4
        if p.counts:
            operations, moved, sent = p.counts
            seconds, _ = bound(chip, operations, moved)
            counted = [digits(operations / 1e12), *megabytes(moved, sent)]
            counted.append(digits(1e3 * seconds))
        held = p.arguments, p.outputs, p.temporaries, p.code, p.memory
        cells.append(
            (p.kind, _by(p.shape), digits(p.compile_seconds), *megabytes(*held))
            + (*counted[:2], *megabytes(p.accessed), *counted[2:])
        )
    return Table(
        "Programs, as compiled",
        (
            "program",
            "rows x source x target",
            "compile, s",
            "arguments, MB",
            "outputs, MB",
        )
        + ("temporaries, MB", "code, MB", "sum, MB", "operations, 10^12")
        + ("moved, MB", "moved by XLA's count, MB", "sent, MB", "bound, ms"),
        tuple(cells),
        "Each figure is of one device; MB are 10^6 bytes. Moved: to and from the main "
        "memory. Where nothing stands, it depends on the sentences.",
    )


# ---- for CUDA ------------------------------------------------------------------------

_CARDS = {
    "compute capability 8.0 or newer": Hardware("cuda", (8, 0)),
    "older": Hardware("cuda", (7, 5), bfloat16=False),
}


def _lowered(
    settings: Config,
    target: str,
    work: Work,
    kinds: Sequence[str],
    every: bool,
    say: Callable[[str], None],
) -> tuple[dict[str, Any], Table | None]:
    """Lower for CUDA."""
    devices, rows = jax.devices("cpu")[:1], {}
    settings = sizes.follow(settings, Hardware("cuda"), 0, work.sizes[1])
    wanted = _wanted(settings, work, kinds, every, len(devices))
    for cards, kind_of_card in _CARDS.items():
        chosen = traces.choices(settings, kind_of_card, _largest(work.shapes)[1:])
        told = [chosen["products"], f"attention {chosen['attention']}"]
        try:
            for kind, shape in wanted:
                say(f"lowering {kind}, {_by(shape)}, for {target}, {cards}")
                trace = TRACES[kind]
                traced = trace(settings, work.sizes, shape, devices, kind_of_card)
                text = traced.lower(lowering_platforms=(target,)).as_text()
                calls = text.count("@__cudnn$fmha")
                kernels = f" with {calls} calls of the kernel" if calls else ""
                told.append(f"{kind} lowered{kernels}")
        except RuntimeError as error:
            if "cuDNN" not in str(error):
                raise
            told.append(f"not lowered, as JAX asks for an installed cuDNN: {error}")
        rows[cards] = "; ".join(told)
    rows["not known without the card"] = (
        "memory, seconds to compile, size of programs, bytes moved, time: the compiler "
        "tries kernels on the card"
    )
    return rows, None
