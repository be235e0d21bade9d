"""What self-attention is told of distances, beside queries, keys and values."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer import config
from transformer.nn import relative


class Relation(NamedTuple):
    """What distances change in one attention."""

    # Of so many keys, the first: what is added to scores, broadcasting to (B, H, T, S).
    bias: Callable[[int], jax.Array]


def biased(c: config.Transformer, kind: str) -> bool:
    """Say whether scores have a bias, in the attentions of a kind."""
    return kind != "cross" and c.positions == "alibi"


class Distances(nn.Module):
    """Makes the ``Relation`` of a self-attention whose scores are ``biased``."""

    config: config.Transformer

    def __call__(self, query: jax.Array, now: jax.Array | None) -> Relation:
        """Relate queries to the keys of the same sentence.

        Args:
          query: (B, H, T, K).
          now: None where the T queries stand at positions 0 to T - 1, as the keys do;
            else all stand at this one, T hypotheses of which each has the key of
            position m in one of the slots m * T to m * T + T - 1.
        """
        count = query.shape[2]

        def distances(keys: int) -> jax.Array:
            places = jnp.arange(keys)
            if now is None:
                return places - jnp.arange(count)[:, None]
            return (places // count - now)[None]

        return Relation(
            lambda keys: relative.alibi_bias(self.config.heads, distances(keys))
        )
