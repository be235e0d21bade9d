"""R-Drop: two passes with different dropout should predict the same distribution.

Source: Liang et al. 2021, R-Drop: Regularized Dropout for Neural Networks,
arXiv:2106.14448, equations 1 to 4.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from transformer.nn.losses import (
    Sums,
    block_sums,
    differentiate_blocks,
    scale_gradients,
    smoothed_targets,
    sum_blocks,
)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5, 6, 7, 8))
def blocked_r_drop(
    hidden: tuple[jax.Array, jax.Array],
    table: jax.Array,
    targets: jax.Array,
    weights: jax.Array,
    alpha: float,
    smoothing: float,
    over: str,
    block: int,
    dtype: str,
) -> Sums:
    """Sum half of the R-Drop loss of two passes, with few logits in memory at a time.

    ``w (C(z) + C(z')) / 2 + alpha w (KL(p || p') + KL(p' || p)) / 4`` with the smoothed
    cross entropy C, p = softmax(z) and z = hidden table^T of each pass: half of the
    paper's loss, so that alpha = 0 gives the mean of both passes.

    Args:
      hidden: the decoder's output (B, T, D) of each pass.
      table: the output matrix (V, D).
      targets: ids (B, T).
      weights: w (B, T), 0 for padding.
      alpha: weight of the divergence; 5 in the paper's translation.
      smoothing: e of section 5.4.
      over: "all" or "others".
      block: about how many of the B * T rows of logits exist at a time for each pass;
        whole columns of the batch are taken, so at least B.
      dtype: dtype of the operands of the products.

    Returns:
      ``loss`` as above, the only one with a gradient; all others are means of both
      passes.
    """

    def of_block(logits, targets, weights):
        return _of_block(logits, targets, weights, alpha, smoothing, over)[0]

    return sum_blocks(of_block, hidden, table, targets, weights, block, dtype)


def _of_block(logits, targets, weights, alpha, smoothing, over):
    """Return the sums of a block, and p(v) and z(v) - z'(v) of each pass."""
    each = [block_sums(z, targets, weights, smoothing, over) for z in logits]
    ps = [
        jnp.exp(z - normaliser[..., None])
        for z, (_, normaliser) in zip(logits, each, strict=True)
    ]
    apart = logits[0] - logits[1]
    # The normalisers are the same for all ids, and p - p' adds up to 0.
    divergence = ((ps[0] - ps[1]) * apart).sum(-1)
    mean = jax.tree.map(lambda a, b: (a + b) / 2, *(sums for sums, _ in each))
    loss = mean.loss + alpha / 4 * (divergence * weights).sum()
    return mean._replace(loss=loss), ps, (apart, -apart)


def _forward(hidden, table, targets, weights, alpha, smoothing, over, block, dtype):
    def of_block(logits, y, w):
        here, ps, aparts = _of_block(logits, y, w, alpha, smoothing, over)
        wanted = smoothed_targets(y, table.shape[0], smoothing, over)
        d_logits = []
        for p, other, apart in zip(ps, ps[::-1], aparts, strict=True):
            mean = (p * apart).sum(-1, keepdims=True)
            d = p - wanted + alpha / 2 * (p * (apart - mean) + p - other)
            d_logits.append(d * w[..., None] / 2)
        return here, d_logits

    return differentiate_blocks(of_block, hidden, table, targets, weights, block, dtype)


blocked_r_drop.defvjp(_forward, scale_gradients)
