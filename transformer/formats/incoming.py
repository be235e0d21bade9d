"""Import: another system's model becomes an ordinary workdir."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from transformer import models
from transformer.config import Config, UserError
from transformer.data.tokenizers import Vocabulary
from transformer.formats import FORMATS
from transformer.formats.arrays import tree
from transformer.formats.foreign import Foreign
from transformer.formats.usual import settings_of
from transformer.run import folder
from transformer.run.checkpoints import Checkpoints
from transformer.run.course import Course
from transformer.run.records import announce
from transformer.step import init_state
from transformer.trained import VOCABULARY


def import_model(
    source: Path,
    workdir: Path,
    given: Config | None = None,
    log: Callable[[str], None] = announce,
) -> None:
    """Make a workdir whose checkpoint of step 0 is another system's model.

    With a configuration the checkpoint is one that training resumes from.

    Args:
      source: a folder of Transformers, or Marian's ``.npz``.
      workdir: exists, can be written and is empty.
      given: data and training, see ``usual.settings_of``.
      log: takes what was read and written.

    Raises:
      UserError: if the files are not such a model, or the folder is not empty.
    """
    folder.check_writable(workdir)
    if found := sorted(path.name for path in workdir.iterdir()):
        raise UserError(
            f"{workdir}: expected an empty folder to import into, found {found[0]}; "
            "choose another --workdir"
        )
    it = FORMATS[format_of(source)].load(source)
    sides = {"source": it.vocabulary.source, "target": it.vocabulary.target}
    places = {
        side: os.fspath(workdir / VOCABULARY / f"{side}{tokenizer.suffix}")
        for side, tokenizer in sides.items()
    }
    settings = settings_of(it, source.resolve().stem, places, given)
    params = fitted(settings, it)
    it.vocabulary.save(workdir / VOCABULARY)
    state = _state(settings, it.vocabulary, params) if given else {"params": params}
    with Checkpoints(workdir / "checkpoints", settings.train.keep) as checkpoints:
        checkpoints.save(0, state, _metadata(settings, it, given is None))
    folder.write_settings(workdir, settings)  # last: with it the folder is a run
    for key, value in it.unused.items():
        log(f"{source}: its search sets {key} = {value!r}, which is ignored here")
    count = sum(array.size for array in jax.tree.leaves(params))
    log(
        f"imported {source}: {it.model.layers} + {it.model.depth} layers, d_model "
        f"{it.model.d_model}, {it.vocabulary.source.size:,} pieces, {count:,} "
        f"parameters: {workdir}"
    )


def format_of(source: Path) -> str:
    """Return the name of the format that a path is of.

    Raises:
      UserError: if it is of none.
    """
    if source.is_file() and source.suffix == ".npz":
        return "marian"
    if (source / "config.json").is_file():
        return "huggingface"
    if not source.exists():
        got = "nothing there"
    elif source.is_file():
        got = f"a file {source.suffix or 'of no known kind'}"
    else:
        got = "a folder without config.json"
        if archives := sorted(source.glob("*.npz")):
            got += f"; for Marian's own files name {archives[0].name}"
    raise UserError(
        f"--from: expected a folder of Transformers or an .npz of Marian, got "
        f"{source}: {got}; name another"
    )


def fitted(settings: Config, it: Foreign) -> Any:
    """Return the parameters as a tree, checked against those of the model.

    Raises:
      UserError: if the model of the configuration has other arrays.
    """
    model = models.make(settings, *it.vocabulary.sizes)
    arrays = models.by_name(models.abstract(model))
    wanted = {name: array.shape for name, array in arrays.items()}
    got = {name: array.shape for name, array in it.arrays.items()}
    if wanted != got:
        name = sorted(set(wanted.items()) ^ set(got.items()))[0][0]
        raise UserError(
            f"--from: expected {name} of shape {wanted.get(name)}, got "
            f"{got.get(name)}; import another model"
        )
    return jax.tree.map(jnp.asarray, tree(it.arrays))


def _state(settings: Config, vocabulary: Vocabulary, params: Any) -> dict[str, Any]:
    """Return the state of training before its first step, by name."""
    model = models.make(settings, *vocabulary.sizes)
    apart = dataclasses.replace(settings.parallel, layers="unrolled")
    settings = dataclasses.replace(settings, parallel=apart)
    return init_state(settings, model)._replace(params=params).parts()


def _metadata(settings: Config, it: Foreign, inference_only: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "config": dataclasses.asdict(settings),
        "vocabulary": it.vocabulary.digest,
        "batches_taken": 0,
        "tokens": 0,
        "course": dataclasses.asdict(Course()),
        "imported": dict(it.files),
    }
    return found | ({"inference_only": True} if inference_only else {})
