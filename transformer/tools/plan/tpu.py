"""Programs compiled for a TPU, beside the least time that its datasheet allows.

A step takes no less time than the longer of two (the roofline):

    operations / (operations per second)    bytes moved / (bytes per second)

This is a bound, not a measurement: nothing overlaps so well, and no program reaches
both numbers of a datasheet. Communication between devices is counted, but is not part
of it. Source: Williams et al., Roofline, doi:10.1145/1498765.1498785.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from transformer import parallel
from transformer.config import Config
from transformer.data.batches import Shape
from transformer.nn.hardware import of
from transformer.parallel import sizes
from transformer.pictures.tables import Table, digits
from transformer.tools import hlo, targets, traces
from transformer.tools.plan.work import TRACES, Request, Work, largest, shape_text
from transformer.tools.targets import CHIPS, TARGETS, Chip
from transformer.tools.traces import Case


class Counts(NamedTuple):
    """What a compiled program does on each device, by its text, see ``hlo``."""

    operations: int  # of products, 2 per multiply-add
    moved: int  # bytes, to and from the main memory
    sent: int  # bytes, to other devices

    @classmethod
    def of(cls, text: str) -> Counts | None:
        """Count; None if a loop runs until its sentences end, as in a search."""
        try:
            return cls(hlo.operations(text), hlo.moved(text), hlo.sent(text))
        except ValueError:
            return None


class Program(NamedTuple):
    """A compiled program, by what the compiler reports of one device."""

    kind: str  # of TRACES
    shape: Shape
    compile_seconds: float  # on this machine
    arguments: int  # bytes
    outputs: int  # bytes, without those that are arguments too
    temporaries: int  # bytes
    code: int  # bytes
    accessed: float  # bytes by XLA's own count: loops once, other memories too
    counts: Counts | None  # None = known only when it runs, for a search

    @property
    def memory(self) -> int:
        """Bytes of a device's memory while it runs."""
        return self.arguments + self.outputs + self.temporaries + self.code


def bound(chip: Chip, operations: float, moved: float) -> tuple[float, str]:
    """Return the least seconds that a device takes, and what it waits for.

    Args:
      chip: the device.
      operations: of products, 2 per multiply-add.
      moved: bytes to and from its memory.

    >>> chip = Chip("one", peak=1e12, bandwidth=1e9, memory=1e9)
    >>> bound(chip, operations=3e12, moved=2e9), bound(chip, operations=1e12, moved=2e9)
    ((3.0, 'operations'), (2.0, 'memory'))
    """
    return max(
        (operations / chip.peak, "operations"), (moved / chip.bandwidth, "memory")
    )


def compile_all(
    request: Request, log: Callable[[str], None]
) -> tuple[dict[str, Any], Table | None]:
    """Compile the programs of a request for a TPU.

    Args:
      request: what is compiled, and for which TPU.
      log: called before each compilation, which may take minutes.

    Returns:
      The results by name, and a table of the programs, None if none fits.
    """
    target, work = request.target, request.work
    devices = targets.devices(target)
    chip, note = CHIPS[TARGETS[target].chip], TARGETS[target].note
    spread = request.settings.parallel
    parallel.check(request.settings, parallel.axis_sizes(spread, len(devices)))
    hardware, memory = of(devices[0]), int(chip.memory)
    settings = sizes.follow(request.settings, hardware, memory, work.sizes[1])
    request = dataclasses.replace(request, settings=settings)
    rows: dict[str, Any] = {
        **traces.choices(settings, hardware, largest(work.shapes)[1:], request.kinds),
        "at a time": sizes.line(settings).removeprefix("at a time: "),
        "devices": f"{len(devices)} x {chip.name}, each {chip.peak / 1e12:,.4g} 10^12 "
        f"operations/s, {chip.bandwidth / 1e9:,.4g} GB/s, {chip.memory / 1e9:,.4g} GB"
        + (f"; {note}" if note else ""),
    }
    found, refused = [], ""
    for kind, shape in request.programs(len(devices)):
        log(f"compiling {kind}, {shape_text(shape)}, for {target}")
        traced = TRACES[kind](Case(settings, work.sizes, shape, devices))
        try:
            found.append(compiled(kind, shape, traced))
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            refused = f"no: {kind}, {shape_text(shape)}: {str(error).splitlines()[0]}"
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


def _record(program: Program) -> dict[str, Any]:
    """Return a program's values by name, for JSON."""
    rest = program._asdict() | {"memory": program.memory}
    counts = rest.pop("counts")
    return rest | (counts._asdict() if counts else {})


def _step(
    settings: Config, chip: Chip, work: Work, found: Mapping[Shape, Program]
) -> dict[str, Any]:
    """Return the bound on the time of a step and, with all shapes, of the run."""
    counts = {shape: p.counts for shape, p in found.items() if p.counts}
    bounds = {shape: bound(chip, n.operations, n.moved) for shape, n in counts.items()}
    shares = {shape: work.shapes[shape] for shape in bounds}
    most = largest(shares)
    one, steps = counts[most], settings.train.steps
    at_least = "takes at least, s (a bound, not measured)"
    times = {f"the largest step {at_least}": bounds[most][0]}
    if shares.keys() == work.shapes.keys():
        mean = sum(shares[x] * bounds[x][0] for x in bounds) / sum(shares.values())
        times = {
            f"a step {at_least}": mean,
            f"{steps:,} steps take at least, h (a bound, not measured)": (
                mean * steps / 3600
            ),
        }
    seconds = sum(p.compile_seconds for p in found.values()) / len(found)
    return {
        "largest step, 10^12 operations per device": one.operations / 1e12,
        "  GB to and from its memory": one.moved / 1e9,
        "  GB by XLA's count, loops once and on-chip memory too": (
            found[most].accessed / 1e9
        ),
        "  GB sent": one.sent / 1e9,
        "  bound by": bounds[most][1],
        **times,
        f"compilation of {work.programs} train steps one by one here, s": (
            seconds * work.programs
        ),
    }


def _table(chip: Chip, found: Sequence[Program]) -> Table:
    """Return a line for each program, with the bound that the chip sets."""

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
            (p.kind, shape_text(p.shape), digits(p.compile_seconds), *megabytes(*held))
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
        "All figures are per device; MB are 10^6 bytes. Moved: to and from the main "
        "memory. Blank where it depends on the sentences.",
    )
