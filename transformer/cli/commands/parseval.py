"""Score constituency trees as EVALB does, with COLLINS.prm."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from absl import flags

from transformer.cli.files import write, write_json
from transformer.cli.flags import (
    Command,
    choice_flag,
    file_flag,
    path_flag,
    switch_flag,
)


def run(values: flags.FlagValues) -> int:
    """Run the command with the values of its arguments; return the exit code."""
    from transformer.data.sources.text import read_lines
    from transformer.metrics import evalb_table, parseval

    gold, test = (list(read_lines(Path(name))) for name in (values.gold, values.test))
    rows = parseval.count_all(gold, test, values.tags, name=values.gold)
    write(None, evalb_table.table(rows, values.sentences))
    few = parseval.short(rows)
    found: dict[str, Any] = {
        "gold": values.gold,
        "test": values.test,
        "rules": parseval.COLLINS.name,
        "tags": values.tags,
    }
    for name, those in (("all", rows), (f"len<={parseval.CUT_OFF}", few)):
        totals = parseval.total(those)
        found[name] = dataclasses.asdict(totals) | totals.rates()
    found["sentences"] = [row._asdict() for row in rows]
    write_json(values.output, found)
    return 0


COMMAND = Command(
    run,
    (),
    ("sentences", "tags", "output"),
    {
        "sentences": switch_flag("print a line for each sentence first, as EVALB does"),
        "tags": choice_flag(
            "tag of a word that TEST tags XX: that of GOLD, or XX as in EVALB",
            ["gold", "test"],
            "gold",
        ),
        "output": path_flag(
            "JSON file to write: the table, with the counts of each sentence"
        ),
    },
    positional={
        "gold": file_flag("file of gold trees in brackets, one per line; may be .gz"),
        "test": file_flag("file of trees to score, one for each line of GOLD"),
    },
)
