"""Seconds of a search for translations of one batch."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer import decode, fitting, models
from transformer.config import Config, UserError
from transformer.ids import BOS
from transformer.models import Model
from transformer.nn import hardware
from transformer.search import Search
from transformer.tools import traces
from transformer.tools.bench.clock import measure, spread, times
from transformer.tools.bench.made_up import make_sized_model, ragged_sentences
from transformer.tools.bench.memory import device_memory, temporaries
from transformer.tools.bench.profile import trace

_NEVER = -1  # not an id, so no hypothesis ends before the limit


class Searcher:
    """A compiled search with a model of random parameters; call it to search.

    Every output is as long as the longest source, whatever the model predicts.
    """

    def __init__(
        self, settings: Config, model: Model, source: np.ndarray, beams: int
    ) -> None:
        key = jax.random.key(settings.seed)
        draw = jax.jit(lambda: models.search_variables(model, models.init(model, key)))
        self.variables, self.source = draw(), jnp.asarray(source)
        rows, length = source.shape
        limits, wanted = jnp.full((rows,), length), settings.decode
        how = Search(beams, wanted.alpha, wanted.length_penalty)
        check = fitting.SearchCheck(settings, model, how, rows, length, length)
        check.before(self.variables)
        penalty = decode.length_penalty(wanted.length_penalty, wanted.alpha)
        marks: dict[str, Any] = {"bos": BOS, "eos": _NEVER}

        @jax.jit
        def search(variables, source):
            step, cache = models.start(model, variables, source, beams, length)
            if beams == 1:
                return decode.greedy(step, cache, limits, length, penalty, **marks).ids
            found = decode.beam(step, cache, limits, length, penalty, beams, **marks)
            return found.ids

        start = time.perf_counter()
        self.compiled = search.lower(self.variables, self.source).compile()
        self.compile_seconds = time.perf_counter() - start
        check.compiled(self.compiled)

    def __call__(self) -> Any:
        return self.compiled(self.variables, self.source)


def measure_search(
    settings: Config,
    beams: int,
    tokens: int,
    length: int,
    rounds: int,
    profile: Path | None,
) -> dict[str, Any]:
    """Measure searches of translations for a batch of random ids.

    Args:
      settings: the configuration.
      beams: J; 1 is a greedy search.
      tokens: padded tokens of the source.
      length: of the longest sentence, and of every output.
      rounds: measurements.
      profile: folder for a trace, None = none.

    Returns:
      Rows of the table; "costliest" are the operations of the trace.
    """
    vocabulary = models.configured_vocabulary(settings)
    model = make_sized_model(settings)
    if length > tokens:
        raise UserError(
            f"--length: expected at most --tokens = {tokens:,}, got {length:,}; change "
            "one of them"
        )
    height = tokens // length
    source = ragged_sentences(height, length, vocabulary)
    search = Searcher(settings, model, source, beams)
    times(1, search)
    seconds, calls = measure(rounds, search)
    costliest = trace(profile, search, search.compiled) if profile is not None else []
    return {
        "sentences": height,
        "tokens per sentence": length,
        "beam": beams,
        "batches between two waits": calls,
        **spread(seconds, "batch"),
        "sentences/s": height / statistics.median(seconds),
        "compile, s": search.compile_seconds,
        "temporaries, MB": temporaries(search.compiled),
        **device_memory(),
        **traces.choices(settings, hardware.here(), (length, length), ["search"]),
        "costliest": costliest,
    }
