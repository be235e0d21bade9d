"""Tables 2 and 3 of the paper with our results beside its own."""

from __future__ import annotations

from collections.abc import Iterable

from transformer import config
from transformer.paper import rows
from transformer.paper.report.costs import cost_text, size_text
from transformer.paper.report.study import (
    DECIMALS,
    Study,
    is_faithful,
    is_on_its_data,
    printed_text,
    study_name,
)
from transformer.paper.rows import (
    MEASURES,
    TABLE2,
    TABLE3,
    Measure,
)
from transformer.paper.runs import Run, state, trained_on
from transformer.paper.statistics import (
    judge_printed,
)
from transformer.pictures.tables import Table, scientific

_FLOPS_NOTE = (
    "Our FLOPs: matrix products in training, forward and backward, on the real tokens "
    "seen, 2 per multiply-add; the paper's: hours x devices x a device's sustained "
    "FLOP/s."
)
_SYMBOLS = {
    "layers": "N",
    "heads": "h",
    "dropout": "P_drop",
    "label_smoothing": "eps_ls",
}


def table_2(study: Study) -> Table:
    """Return Table 2 for a pair of languages, ours beside the systems of the paper."""
    pair = study.first.data
    lines = []
    for system in TABLE2:
        if pair not in system.bleu:
            continue
        row = rows.OURS_IN_TABLE2.get((system.name, pair), "")
        flops = system.flops.get(pair)
        line = [system.name, f"{system.bleu[pair]:g}", scientific(flops, 1)]
        if row in study.rows:
            verdict = judge_printed(
                study.badness(row, "bleu"), -system.bleu[pair], rows.margin("bleu")
            )
            ours = _ours(study, row, "bleu", system.bleu[pair])
            size, cost = size_text(study.rows[row][0]), cost_text(study.rows[row])
            line += [str(len(study.rows[row])), *ours, cost, size, str(verdict)]
        else:
            line += [""] * 7
        lines.append(tuple(line))
    heads = ["model", "BLEU paper", "FLOPs paper", "seeds", "BLEU ours", "95 %"]
    heads += ["ours - paper", "FLOPs ours", "params ours, M", "verdict"]
    averages = ", ".join(
        f"{row}: the last {runs[0].settings.decode.average}"
        for row, runs in study.rows.items()
    )
    others = [
        f" Not the paper's {row}: {', '.join(runs[0].departures)}."
        for row, runs in study.rows.items()
        if runs[0].departures
    ]
    note = (
        f"BLEU of averaged checkpoints ({averages}), on {_set(study.first)}; "
        f"{_signature(study.first)}.{''.join(others)} The verdict: "
        f"our mean is worse by less than {rows.margin('bleu'):g} BLEU. {_FLOPS_NOTE} "
        f"{_origin(study)}"
    )
    return Table(study_name(study.first), tuple(heads), tuple(lines), note)


def table_3(study: Study) -> Table:
    """Return Table 3, a line for each row that has runs."""
    lines = []
    for row, runs in study.rows.items():
        printed = TABLE3[row]
        line = [row, _changes(row), str(len(runs))]
        for measure in MEASURES:
            paper = getattr(printed, measure)
            line += ["" if paper is None else printed_text(measure, paper)]
            line += _ours(study, row, measure, paper)
        line += [str(printed.millions or ""), size_text(runs[0])]
        line += [scientific(_paper_cost(row), 1), cost_text(runs)]
        lines.append(tuple(line))
    heads = ["row", "changes", "seeds"]
    for measure, name in study.names.items():
        heads += [
            f"{'BLEU' if measure == 'bleu' else name} paper",
            f"{name} ours",
            f"{name} 95 %",
        ]
        if is_faithful(study.first):
            heads.append(f"{name} ours - paper")
    heads += ["params paper, M", "params ours, M", "FLOPs paper", "FLOPs ours"]
    return Table(
        study_name(study.first), tuple(heads), tuple(lines), _table_3_note(study)
    )


def _table_3_note(study: Study) -> str:
    first, name = study.first, study.names["bleu"]
    missing = [row for row in TABLE3 if row not in study.rows]
    parts = [
        "Ours: mean, standard deviation over seeds and 95 % interval of the mean "
        "(Student), of perplexities the geometric mean and its interval. "
        f"Perplexity per piece and {name} of the last checkpoint, without "
        f"averaging, as section 6.2 says of this table, on {_set(first)}; "
        f"{_signature(first)}."
    ]
    if is_on_its_data(first) and first.departures:
        parts.append(
            f"A replica: {', '.join(first.departures)}. Figures are not comparable "
            "with the paper's, differences between rows are."
        )
    elif not is_faithful(first):
        base = ""
        if "base" in study.rows:
            settings = study.rows["base"][0].settings
            model = config.transformer(settings.model)
            base = (
                f", base with d_model = {model.d_model}, d_ff = {model.d_ff}, "
                f"{settings.train.steps:,} steps"
            )
        parts.append(
            f"A replica: {first.data} instead of WMT14{base}; the changes are the "
            "paper's, their widths scaled. Figures are not comparable with the "
            "paper's, differences between rows are."
        )
    parts += [_FLOPS_NOTE, _origin(study)]
    if missing:
        parts.append(f"No finished run of {', '.join(missing)}.")
    return " ".join(parts)


def _ours(study: Study, row: str, measure: Measure, paper: float | None) -> list[str]:
    """Return the cells of mean and interval, in a replica without the difference."""
    found, digits = study.summary(row, measure), DECIMALS[measure]
    cells = [f"{found.mean:.{digits}f}", ""]
    if found.count > 1:
        cells[0] += f" ± {found.deviation:.{digits}f}"
        cells[1] = f"{found.low:.{digits}f} to {found.high:.{digits}f}"
    if is_faithful(study.first):
        cells.append("" if paper is None else f"{found.mean - paper:+z.{digits}f}")
    return cells


def _changes(row: str) -> str:
    changes = TABLE3[row].changes.items()
    return ", ".join(f"{_SYMBOLS.get(name, name)} = {value}" for name, value in changes)


def _set(run: Run) -> str:
    split = run.results["split"]
    return f"the {split} pairs ({getattr(run.settings.data, split)})"


def _signature(run: Run) -> str:
    search = f"beam {run.results['beam']}, alpha {run.results['alpha']:g}"
    name = run.settings.data.measure
    name = "BLEU" if name == "bleu" else name
    return f"{search}; {name} variant {run.variant}, {run.scored['signature']}"


def _origin(study: Study) -> str:
    all_runs = [run for runs in study.rows.values() for run in runs]
    codes = {str(run.record.get("git_revision") or "unknown")[:12] for run in all_runs}
    return (
        f"Trained on {trained_on(all_runs)} by code of revision "
        f"{', '.join(sorted(codes))}."
    )


def _paper_cost(row: str) -> float | None:
    costs = {system.name: system.flops.get("en_de") for system in TABLE2}
    return costs.get(f"Transformer ({row})")


def unfinished_table(unfinished: Iterable[Run]) -> Table:
    """List the runs that are not counted."""
    lines = [
        (run.row, str(run.settings.seed), state(run), run.place) for run in unfinished
    ]
    return Table(
        "Not finished, not counted", ("row", "seed", "state", "folder"), tuple(lines)
    )
