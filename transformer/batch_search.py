"""Search for the translations of a batch on all devices, with one program per shape."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from transformer import decode, fitting, models, parallel
from transformer.config import Config
from transformer.decode import Constraint
from transformer.ids import PAD, marks
from transformer.models import Ensemble, Model
from transformer.parallel import hosts, memory
from transformer.search import Search


class BatchSearch:
    """Searches batches; each program is checked once, before its first run.

    Args:
      settings: the configuration of the run.
      model: made from it, or several as one.
      mesh: of the devices, each of which takes its own sentences.
    """

    def __init__(self, settings: Config, model: Model | Ensemble, mesh: Mesh) -> None:
        self._settings, self._model, self._mesh = settings, model, mesh
        self._checked: set[Any] = set()  # programs that fit into memory

    def __call__(
        self,
        variables: Any,
        source: np.ndarray,
        numbers: Sequence[int],
        how: Search,
        constraint: Constraint | None = None,
        counts: Sequence[int] = (),
        prefix: np.ndarray | None = None,
    ) -> decode.Hypotheses:
        """Search for translations.

        Args:
          variables: as returned by ``search_variables``.
          source: padded ids (B, S), or vectors, B a multiple of the devices.
          numbers: of the sentences, for random draws; rows beyond them are empty.
          how: what to search for.
          constraint: on the outputs, None = any are allowed.
          counts: for the constraint, of the sentences.
          prefix: padded ids (B, P) that outputs begin with, None = any.

        Returns:
          Hypotheses of all rows, on the host.

        Raises:
          UserError: if the search does not fit into memory.
        """
        extra = self._settings.decode.extra_tokens
        # EOS, which vectors lack, does not count towards the input's length. Empty rows
        # may stop at once.
        longest, given = source.shape[1], np.zeros(len(source), int)
        if prefix is not None:
            longest = max(longest, prefix.shape[1])
            given = (prefix != PAD).sum(1)
        real = marks(source) != PAD
        longer = np.maximum(real.sum(1) - (source.ndim == 2), given)
        limits = np.where(real.any(1), longer + extra, 1)
        padded = np.zeros(len(source), np.uint32)
        padded[: len(numbers)] = numbers
        words = None
        if constraint:
            words = np.zeros(len(source), np.int32)
            words[: len(counts)] = counts
        arguments = (
            dataclasses.replace(how, seed=0),  # one program for all seeds
            self._model,
            self._mesh,
            longest + extra,
            variables,
            source,
            limits.astype(np.int32),
            padded,
            np.uint32(how.seed),
            constraint,
            words,
            prefix,
        )
        with memory.enough(*fitting.search_memory(how)):
            self._check(*arguments)
            return hosts.fetch(search(*arguments))

    def _check(
        self,
        how: Search,
        model: Model | Ensemble,
        mesh: Mesh,
        length: int,
        variables: Any,
        source: np.ndarray,
        *others: Any,
    ) -> None:
        *_, constraint, _, prefix = others
        given = None if prefix is None else prefix.shape
        leaves, kind = jax.tree.flatten(constraint)
        shapes = tuple(leaf.shape for leaf in leaves)
        if (program := (how, source.shape, kind, shapes, given)) in self._checked:
            return
        rows = len(source) // mesh.size
        check = fitting.SearchCheck(
            self._settings, model, how, rows, source.shape[1], length
        )
        check.before(variables)
        # What is compiled here is what the call runs.
        lowered = search.lower(how, model, mesh, length, variables, source, *others)
        check.compiled(lowered.compile())
        self._checked.add(program)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def search(
    how: Search,
    model: Model | Ensemble,
    mesh: Mesh,
    length: int,
    variables: Any,
    source: jax.Array,
    limits: jax.Array,
    numbers: jax.Array,
    seed: jax.Array,
    constraint: Constraint | None = None,
    counts: jax.Array | None = None,
    prefix: jax.Array | None = None,
) -> decode.Hypotheses:
    """Search for translations, on each device for its own sentences.

    Args:
      how: what to search for, and how; its seed is not read.
      model: the model, or several as one.
      mesh: of the devices.
      length: maximum tokens of an output.
      variables: as returned by ``search_variables``.
      source: ids (B, S).
      limits: maximum tokens of each output (B,).
      numbers: of the sentences (B,), from which samples are drawn.
      seed: of the samples.
      constraint: on the outputs, None = any are allowed.
      counts: for the constraint (B,).
      prefix: ids that outputs begin with (B, P), None = any.
    """

    def each_device(
        variables, source, limits, numbers, counts, prefix, seed, constraint
    ):
        base = jax.random.key(seed)
        keys = jax.vmap(lambda number: jax.random.fold_in(base, number))(numbers)
        beams = decode.side_by_side(how)
        step, cache = models.start(model, variables, source, beams, length)
        if prefix is not None:
            step, cache = decode.prefixed(step, cache, prefix)
        return decode.search(how, step, cache, limits, length, keys, constraint, counts)

    mapped = parallel.over_rows(
        mesh, each_device, parallel.REPLICATED, parallel.BY_ROWS
    )
    return mapped(
        *(variables, source, limits, numbers, counts, prefix),
        seed=seed,
        constraint=constraint,
    )
