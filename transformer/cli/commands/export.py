"""Write a trained model in the format of another system."""

from __future__ import annotations

from pathlib import Path

from absl import flags

from transformer.cli.files import trained
from transformer.cli.flags import Command, choice_flag, new_folder_flag


def run(values: flags.FlagValues) -> int:
    """Run the command with the values of its flags; return the exit code."""
    workdir = trained(Path(values.workdir))
    from transformer.formats.exporting import export_run
    from transformer.parallel import start

    start("cpu")
    export_run(workdir, values.to, Path(values.output), values.quantization or "")
    return 0


COMMAND = Command(
    run,
    ("workdir", "to", "output"),
    ("quantization",),
    own={
        "to": choice_flag("system to export to", ["huggingface", "ctranslate2"]),
        "output": new_folder_flag("folder to create"),
        "quantization": choice_flag(
            "type of the arrays; int8 for CTranslate2 only (default: float32)",
            ["int8", "float16", "bfloat16"],
        ),
    },
)
