"""Keys and values of the past, in blocks that fill one after another."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint

KeysValues = tuple[jax.Array, jax.Array]


class Blocks(NamedTuple):
    """Keys and values as decoding reads them, see ``attention.block_attention``.

    The decoder's own are filled one position after another: the key of position m of
    beam j is in slot ``m * J + j``, counted over all blocks, and is never moved. With a
    window they hold the last n positions, with m modulo n in place of m. Those of the
    source are one block of S slots.
    """

    keys: tuple[jax.Array, ...]  # (B, H, K, L_i * J) each
    values: tuple[jax.Array, ...]  # (B, H, L_i * J, W) each
    filled: jax.Array  # () how many blocks hold something


_FIRST_BLOCK = 16  # positions


def block_sizes(length: int) -> list[int]:
    """Cut positions into blocks that end at 16, 64, 256, ... and at the last one.

    There are few, because the program of a step contains attention to one block, to
    two, and so on, and all of it has to be compiled.
    """
    ends = [0]
    while ends[-1] < length:
        ends.append(min(4 * ends[-1] or _FIRST_BLOCK, length))
    return [b - a for a, b in itertools.pairwise(ends)]


def empty_blocks(
    batch: int, heads: int, d_k: int, d_v: int, slots: list[int], dtype: str
) -> Blocks:
    """Return empty blocks with given numbers of slots."""
    front = batch, heads
    return Blocks(
        tuple(jnp.zeros((*front, d_k, size), dtype) for size in slots),
        tuple(jnp.zeros((*front, size, d_v), dtype) for size in slots),
        jnp.zeros((), jnp.int32),
    )


def one_block(keys: jax.Array, values: jax.Array) -> Blocks:
    """Return keys (B, H, S, K) and values (B, H, S, W) as one filled block."""
    keys = jax.lax.platform_dependent(
        keys.swapaxes(2, 3), cpu=_laid_out, default=lambda keys: keys
    )
    return Blocks((keys,), (values,), jnp.ones((), jnp.int32))


def _laid_out(x: jax.Array) -> jax.Array:
    """Store an array in the order of its axes.

    A compiler for CPUs would keep the keys of the source as their projection stores
    them, and transpose them in every step of a search.
    """
    return with_layout_constraint(x, Layout(tuple(range(x.ndim))))


def extended(old: Blocks, new: KeysValues, slot: jax.Array) -> Blocks:
    """Put new keys (B, H, J, K) and values (B, H, J, W) into slots from ``slot`` on."""
    starts = _starts(old.keys, axis=3)
    reached = sum((slot >= start).astype(jnp.int32) for start in starts)
    return Blocks(
        _put(old.keys, new[0].swapaxes(2, 3), slot, axis=3),
        _put(old.values, new[1], slot, axis=2),
        jnp.maximum(old.filled, reached),
    )


class Ancestors(NamedTuple):
    """Which beam took which token of each hypothesis, for M positions of J beams.

    Several hypotheses may share a past, whose keys are never moved.
    """

    position: jax.Array  # () how many tokens were taken
    beams: jax.Array  # (B, J, M) the beam that took a hypothesis' token m

    def follow(self, parents: jax.Array) -> Ancestors:
        """Return the ancestors of hypotheses that continue others, parents (B, J)."""
        beams = jnp.take_along_axis(self.beams, parents[..., None], axis=1)
        count = beams.shape[1]
        beams = beams.at[:, :, self.position].set(jnp.arange(count))
        return Ancestors(self.position + 1, beams)

    def mask(self, window: int = 0, held: int = 0) -> jax.Array:
        """Return which slots each hypothesis may attend to, (B, 1, J, n * J).

        Args:
          window: positions at most this far back are seen, 0 = all.
          held: n, if the cache holds only the last n positions; 0 = all M.
        """
        batch, count, length = self.beams.shape
        now, beams, positions = self.position - 1, self.beams, jnp.arange(length)
        if 0 < held < length:
            # The last position that was put in each place, below 0 if none was.
            positions = now - (now - jnp.arange(held)) % held
            beams = jnp.take(beams, positions, axis=2, mode="clip")
        seen = (positions >= 0) & (positions <= now)
        if window:
            seen &= positions >= now - window
        mask = (beams[..., None] == jnp.arange(count)) & seen[:, None]
        return mask.reshape(batch, 1, count, -1)


def _starts(blocks, axis):
    """Return the slot in which each block begins."""
    ends = itertools.accumulate(block.shape[axis] for block in blocks)
    return [0, *ends][:-1]


def _put(blocks, new, slot, axis):
    """Put new keys or values into their blocks, from a slot on; slots are an axis."""
    count = new.shape[axis]

    def put(start, block):
        at, size = [0] * block.ndim, block.shape[axis]
        at[axis] = jnp.clip(slot - start, 0, size - count)
        old = jax.lax.dynamic_slice(block, at, new.shape)
        here = (slot >= start) & (slot < start + size)
        return jax.lax.dynamic_update_slice(block, jnp.where(here, new, old), at)

    return tuple(map(put, _starts(blocks, axis), blocks))
