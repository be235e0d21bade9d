"""The loss of a batch: the only place where model, batch and loss meet."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from transformer import models, parallel
from transformer.config import Config
from transformer.data.batches import Group, in_order
from transformer.data.corpus import Corpus
from transformer.ids import BOS, PAD
from transformer.models import Model
from transformer.nn import dropout, losses, matmul, r_drop

# Names the second pass of R-Drop; no layer or place has such a large number.
_SECOND = 1 << 16


def decoder_inputs(target: jax.Array) -> jax.Array:
    """Make the decoder's input (B, T): BOS, then the target without its last id.

    >>> decoder_inputs(jnp.array([[7, 8, 3, 0]])).tolist()
    [[2, 7, 8, 3]]
    """
    return jnp.pad(target, ((0, 0), (1, 0)), constant_values=BOS)[:, :-1]


def batch_sums(
    settings: Config,
    model: Model,
    params: Any,
    batch: Mapping[str, jax.Array],
    key: dropout.Key | None = None,
) -> losses.Sums:
    """Sum loss, log-likelihood and hits of a batch over its real target tokens.

    With ``loss.r_drop`` and a key the batch is read twice, with different dropout.

    Args:
      settings: the configuration of the run.
      model: made from it.
      params: its parameters.
      batch: ids, "source" (B, S), with one more axis for vectors, and "target" (B, T).
      key: dropout key, None for evaluation.
    """
    target, loss = batch["target"], settings.loss
    weights = (target != PAD).astype(jnp.float32)
    how = loss.smoothing, loss.smoothing_over, loss.block, model.operands

    def read(key: dropout.Key | None) -> tuple[jax.Array, jax.Array]:
        inputs = decoder_inputs(target)
        return models.features(model, params, batch["source"], inputs, key)

    key = dropout.settled(key)
    hidden, table = read(key)
    if key is None or not loss.r_drop:
        return losses.blocked_cross_entropy(hidden, table, target, weights, *how)
    again, _ = read(dropout.settled(dropout.fold_in(key, _SECOND)))
    both = hidden, again
    return r_drop.blocked_r_drop(both, table, target, weights, loss.r_drop, *how)


def logits(
    model: Model, params: Any, source: jax.Array, target: jax.Array
) -> jax.Array:
    """Score every id at each position of targets (B, T): (B, T, V)."""
    hidden, table = models.features(model, params, source, decoder_inputs(target))
    return matmul.product(hidden, matmul.Transposed(table), model.operands)


def log_probabilities(
    model: Model, params: Any, source: jax.Array, target: jax.Array
) -> jax.Array:
    """Return log P(target | source) of each row (B,), in nats."""
    each = token_log_probabilities(model, params, source, target)
    return jnp.where(target != PAD, each, 0.0).sum(-1)


def token_log_probabilities(
    model: Model, params: Any, source: jax.Array, target: jax.Array
) -> jax.Array:
    """Return log P(target_t | target_<t, source) of each token (B, T), in nats."""
    table = jax.nn.log_softmax(logits(model, params, source, target))
    return jnp.take_along_axis(table, target[..., None], axis=-1)[..., 0]


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def mesh_sums(
    settings: Config,
    model: Model,
    mesh: Mesh | None,
    params: Any,
    batch: Mapping[str, jax.Array],
) -> losses.Sums:
    """Sum over a batch whose rows are sharded, ``batch_sums`` on each device."""
    axes, rules = parallel.row_axes(mesh), model.partition

    def add(params: Any, batch: Mapping[str, jax.Array]) -> losses.Sums:
        gathered = parallel.gather(rules, params, axes)
        return parallel.total(batch_sums(settings, model, gathered, batch), axes)

    sharded = parallel.fsdp_specs(rules, params)
    return parallel.over_rows(mesh, add, sharded, parallel.REPLICATED)(params, batch)


def corpus_sums(
    settings: Config,
    model: Model,
    params: Any,
    corpus: Corpus,
    mesh: Mesh | None = None,
) -> dict[str, float]:
    """Return ``losses.Sums`` over a corpus, every pair once, added up in float64.

    Args:
      settings: the configuration of the run.
      model: made from it.
      params: its parameters.
      corpus: the pairs.
      mesh: of the devices, each of which takes batches of ``decode.tokens``; None = one
        device.
    """
    total = np.zeros(4)
    for group in groups(settings, corpus, mesh):
        sums = mesh_sums(settings, model, mesh, params, padded(corpus, group))
        total += np.array(jax.device_get(sums))
    return dict(zip(losses.Sums._fields, total.tolist(), strict=True))


def groups(settings: Config, corpus: Corpus, mesh: Mesh | None) -> list[Group]:
    """Return the groups of pairs that ``corpus_sums`` reads, from short to long."""
    lengths = np.maximum(corpus.source.lengths, corpus.target.lengths)
    shards = parallel.row_shards(mesh.shape) if mesh else 1
    return in_order(lengths, settings.decode.tokens * shards, shards)


def padded(corpus: Corpus, group: Group) -> dict[str, np.ndarray]:
    """Return the batch of a group."""
    return {
        "source": group.padded(corpus.source),
        "target": group.padded(corpus.target),
    }
