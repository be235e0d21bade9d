"""Run the campaign and print its table: what was tried, and what came of it.

    PYTHONPATH=tests python tests/campaign/run.py

It writes the counts to campaign.json beside it and the table to docs/trust.md, and ends
with exit code 1 if something was not as expected. ``--parts`` runs some parts of it;
the others keep their counts.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

from support.paths import ROOT

from campaign import calls, damage, kills, others
from campaign.place import Outcome, Place, make, quick

COUNTS = Path(__file__).with_name("campaign.json")
PAGE = ROOT / "docs" / "trust.md"
TABLE = re.compile(r"^\| tried \|.*?(?=^$)", re.MULTILINE | re.DOTALL)
_COLUMNS = ("times", "right", "lost", "tracebacks")

PARTS: dict[str, Callable[[Place, Path], Iterator[Outcome]]] = {
    "calls": lambda place, cache: calls.outcomes(place),
    "damage": lambda place, cache: damage.outcomes(place),
    "kills": kills.outcomes,
    "others": others.outcomes,
}


def outcomes(part: str, folder: Path) -> Iterator[Outcome]:
    """Try all of a part in a new folder."""
    cache = folder / "xla"
    with quick(cache):
        place = make(folder / part / "place")
        yield from PARTS[part](place, cache)


def counted(found: list[Outcome]) -> dict[str, dict[str, int]]:
    """Return the row of each kind: how often it was tried, right, lost, traced."""
    rows: dict[str, dict[str, int]] = collections.defaultdict(
        lambda: dict.fromkeys(_COLUMNS, 0)
    )
    for one in found:
        if not one.skipped:
            row = rows[one.kind]
            row["times"] += 1
            row["right"] += not one.problem
            row["lost"] += one.lost
            row["tracebacks"] += one.traceback
    return dict(rows)


def table(rows: dict[str, dict[str, int]]) -> str:
    """Return the rows as a table of a page, with their sum."""
    total = {name: sum(row[name] for row in rows.values()) for name in _COLUMNS}
    lines = ["| tried | times | as expected | lost | tracebacks |"]
    lines.append("|---|---:|---:|---:|---:|")
    for kind, row in [*rows.items(), ("all", total)]:
        lines.append(f"| {kind} | {' | '.join(str(row[c]) for c in _COLUMNS)} |")
    return "\n".join(lines) + "\n"


def shown(one: Outcome) -> str:
    """Return a line about what was not as expected."""
    return f"{one.kind}: {one.what}: {one.problem or 'skipped: ' + one.skipped}"


def main() -> int:
    """Run the campaign; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", help="separated by commas", default=",".join(PARTS))
    asked = parser.parse_args().parts.split(",")
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for part in asked:
            for one in outcomes(part, Path(folder)):
                found.append(one)
                if one.problem or one.skipped:
                    print(shown(one), file=sys.stderr, flush=True)
    rows = counted(found)
    print(table(rows), end="")
    rows = json.loads(COUNTS.read_text()) | rows
    COUNTS.write_text(json.dumps(rows, indent=1) + "\n")
    PAGE.write_text(TABLE.sub(lambda _: table(rows), PAGE.read_text()))
    return int(any(one.problem for one in found))


if __name__ == "__main__":
    sys.exit(main())
