"""How runs end: their numbers, without those that depend on the clock."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np

from support.runs import lines_of
from transformer import models
from transformer import step as steps
from transformer.config import Config
from transformer.prepare import prepare
from transformer.run.checkpoints import Checkpoints

_TIMING = ("seconds", "tokens_per_second", "seconds_to_translate", "sha256")


def end_of(settings: Config, workdir: Path) -> dict[str, Any]:
    """Return all numbers that a run ends with, to be compared bit for bit.

    Returns:
      "metrics": the lines, "checkpoints": by step, a digest of every array.
    """
    with Checkpoints(workdir / "checkpoints", keep=settings.train.keep) as checkpoints:
        found = checkpoints.steps()
        states = {
            step: _digests(checkpoints.restore(_abstract(settings, workdir), step))
            for step in found
        }
    return {"metrics": [_timeless(x) for x in lines_of(workdir)], "checkpoints": states}


def results_of(said: str) -> Any:
    """Return the results from the file that an evaluation named, None without one."""
    if not (named := re.search(r"^results: (.+)$", said, re.MULTILINE)):
        return None
    return _timeless(json.loads(Path(named[1]).read_text(encoding="utf-8")))


def _abstract(settings: Config, workdir: Path) -> Any:
    size = prepare(settings, workdir).vocabulary.target.size
    model = models.make(settings, size, size)
    return jax.eval_shape(lambda: steps.init_state(settings, model)).parts()


def _digests(restored: Any) -> dict[str, str]:
    _, tree, metadata = restored
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    found = {jax.tree_util.keystr(path): _digest(leaf) for path, leaf in leaves}
    return found | {"tokens": metadata["tokens"]}


def _digest(leaf: Any) -> str:
    return hashlib.sha256(np.asarray(leaf).tobytes()).hexdigest()


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _timeless(v) for k, v in value.items() if k not in _TIMING}
    return [_timeless(x) for x in value] if isinstance(value, list) else value
