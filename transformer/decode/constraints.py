"""Outputs that a task allows: a mask of the next token, from the prefix alone."""

from __future__ import annotations

from typing import Protocol

import jax
import jax.numpy as jnp


class Constraint(Protocol):
    """Which tokens may follow a prefix.

    It is a pytree, an argument of compiled programs. Searches apply the mask after the
    softmax's normaliser, so hypotheses are ranked by the model's own log-probability
    among allowed outputs. Renormalising every step would instead reward prefixes that
    the model would rather continue to other outputs.
    """

    def count(self, source: str) -> int:
        """Return what ``allowed`` needs to know of a source: its number of words."""

    def allowed(
        self, ids: jax.Array, position: jax.Array, counts: jax.Array, limits: jax.Array
    ) -> jax.Array:
        """Return which tokens may come next; a pure function that can be compiled.

        It is valid for prefixes that it allowed itself; after these at least one token
        may come next.

        Args:
          ids: (B, J, M), of which the first ``position`` tokens are the prefix.
          position: scalar, how many tokens are written.
          counts: of the sources (B,).
          limits: maximum tokens of each output (B,), EOS included.

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
    """Return the mask of a constraint (B, J, size), None if there is none.

    Args:
      constraint: on the outputs.
      ids: see ``Constraint.allowed``, also for the next three.
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
