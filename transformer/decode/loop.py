"""The loop of every search, which drops sentences that are done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

# (cache, ids (B, J), parents (B, J)) -> logits (B, J, V), cache
Step = Callable[[Any, jax.Array, jax.Array], tuple[jax.Array, Any]]


def until_done(extend, state, least=None):
    """Extend until all sentences are done, halving the batch when half of them are.

    Args:
      extend: makes one step of ``_Paths`` or of a ``_Beam`` of any batch size.
      state: initial state.
      least: rows below which the batch is not halved, None = an eighth: every halving
        adds a loop to the program, and a compilation.

    Returns:
      The final state; what it holds besides the results is of no further use.
    """
    batch = len(state.done)
    least = batch // 8 if least is None else least
    half = (batch + 1) // 2
    if half < max(least, _LEAST_ROWS):
        return lax.while_loop(lambda s: ~s.done.all(), extend, state)
    state = lax.while_loop(lambda s: (~s.done).sum() > half, extend, state)
    rows = jnp.argsort(state.done, stable=True)[:half]
    fewer = jax.tree.map(lambda x: x[rows] if x.ndim else x, state)
    fewer = until_done(extend, fewer, least)._replace(cache=None, position=None)

    def put(x, y):
        return x.at[rows].set(y)

    return jax.tree.map(put, state._replace(cache=None, position=None), fewer)


_LEAST_ROWS = 16  # a step of a smaller batch would take hardly less time
