"""The commands, one file each, in the order of the help."""

from transformer.cli.commands import (
    ablate,
    average,
    bench,
    check,
    compare,
    evaluate,
    export,
    import_,
    params,
    parseval,
    plan,
    plot,
    report,
    score,
    train,
    translate,
    visualize,
)
from transformer.cli.flags import Command

COMMANDS: dict[str, Command] = {
    "train": train.COMMAND,
    "evaluate": evaluate.COMMAND,
    "translate": translate.COMMAND,
    "score": score.COMMAND,
    "compare": compare.COMMAND,
    "parseval": parseval.COMMAND,
    "average": average.COMMAND,
    "import": import_.COMMAND,
    "export": export.COMMAND,
    "params": params.COMMAND,
    "check": check.COMMAND,
    "bench": bench.COMMAND,
    "plan": plan.COMMAND,
    "ablate": ablate.COMMAND,
    "report": report.COMMAND,
    "visualize": visualize.COMMAND,
    "plot": plot.COMMAND,
}
