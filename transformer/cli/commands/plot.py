"""Draw schedules, targets, training curves, BLEU by length, positions, embeddings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from absl import flags

from transformer.cli.files import folders, picture_form, reading, trained, write
from transformer.cli.flags import (
    FLAGS,
    Command,
    choice_flag,
    count_flag,
    file_flag,
    only_for,
    only_with,
    path_flag,
    text_flag,
)
from transformer.cli.start import start_devices
from transformer.config import UserError
from transformer.pictures.plots import FORMS
from transformer.pictures.tables import markdown

_KINDS = ["schedule", "smoothing", "curves", "length", "positions", "embeddings"]
_WIDEST = 4096  # positions are drawn with a dot for each dimension


def run(values: flags.FlagValues) -> int:
    """Run the command with the values of its flags; return the exit code."""
    if values.what == "length":
        return _by_length(values)
    form = picture_form(values.output, FORMS)
    width = _even_width(values) if values.what == "positions" else 0
    start_devices(values.device)
    from transformer.pictures import curves

    if values.what == "schedule":
        widths, warmups = _counts(values, "d_model"), _counts(values, "warmup")
        drawn = curves.schedule(widths, warmups, values.steps)
    elif values.what == "smoothing":
        drawn = curves.smoothing(values.smoothing, values.ids)
    elif values.what == "curves":
        drawn = curves.curves(_folders(values))
    elif values.what == "positions":
        learned = None if values.workdir is None else _loaded(values)
        drawn = curves.positions(values.length, width, learned)
    else:
        model, words = _loaded(values), _words(values)
        drawn = curves.embeddings(model, words, values.method, values.side)
        found = curves.neighbours(model, words, values.neighbours, values.side)
        write(None, markdown(found))
    write(values.output, drawn.file(form))
    return 0


def _by_length(values: flags.FlagValues) -> int:
    form = picture_form(values.output, ["md", "csv", "html", *FORMS])
    edges, workdirs = _counts(values, "edges"), _folders(values)
    if edges != sorted(set(edges)):
        raise UserError(
            f"--edges: expected ascending numbers such as 10,20; got {values.edges}; "
            "change it"
        )
    from transformer.pictures import by_length

    content, table = by_length.show(workdirs, form, edges, values.variant)
    write(values.output, content)
    if form in FORMS:
        write(None, markdown(table))
    return 0


def _counts(values: flags.FlagValues, name: str) -> list[int]:
    text: Any = values[name].value
    if not re.fullmatch(r"[1-9][0-9]{0,9}(,[1-9][0-9]{0,9})*", text):
        raise UserError(
            f"--{name}: expected whole numbers such as 512,1024; got {text}; change it"
        )
    counts = [int(part) for part in text.split(",")]
    if max(counts) >= 2**31:
        raise UserError(
            f"--{name}: expected whole numbers below 2^31, got {text}; change it"
        )
    return counts


def _even_width(values: flags.FlagValues) -> int:
    width, *more = _counts(values, "d_model")
    if more or width % 2 or width > _WIDEST:
        raise UserError(
            f"--d_model: expected one even number up to {_WIDEST:,} with "
            f"--what=positions, got {values.d_model}; change it"
        )
    return width


def _folders(values: flags.FlagValues) -> list[Path]:
    if values.workdir is None:
        raise UserError(f"plot --what={values.what}: expected --workdir; add it")
    found = folders(values.workdir, "workdir")
    if len({place.resolve() for place in found}) < len(found):
        raise UserError(
            f"--workdir: expected each folder once, got {values.workdir}; change it"
        )
    return found


def _loaded(values: flags.FlagValues) -> Any:
    workdir, *more = _folders(values)
    if more:
        raise UserError(
            f"plot --what={values.what}: expected one --workdir, got {values.workdir}; "
            "choose one"
        )
    from transformer.translate import load

    return load(trained(Path(workdir)), step=values.step)


def _words(values: flags.FlagValues) -> list[str]:
    if (values.words is None) == (values.input is None):
        raise UserError(
            "plot --what=embeddings: expected either --words or --input; give one"
        )
    if values.words is not None:
        return [word.strip() for word in values.words.split(",")]
    with reading(values.input) as lines:
        return [line.strip() for line in lines if line.strip()]


COMMAND = Command(
    run,
    ("what", "output"),
    ("workdir", "d_model", "warmup", "steps", "smoothing", "ids", "length")
    + ("edges", "variant")
    + ("words", "input", "method", "side", "neighbours", "step", "device"),
    {
        "what": choice_flag(
            "schedule (--d_model --warmup --steps), smoothing (--smoothing --ids), "
            "curves (--workdir=RUN,RUN), length (BLEU or F1 by source length, "
            "--workdir=RUN,RUN --edges --variant), positions (--d_model --length, and "
            "learned ones with --workdir) or embeddings (--workdir --words)",
            _KINDS,
        ),
        "output": path_flag(
            "file to write: .png, .svg or .pdf; with --what=length also .md, .csv or "
            ".html"
        ),
        "workdir": path_flag("folder of a run, or several separated by commas"),
        "length": count_flag("number of positions", 64, least=2, most=4096),
        "edges": text_flag(
            "maximum source words in each bin except the last, which is open-ended",
            "5,10,15,20,25,30",
        ),
        "variant": choice_flag(
            "variant of BLEU or F1, or exact: the share of exact translations "
            "(default: the first one of the runs' measure)",
            [*FLAGS["variant"].choices, "exact"],
        ),
        "input": file_flag("file of words to plot, one per line"),
    },
    (
        only_for("what", ["schedule"], "warmup", "steps"),
        only_for("what", ["schedule", "positions"], "d_model"),
        only_for("what", ["smoothing"], "smoothing", "ids"),
        only_for("what", ["positions"], "length"),
        only_for("what", ["curves", "length", "positions", "embeddings"], "workdir"),
        only_for("what", ["length"], "edges", "variant"),
        only_for("what", [kind for kind in _KINDS if kind != "length"], "device"),
        only_for("what", ["positions", "embeddings"], "step"),
        only_with("workdir", "step"),
        only_for("what", ["embeddings"], "words", "input", "method", "side"),
        only_for("what", ["embeddings"], "neighbours"),
    ),
)
