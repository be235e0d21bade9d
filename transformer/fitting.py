"""Checks that refuse what cannot fit into memory, before it is tried.

Only the impossible is refused: before a program is compiled, only what it certainly
holds is counted, and for a compiled one what the compiler reports. What is merely near
the limit is tried, and if the device does not have enough, one line says what to do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from transformer import config, decode, models, objective
from transformer.config import Config, UserError
from transformer.data.batches import Shape
from transformer.data.corpus import Corpus
from transformer.data.sources import HELD_OUT, Split
from transformer.models import Ensemble, Model
from transformer.models.counts import parameter_count
from transformer.nn import optimizer
from transformer.parallel import memory, sizes
from transformer.parallel.memory import text
from transformer.search import Search, configured
from transformer.step import State

_SMALLER = (
    "make the model smaller, or spread it over more devices (parallel.fsdp, "
    "parallel.tensor)"
)


def check_sizes(settings: Config) -> None:
    """Refuse a Transformer that is too large, by formula, before anything is prepared.

    Tracing a model takes time in proportion to its width.

    Args:
      settings: of the run; a vocabulary that is not known yet counts as one id.

    Raises:
      UserError: if parameters, gradients and moments cannot fit into memory.
    """
    if not isinstance(model := settings.model, config.Transformer):
        return
    rows = model.vocab_size or settings.tokenizer.vocab_size or 1
    count = sum(parameter_count(model, rows))
    copies = 2 + optimizer.moments(settings.optimizer)
    if settings.optimizer.frozen:
        copies = 1  # at least: what is frozen has neither gradient nor moments
    shards = settings.parallel.fsdp * settings.parallel.tensor
    _check_state(int(copies * 4 * count / shards), count)


def check_state(state: State) -> None:
    """Refuse a state that is too large, before it is drawn.

    Args:
      state: its shapes, sharded as it will be.

    Raises:
      UserError: if it cannot fit into memory with a gradient of all parameters, whose
        norm needs all of it.
    """
    count = sum(x.size for x in jax.tree.leaves(state.params))
    _check_state(_beside(state), count)


def _beside(state: State) -> int:
    """Return the bytes of a device that a step of any size takes."""
    return memory.held(state) + memory.held(state.params)


def _check_state(need: int, count: int) -> None:
    there = memory.here()
    if there and need > there:
        raise UserError(
            f"model: expected parameters, moments and gradients that fit into the "
            f"{text(there)} of a device, got {count:,} parameters, which take "
            f"{text(need)}; {_SMALLER}"
        )


def check_batches(
    settings: Config, state: State, shapes: Iterable[Shape], shards: int
) -> None:
    """Refuse batches that are too large, before the first is made.

    Args:
      settings: of the run.
      state: its shapes, sharded.
      shapes: of the batches.
      shards: that the rows of a batch have.

    Raises:
      UserError: if their ids and the decoder's states, of which a step makes at least
        those of a microbatch, cannot fit into memory.
    """
    states = 2 * settings.model.d_model / settings.optimizer.accumulation
    most = max(r * (4 * (s + t) + states * t) for r, s, t in shapes)
    _check_step(settings, state, int(most / shards) + _beside(state))


def check_step(
    settings: Config, state: State
) -> Callable[[jax.stages.Compiled], jax.stages.Compiled]:
    """Return a function that refuses a compiled train step that cannot fit into memory.

    Args:
      settings: of the run.
      state: its shapes, sharded.
    """

    def checked(program: jax.stages.Compiled) -> jax.stages.Compiled:
        _check_step(settings, state, memory.needed(program))
        return program

    return checked


def _check_step(settings: Config, state: State, need: int) -> None:
    there = memory.here()
    if there and need > there:
        raise UserError(
            f"batch.tokens: expected a step that fits into the {text(there)} of a "
            f"device, got one of {text(need)} or more; "
            f"{_fewer_tokens(settings, there, need, _beside(state))}"
        )


def _fewer_tokens(settings: Config, there: int, need: int, fixed: int) -> str:
    """Say how many tokens fit, if they take the memory that is not ``fixed``."""
    batch = settings.batch
    share = max(there - fixed, 0) / max(need - fixed, 1)
    fitting = _rounded(int(batch.tokens * share))
    longest = config.round_up(settings.data.max_length, batch.length_multiple)
    if fitting >= batch.lengths * batch.multiple * longest:
        return f"about {fitting:,} tokens fit"
    if isinstance(settings.model, config.Recurrent):
        return "lower it and data.max_length"
    return "lower it and data.max_length, or set parallel.remat=layers"


def _rounded(number: int) -> int:
    """Round a number down to two significant digits.

    >>> [_rounded(x) for x in (0, 7, 99, 12_345)]
    [0, 7, 99, 12000]
    """
    unit = 10 ** max(len(str(number)) - 2, 0)
    return number // unit * unit


def check_held_out(
    settings: Config,
    model: Model,
    mesh: Mesh,
    params: Any,
    corpora: Mapping[Split, Corpus],
    log: Callable[[str], None],
) -> None:
    """Refuse held-out pairs too long to be measured, before a run is trained.

    Nothing leaves them out: ``data.max_length`` is for training pairs.

    Args:
      settings: of the run.
      model: made from it.
      mesh: of the devices.
      params: shapes of its parameters.
      corpora: split -> pairs.
      log: takes a line about each split whose longest source takes long to translate.

    Raises:
      UserError: if the loss of the longest pair does not fit into memory.
    """
    there, heads = memory.here(), getattr(settings.model, "heads", 1)
    for split in HELD_OUT:
        lengths = corpora[split].source.lengths
        longest = objective.groups(settings, corpora[split], mesh)[-1]
        if lengths.max() > 10 * settings.data.max_length:
            log(
                f"data.{split}: pair {lengths.argmax() + 1:,} has {lengths.max():,} "
                "source tokens: its translation may take as many steps"
            )
        # What attention compares with what: one matrix is far from all it takes.
        if 4 * heads * longest.length**2 * 32 <= there or not there:
            continue
        batch = objective.padded(corpora[split], longest)
        program = objective.mesh_sums.lower(settings, model, mesh, params, batch)
        if (need := memory.needed(program.compile())) > there:
            raise UserError(
                f"data.{split}: expected pairs that fit into the {text(there)} of a "
                f"device, got pair {longest.rows[-1] + 1:,}, which takes {text(need)}; "
                "split it, or leave it out"
            )


STEP = (
    "batch.tokens: expected a step",
    "lower it, or spread the run over more devices",
)


def measuring(split: Split) -> tuple[str, str]:
    """Return what ``memory.enough`` says about the loss of held-out pairs.

    ``data.max_length`` does not leave out any of them, and decode.tokens takes no fewer
    than one of them at a time.
    """
    return f"data.{split}: expected a longest line", "split that line, or leave it out"


LINES = ("expected a longest line", "split it, or leave it out")


# ---- searches ------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class SearchCheck:
    """Refuses a search that cannot fit into memory.

    Attributes:
      settings: the configuration.
      model: made from it.
      how: what to search for.
      rows: sentences of a device.
      source: tokens of each.
      length: most tokens of an output.
    """

    settings: Config
    model: Model | Ensemble
    how: Search
    rows: int
    source: int
    length: int

    @property
    def in_question(self) -> bool:
        """Whether it may not fit, by a formula: tracing it takes longer."""
        there = memory.here()
        return bool(there) and self._estimate(decode.side_by_side(self.how)) > there

    def before(self, variables: Any) -> None:
        """Refuse it before it is compiled, for variables of the model.

        Raises:
          UserError: if its cache and the logits of one step cannot fit.
        """
        if not self.in_question:
            return
        there, beams = memory.here(), decode.side_by_side(self.how)
        need = 4 * self.rows * beams * self.model.target_size
        if need <= there:
            need += memory.held(self._cache(variables, beams))
        self._refuse(need, there)

    def _cache(self, variables: Any, beams: int) -> Any:
        def start(variables: Any, ids: jax.Array) -> Any:
            return models.start(self.model, variables, ids, beams, self.length)[1]

        ids = jax.ShapeDtypeStruct((self.rows, self.source), jnp.int32)
        return jax.eval_shape(start, variables, ids)

    def compiled(self, program: jax.stages.Compiled) -> None:
        """Refuse it once it is compiled, by what the compiler reports.

        Raises:
          UserError: if it cannot fit.
        """
        if there := memory.here():
            self._refuse(memory.needed(program), there)

    def _refuse(self, need: int, there: int) -> None:
        if need <= there:
            return
        fitting = _rounded(largest(lambda beams: self._estimate(beams) <= there))
        remedy = f"about {fitting:,} fit" if fitting else "lower it"
        if self.rows > 1:
            remedy += ", more with fewer sentences (decode.tokens)"
        got = decode.side_by_side(self.how)
        raise UserError(
            f"{_wide(self.how)} that fit into the {text(there)} of a device, got "
            f"{got:,} per sentence, which take {text(need)} or more for {self.rows:,} "
            f"at a time; {remedy}"
        )

    def _estimate(self, beams: int) -> int:
        size = self.model.target_size
        return sizes.bytes_of_search(
            self.settings, size, beams, self.rows, self.source, self.length
        )


def check_decoding(settings: Config, model: Model) -> None:
    """Refuse the configured search before a run is trained that could never use it.

    Args:
      settings: of the run.
      model: made from it.

    Raises:
      UserError: if it cannot fit into memory for one of the shortest sentences.
    """
    how = configured(settings.decode)
    shortest = 1, sizes.SHORTEST, sizes.SHORTEST + settings.decode.extra_tokens
    check = SearchCheck(settings, model, how, *shortest)
    if check.in_question:
        check.before({"params": models.abstract(model)})


def largest(fits: Callable[[int], bool]) -> int:
    """Return the largest number that fits, if all smaller ones fit too.

    >>> largest(lambda x: x * x <= 50), largest(lambda x: x < 1)
    (7, 0)
    """
    least, most = 0, 1
    while fits(most):
        least, most = most, 2 * most
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (middle, most) if fits(middle) else (least, middle)
    return least


def _wide(how: Search) -> str:
    return "n_best: expected samples" if how.sample else "beam: expected hypotheses"


def search_memory(how: Search) -> tuple[str, str]:
    """Return what ``memory.enough`` says about a search."""
    return f"{_wide(how)} of a search", "lower it, or decode.tokens"
