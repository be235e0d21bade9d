"""Export: a run becomes another system's folder, whole or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformer.config import UserError
from transformer.formats import FORMATS
from transformer.run import folder
from transformer.run.records import announce
from transformer.trained import Restored, restore
from transformer.translate import Translator


def export_run(
    workdir: Path,
    to: str,
    output: Path,
    quantization: str = "",
    log: Callable[[str], None] = announce,
) -> None:
    """Write a run's model as a folder of another system.

    The parameters are those that ``translate`` uses: the average of checkpoints where
    there is one, or else the last or the best.

    Args:
      workdir: folder of the run.
      to: a name of ``FORMATS`` that can be written.
      output: the folder to make.
      quantization: "" for float32, or one that the format has.
      log: takes what was written.

    Raises:
      UserError: for what the format cannot hold, and for an output that is there.
    """
    check_quantization(to, quantization)
    found = restore(workdir, None)
    translator = Translator(found.settings, found.vocabulary, found.params)
    results = _results_of(found, folder.read_results(workdir))
    export(translator, to, output, quantization, results)
    log(f"exported {workdir} to {output}, for {to}")


def _results_of(found: Restored, results: dict[str, Any]) -> dict[str, Any]:
    """Return what an evaluation measured of a checkpoint, perhaps nothing."""
    kinds: tuple[str, ...] = ("last", "best")
    same = int(found.checkpoint.name) == results.get("step")
    if averaged := found.metadata.get("averaged_steps"):
        kinds, same = ("average",), averaged == results.get("averaged_steps")
    measured = {kind: results[kind] for kind in kinds if same and kind in results}
    return {"split": results["split"]} | measured if measured else {}


def export(
    translator: Translator,
    to: str,
    output: Path,
    quantization: str = "",
    results: dict[str, Any] | None = None,
) -> None:
    """Write a model as a folder of another system; see ``export_run``."""
    if os.path.lexists(output):
        raise UserError(
            f"--output: expected a new folder, got {output}, which already exists; "
            "choose another"
        )
    scratch = output.with_name(f".{output.name}.{secrets.token_hex(4)}.partial")
    try:
        scratch.mkdir(parents=True)
        FORMATS[to].save(translator, scratch, quantization, results or {})
        os.rename(scratch, output)
    except OSError as error:
        raise UserError(
            f"--output: expected a folder that can be written, got {output}: "
            f"{error.strerror}; choose another"
        ) from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def check_quantization(to: str, quantization: str) -> None:
    """Check that a format has a quantization.

    Raises:
      UserError: if it does not.
    """
    held = FORMATS[to].QUANTIZATIONS
    if quantization and quantization not in held:
        raise UserError(
            f"--quantization: expected {' or '.join(held)} with --to={to}, got "
            f"{quantization}; change it"
        )
