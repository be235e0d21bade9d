"""Convert another system's model to a workdir, to translate or train further."""

from __future__ import annotations

from pathlib import Path

from absl import flags

from transformer import config
from transformer.cli.files import writable
from transformer.cli.flags import Command, given, path_flag


def run(values: flags.FlagValues) -> int:
    """Run the command with the values of its flags; return the exit code."""
    settings = None if values.config is None else config.resolve(values.config)
    source = Path(given(values, ["from"])["from"])
    workdir = writable(Path(values.workdir))
    from transformer.formats.incoming import import_model
    from transformer.parallel import start

    start("cpu")
    import_model(source, workdir, settings)
    return 0


COMMAND = Command(
    run,
    ("from", "workdir"),
    ("config",),
    own={
        "from": path_flag(
            "Transformers folder with a MarianMTModel, or Marian's own .npz with "
            "its vocabulary beside it"
        ),
        "workdir": path_flag("empty folder to create the run in"),
        "config": path_flag(
            "FILE.py with the data and settings for further training; override a key "
            "with --config.KEY=VALUE (default: for translation only)"
        ),
    },
)
