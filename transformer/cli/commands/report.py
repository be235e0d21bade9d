"""Show runs beside the paper's tables, with a verdict on each row and claim."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags

from transformer.cli.configs import ablated_file, override_arguments, row_names
from transformer.cli.files import folders, write
from transformer.cli.flags import Command, only_with, only_with_one_of, path_flag
from transformer.cli.parse import CONFIGURED, parse, resolved
from transformer.cli.start import start_devices
from transformer.config import Config, UserError

if TYPE_CHECKING:
    from transformer.run.measured import Measured

_TABLE3 = "experiments/table3.py"


def run(values: flags.FlagValues) -> int:
    """Run the command with the values of its flags; return the exit code."""
    sources = (values.workdir, values.results, values.systems, values.parsing)
    if sources == (None,) * 4 and not values.static:
        raise UserError(
            "report: expected --workdir, --results, --systems, --parsing or --static; "
            "give one or several"
        )
    from transformer.paper import kept, report, runs
    from transformer.pictures.tables import page

    title, found, figures = "Attention Is All You Need", [], []
    places = [] if values.workdir is None else [Path(values.workdir)]
    places += [] if values.results is None else folders(values.results, "results")
    places = [*{place.resolve(): place for place in places}.values()]
    pairs = [runs.find(place) for place in places]
    every = runs.tell_apart([finished for finished, _ in pairs], places)
    if every:
        title = report.title(every)
    if values.results is not None:
        found += report.claims(every)
    beside = () if values.parsing is None else {4}
    for finished, (_, unfinished) in zip(every, pairs, strict=True):
        found += report.tables(finished, unfinished, beside)
        if values.format == "html":
            figures += report.figures(finished)
    if values.systems is not None:
        systems = folders(values.systems, "systems")
        halves = [i for i, one in enumerate(found) if one.title.startswith("Table 2")]
        half = report.systems_table(systems, values.variant)
        found.insert(halves[-1] + 1 if halves else 0, half)
    if values.parsing is not None:
        found.append(report.parsing_table(folders(values.parsing, "parsing")))
    if values.static:
        rows = _static_rows(values)
        start_devices("any")
        from transformer.paper import static

        found += static.tables(rows, values.timed)
        if values.format == "html":
            figures += static.figures(values.timed)
    if values.save is not None:
        finished = [] if values.workdir is None else [*every[0]]
        kept.save([*finished, *_systems(values)], Path(values.save))
    write(values.output, page(values.format, title, found, figures))
    return 0


def _systems(values: flags.FlagValues) -> list[Measured]:
    """Return the finished runs that are not rows of a table."""
    from transformer.paper.report import groups

    named = {name: values[name].value for name in ("systems", "parsing")}
    return [
        run
        for name, text in named.items()
        if text is not None
        for run in groups.read(folders(text, name), name)[0]
    ]


def _static_rows(values: flags.FlagValues) -> dict[str, Config]:
    """Return the rows of Table 3, resolved."""
    from transformer.paper.rows import TABLE3

    if values.config is None:
        values = parse("report", CONFIGURED, [f"--config={_TABLE3}"])
    file, options = ablated_file(values["config"])
    rows, overrides = row_names(file), override_arguments(values["config"])
    if not set(rows) <= set(TABLE3):
        raise UserError(
            f"--config: expected the rows of {_TABLE3}, got {file}, which has "
            "others; leave it out"
        )
    named = {row: f"--config={file}:{','.join([row, *options])}" for row in rows}
    return {row: resolved([one, *overrides]) for row, one in named.items()}


COMMAND = Command(
    run,
    (),
    ("workdir", "results", "save", "systems", "variant", "parsing", "format", "output")
    + ("static", "timed", "config"),
    {"workdir": path_flag("folder of an ablation, or of one run")},
    rules=(
        only_with_one_of(("workdir", "systems", "parsing"), "save"),
        only_with("systems", "variant"),
        only_with("static", "timed", "config"),
    ),
)
