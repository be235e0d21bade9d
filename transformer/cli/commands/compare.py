"""Compare runs by BLEU, chrF and TER, with significance tests."""

from __future__ import annotations

from pathlib import Path

from absl import flags

from transformer.cli.files import picture_form, write
from transformer.cli.flags import (
    Command,
    choice_flag,
    count_flag,
    only_with,
    path_flag,
    text_flag,
)
from transformer.metrics.bleu import VARIANTS
from transformer.pictures.tables import html, markdown


def run(values: flags.FlagValues) -> int:
    """Run the command with the values of its flags; return the exit code."""
    if values.output is not None:
        picture_form(values.output, ["html"])
    from transformer.pictures import differences

    runs = differences.read([*map(Path, (values.run_a, values.run_b, *values.more))])
    scores = differences.scores(
        runs, values.variant, values.seed, values.resamples, values.trials
    )
    if values.output is not None:
        tables = [scores, *differences.sentences(runs, values.most)]
        write(values.output, html(tables, title=f"Compared: {', '.join(runs)}"))
    write(None, markdown(scores))
    return 0


_RUN = "its workdir, or a file of its results"
COMMAND = Command(
    run,
    (),
    ("variant", "seed", "resamples", "trials", "output", "most"),
    {
        "variant": choice_flag("variant of BLEU", VARIANTS, "13a"),
        "seed": count_flag("seed of both tests, as sacreBLEU's SACREBLEU_SEED", 12345),
        "resamples": count_flag("resamples of the paired bootstrap", 1000),
        "trials": count_flag("trials of paired approximate randomisation", 10_000),
        "output": path_flag(
            "page to write (.html), with the sentences that differ most"
        ),
        "most": count_flag("sentences per table of --output", 100),
    },
    (only_with("output", "most"),),
    {
        "run_a": text_flag(f"run to compare the others with: {_RUN}"),
        "run_b": text_flag(f"run on the same test set: {_RUN}"),
        "more...": text_flag("more such runs"),
    },
)
