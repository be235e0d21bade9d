"""One table over all data: the paper's claims, its figures, ours, and a verdict."""

from __future__ import annotations

from collections.abc import Sequence

from transformer.paper.report.claims import change, measured, printed, verdict_on
from transformer.paper.report.study import Study
from transformer.paper.rows import CLAIMS, Claim, Comparison
from transformer.paper.statistics import LEVEL, welch
from transformer.pictures.tables import Table


def overview(studies: Sequence[Study]) -> Table:
    """Return a line for each claim on each data set with runs of its rows.

    Args:
      studies: of Table 3, each on its data.
    """
    lines: list[tuple[str, ...]] = []
    decided = set()
    for claim in CLAIMS:
        for study in studies:
            known = measured(study, claim)
            if not known:
                continue
            verdict = verdict_on(study, known)
            text, of = str(verdict), len(claim.comparisons)
            if len(known) < of:
                text += f"; {len(known)} of {of} comparisons measured"
            # One comparison is enough to contradict; it takes all of them to confirm.
            if verdict.word == "contradicted" or (text == "confirmed"):
                decided.add(claim.text)
            lines.append((*_cells(claim, study, known), text))
    texts = dict.fromkeys(claim.text for claim in CLAIMS)
    tried = {line[0] for line in lines}
    heads = ["claim", "section", "the paper", "figure", "data", "seeds"]
    heads += [f"ours, {1 - LEVEL:.0%}", "verdict"]
    note = (
        f"{len(decided)} of {len(texts)} claims are decided, confirmed or contradicted "
        f"by a figure on some data; {len(texts) - len(tried)} were not tested. Each "
        "change is that of the first row relative to the second, whose seeds are "
        "named in this order: PPL in percent, BLEU and WER (lower is better, so that "
        "signs are opposite) in points; ours with their interval over seeds. Where "
        "the figure is WER, claims about BLEU are tested on it. Seeds added because "
        "of a result make a wrong verdict more likely than its level says."
    )
    return Table("The paper's claims", tuple(heads), tuple(lines), note)


def _cells(claim: Claim, study: Study, known: Sequence[Comparison]) -> tuple[str, ...]:
    """Return the cells before the verdict."""
    ours, paper, seeds = [], [], []
    unit = " " + study.names[claim.measure]
    for one in known:
        name = f"{one.first} - {one.second}: "
        first, second = (
            study.badness(row, one.measure) for row in (one.first, one.second)
        )
        over = welch(first, second)
        low, high = over.interval(1 - LEVEL)
        ours.append(name + change(study, one.measure, over.value, low, high, unit))
        paper.append(printed(one, " BLEU") or "no figure")
        if len(claim.comparisons) > 1:
            paper[-1] = name + paper[-1]
        seeds.append(f"{len(first)}, {len(second)}")
    return (
        claim.text,
        f"§ {claim.section}",
        "; ".join(paper),
        study.names[claim.measure],
        _data(study),
        "; ".join(seeds),
        "; ".join(ours),
    )


def _data(study: Study) -> str:
    """Return the data, and the folder if another has runs on them as well."""
    data, among = study.first.data, study.first.among
    if among.startswith(data):  # such as eng_us_higher_rate, which says both
        return among
    return f"{data} ({among})" if among else data
