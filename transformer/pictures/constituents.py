"""The constituency tree of a sentence, drawn."""

from __future__ import annotations

from pathlib import Path

from transformer.config import UserError
from transformer.pictures import plots
from transformer.pictures.heads import tree_of, with_text
from transformer.translate import load


def show(
    workdir: Path,
    form: str,
    source: str,
    target: str | None = None,
    *,
    step: int | None = None,
) -> bytes:
    """Draw the tree that a trained model writes for a sentence, or a given one.

    Args:
      workdir: folder of the run.
      form: one of ``plots.FORMS``.
      source: a sentence.
      target: its tree in brackets, None for the model's own.
      step: of the checkpoint, see ``translate.load``.

    Returns:
      What the file is to hold.

    Raises:
      UserError: for a run whose targets are no trees, and a tree without words.
    """
    translator = load(workdir, step=step)
    with_text("source", source)
    if target is None:
        target = translator.translate([source])[0]
    tree = tree_of(translator, with_text("target", target))
    if tree is None:
        kind = translator.settings.data.source
        raise UserError(
            f"--tree: expected a run that writes trees, got one on data.source={kind}; "
            "choose another run, or leave --tree out"
        )
    return plots.constituents(tree).file(form)
