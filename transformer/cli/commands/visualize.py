"""Draw or measure what heads attend to, or draw a beam search or a parse tree."""

from __future__ import annotations

import contextlib
from pathlib import Path

from absl import flags

from transformer.cli.files import picture_form, reading, trained, write
from transformer.cli.flags import (
    Command,
    count_flag,
    file_flag,
    given,
    only_with,
    only_without,
    path_flag,
    switch_flag,
    text_flag,
)
from transformer.cli.start import start_devices
from transformer.config import UserError
from transformer.pictures.plots import FORMS

_WHICH = ("layers", "heads", "kind", "word")  # which maps to draw
_MAPS = ("target", *_WHICH)
_PENALTY = ("alpha", "length_penalty")


def run(values: flags.FlagValues) -> int:
    """Run the command with the values of its flags; return the exit code."""
    if (values.source is not None) == values.statistics:
        raise UserError(
            "visualize: expected either --source or --statistics; give one of them"
        )
    workdir = trained(Path(values.workdir))
    show = _show_statistics if values.statistics else _show_heads
    if values.beam:
        show = _show_search
    elif values.tree:
        show = _show_tree
    write(values.output, show(values, workdir))
    return 0


def _show_heads(values: flags.FlagValues, workdir: Path) -> str | bytes:
    form = picture_form(values.output, ["html", *FORMS])
    start_devices(values.device)
    from transformer.pictures import heads

    return heads.show(
        workdir,
        form,
        values.source,
        values.target,
        step=values.step,
        **given(values, _WHICH),
    )


def _show_search(values: flags.FlagValues, workdir: Path) -> str | bytes:
    form = picture_form(values.output, ["html", *FORMS])
    start_devices(values.device)
    from transformer.pictures import search_tree

    return search_tree.show(
        workdir,
        form,
        values.source,
        step=values.step,
        beam=values.width,
        **given(values, _PENALTY),
    )


def _show_tree(values: flags.FlagValues, workdir: Path) -> bytes:
    form = picture_form(values.output, FORMS)
    start_devices(values.device)
    from transformer.pictures import constituents

    return constituents.show(
        workdir, form, values.source, values.target, step=values.step
    )


def _show_statistics(values: flags.FlagValues, workdir: Path) -> str | bytes:
    form = picture_form(values.output or ".md", ["md", "csv", "html", *FORMS])
    with contextlib.ExitStack() as files:
        sources = files.enter_context(reading(values.input))
        targets = None
        if values.translations is not None:
            targets = files.enter_context(reading(values.translations))
        start_devices(values.device)
        from transformer.pictures import head_statistics

        return head_statistics.show(workdir, form, sources, targets, step=values.step)


COMMAND = Command(
    run,
    ("workdir",),
    ("source", "target", *_WHICH, "tree", "beam", "width", *_PENALTY)
    + ("statistics", "input", "translations", "output", "step", "device"),
    {
        "source": text_flag("source sentence"),
        "tree": switch_flag(
            "draw the target's constituency tree instead, for a run that parses (the "
            "page also has it)"
        ),
        "beam": switch_flag("draw the tree of the beam search for --source instead"),
        "width": count_flag("hypotheses kept by --beam (default: from the config)"),
        "target": text_flag("its translation (default: the model's own)"),
        "input": file_flag(
            "for --statistics: file of sentences, one per line (default: standard "
            "input)"
        ),
        "output": path_flag(
            "file to write: .html (a page to explore), .png, .svg or .pdf; with "
            "--statistics also .md or .csv (default: a table on standard output)"
        ),
    },
    (
        only_without("statistics", *_MAPS, "tree", "beam"),
        only_without("beam", *_MAPS, "tree"),
        only_without("tree", *_WHICH),
        only_with("beam", "width", *_PENALTY),
        only_with("statistics", "input", "translations"),
    ),
)
