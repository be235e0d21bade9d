"""Several trained models as one, and the function that loads one or several."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from transformer import models, objective, translate
from transformer.batch_search import BatchSearch
from transformer.config import UserError
from transformer.ids import PAD
from transformer.metrics import heads
from transformer.run import folder
from transformer.trained import complain, open_run
from transformer.translate import Translator


class EnsembleTranslator(Translator):
    """Trained models that translate together: ``P = mean_i P_i`` of each token.

    The search settings are those of the first.

    Attributes:
      members: the models, each as an object of its own.
    """

    def __init__(self, members: Sequence[Translator]) -> None:
        """Join models.

        Args:
          members: models with the same vocabularies and as many rows of logits.
        """
        first = members[0]
        self.members = tuple(members)
        self.settings, self.vocabulary = first.settings, first.vocabulary
        self.model, self.params, self.mesh = first.model, first.params, first.mesh
        self._warn = first._warn
        together = models.Ensemble(tuple(member.model for member in members))
        self._search = BatchSearch(self.settings, together, self.mesh)

    @functools.cached_property
    def variables(self) -> Any:
        return tuple(member.variables for member in self.members)

    @property
    def _limits(self) -> tuple[int, int]:
        """The least of each among the members."""
        longest, rows = zip(*(member._limits for member in self.members), strict=True)
        return min(longest), min(filter(None, rows), default=0)

    def _totals(self, source: jax.Array, target: jax.Array) -> jax.Array:
        each = [
            _token_log_probabilities(one.model, self.mesh, one.params, source, target)
            for one in self.members
        ]
        mean = jax.nn.logsumexp(jnp.stack(each), axis=0) - jnp.log(len(each))
        return jnp.where(target != PAD, mean, 0.0).sum(-1)

    def encode(self, lines: Sequence[str]) -> list[np.ndarray]:
        """Refuse: each member has states of its own."""
        self._refuse("encoder states")

    def attentions(
        self, source_ids: Sequence[list[int]], target_ids: Sequence[list[int]]
    ) -> Iterator[tuple[int, heads.Attention]]:
        """Refuse: each member has heads of its own."""
        self._refuse("attention")

    def _refuse(self, what: str) -> NoReturn:
        raise UserError(
            f"expected one model to return the {what} of, got an ensemble of "
            f"{len(self.members)}; choose one of them"
        )


_token_log_probabilities = translate.by_rows(objective.token_log_probabilities)


def load(
    workdir: str | Path | Sequence[str | Path],
    *,
    step: int | None = None,
    warn: Callable[[str], None] = complain,
    beam: int | None = None,
) -> Translator:
    """Load a trained model, or several as an ensemble.

    Args:
      workdir: folder of the run; of several, a list.
      step: of the checkpoint of each, see ``translate.load``.
      warn: see there.
      beam: see there.

    Returns:
      An object with ``translate``, ``score``, ``encode`` and ``attention``; an ensemble
      has only the first two.

    Raises:
      UserError: if there is no run in a folder, a run is named twice, or the
        vocabularies of two differ.
    """
    if isinstance(workdir, str | Path):
        return translate.load(workdir, step=step, warn=warn, beam=beam)
    workdirs = [Path(one) for one in workdir]
    if not workdirs:
        raise UserError("expected the folder of a run, got none; name one or several")
    check_vocabularies(workdirs)
    places = [one.resolve() for one in workdirs]
    if twice := [one for i, one in enumerate(places) if one in places[:i]]:
        raise UserError(f"expected different runs, got {twice[0]} twice; leave one out")
    if len(workdirs) > 1:  # each of them keeps what a search keeps for one
        beam = (beam or folder.read_settings(workdirs[0]).decode.beam) * len(workdirs)
    members = [translate.load(one, step=step, warn=warn, beam=beam) for one in workdirs]
    return members[0] if len(members) == 1 else EnsembleTranslator(members)


def check_vocabularies(workdirs: Sequence[Path]) -> None:
    """Check that runs have the same vocabularies, before any model is loaded.

    Raises:
      UserError: for two that do not, by their names.
    """
    first, *others = workdirs
    settings, wanted = open_run(first)
    rows = models.make(settings, *wanted.sizes).target_size
    for other in others:
        settings, found = open_run(other)
        for side in ("target", "source"):
            if getattr(wanted, side).digest != getattr(found, side).digest:
                raise UserError(
                    f"expected models with one {side} vocabulary, got {first} and "
                    f"{other}, whose {side} vocabularies differ; leave one of them "
                    "out, or train both with one data.prepared"
                )
        if (got := models.make(settings, *found.sizes).target_size) != rows:
            raise UserError(
                f"expected models with equally many logits, got {first} with "
                f"{rows:,} and {other} with {got:,} (model.vocab_size); leave one of "
                "them out"
            )
