"""What can be concluded from our runs: rows against base, the paper's claims, ranks."""

from __future__ import annotations

import math

from transformer.paper import rows
from transformer.paper.report.study import (
    DECIMALS,
    NAMES,
    Study,
    is_faithful,
    p_text,
    printed_text,
    study_name,
)
from transformer.paper.rows import (
    CLAIMS,
    MEASURES,
    TABLE3,
    Claim,
    Comparison,
    Measure,
)
from transformer.paper.statistics import (
    LEVEL,
    POWER,
    judge_printed,
    rank_correlation,
    together,
    welch,
)
from transformer.pictures.tables import Table


def against_base(study: Study) -> Table:
    """Return the change of each row from base, the paper's and ours, with verdicts."""
    others = [row for row in study.rows if row != "base" and "base" in study.rows]
    lines = []
    if is_faithful(study.first) and "base" in study.rows:
        lines.append(_base_itself(study))
    for row in others:
        line = [row]
        for measure in MEASURES:
            claimed = rows.against_base(row, measure)
            line += [_paper_change(row, measure), *_our_change(study, row, measure)]
            if claimed is None:
                line.append("")
            else:
                line.append(f"{_expected(row, claimed)}: {study.judge(claimed)}")
        lines.append(tuple(line))
    heads = ["row", "PPL paper", "PPL ours", "PPL p", "PPL verdict", "BLEU paper"]
    heads += ["BLEU ours", "BLEU p, seeds", "BLEU p, sentences", "BLEU verdict"]
    return Table(
        f"{study_name(study.first)}: rows against base",
        tuple(heads),
        tuple(lines),
        _against_base_note(study),
    )


def _base_itself(study: Study) -> tuple[str, ...]:
    """Return the line of base, which has the paper's figures to reach."""
    line = ["base"]
    for measure in MEASURES:
        printed = getattr(TABLE3["base"], measure)
        verdict = judge_printed(
            study.badness("base", measure),
            rows.badness(measure, printed),
            rows.margin(measure),
        )
        mean = f"{study.summary('base', measure).mean:.{DECIMALS[measure]}f}"
        line += [printed_text(measure, printed), mean, "", f"reached: {verdict}"]
    return (*line[:8], "", line[8])


def _against_base_note(study: Study) -> str:
    if "base" not in study.rows:
        return "No finished run of base, with which every row is compared."
    return (
        "Change from base, with its 95 % interval over seeds; PPL in percent, BLEU in "
        "points. p over seeds: Welch's t-test, of log perplexity or BLEU; p over "
        "sentences: paired bootstrap of the mean over seeds, 1,000 resamples. The "
        "verdict is on the paper's two printed figures: worse, better, or the same "
        "(they differ by no more than the last digit; a row without figures: worse "
        "if the text argues so, otherwise blank); "
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


def _our_change(study: Study, row: str, measure: Measure) -> list[str]:
    """Return the cells of the change from base and of its p-values."""
    over = welch(study.badness(row, measure), study.badness("base", measure))
    cells = [_change(measure, over.value, *over.interval(1 - LEVEL))]
    cells.append(p_text(over.p) if math.isfinite(over.error) else "")
    if measure == "bleu":
        cells.append(p_text(study.sentences(row, "base").p))
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


def claims_table(study: Study) -> Table:
    """Return a verdict on each claim of section 6.2."""
    lines = [
        (claim.text, f"§ {claim.section}", NAMES[claim.measure], *_claim(study, claim))
        for claim in CLAIMS
    ]
    return Table(
        f"{study_name(study.first)}: claims",
        ("claim", "section", "figure", "comparisons: ours (paper)", "verdict"),
        tuple(lines),
        "A claim is confirmed if all its comparisons are, each at "
        f"{LEVEL:.0%}; it is contradicted if one of k is, at {LEVEL:.0%} / k. Tests as "
        f"for the rows. Nearly the same: within {_margins()}.",
    )


def _claim(study: Study, claim: Claim) -> tuple[str, str]:
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


def _compared(study: Study, claimed: Comparison) -> str:
    first, second, measure = claimed.first, claimed.second, claimed.measure
    over = welch(study.badness(first, measure), study.badness(second, measure))
    text = f"{first} - {second}: {_change(measure, over.value, -math.inf, math.inf)}"
    theirs = [getattr(TABLE3[row], measure) for row in (first, second)]
    if None in theirs:
        return text
    paper = rows.badness(measure, theirs[0]) - rows.badness(measure, theirs[1])
    return f"{text} ({_change(measure, paper, -math.inf, math.inf)})"


def ranks(study: Study) -> Table:
    """Return how our values rank the rows beside how the paper's do."""
    lines = []
    for measure in MEASURES:
        known = [row for row in study.rows if getattr(TABLE3[row], measure) is not None]
        ours = [study.summary(row, measure).mean for row in known]
        paper = [getattr(TABLE3[row], measure) for row in known]
        cells = ("", "")
        if len(known) > 2:
            rho, p = rank_correlation(ours, paper)
            cells = (f"{rho:+.2f}", p_text(p)) if math.isfinite(rho) else cells
        lines.append((NAMES[measure], str(len(known)), *cells))
    return Table(
        f"{study_name(study.first)}: rank correlation with the paper's column",
        ("figure", "rows", "Spearman", "p"),
        tuple(lines),
        "Over rows with figures in both columns, means over seeds; p over "
        "permutations. Blank with fewer than three rows, or where all figures of a "
        "column are equal.",
    )
