"""What a report holds: its title and its tables, in the order of the paper."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

from transformer.paper.report.claims import against_base, claims_table, ranks
from transformer.paper.report.overview import overview
from transformer.paper.report.results import (
    table_2,
    table_3,
    unfinished_table,
)
from transformer.paper.report.study import Study, study_name
from transformer.paper.runs import Run, studies
from transformer.pictures.tables import Table


def title(every: Sequence[Sequence[Run]]) -> str:
    """Return the title of a report on these runs.

    Args:
      every: finished runs by folder, as ``runs.find`` returns them.
    """
    found = [study_name(study[0]) for one in every for study in studies(one)]
    return f"Attention Is All You Need: {', '.join(dict.fromkeys(found))}"


def claims(every: Sequence[Sequence[Run]]) -> list[Table]:
    """Return what opens a report: a verdict on each claim, over all data.

    Args:
      every: finished runs by folder, as ``runs.find`` returns them.

    Returns:
      The table; none where no run is of Table 3.
    """
    found = [Study(one) for finished in every for one in studies(finished)]
    found = [study for study in found if study.first.table == 3]
    return [overview(found)] if found else []


def tables(
    finished: Sequence[Run], unfinished: Sequence[Run], beside: Collection[int] = ()
) -> list[Table]:
    """Put runs beside the paper's tables, in the paper's order.

    Args:
      finished: as ``runs.find`` returns them.
      unfinished: are listed, not counted.
      beside: numbers of tables that the report has from elsewhere.

    Returns:
      Tables 2 and 3 as far as there are runs of them, then what can be concluded.
    """
    found: list[Table] = []
    for runs in studies(finished):
        study = Study(runs)
        if runs[0].table == 2:
            found.append(table_2(study))
        else:
            found += [table_3(study), against_base(study), claims_table(study)]
            found.append(ranks(study))
    if unfinished:
        found.append(unfinished_table(unfinished))
    absent = sorted({2, 3, 4} - {run.table for run in finished} - {*beside})
    if not absent:
        return found
    left_out = " and ".join(f"Table {number}" for number in absent)
    note = f"{found[0].note} Left out for lack of runs: {left_out}."
    return [dataclasses.replace(found[0], note=note), *found[1:]]
