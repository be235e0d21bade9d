"""Section 5.4, label smoothing: cross entropy as (sum, weight).

A loss is never a mean: sums and weights are added over blocks, parts and devices and
divided once, by the weight of the whole global batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from transformer.nn.matmul import Transposed, product


class Sums(NamedTuple):
    """Sums over the real target tokens of a batch."""

    loss: jax.Array  # smoothed cross entropy, nats
    nll: jax.Array  # negative log-likelihood without smoothing, nats
    correct: jax.Array  # tokens whose most likely id is the target
    weight: jax.Array  # tokens


def smoothing_constants(smoothing: float, over: str, size: int) -> tuple[float, float]:
    """Return a, b of the smoothed distribution ``a * onehot(target) + b``."""
    if over == "all":
        return 1 - smoothing, smoothing / size
    rest = smoothing / (size - 1)
    return 1 - smoothing - rest, rest


def smoothed_targets(
    targets: jax.Array, size: int, smoothing: float, over: str
) -> jax.Array:
    """Return the smoothed distribution q (..., V) of targets (...), V = size."""
    a, b = smoothing_constants(smoothing, over, size)
    return jnp.where(jnp.arange(size) == targets[..., None], a + b, b)


def smoothed_cross_entropy(
    logits: jax.Array,
    targets: jax.Array,
    weights: jax.Array,
    smoothing: float = 0.0,
    over: str = "all",
) -> tuple[jax.Array, jax.Array]:
    """Sum the cross entropy against smoothed targets (section 5.4).

    ``sum w * -sum_v q(v) log softmax(z)(v)`` with ``q = (1 - e) onehot + e / V``
    (``over="all"``), or ``1 - e`` on the target and ``e / (V - 1)`` on every other id
    (``over="others"``).

    Args:
      logits: z (..., V).
      targets: ids (...).
      weights: w (...), 0 for padding.
      smoothing: e.
      over: "all" or "others".

    Returns:
      The sum in nats and the sum of the weights.

    Source: Szegedy et al., arXiv:1512.00567, section 7.

    >>> targets, weights = jnp.array([2]), jnp.ones(1)
    >>> total, weight = smoothed_cross_entropy(jnp.zeros((1, 4)), targets, weights)
    >>> round(float(total), 4)  # log 4
    1.3863
    """
    loss, *_ = _cross_entropies(logits, targets, smoothing, over)
    return (loss * weights).sum(), weights.sum()


def _cross_entropies(logits, targets, smoothing, over):
    """Return smoothed and plain cross entropy, target logit, normaliser of each token.

    All are (...); the normaliser is ``log sum_v exp z(v)``.
    """
    a, b = smoothing_constants(smoothing, over, logits.shape[-1])
    logits = logits.astype(jnp.float32)
    normaliser = jax.nn.logsumexp(logits, axis=-1)
    target = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    # a + b V = 1, so the log-normaliser appears once.
    smoothed = normaliser - a * target - b * logits.sum(-1)
    return smoothed, normaliser - target, target, normaliser


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5, 6, 7))
def blocked_cross_entropy(
    hidden: jax.Array,
    table: jax.Array,
    targets: jax.Array,
    weights: jax.Array,
    smoothing: float,
    over: str,
    block: int,
    dtype: str,
) -> Sums:
    """Sum the cross entropy of ``hidden table^T`` with few logits in memory at a time.

    Equals ``smoothed_cross_entropy`` of the whole logits. The gradient with respect to
    hidden and table, ``w (softmax(z) - q)`` times the other factor, is computed block
    by block in the forward pass; only ``Sums.loss`` has a gradient.

    Args:
      hidden: the decoder's output (B, T, D).
      table: the output matrix (V, D).
      targets: ids (B, T).
      weights: (B, T), 0 for padding.
      smoothing: e of section 5.4.
      over: "all" or "others".
      block: about how many of the B * T rows of logits exist at a time; whole columns
        of the batch are taken, so at least B.
      dtype: dtype of the operands of the products.

    Returns:
      The sums over the batch.
    """

    def of_block(logits, targets, weights):
        (z,) = logits
        return block_sums(z, targets, weights, smoothing, over)[0]

    return sum_blocks(of_block, (hidden,), table, targets, weights, block, dtype)


def _forward(hidden, table, targets, weights, smoothing, over, block, dtype):
    def of_block(logits, y, w):
        (z,) = logits
        # Loss and gradient share the normaliser, which takes an exp of every logit.
        here, normaliser = block_sums(z, y, w, smoothing, over)
        softmax = jnp.exp(z - normaliser[..., None])
        excess = softmax - smoothed_targets(y, z.shape[-1], smoothing, over)
        return here, [excess * w[..., None]]

    sums, ((d_hidden,), d_table) = differentiate_blocks(
        of_block, (hidden,), table, targets, weights, block, dtype
    )
    return sums, (d_hidden, d_table)


def scale_gradients(*given):
    """Return the cotangents of hidden and table, from the forward pass, and of ids.

    Args:
      given: the static arguments of the loss, the gradients from its forward pass (of
        hidden and of table), and the cotangent of its sums.
    """
    *_, gradients, sums = given
    return *jax.tree.map(lambda d: d * sums.loss, gradients), None, None


blocked_cross_entropy.defvjp(_forward, scale_gradients)


def sum_blocks(
    of_block: Callable[..., Sums],
    hidden: Sequence[jax.Array],
    table: jax.Array,
    targets: jax.Array,
    weights: jax.Array,
    block: int,
    dtype: str,
) -> Sums:
    """Add up the sums of blocks of logits, one block in memory at a time.

    Args:
      of_block: logits of each pass, targets and weights of a block -> its sums.
      hidden: the decoder's output (B, T, D) of each pass over the batch.
      table: the output matrix (V, D).
      targets: ids (B, T).
      weights: (B, T).
      block: rows of logits; see ``blocked_cross_entropy``.
      dtype: dtype of the operands of the products.
    """

    def add(sums: Sums, xs):
        *hs, y, w = xs
        logits = [product(h, Transposed(table), dtype) for h in hs]
        return _add(sums, of_block(logits, y, w)), None

    cut = _blocks(block, *hidden, targets, weights)
    return lax.scan(add, Sums(*jnp.zeros(4)), cut)[0]


def differentiate_blocks(
    of_block: Callable[..., tuple[Sums, Sequence[jax.Array]]],
    hidden: Sequence[jax.Array],
    table: jax.Array,
    targets: jax.Array,
    weights: jax.Array,
    block: int,
    dtype: str,
) -> tuple[Sums, tuple[tuple[jax.Array, ...], jax.Array]]:
    """Add up the sums of blocks and compute the gradient of their loss on the way.

    Args:
      of_block: as for ``sum_blocks``, like the other arguments; it also returns the
        gradient of the block's loss with respect to the logits of each pass.

    Returns:
      The sums, and the gradients with respect to hidden and to table.
    """

    def add(carry, xs):
        sums, d_table = carry
        *hs, y, w = xs
        logits, backs = zip(
            *(
                jax.vjp(lambda h, e: product(h, Transposed(e), dtype), h, table)
                for h in hs
            ),
            strict=True,
        )
        here, d_logits = of_block(logits, y, w)
        d_hidden = []
        for back, d in zip(backs, d_logits, strict=True):
            d_h, d_block = back(d)
            d_hidden.append(d_h)
            d_table += d_block
        return (_add(sums, here), d_table), d_hidden

    start = Sums(*jnp.zeros(4)), jnp.zeros(table.shape, jnp.float32)
    cut = _blocks(block, *hidden, targets, weights)
    (sums, d_table), d_hidden = lax.scan(add, start, cut)
    whole = (
        jnp.moveaxis(d, 0, 1).reshape(h.shape)
        for d, h in zip(d_hidden, hidden, strict=True)
    )
    return sums, (tuple(whole), d_table)


def _blocks(block: int, *arrays: jax.Array) -> tuple[jax.Array, ...]:
    """Cut (B, T, ...) into (n, B, T / n, ...): along T, so that B stays sharded."""
    if block < 1:
        raise ValueError(
            f"loss.block: expected 1 row or more, got {block}; sizes.here(settings, V) "
            "replaces it by the device's number"
        )
    batch, length = arrays[0].shape[:2]
    fitting = [
        c for c in range(1, length + 1) if length % c == 0 and c * batch <= block
    ]
    columns = max(fitting, default=1)
    cut = (batch, length // columns, columns)
    return tuple(jnp.moveaxis(x.reshape(cut + x.shape[2:]), 1, 0) for x in arrays)


def block_sums(logits, targets, weights, smoothing, over) -> tuple[Sums, jax.Array]:
    """Return the sums of a block, and the normaliser of each token."""
    loss, nll, target, normaliser = _cross_entropies(logits, targets, smoothing, over)
    # Not argmax, which is many times slower than max on a CPU.
    correct = target >= logits.max(-1)
    sums = Sums(
        (loss * weights).sum(),
        (nll * weights).sum(),
        (correct * weights).sum(),
        weights.sum(),
    )
    return sums, normaliser


def _add(a: Sums, b: Sums) -> Sums:
    return jax.tree.map(jnp.add, a, b)
