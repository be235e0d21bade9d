"""Sizes that affect only rounding: what 0 in a configuration means on a device.

``loss.block`` and ``decode.tokens`` change how much is computed at a time and nothing
else, so they depend on the device, and may change when a run resumes elsewhere.
"""

from __future__ import annotations

import dataclasses

import jax

from transformer import config
from transformer.config import Config
from transformer.nn import hardware
from transformer.nn.hardware import Hardware
from transformer.parallel import hosts, memory

_FLOAT = 4  # bytes
_BLOCK, _TOKENS = 512, 4096  # on a CPU, whose caches hold little
_MOST_LOGITS, _MOST_TOKENS = 4_000_000_000, 65_536  # bytes, slots
SHORTEST = 16  # slots of a row in the groups of shortest sentences


def follow(
    settings: Config,
    device: Hardware,
    there: int,
    target_size: int,
    beam: int | None = None,
) -> Config:
    """Replace sizes that are 0 with numbers for a device.

    On a CPU, or if the memory is unknown, 512 rows of logits and 4,096 source slots. On
    an accelerator with M bytes:

    * ``loss.block``: rows whose logits, ``4 V`` bytes each, take at most M / 16 and at
      most 4 GB, in steps of 512. With their gradient and an operand they take 2.5 times
      that;
    * ``decode.tokens``: the largest power of two from 4,096 to 65,536 whose search
      takes at most M / 2, by ``bytes_a_slot``.

    On any device ``decode.tokens`` is halved as long as its search takes more than M.

    Args:
      settings: as the user wrote them.
      device: its kind.
      there: its memory in bytes, 0 if unknown.
      target_size: V of the target vocabulary.
      beam: J of the searches to come, None = the configured one.

    Returns:
      Settings without a 0; numbers that were given are kept.
    """
    block, tokens = _BLOCK, _TOKENS
    slot = bytes_a_slot(settings, target_size, beam or settings.decode.beam)
    if device.accelerator and there:
        logits = min(_MOST_LOGITS, there // 16)
        block = max(logits // (_FLOAT * target_size) // _BLOCK, 1) * _BLOCK
        fitting = int(there / 2 / slot)
        tokens = min(max(_TOKENS, 1 << fitting.bit_length() >> 1), _MOST_TOKENS)
    while there and tokens > SHORTEST and tokens * slot > there:
        tokens //= 2
    loss, decode = settings.loss, settings.decode
    return dataclasses.replace(
        settings,
        loss=dataclasses.replace(loss, block=loss.block or block),
        decode=dataclasses.replace(decode, tokens=decode.tokens or tokens),
    )


def bytes_a_slot(settings: Config, target_size: int, beam: int) -> float:
    """Return the bytes of a search per source slot, for the shortest sentences.

    Args:
      settings: the model, and ``decode.extra_tokens``.
      target_size: V.
      beam: J.
    """
    length = SHORTEST + settings.decode.extra_tokens
    return bytes_of_search(settings, target_size, beam, 1, SHORTEST, length) / SHORTEST


def bytes_of_search(
    settings: Config, target_size: int, beam: int, rows: int, source: int, length: int
) -> int:
    """Return about how many bytes a search takes, without the model itself.

    A sentence of S padded tokens has the keys and values of N layers, ``4 N H (d_k +
    d_v)`` bytes per position (other models a state, ``4 D``), at S positions of the
    source and M of each of J hypotheses; J rows of logits, of probabilities and of
    scores, ``4 V`` each; and for each of J hypotheses and J M positions the mask and H
    weights before and after the softmax, ``2 + 8 H``.

    Args:
      settings: the model.
      target_size: V.
      beam: J.
      rows: sentences.
      source: S.
      length: M.
    """
    c = settings.model
    position, pair = c.d_model, 0
    if isinstance(c, config.Transformer):
        position, pair = c.depth * c.heads * (c.d_k + c.d_v), 2 + 2 * _FLOAT * c.heads
    numbers = (source + beam * length) * position + 3 * beam * target_size
    return rows * (_FLOAT * numbers + beam * beam * length * pair)


def here(settings: Config, target_size: int, beam: int | None = None) -> Config:
    """Return ``follow`` for the devices of this run, the same in all its processes."""
    if settings.loss.block and settings.decode.tokens:
        return settings
    # The least of all: the program is the same on every device.
    there = hosts.least(memory.here() // 10**6) * 10**6
    device = hardware.of(jax.local_devices()[0])
    return follow(settings, device, there, target_size, beam)


def taken(settings: Config) -> dict[str, int]:
    """Return the sizes by name, for the record of a run."""
    return {
        "loss.block": settings.loss.block,
        "decode.tokens": settings.decode.tokens,
    }


def line(settings: Config) -> str:
    """Return one line that names the sizes in use."""
    return (
        f"at a time: {settings.loss.block:,} rows of logits (loss.block), "
        f"{settings.decode.tokens:,} padded source tokens of a search (decode.tokens)"
    )
