"""Section 3.2 on a TPU: attention as one kernel that keeps no weights.

Unfused, the scores and weights of short sentences fill a quarter of the TPU's tiles of
8 x 128 numbers, and are written to memory and read back many times. Here a few
sentences side by side share one matrix of scores, which never leaves the chip.

Imported only when a program is traced for a TPU.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

_LANES = 128  # of a tile
_MASKED = -1e9  # a score below all others
_ROWS = 1024  # positions of a block, summed over its sentences; 256 kB per array


@dataclasses.dataclass(frozen=True)
class _Form:
    """What a kernel is compiled for."""

    queries: int  # T
    keys: int  # S
    width: int  # K
    scale: float
    causal: bool
    window: int


def attend(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    ids: jax.Array | None,
    *,
    heads: int,
    scale: float,
    causal: bool = False,
    window: int = 0,
) -> jax.Array:
    """Attend as ``attention.attention`` does, ``softmax(scale Q K^T) V`` (equation 1).

    ``attention.fused_kernel`` says where this is possible.

    Args:
      q: queries (B, T, H * K), bfloat16, heads side by side.
      k: keys (B, S, H * K), bfloat16.
      v: values (B, S, H * K), bfloat16.
      ids: ids of the keys (B, S); padding, 0, is masked. None = no padding.
      heads: H.
      scale: factor of the scores.
      causal: whether later positions are masked.
      window: positions at most this far away are attended to, 0 = all.

    Returns:
      The output (B, T, H * K) in bfloat16, 0 where nothing may be attended to.
    """
    batch, queries, depth = q.shape
    keys = k.shape[1]
    form = _Form(queries, keys, depth // heads, scale, causal, window)
    if ids is None:
        ids = jnp.ones((batch, keys), jnp.int32)
    together = _together(batch, max(queries, keys))

    def joined(x):
        return x.reshape(batch // together, together * x.shape[1], *x.shape[2:])

    output = _attend(form, joined(ids)[:, None], joined(q), joined(k), joined(v))
    return output.reshape(q.shape)


def _together(batch: int, length: int) -> int:
    """Return how many sentences share a matrix of scores: as many as fill its tiles."""
    fitting = [n for n in (2, 4, 8) if batch % n == 0 and n * length <= _LANES]
    return max(fitting, default=1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(form: _Form, ids, q, k, v):
    return _call(_forward_kernel, form, 2, ids, (q, k, v), like=(q,))[0]


def _attend_forward(form, ids, q, k, v):
    return _attend(form, ids, q, k, v), (ids, q, k, v)


def _attend_backward(form, residuals, gradient):
    ids, q, k, v = residuals
    inputs = q, k, v, gradient.astype(q.dtype)
    return None, *_call(_backward_kernel, form, 5, ids, inputs, like=(q, k, v))


_attend.defvjp(_attend_forward, _attend_backward)


def _call(kernel, form: _Form, products: int, ids, inputs, like) -> Any:
    """Run a kernel over blocks of sentences and of heads."""
    groups, _, depth = inputs[0].shape
    longest = max(x.shape[1] for x in inputs)
    height = min(max(_ROWS // longest, 1), groups)

    def block(x):
        return pl.BlockSpec((height, x.shape[1], _LANES), lambda i, j: (i, 0, j))

    every_head = pl.BlockSpec((height, 1, ids.shape[2]), lambda i, j: (i, 0, 0))
    sentences = groups * inputs[0].shape[1] // form.queries
    pairs = sentences * form.queries * form.keys
    return pl.pallas_call(
        functools.partial(kernel, form),
        grid=(pl.cdiv(groups, height), depth // _LANES),
        in_specs=[every_head, *map(block, inputs)],
        out_specs=[block(x) for x in like],
        out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in like],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel")
        ),
        cost_estimate=pl.CostEstimate(
            flops=2 * products * pairs * depth,
            transcendentals=pairs * depth // form.width,
            bytes_accessed=sum(x.nbytes for x in (ids, *inputs, *like)),
        ),
    )(ids, *inputs)


def _forward_kernel(form: _Form, ids, q, k, v, output):
    visible = _visible(form, q.shape[1], k.shape[1])

    def attend(row, _):
        here = visible & (ids[row] != 0)
        result = jnp.zeros(q.shape[1:], jnp.float32)
        for lanes in _heads(form):
            weights = _weights(form, here, lanes, q[row], k[row])
            values = _product(weights.astype(v.dtype), v[row], 1, 0)
            result = jnp.where(lanes, values, result)
        output[row] = result.astype(output.dtype)

    lax.fori_loop(0, q.shape[0], attend, None)


def _backward_kernel(form: _Form, ids, q, k, v, gradient, d_q, d_k, d_v):
    visible = _visible(form, q.shape[1], k.shape[1])

    def differentiate(row, _):
        here = visible & (ids[row] != 0)
        sums = [jnp.zeros(x.shape[1:], jnp.float32) for x in (q, k, v)]
        for lanes in _heads(form):
            weights = _weights(form, here, lanes, q[row], k[row])
            towards = jnp.where(lanes, gradient[row], 0)
            d_weights = _product(towards, v[row], 1, 1)
            mean = (weights * d_weights).sum(-1, keepdims=True)
            d_scores = (weights * (d_weights - mean) * form.scale).astype(q.dtype)
            found = (
                _product(d_scores, k[row], 1, 0),
                _product(d_scores, q[row], 0, 0),
                _product(weights.astype(v.dtype), gradient[row], 0, 0),
            )
            sums = [jnp.where(lanes, x, y) for x, y in zip(found, sums, strict=True)]
        for result, x in zip((d_q, d_k, d_v), sums, strict=True):
            result[row] = x.astype(result.dtype)

    lax.fori_loop(0, q.shape[0], differentiate, None)


def _heads(form: _Form) -> list[jax.Array]:
    """Return a mask of the block's lanes for each of its heads, (1, 128).

    A product over all lanes, with those of other heads zero, costs as much as one over
    the head's lanes alone, and nothing has to be moved from lane to lane.
    """
    lane = lax.broadcasted_iota(jnp.int32, (1, _LANES), 1)
    starts = range(0, _LANES, form.width)
    return [(lane >= start) & (lane < start + form.width) for start in starts]


def _weights(form: _Form, here, lanes, q, k):
    """Return the weights of one head, (T, S) in float32."""
    scores = _product(jnp.where(lanes, q, 0), k, 1, 1) * form.scale
    scores = jnp.where(here, scores, _MASKED)
    # Where nothing may be attended to, the greatest score is _MASKED itself.
    exponentials = jnp.where(here, jnp.exp(scores - scores.max(-1, keepdims=True)), 0.0)
    total = exponentials.sum(-1, keepdims=True)
    return exponentials / jnp.where(total > 0, total, 1.0)


def _product(x, y, x_axis: int, y_axis: int):
    """Sum over an axis of each, in float32."""
    axes = ((x_axis,), (y_axis,)), ((), ())
    return lax.dot_general(x, y, axes, preferred_element_type=jnp.float32)


def _visible(form: _Form, rows: int, columns: int):
    """Return what may attend to what in sentences side by side, ignoring padding."""
    shape = rows, columns
    t, of_t = _places(lax.broadcasted_iota(jnp.int32, shape, 0), rows, form.queries)
    s, of_s = _places(lax.broadcasted_iota(jnp.int32, shape, 1), columns, form.keys)
    visible = of_t == of_s
    if form.causal:
        visible &= s <= t
    if form.window:
        visible &= jnp.abs(t - s) <= form.window
    return visible


def _places(index, total: int, length: int):
    """Return positions and sentences, without the division that the chip lacks."""
    sentence = jnp.zeros_like(index)
    for number, start in enumerate(range(length, total, length), 1):
        sentence = jnp.where(index >= start, number, sentence)
    return index - sentence * length, sentence
