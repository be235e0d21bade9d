"""Section 3.5: positional encodings."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np


def sinusoidal_positions(length: int, d_model: int) -> jax.Array:
    """Make the position encodings of section 3.5.

    ``PE(pos, 2i) = sin(pos / 10000^(2i/d))``, ``PE(pos, 2i+1) = cos(...)``.

    Args:
      length: how many positions, from 0.
      d_model: an even width D.

    Returns:
      (length, D) in float32.

    >>> sinusoidal_positions(2, 4)[1].round(3)
    Array([0.841, 0.54 , 0.01 , 1.   ], dtype=float32)
    """
    angles = np.arange(length)[:, None] / 10_000 ** (np.arange(0, d_model, 2) / d_model)
    pairs = np.stack([np.sin(angles), np.cos(angles)], axis=-1)
    return jnp.asarray(pairs.reshape(length, d_model), jnp.float32)


def sinusoidal_positions_concat(length: int, d_model: int) -> jax.Array:
    """Make the position encodings of the authors' first code: all sines, then cosines.

    ``angle(pos, i) = pos / 10000^(i / (d/2 - 1))`` for i = 0 .. d/2 - 1.

    Args:
      length: how many positions, from 0.
      d_model: an even width D of at least 4.

    Returns:
      (length, D) in float32.

    Source: tensor2tensor, commit 3d9c62f2 (2017-06-15), add_timing_signal.
    """
    half = d_model // 2
    angles = np.arange(length)[:, None] / 10_000 ** (np.arange(half) / (half - 1))
    both = np.concatenate([np.sin(angles), np.cos(angles)], axis=-1)
    return jnp.asarray(both, jnp.float32)


def learned_positions(table: jax.Array, places: jax.Array) -> jax.Array:
    """Return the vectors of positions, (..., D), from a table (P, D).

    Positions beyond the table, which no training pair reaches, get its last row.
    """
    return table[jnp.minimum(places, len(table) - 1)]


POSITIONS = {
    "sinusoidal": sinusoidal_positions,
    "sinusoidal_concat": sinusoidal_positions_concat,
}
