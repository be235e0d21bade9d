"""Outputs that a task allows: a mask of the next token, made from the prefix alone."""

from __future__ import annotations

from typing import Protocol

import jax
import jax.numpy as jnp


class Constraint(Protocol):
    """Which tokens may follow a prefix.

    It is frozen and hashable, a static argument of compiled programs. Searches mask
    after the softmax's normaliser: hypotheses are ranked by the model's own
    log-probability among outputs that are allowed, and prefixes from which the model
    would rather go on to others are not rewarded, as they would be if every step were
    normalised anew.
    """

    def count(self, source: str) -> int:
        """Return what ``allowed`` has to know of a source: its number of words."""

    def allowed(
        self, ids: jax.Array, position: jax.Array, counts: jax.Array, limits: jax.Array
    ) -> jax.Array:
        """Say which tokens may come next, a pure function that can be compiled.

        It holds for prefixes that it allowed itself; of these at least one token may
        come next.

        Args:
          ids: (B, J, M), of which the first ``position`` tokens are the prefix.
          position: scalar, how many tokens are written.
          counts: of the sources (B,).
          limits: most tokens of each output (B,), EOS included.

        Returns:
          Booleans (B, J, V), for the V ids of the vocabulary.
        """


def allowed(
    constraint: Constraint | None,
    ids: jax.Array,
    position: jax.Array,
    counts: jax.Array | None,
    limits: jax.Array,
    size: int,
) -> jax.Array | None:
    """Return the mask of a constraint (B, J, size), None where there is none.

    Args:
      constraint: of the outputs.
      ids: see ``Constraint.allowed``, as the next three.
      position: see there.
      counts: see there.
      limits: see there.
      size: of the logits, which may have more rows than the vocabulary has ids.
    """
    if constraint is None:
        return None
    assert counts is not None, "a constraint needs the counts of its sources"
    mask = constraint.allowed(ids, position, counts, limits)
    return jnp.pad(mask, ((0, 0), (0, 0), (0, size - mask.shape[-1])))
