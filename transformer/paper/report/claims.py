"""What can be concluded from our runs: rows against base, the paper's claims, ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence

from transformer.paper import rows
from transformer.paper.report.study import (
    DECIMALS,
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
    Verdict,
    holm,
    judge_printed,
    rank_correlation,
    together,
    welch,
)
from transformer.pictures.tables import Table
from transformer.run.meter import perplexity


def against_base(study: Study) -> Table:
    """Return the change of each row from base, the paper's and ours, with verdicts."""
    others = [row for row in study.rows if row != "base" and "base" in study.rows]
    verdicts = {measure: _verdicts(study, others, measure) for measure in MEASURES}
    lines = []
    if is_faithful(study.first) and "base" in study.rows:
        lines.append(_base_itself(study))
    for row in others:
        line = [row]
        for measure in MEASURES:
            line += [_paper_change(row, measure), *_our_change(study, row, measure)]
            line.append(verdicts[measure].get(row, ""))
        lines.append(tuple(line))
    name = study.names["bleu"]
    heads = ["row", "PPL paper", "PPL ours", "PPL p", "PPL verdict", "BLEU paper"]
    heads += [f"{name} ours", f"{name} p, seeds", f"{name} p, sentences"]
    heads.append(f"{name} verdict")
    return Table(
        f"{study_name(study.first)}: rows against base",
        tuple(heads),
        tuple(lines),
        _against_base_note(study),
    )


def _verdicts(study: Study, others: Sequence[str], measure: Measure) -> dict[str, str]:
    """Return the verdict on each row that the paper compares with base."""
    claimed = {row: rows.against_base(row, measure) for row in others}
    known = {row: one for row, one in claimed.items() if one is not None}
    found = {row: study.judge(one) for row, one in known.items()}
    tested = [row for row, one in known.items() if one.relation == "worse"]
    over = [_least_certain(study, row, measure) for row in tested]
    adjusted = dict(zip(tested, holm(over), strict=True))
    texts = {}
    for row, verdict in found.items():
        texts[row] = f"{_expected(row, known[row])}: {verdict}"
        decided = verdict.word in ("confirmed", "contradicted")
        if decided and adjusted.get(row, 0.0) >= LEVEL:
            p = p_text(adjusted[row])
            texts[row] += f", alone; of {len(tested)} rows p = {p}"
    return texts


def _least_certain(study: Study, row: str, measure: Measure) -> float:
    """Return the larger p-value of the tests that a verdict on a row needs."""
    over = welch(study.badness(row, measure), study.badness("base", measure)).p
    if measure == "perplexity" or math.isnan(over):
        return over
    return max(over, study.sentences(row, "base").p)


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
    name = study.names["bleu"]
    return (
        f"Change from base, with its 95 % interval over seeds; PPL in percent, {name} "
        f"in points. p over seeds: Welch's t-test, of log perplexity or {name}; p over "
        "sentences: paired bootstrap of the mean over seeds, 1,000 resamples. The "
        "verdict is on the paper's two printed figures: worse, better, or the same "
        "(they differ by no more than the last digit; a row without figures: worse "
        "if the text argues so, otherwise blank); "
        f"each test at {LEVEL:.0%}; if a row is decided only without correcting p "
        "for the number of rows (Holm 1979), its cell says so. The same: "
        f"90 % interval within {_margins(study)}; base, where it has the paper's data "
        "and size, reaches a figure if it is not worse by more. Seeds needed: "
        f"power {POWER:g}, if difference and deviation stay as observed; seeds added "
        "because of a result make a wrong verdict more likely than the level says."
    )


def _margins(study: Study) -> str:
    share = math.expm1(rows.margin("perplexity"))
    text = (
        f"{share:.1%} of perplexity, {rows.margin('bleu'):g} BLEU, which is what 32 "
        "heads cost in the paper"
    )
    if study.higher_is_better:
        return text
    name = study.names["bleu"]
    return f"{text}; {study.margin('bleu'):.2f} {name}, the same share of base's"


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
    cells = [change(study, measure, over.value, *over.interval(1 - LEVEL))]
    cells.append(p_text(over.p))
    if measure == "bleu":
        cells.append(p_text(study.sentences(row, "base").p))
    return cells


def change(
    study: Study | None,
    measure: Measure,
    value: float,
    low: float,
    high: float,
    points: str = "",
) -> str:
    """Write a difference of badness as a change of the figure.

    Args:
      study: whose figure; None for the paper's.
      measure: of the difference.
      value: the difference.
      low: end of its interval, infinite if there is none.
      high: the other end.
      points: what follows a change that is not in percent.
    """
    if measure == "perplexity":
        found = [100 * (perplexity(one) - 1) for one in (value, low, high)]
        digits, unit = 1, " %"
    elif study is None or study.higher_is_better:
        found, digits, unit = [-value, -high, -low], 2, points
    else:
        found, digits, unit = [value, low, high], 2, points
    text = f"{found[0]:+z.{digits}f}{unit}"
    if math.isfinite(low):
        text += f" ({found[1]:+z.{digits}f} to {found[2]:+z.{digits}f})"
    return text


def claims_table(study: Study) -> Table:
    """Return a verdict on each claim of section 6.2."""
    lines = [
        (
            claim.text,
            f"§ {claim.section}",
            study.names[claim.measure],
            *_claim(study, claim),
        )
        for claim in CLAIMS
    ]
    return Table(
        f"{study_name(study.first)}: claims",
        ("claim", "section", "figure", "comparisons: ours (paper)", "verdict"),
        tuple(lines),
        "A claim is confirmed if all its comparisons are, each at "
        f"{LEVEL:.0%}; it is contradicted if one of k is, at {LEVEL:.0%} / k. Tests as "
        f"for the rows. Nearly the same: within {_margins(study)}.",
    )


def _claim(study: Study, claim: Claim) -> tuple[str, str]:
    """Return what was compared, and the verdict."""
    known = measured(study, claim)
    if not known:
        needed = dict.fromkeys(
            row
            for one in claim.comparisons
            for row in (one.first, one.second)
            if row not in study.rows
        )
        return "", f"not measured: no finished run of {', '.join(needed)}"
    verdict = str(verdict_on(study, known))
    if len(known) < len(claim.comparisons):
        verdict += f"; {len(known)} of {len(claim.comparisons)} comparisons measured"
    return "; ".join(_compared(study, one) for one in known), verdict


def measured(study: Study, claim: Claim) -> list[Comparison]:
    """Return the comparisons of a claim both rows of which have runs."""
    return [
        one for one in claim.comparisons if {one.first, one.second} <= set(study.rows)
    ]


def verdict_on(study: Study, known: Sequence[Comparison]) -> Verdict:
    """Return the verdict on comparisons that have to hold together."""
    return together([study.judge(one, LEVEL / len(known)) for one in known])


def _compared(study: Study, claimed: Comparison) -> str:
    over = welch(
        study.badness(claimed.first, claimed.measure),
        study.badness(claimed.second, claimed.measure),
    )
    ours = change(study, claimed.measure, over.value, -math.inf, math.inf)
    text, paper = f"{claimed.first} - {claimed.second}: {ours}", printed(claimed)
    return f"{text} ({paper})" if paper else text


def printed(claimed: Comparison, points: str = "") -> str:
    """Return the change that the paper's figures have, "" where it prints none.

    Args:
      claimed: of which rows and figure.
      points: as for ``change``.
    """
    measure = claimed.measure
    theirs = [getattr(TABLE3[row], measure) for row in (claimed.first, claimed.second)]
    if None in theirs:
        return ""
    paper = rows.badness(measure, theirs[0]) - rows.badness(measure, theirs[1])
    return change(None, measure, paper, -math.inf, math.inf, points)


def ranks(study: Study) -> Table:
    """Return how our values rank the rows, beside the paper's ranking."""
    lines = []
    for measure in MEASURES:
        known = [row for row in study.rows if getattr(TABLE3[row], measure) is not None]
        sign = 1 if measure == "perplexity" or study.higher_is_better else -1
        ours = [sign * study.summary(row, measure).mean for row in known]
        paper = [getattr(TABLE3[row], measure) for row in known]
        cells = ("", "")
        if len(known) > 2:
            rho, p = rank_correlation(ours, paper)
            cells = (f"{rho:+.2f}", p_text(p)) if math.isfinite(rho) else cells
        lines.append((study.names[measure], str(len(known)), *cells))
    return Table(
        f"{study_name(study.first)}: rank correlation with the paper's column",
        ("figure", "rows", "Spearman", "p"),
        tuple(lines),
        "Over rows with figures in both columns, means over seeds; p over "
        "permutations. Blank with fewer than three rows, or where all figures of a "
        "column are equal.",
    )
