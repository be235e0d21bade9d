"""A trained model on disk: its configuration, vocabulary and parameters."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from transformer import models, parallel
from transformer.config import Config, UserError
from transformer.data.tokenizers import Vocabulary, load_vocabulary
from transformer.run import folder
from transformer.run.checkpoints import Checkpoints, check_vocabulary, steps_in

VOCABULARY = "vocabulary"  # folder of an imported model's tokenizers


def complain(text: str) -> None:
    """Print a warning on standard error."""
    print(f"transformer: {text}", file=sys.stderr, flush=True)


def abstract_params(settings: Config, vocabulary: Vocabulary) -> Any:
    """Return the parameters to restore, replicated on all devices."""
    model = models.make(settings, *vocabulary.sizes)
    return parallel.replicated(models.abstract(model))


def open_run(workdir: Path) -> tuple[Config, Vocabulary]:
    """Return the configuration and the vocabulary of a run.

    Raises:
      UserError: if there is no run in the folder, or its data are not where it says.
    """
    settings = folder.read_settings(workdir)
    corpus = Path(settings.data.prepared or workdir / "corpus")
    if not corpus.exists():
        if imported := imported_vocabulary(workdir):
            return settings, imported  # not trained yet
        if settings.data.prepared:
            remedy = "put it back"
            if not corpus.is_absolute():
                remedy = "run this from the folder that the run was trained from"
            raise UserError(
                f"{workdir}: expected its prepared data in {corpus} (data.prepared), "
                f"found none there; {remedy}"
            )
    return settings, load_vocabulary(corpus)


def imported_vocabulary(workdir: Path) -> Vocabulary | None:
    """Return the vocabulary of an imported model, None for a run that was not imported.

    It belongs to the workdir and moves with it, wherever ``tokenizer.source_model`` and
    ``target_model`` say that it was.
    """
    imported = workdir / VOCABULARY
    return load_vocabulary(imported) if imported.is_dir() else None


def chosen_step(settings: Config, saved: Checkpoints) -> int | None:
    """Return the step of the checkpoint that ``decode.checkpoint`` asks for.

    None means the last.

    Raises:
      UserError: if it asks for the best, and none was validated.
    """
    if settings.decode.checkpoint == "last":
        return None
    if (best := saved.best()) is None:
        raise UserError(
            f"expected a validated checkpoint in {saved.folder}, found none; "
            "train on, or set decode.checkpoint=last"
        )
    return best


class Restored(NamedTuple):
    """A trained model as it lies on disk."""

    settings: Config
    vocabulary: Vocabulary
    params: Any  # replicated on all devices
    checkpoint: Path
    metadata: dict[str, Any]  # of the checkpoint
    digest: str  # of the checkpoint's files


def restore(
    workdir: Path, step: int | None, warn: Callable[[str], None] = complain
) -> Restored:
    """Read a trained model.

    Args:
      workdir: folder of the run.
      step: of the checkpoint, None as for ``translate.load``.
      warn: takes one line for each damaged checkpoint.

    Raises:
      UserError: if there is no run in the folder, or no such checkpoint.
    """
    settings, vocabulary = open_run(workdir)
    place, remedy = workdir / "checkpoints", "choose another workdir"
    if step is None and steps_in(workdir / "averaged"):
        place, remedy = workdir / "averaged", "run transformer average again"
    abstract = abstract_params(settings, vocabulary)
    with Checkpoints(place, settings.train.keep, warn, remedy) as checkpoints:
        if step is None and place.name == "checkpoints":
            step = chosen_step(settings, checkpoints)
        found, tree, metadata = checkpoints.restore({"params": abstract}, step)
        digest = checkpoints.digest(found)
    check_vocabulary(place, metadata, vocabulary.digest)
    checkpoint = place / str(found)
    return Restored(settings, vocabulary, tree["params"], checkpoint, metadata, digest)
