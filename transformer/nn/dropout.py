"""Section 5.4, dropout, with random bits hashed from seed, step, place and element.

The mask of a batch therefore does not depend on how the batch is sharded.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


class Key(NamedTuple):
    """Key of the counter-based hash: a place and a time that random bits are drawn for.

    The bits of an element depend only on this key and on the element's index in the
    global batch, so they are the same however the batch is split over devices.
    """

    words: tuple[jax.Array, jax.Array]  # two uint32 scalars
    row: jax.Array  # index in the global batch of this part's first row, uint32


def make_key(seed: jax.Array | int, row: jax.Array | int = 0) -> Key:
    """Start a chain of keys from an integer seed."""
    seed = jnp.asarray(seed, jnp.uint32)
    words = _mix(seed ^ np.uint32(0x9E3779B9)), _mix(seed + np.uint32(0x7F4A7C15))
    return Key(words, jnp.asarray(row, jnp.uint32))


def fold_in(key: Key | None, data: jax.Array | int) -> Key | None:
    """Derive the key of a step, a layer or a place from ``key``; None stays None."""
    if key is None:
        return None
    first, second = key.words
    data = jnp.asarray(data, jnp.uint32)
    first = _mix(first ^ _mix(data + np.uint32(0x9E3779B9)))
    return Key((first, _mix(second + first * np.uint32(0x85EBCA6B))), key.row)


def settled(key: Key | None) -> Key | None:
    """Return the same key, with words that the loops that use them only read.

    XLA for CPUs would repeat the chain of hashes behind them in each of these loops,
    and LLVM analyses it in exponential time: minutes per program where a step, its
    batch and a pass of R-Drop are folded in. What a loop returns is not repeated, and
    this one exchanges the words twice.
    """
    if key is None:
        return None
    twice = lax.fori_loop(0, 2, lambda _, words: words[::-1], key.words)
    return key._replace(words=twice)


def dropout(x: jax.Array, rate: float, key: Key | None) -> jax.Array:
    """Zero a fraction ``rate`` of the elements and divide the others by ``1 - rate``.

    Args:
      x: (B, ...); the first axis is the batch.
      rate: at least 0 and less than 1.
      key: key of this place and time; None returns x unchanged.

    Returns:
      An array like x.

    Source: section 5.4; Srivastava et al. 2014.
    """
    if key is None or rate == 0.0:
        return x
    keep = _bits(key, x.shape) >= np.uint32(min(round(rate * 2**32), 2**32 - 1))
    # In bfloat16 the constant itself would be rounded, by up to .2 %.
    scaled = (x.astype(jnp.float32) * (1 / (1 - rate))).astype(x.dtype)
    return jnp.where(keep, scaled, 0.0)


def _bits(key: Key, shape: tuple[int, ...]) -> jax.Array:
    """Return 32 random bits per element: a keyed murmur3 finaliser of its index."""
    size = int(np.prod(shape))
    index = lax.iota(jnp.uint32, size).reshape(shape)
    index += key.row * np.uint32(size // shape[0])
    first, second = key.words
    bits = index * np.uint32(0x9E3779B9) + first
    bits = (bits ^ (bits >> 16)) * np.uint32(0x85EBCA6B) + second
    bits = (bits ^ (bits >> 13)) * np.uint32(0xC2B2AE35)
    return bits ^ (bits >> 16)


@jax.jit  # one trace for the hundreds of keys of a step
def _mix(x: jax.Array) -> jax.Array:
    """Finalise as murmur3 does: every input bit changes half of the output bits."""
    x = (x ^ (x >> 16)) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * np.uint32(0xC2B2AE35)
    return x ^ (x >> 16)
