"""Translation: a trained model as an object."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from transformer import decode, demands, fitting, models, objective, parallel
from transformer.batch_search import BatchSearch
from transformer.config import Config, UserError
from transformer.data.batches import Group, in_order
from transformer.data.tokenizers import Vocabulary
from transformer.decode import Constraint
from transformer.files.chunks import PAUSE, chunks
from transformer.ids import BOS, EOS
from transformer.metrics import heads
from transformer.models import Model
from transformer.parallel import hosts, memory, sizes
from transformer.search import Search, changed, configured
from transformer.trained import complain, restore

LINES_AT_A_TIME = 10_000  # of a stream, sorted by length and translated together
_LOGIT_TOKENS = 1024  # padded target tokens whose logits are all held, when scoring
_WEIGHT_TOKENS = 1024  # padded tokens per side whose attention weights are all held


@dataclasses.dataclass(frozen=True)
class Translation:
    """One translation of a sentence.

    Attributes:
      text: the translation.
      score: log-probability divided by the length penalty.
      log_probability: of all its pieces and EOS, nats.
      ids: its pieces, without EOS.
    """

    text: str
    score: float
    log_probability: float
    ids: list[int]


class Translator:
    """A trained model with its vocabulary.

    Attributes:
      settings: the configuration of the run, with the sizes of ``sizes.here``.
      vocabulary: both tokenizers.
      model: the model.
      params: its parameters, a copy on each device.
      mesh: of the devices, each of which takes its own sentences.
    """

    def __init__(
        self,
        settings: Config,
        vocabulary: Vocabulary,
        params: Any,
        warn: Callable[[str], None] = complain,
        devices: Sequence[jax.Device] | None = None,
    ) -> None:
        """Put a model on devices.

        Args:
          settings: the configuration of the run.
          vocabulary: both tokenizers.
          params: parameters of ``models.make(settings, *vocabulary.sizes)``.
          warn: called for lines that are longer than any in training.
          devices: devices that translate, None = all there are.
        """
        self.settings = sizes.here(settings, vocabulary.target.size)
        self.vocabulary = vocabulary
        self.model = models.make(settings, *vocabulary.sizes)
        self.mesh = parallel.replica_mesh(devices or jax.devices())
        self.params = jax.device_put(
            params, NamedSharding(self.mesh, parallel.REPLICATED)
        )
        self._warn = warn
        self._search = BatchSearch(self.settings, self.model, self.mesh)

    @functools.cached_property
    def variables(self) -> Any:
        """What a search reads, see ``models.search_variables``."""
        return _search_variables(self.model, self.params)

    def _spread(self, rows: np.ndarray) -> jax.Array:
        """Give each device its part of the rows."""
        place = NamedSharding(self.mesh, parallel.BY_ROWS)
        return jax.make_array_from_callback(rows.shape, place, rows.__getitem__)

    def _fetched(self, compute: Callable[..., Any], *ids: np.ndarray) -> Any:
        """Compute from rows of ids on the devices, and return the results here.

        Raises:
          UserError: if the rows are too long for the memory of a device.
        """
        with memory.enough(*fitting.LINES):
            return hosts.fetch(compute(*map(self._spread, ids)))

    def search(self, **changes: Any) -> Search:
        """Return the configured search with some settings changed, None = unchanged."""
        how = configured(self.settings.decode)
        free = changes.get("constrained") is False
        if free and self.vocabulary.target.constraint() is None:
            raise UserError(
                "constrained: expected False only where translations are trees; leave "
                "it out"
            )
        return changed(how, changes)

    def constraint(self, how: Search) -> Constraint | None:
        """Return the constraint on outputs of a search, None for any."""
        return self.vocabulary.target.constraint() if how.constrained else None

    def translate(self, lines: Sequence[str], **search: Any) -> list[str]:
        """Translate sentences.

        Args:
          lines: source sentences; for vectors arrays (S, F), or their paths.
          **search: ``prefixes`` and ``forbid`` of ``hypotheses``; fields of ``Search``
            to change: beam, alpha, length_penalty, sample, temperature, top_k, top_p,
            seed, constrained.

        Returns:
          A translation of each, in order; "" for one without any text.
        """
        return [found[0].text for found in self.hypotheses(lines, **search)]

    def stream(self, lines: Iterable[str], **search: Any) -> Iterator[str]:
        """Yield a translation of each line as soon as the lines pause.

        Args:
          lines: source sentences, which a thread reads as they come.
          **search: as for ``translate``, except ``prefixes``.
        """
        _check_several(lines)
        first = 1
        for chunk in chunks(lines, LINES_AT_A_TIME, PAUSE):
            for found in self.hypotheses(chunk, first, **search):
                yield found[0].text
            first += len(chunk)

    def hypotheses(
        self,
        lines: Sequence[str],
        first: int = 1,
        *,
        prefixes: Sequence[str] | None = None,
        forbid: Sequence[str] = (),
        **search: Any,
    ) -> list[list[Translation]]:
        """Translate sentences, ``n_best`` ways each, best first.

        Args:
          lines: source sentences.
          first: number of the first line, in warnings and for random draws.
          prefixes: beginning of each line's translation, "" = any. What is given has
            log-probability 0, and is not limited by ``decode.extra_tokens``.
          forbid: words that no translation may contain, see ``decode.forbidden``.
          **search: fields of ``Search`` to change.

        Returns:
          For each line its translations with scores; a line without text, or with only
          white space, has one, "".

        Raises:
          UserError: for a wrong number of prefixes, for one with a forbidden word or in
            a run that writes trees, and for forbidden words that are not words.
        """
        how = self.search(**search)
        constraint, target = self.constraint(how), self.vocabulary.target
        _check_several(prefixes, "prefixes")
        _check_several(forbid, "words to forbid")
        if forbid:
            constraint = demands.forbidding(target, tuple(forbid))
        beginnings = demands.beginnings(
            target, len(lines), prefixes, first, constraint, self._warn
        )
        ids = self.source_ids(lines, first)
        results = [[Translation("", 0.0, 0.0, [])] for _ in lines]
        full = [i for i, line in enumerate(lines) if _says_something(line, ids[i])]
        sequences = [ids[i] for i in full]
        for group in self.groups([len(sequence) for sequence in sequences]):
            rows = [full[i] for i in group.rows]
            numbers = [first + row for row in rows]
            counts = (
                [constraint.count(lines[row]) for row in rows] if constraint else ()
            )
            found = self._search(
                *(self.variables, group.padded(sequences), numbers, how),
                *(constraint, counts),
                prefix=demands.padded([beginnings[row] for row in rows], group.height),
            )
            for place, row in enumerate(rows):
                results[row] = self._read(found, place, how.n_best, lines[row])
        return results

    def score(
        self, sources: Sequence[str], targets: Sequence[str], first: int = 1
    ) -> list[float]:
        """Return the log-probability of each target given its source, in nats.

        ``sum_t log P(y_t | y_<t, x)``, EOS included.

        Args:
          sources: source sentences.
          targets: a translation of each.
          first: number of the first line, in warnings.
        """
        if len(sources) != len(targets):
            raise UserError(
                f"expected as many targets as sources, got {len(sources)} sources and "
                f"{len(targets)} targets; give one pair per line"
            )
        source_ids = self.source_ids(sources, first)
        target_ids = _with_end(self.target_ids(targets, first))
        lengths = [
            max(len(s), len(t)) for s, t in zip(source_ids, target_ids, strict=True)
        ]
        results = [0.0] * len(sources)
        for group in self._fitted(lengths, _LOGIT_TOKENS):
            ids = (group.padded(side) for side in (source_ids, target_ids))
            found = self._fetched(self._totals, *ids).tolist()
            for row, total in zip(group.rows, found, strict=False):
                results[row] = total
        return results

    def _totals(self, source: jax.Array, target: jax.Array) -> jax.Array:
        """Return the log-probability of each target (B,), of ids (B, S) and (B, T)."""
        return _log_probabilities(self.model, self.mesh, self.params, source, target)

    def encode(self, lines: Sequence[str]) -> list[np.ndarray]:
        """Return the encoder's output of each line, (S, D), EOS included."""
        ids = self.source_ids(lines)
        results: list[np.ndarray] = [np.empty(0)] * len(lines)
        for group in self.groups([len(sequence) for sequence in ids]):
            of = functools.partial(_encode, self.model, self.mesh, self.params)
            encoded = self._fetched(of, group.padded(ids))
            for row, states in zip(group.rows, encoded, strict=False):
                results[row] = states[: len(ids[row])]
        return results

    def attention(self, source: str, target: str | None = None) -> heads.Attention:
        """Return the attention weights of every layer and head for a pair.

        Args:
          source: a sentence.
          target: its translation, None for the model's own, by its ids.
        """
        if target is None:
            target_ids = self.hypotheses([source])[0][0].ids
        else:
            target_ids = self.vocabulary.target.encode(target)
        ((_, found),) = self.attentions(self.source_ids([source]), [target_ids])
        return found

    def attentions(
        self, source_ids: Sequence[list[int]], target_ids: Sequence[list[int]]
    ) -> Iterator[tuple[int, heads.Attention]]:
        """Yield the number of each pair, from 0, with its attention weights.

        Args:
          source_ids: of source sentences, each with EOS.
          target_ids: of their translations, without it.

        Yields:
          Pairs of similar length one after another, not in order.

        Raises:
          UserError: if the model has no attention.
        """
        lengths = [
            max(len(s), len(t) + 1) for s, t in zip(source_ids, target_ids, strict=True)
        ]
        inputs = [[BOS, *ids] for ids in target_ids]
        for group in self._fitted(lengths, _WEIGHT_TOKENS):
            ids = (group.padded(side) for side in (source_ids, inputs))
            of = functools.partial(
                _attention_weights, self.model, self.mesh, self.params
            )
            weights = self._fetched(of, *ids)
            if not weights:
                raise lacks_attention(self.settings)
            for place, row in enumerate(group.rows.tolist()):
                yield (
                    row,
                    heads.of_pair(
                        {kind: one[place] for kind, one in weights.items()},
                        self.vocabulary.source.pieces(source_ids[row]),
                        self.vocabulary.target.pieces(inputs[row]),
                    ),
                )

    def alignments(
        self,
        sources: Sequence[str],
        target_ids: Sequence[list[int]],
        layer: int | None = None,
    ) -> list[list[tuple[int, int]]]:
        """Align the words of sentences with those of their translations.

        Each target word is aligned with the source word that it attends to most, see
        ``metrics.heads.align``: cross-attention of one layer, averaged over its heads,
        at the position that writes a piece. Garg et al. (arXiv:1909.02074) found that
        the last layer but one aligns best in models of the paper's size.

        Args:
          sources: source sentences.
          target_ids: of their translations, without EOS.
          layer: its number from 1; None for the last but one.

        Returns:
          For each pair (source word, target word) from 0, in the order of the target.
        """
        source, target = self.vocabulary.source, self.vocabulary.target
        source_ids = _with_end(self.vocabulary.source_ids(sources))
        results: list[list[tuple[int, int]]] = [[] for _ in sources]
        for row, found in self.attentions(source_ids, target_ids):
            layers = len(found.cross)
            if layer is not None and layer > layers:
                raise UserError(
                    f"--layer: expected a number from 1 to {layers}, got {layer}; "
                    "change it"
                )
            chosen = max(layers - 1, 1) if layer is None else layer
            results[row] = heads.align(
                found.cross[chosen - 1].mean(0),
                source.words(source_ids[row][:-1], target.reads(sources[row])),
                target.words(target_ids[row]),
            )
        return results

    def source_ids(self, lines: Sequence[str], first: int = 1) -> list[list[int]]:
        """Return the ids of each line, EOS included; warn once about long ones.

        Raises:
          UserError: for a single line instead of several.
        """
        _check_several(lines)
        ids = _with_end(self.vocabulary.source_ids(lines))
        longest, _ = self._limits
        lengths = {number: len(x) for number, x in enumerate(ids, start=first)}
        long = {number: n for number, n in lengths.items() if n > longest}
        if long:
            where = f"line {min(long)}"
            if len(long) > 1:
                where = f"{len(long):,} lines, the first of them {where}"
            self._warn(
                f"{where}: {max(long.values())} tokens, more than the {longest} in "
                f"training (data.max_length){self._beyond(max(long.values()))}; "
                "the translation may be poor"
            )
        return ids

    def target_ids(self, lines: Sequence[str], first: int = 1) -> list[list[int]]:
        """Return the ids of each line, without EOS.

        Raises:
          UserError: for a line that is not what the run writes, such as a bad tree,
            naming its number, and for a single line instead of several.
        """
        _check_several(lines)
        target = self.vocabulary.target
        try:
            return target.encode_many(lines)
        except UserError:
            for number, line in enumerate(lines, start=first):
                try:
                    target.encode(line)
                except UserError as error:
                    raise UserError(f"target, line {number}: {error}") from None
            raise

    @property
    def _limits(self) -> tuple[int, int]:
        """The maximum tokens in training, and in a table of positions (0: has none)."""
        it = self.settings
        return it.data.max_length, it.model.learned_positions

    def _beyond(self, length: int) -> str:
        """Say what happens past the end of a table of learned positions."""
        _, rows = self._limits
        if not rows or length <= rows:
            return ""
        return f", and all positions past the {rows} learned ones use the last of them"

    def groups(self, lengths: Sequence[int]) -> list[Group]:
        """Return groups that are translated together, sentences of similar length."""
        return self._fitted(lengths, self.settings.decode.tokens)

    def _fitted(self, lengths: Sequence[int], tokens: int) -> list[Group]:
        """Group sequences, ``tokens`` slots per device, and lower groups with few rows.

        Each device gets the smallest power of two of rows that holds them.
        """
        count = self.mesh.size

        def lowered(group: Group) -> Group:
            each = -(-len(group.rows) // count)
            height = count * (1 << (each - 1).bit_length())
            return dataclasses.replace(group, height=min(group.height, height))

        return [*map(lowered, in_order(lengths, tokens * count, count))]

    def _read(
        self, found: decode.Hypotheses, row: int, count: int, line: str
    ) -> list[Translation]:
        translations = []
        for j in range(count):
            length = int(found.lengths[row, j])
            if length == 0 and j > 0:  # fewer hypotheses exist than were asked for
                break
            ids = found.ids[row, j, :length].tolist()
            ids = [i for i in ids if i != EOS]
            translations.append(
                Translation(
                    self.vocabulary.target.decode(ids, line),
                    float(found.scores[row, j]),
                    float(found.log_probabilities[row, j]),
                    ids,
                )
            )
        return translations


def _check_several(lines: Iterable[str] | None, what: str = "sentences") -> None:
    if isinstance(lines, str):  # its characters would be taken for lines
        raise UserError(
            f"expected a list of {what}, got one, {lines[:40]!r}; put it in brackets"
        )


def _says_something(line: Any, ids: Sequence[int]) -> bool:
    if isinstance(ids, np.ndarray):
        return True  # an array has at least one frame
    return bool(line.strip()) and len(ids) > 1


# ------------------------------------------------------------------- jitted functions


def lacks_attention(settings: Config) -> UserError:
    """Return the error for a model whose attention is asked for and that has none."""
    kind = settings.model.kind
    return UserError(
        f"model: expected one with attention, got a model of kind {kind} without any; "
        "choose another run"
    )


def by_rows(function: Callable[..., Any]) -> jax.stages.Wrapped:
    """Compile a function of a model so that each device computes it for its own rows.

    The kernels of a TPU are not divided among devices by the compiler.

    Args:
      function: takes a model, its parameters and arrays whose first axis is the batch,
        as its results have it.

    Returns:
      The function, with the mesh after the model.
    """

    def mapped(model: Model, mesh: Mesh, params: Any, *rows: jax.Array) -> Any:
        of = functools.partial(function, model)
        share = parallel.over_rows(mesh, of, parallel.REPLICATED, parallel.BY_ROWS)
        return share(params, *rows)

    return jax.jit(mapped, static_argnums=(0, 1))


_log_probabilities = by_rows(objective.log_probabilities)
_encode = by_rows(models.encode)
_attention_weights = by_rows(models.attention_weights)
_search_variables = jax.jit(models.search_variables, static_argnums=0)


def _with_end(sequences: list[list[int]]) -> list[list[int]]:
    """Append EOS to ids; arrays of vectors have no such end."""
    if sequences and isinstance(sequences[0], np.ndarray):
        return sequences
    return [[*ids, EOS] for ids in sequences]


def load(
    workdir: str | Path,
    *,
    step: int | None = None,
    warn: Callable[[str], None] = complain,
    beam: int | None = None,
) -> Translator:
    """Load a trained model.

    Args:
      workdir: folder of the run.
      step: of the checkpoint; None = the average of checkpoints that the final
        evaluation or ``transformer average`` made, or else the last checkpoint, or the
        best if ``decode.checkpoint`` says so.
      warn: called for lines that are longer than any in training.
      beam: of the searches to come, if it is not the configured one; a larger one makes
        batches smaller, see ``sizes.py``.

    Returns:
      An object with ``translate``, ``score``, ``encode`` and ``attention``.
    """
    warn = hosts.once(warn)
    found = restore(Path(workdir), step, warn)
    settings = sizes.here(found.settings, found.vocabulary.target.size, beam)
    return Translator(settings, found.vocabulary, found.params, warn)
