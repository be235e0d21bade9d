"""Our runs beside the paper's figures: Tables 2 and 3, and a verdict on every claim."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transformer.paper import rows
from transformer.paper.rows import (
    CLAIMS,
    MEASURES,
    TABLE2,
    TABLE3,
    Claim,
    Comparison,
    Measure,
)
from transformer.paper.runs import BLEU, Run, state, studies
from transformer.paper.statistics import (
    LEVEL,
    POWER,
    OverSentences,
    Summary,
    Verdict,
    judge,
    judge_printed,
    rank_correlation,
    summary,
    together,
    welch,
)
from transformer.pictures import plots
from transformer.pictures.tables import Table, scientific

_NAMES = {"perplexity": "PPL", "bleu": "BLEU"}
_DECIMALS = {"perplexity": 3, "bleu": 2}
_SYMBOLS = {
    "layers": "N",
    "heads": "h",
    "dropout": "P_drop",
    "label_smoothing": "eps_ls",
}
_PAIRS = {"en_de": "English-German", "en_fr": "English-French"}
_FLOPS_NOTE = (
    "FLOPs of ours: products of matrices in training, forward and backward, on the "
    "real tokens seen, 2 a multiply-add; the paper's: hours x devices x what a device "
    "sustains."
)


def title(finished: Sequence[Run]) -> str:
    """Return what a report on these runs is called."""
    found = [_name(study[0]) for study in studies(finished)]
    return f"Attention Is All You Need: {', '.join(found)}"


def _name(run: Run) -> str:
    if run.table == 2:
        return f"Table 2, {_PAIRS[run.data]}"
    if _faithful(run):
        return "Table 3, English-German as in the paper"
    return f"Table 3, a replica on {run.data} at scale {run.scale:g}"


def _faithful(run: Run) -> bool:
    """Tell whether the paper's figures were measured on the same data and sizes."""
    return run.table == 2 or (run.data == "wmt14" and run.scale == 1)


def tables(finished: Sequence[Run], unfinished: Sequence[Run]) -> list[Table]:
    """Put runs beside the paper's tables, in the paper's order.

    Args:
      finished: as ``runs.find`` returns them.
      unfinished: are listed, not counted.

    Returns:
      Tables 2 and 3 as far as there are runs of them, then what can be concluded.
    """
    found: list[Table] = []
    for runs in studies(finished):
        study = _Study(runs)
        if runs[0].table == 2:
            found.append(_table_2(study))
        else:
            found += [_table_3(study), _against_base(study), _claims(study)]
            found.append(_ranks(study))
    if unfinished:
        found.append(_unfinished(unfinished))
    absent = sorted({2, 3, 4} - {run.table for run in finished})
    left_out = " and ".join(f"Table {number}" for number in absent)
    note = f"{found[0].note} Without a run here, and left out: {left_out}."
    return [dataclasses.replace(found[0], note=note), *found[1:]]


def figures(finished: Sequence[Run]) -> list[str]:
    """Draw Table 3, and the training curves of all runs, as SVG."""
    found = []
    for runs in studies(finished):
        study = _Study(runs)
        if runs[0].table == 3:
            found.append(_marks(study))
        curves = {
            row: [run.curve for run in study.rows[row] if run.curve]
            for row in study.rows
        }
        if any(curves.values()):
            found.append(plots.curves("validation perplexity", curves))
    return found


class _Study:
    """Runs that differ in row and seed only."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.first = runs[0]
        names = dict.fromkeys(run.row for run in runs)
        self.rows = {name: [r for r in runs if r.row == name] for name in names}
        self._drawn: dict[str, np.ndarray] = {}

    def figures(self, row: str, measure: Measure) -> list[float]:
        return [run.figure(measure) for run in self.rows[row]]

    def summary(self, row: str, measure: Measure) -> Summary:
        return summary(self.figures(row, measure))

    def badness(self, row: str, measure: Measure) -> list[float]:
        return [rows.badness(measure, one) for one in self.figures(row, measure)]

    def sentences(self, first: str, second: str) -> OverSentences:
        """Return by how much BLEU of ``first`` is below that of ``second``."""
        value = np.mean(self.figures(second, "bleu")) - np.mean(
            self.figures(first, "bleu")
        )
        return OverSentences(float(value), self._draws(second) - self._draws(first))

    def judge(self, claimed: Comparison, refute: float = LEVEL) -> Verdict:
        over_sentences = None
        if claimed.measure == "bleu":
            over_sentences = self.sentences(claimed.first, claimed.second)
        return judge(
            self.badness(claimed.first, claimed.measure),
            self.badness(claimed.second, claimed.measure),
            claimed.relation,
            rows.margin(claimed.measure),
            over_sentences,
            refute,
        )

    def _draws(self, row: str) -> np.ndarray:
        """Return the mean BLEU over seeds on every draw of sentences."""
        if row not in self._drawn:
            lines = (run.translations for run in self.rows[row])
            scores = [self._resampler.scores(one) for one in lines]
            self._drawn[row] = np.mean(scores, axis=0)
        return self._drawn[row]

    @functools.cached_property
    def _resampler(self) -> Any:
        from transformer.metrics.bleu import Resampler

        language = self.first.settings.data.target_language
        return Resampler(self.first.references, BLEU, language)


# ---- the paper's tables --------------------------------------------------------------


def _table_2(study: _Study) -> Table:
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
            size, cost = _size(study.rows[row][0]), _cost(study.rows[row])
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
    note = (
        f"BLEU of averaged checkpoints ({averages}), on {_set(study.first)}; "
        f"{_signature(study.first)}. The verdict: "
        f"our mean is worse by less than {rows.margin('bleu'):g} BLEU. {_FLOPS_NOTE} "
        f"{_origin(study)}"
    )
    return Table(_name(study.first), tuple(heads), tuple(lines), note)


def _table_3(study: _Study) -> Table:
    lines = []
    for row, runs in study.rows.items():
        printed = TABLE3[row]
        line = [row, _changes(row), str(len(runs))]
        for measure in MEASURES:
            paper = getattr(printed, measure)
            line += ["" if paper is None else _printed(measure, paper)]
            line += _ours(study, row, measure, paper)
        line += [str(printed.millions or ""), _size(runs[0])]
        line += [scientific(_paper_cost(row), 1), _cost(runs)]
        lines.append(tuple(line))
    heads = ["row", "changes", "seeds"]
    for name in _NAMES.values():
        heads += [
            f"{name} paper",
            f"{name} ours",
            f"{name} 95 %",
            f"{name} ours - paper",
        ]
    heads += ["params paper, M", "params ours, M", "FLOPs paper", "FLOPs ours"]
    return Table(_name(study.first), tuple(heads), tuple(lines), _table_3_note(study))


def _table_3_note(study: _Study) -> str:
    first = study.first
    missing = [row for row in TABLE3 if row not in study.rows]
    parts = [
        "Ours: mean, standard deviation over seeds and 95 % interval of the mean "
        "(Student). Perplexity per piece and BLEU of the last checkpoint, without "
        f"averaging, as section 6.2 says of this table, on {_set(first)}; "
        f"{_signature(first)}."
    ]
    if not _faithful(first):
        model = first.settings.model
        parts.append(
            f"A replica: {first.data} instead of WMT14, base with d_model = "
            f"{model.d_model}, d_ff = {model.d_ff}, {first.settings.train.steps:,} "
            "steps; the changes are the paper's, their widths scaled. Figures do not "
            "compare with the paper's, differences between rows do."
        )
    parts += [_FLOPS_NOTE, _origin(study)]
    if missing:
        parts.append(f"No finished run of {', '.join(missing)}.")
    return " ".join(parts)


def _ours(study: _Study, row: str, measure: Measure, paper: float | None) -> list[str]:
    """Return the cells of mean and deviation, interval and difference."""
    found, digits = study.summary(row, measure), _DECIMALS[measure]
    mean = f"{found.mean:.{digits}f}"
    interval = difference = ""
    if found.count > 1:
        mean += f" ± {found.deviation:.{digits}f}"
        interval = f"{found.low:.{digits}f} to {found.high:.{digits}f}"
    if paper is not None:
        difference = f"{found.mean - paper:+z.{digits}f}"
    return [mean, interval, difference]


def _printed(measure: Measure, figure: float) -> str:
    return f"{figure:.2f}" if measure == "perplexity" else f"{figure:.1f}"


def _changes(row: str) -> str:
    changes = TABLE3[row].changes.items()
    return ", ".join(f"{_SYMBOLS.get(name, name)} = {value}" for name, value in changes)


def _set(run: Run) -> str:
    split = run.results["split"]
    return f"the {split} pairs ({getattr(run.settings.data, split)})"


def _signature(run: Run) -> str:
    search = f"beam {run.results['beam']}, alpha {run.results['alpha']:g}"
    signature = run.measured["bleu"][BLEU]["signature"]
    return f"{search}; BLEU variant {BLEU}, {signature}"


def _origin(study: _Study) -> str:
    records = [run.record for runs in study.rows.values() for run in runs]
    codes = {str(record.get("git_revision") or "unknown")[:12] for record in records}
    devices = {device for record in records for device in record.get("devices", ())}
    return (
        f"Trained on {', '.join(sorted(devices)) or 'unknown devices'} by code of "
        f"revision {', '.join(sorted(codes))}."
    )


# ---- sizes and costs -----------------------------------------------------------------


def _vocabulary(run: Run) -> tuple[int, int] | None:
    """Return the rows of both embedding tables; None where the corpus is gone."""
    if run.settings.model.vocab_size:
        return run.settings.model.vocab_size, run.settings.model.vocab_size
    if not (_corpus(run) / "vocabulary.json").is_file():
        return None
    from transformer.data.tokenizers import load_vocabulary

    vocabulary = load_vocabulary(_corpus(run))
    return vocabulary.source.size, vocabulary.target.size


def _corpus(run: Run) -> Path:
    return Path(run.settings.data.prepared or run.folder / "corpus")


def _size(run: Run) -> str:
    sizes = _vocabulary(run)
    if sizes is None:
        return ""
    import jax

    from transformer.models.transformer import abstract_params, make_model

    tree = abstract_params(make_model(run.settings.model, *sizes))
    return f"{sum(leaf.size for leaf in jax.tree.leaves(tree)) / 1e6:.2f}"


def _cost(runs: Sequence[Run]) -> str:
    found = [operations(run) for run in runs]
    known = [one for one in found if one is not None]
    return scientific(float(np.mean(known)), 2) if known else ""


def operations(run: Run) -> float | None:
    """Count the operations that training took, padding left out.

    The mean of ``flops.train_step`` over the pairs of the corpus, times the pairs that
    were seen: real target tokens seen / mean target length.

    Returns:
      Operations, 2 a multiply-add; None where the prepared corpus is gone.
    """
    sizes = _vocabulary(run)
    if sizes is None or not (_corpus(run) / "train.json").is_file():
        return None
    from transformer.data.corpus import Corpus
    from transformer.tools import flops

    corpus = Corpus(_corpus(run), "train")
    source, target = (
        side.lengths.astype(np.int64) for side in (corpus.source, corpus.target)
    )
    shapes, pairs = np.unique(source << 32 | target, return_counts=True)
    s: Any = shapes >> 32  # arrays, where the formula says int
    t: Any = shapes & 0xFFFFFFFF
    costs: Any = flops.train_step(run.settings.model, 1, s, t, sizes[1])
    seen = run.record["tokens"] / target.mean()
    return float(np.average(costs, weights=pairs) * seen)


def _paper_cost(row: str) -> float | None:
    costs = {system.name: system.flops.get("en_de") for system in TABLE2}
    return costs.get(f"Transformer ({row})")


# ---- rows and claims -----------------------------------------------------------------


def _against_base(study: _Study) -> Table:
    others = [row for row in study.rows if row != "base" and "base" in study.rows]
    lines = []
    if _faithful(study.first) and "base" in study.rows:
        lines.append(_base_itself(study))
    for row in others:
        line = [row]
        for measure in MEASURES:
            claimed = rows.against_base(row, measure)
            line += [_paper_change(row, measure), *_our_change(study, row, measure)]
            line.append(f"{_expected(row, claimed)}: {study.judge(claimed)}")
        lines.append(tuple(line))
    heads = ["row", "PPL paper", "PPL ours", "PPL p", "PPL verdict", "BLEU paper"]
    heads += ["BLEU ours", "BLEU p, seeds", "BLEU p, sentences", "BLEU verdict"]
    return Table(
        f"{_name(study.first)}: rows against base",
        tuple(heads),
        tuple(lines),
        _against_base_note(study),
    )


def _base_itself(study: _Study) -> tuple[str, ...]:
    """Return the line of base, which has the paper's figures to reach."""
    line = ["base"]
    for measure in MEASURES:
        printed = getattr(TABLE3["base"], measure)
        verdict = judge_printed(
            study.badness("base", measure),
            rows.badness(measure, printed),
            rows.margin(measure),
        )
        mean = f"{study.summary('base', measure).mean:.{_DECIMALS[measure]}f}"
        line += [_printed(measure, printed), mean, "", f"reached: {verdict}"]
    return (*line[:8], "", line[8])


def _against_base_note(study: _Study) -> str:
    if "base" not in study.rows:
        return "No finished run of base, with which every row is compared."
    return (
        "Change from base, with its 95 % interval over seeds; PPL in percent, BLEU in "
        "points. p over seeds: Welch's t-test, of log perplexity or BLEU; p over "
        "sentences: paired bootstrap of the mean over seeds, 1,000 draws. The verdict "
        "is on what the paper's two printed figures say, worse, better, or the same "
        "(they differ by no more than the last digit; a row without figures: worse); "
        f"each test at {LEVEL:.0%}, no correction for the number of rows. The same: "
        f"90 % interval within {_margins()}; base, where it has the paper's data and "
        f"size, reaches a figure if not worse by more. Seeds that would decide: power "
        f"{POWER:g}, "
        "if difference and deviation stay as observed."
    )


def _margins() -> str:
    share = math.expm1(rows.margin("perplexity"))
    return (
        f"{share:.1%} of perplexity, {rows.margin('bleu'):g} BLEU, which is what 32 "
        "heads cost in the paper"
    )


def _expected(row: str, claimed: Comparison) -> str:
    if claimed.relation == "same":
        return "the same"
    return "worse" if claimed.first == row else "better"


def _paper_change(row: str, measure: Measure) -> str:
    ours, base = getattr(TABLE3[row], measure), getattr(TABLE3["base"], measure)
    if ours is None:
        return ""
    if measure == "perplexity":
        return f"{100 * (ours / base - 1):+.1f} %"
    return f"{ours - base:+.1f}"


def _our_change(study: _Study, row: str, measure: Measure) -> list[str]:
    """Return the cells of the change from base and of its p-values."""
    over = welch(study.badness(row, measure), study.badness("base", measure))
    cells = [_change(measure, over.value, *over.interval(1 - LEVEL))]
    cells.append(_p(over.p) if math.isfinite(over.error) else "")
    if measure == "bleu":
        cells.append(_p(study.sentences(row, "base").p))
    return cells


def _change(measure: Measure, value: float, low: float, high: float) -> str:
    """Write a difference of badness as what happens to the figure."""
    if measure == "perplexity":
        found = [100 * math.expm1(one) for one in (value, low, high)]
        digits, unit = 1, " %"
    else:
        found, digits, unit = [-value, -high, -low], 2, ""
    text = f"{found[0]:+z.{digits}f}{unit}"
    if math.isfinite(low):
        text += f" ({found[1]:+z.{digits}f} to {found[2]:+z.{digits}f})"
    return text


def _p(p: float) -> str:
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def _claims(study: _Study) -> Table:
    lines = [
        (claim.text, f"§ {claim.section}", _NAMES[claim.measure], *_claim(study, claim))
        for claim in CLAIMS
    ]
    return Table(
        f"{_name(study.first)}: claims",
        ("claim", "section", "figure", "comparisons: ours (paper)", "verdict"),
        tuple(lines),
        "A claim is confirmed if all its comparisons are, each at "
        f"{LEVEL:.0%}; it is contradicted if one of k is, at {LEVEL:.0%} / k. Tests as "
        f"for the rows. Nearly the same: within {_margins()}.",
    )


def _claim(study: _Study, claim: Claim) -> tuple[str, str]:
    """Return what was compared, and the verdict."""
    known = [
        one for one in claim.comparisons if {one.first, one.second} <= set(study.rows)
    ]
    if not known:
        needed = dict.fromkeys(
            row
            for one in claim.comparisons
            for row in (one.first, one.second)
            if row not in study.rows
        )
        return "", f"not measured: no finished run of {', '.join(needed)}"
    verdict = str(together([study.judge(one, LEVEL / len(known)) for one in known]))
    if len(known) < len(claim.comparisons):
        verdict += f"; {len(known)} of {len(claim.comparisons)} comparisons measured"
    return "; ".join(_compared(study, one) for one in known), verdict


def _compared(study: _Study, claimed: Comparison) -> str:
    first, second, measure = claimed.first, claimed.second, claimed.measure
    over = welch(study.badness(first, measure), study.badness(second, measure))
    text = f"{first} - {second}: {_change(measure, over.value, -math.inf, math.inf)}"
    theirs = [getattr(TABLE3[row], measure) for row in (first, second)]
    if None in theirs:
        return text
    paper = rows.badness(measure, theirs[0]) - rows.badness(measure, theirs[1])
    return f"{text} ({_change(measure, paper, -math.inf, math.inf)})"


def _ranks(study: _Study) -> Table:
    lines = []
    for measure in MEASURES:
        known = [row for row in study.rows if getattr(TABLE3[row], measure) is not None]
        ours = [study.summary(row, measure).mean for row in known]
        paper = [getattr(TABLE3[row], measure) for row in known]
        cells = ("", "")
        if len(known) > 2:
            rho, p = rank_correlation(ours, paper)
            cells = (f"{rho:+.2f}", _p(p)) if math.isfinite(rho) else cells
        lines.append((_NAMES[measure], str(len(known)), *cells))
    return Table(
        f"{_name(study.first)}: rank correlation with the paper's column",
        ("figure", "rows", "Spearman", "p"),
        tuple(lines),
        "Over rows with figures in both columns, means over seeds; p over "
        "permutations. Blank with fewer than three rows, or where all figures of a "
        "column are equal.",
    )


def _unfinished(unfinished: Iterable[Run]) -> Table:
    lines = [
        (run.row, str(run.settings.seed), state(run), run.place) for run in unfinished
    ]
    return Table(
        "Not finished, not counted", ("row", "seed", "state", "folder"), tuple(lines)
    )


# ---- pictures ------------------------------------------------------------------------


def _marks(study: _Study) -> str:
    placed = "paper"
    if not _faithful(study.first):
        placed = "paper's change from base, put at our base"
    panels = []
    for measure in MEASURES:
        marks = []
        for row in study.rows:
            found = study.summary(row, measure)
            paper = _place_paper(study, row, measure)
            marks.append(plots.Mark(row, found.mean, found.low, found.high, paper))
        name = {"perplexity": "perplexity", "bleu": "BLEU"}[measure]
        panels.append((name, measure == "perplexity", marks))
    return plots.marks(panels, placed)


def _place_paper(study: _Study, row: str, measure: Measure) -> float | None:
    """Return the paper's figure; on a replica its change from base, at our base."""
    paper, base = getattr(TABLE3[row], measure), getattr(TABLE3["base"], measure)
    if paper is None or _faithful(study.first):
        return paper
    if "base" not in study.rows:
        return None
    ours = study.summary("base", measure).mean
    return ours * paper / base if measure == "perplexity" else ours + paper - base
