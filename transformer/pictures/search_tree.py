"""The tree of a beam search: its hypotheses, and where they are pruned."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from transformer import fitting, models
from transformer.config import UserError
from transformer.decode import (
    NEVER,
    Candidates,
    Constraint,
    length_penalty,
    recorded_beam,
)
from transformer.ids import BOS, EOS, SPECIAL
from transformer.parallel import memory
from transformer.pictures import plots
from transformer.pictures.tables import Table
from transformer.pictures.tables import page as tables_page
from transformer.search import Search
from transformer.translate import Translator, load

Fate = Literal["continued", "finished", "pruned", "unfinished"]


@dataclasses.dataclass
class Node:
    """A hypothesis that was among the best of a step.

    Attributes:
      parent: the number of the node that it continues, -1 for the empty hypothesis.
      ids: its pieces, EOS included.
      log_probability: of all of them, nats.
      fate: "continued", "finished" (by EOS), "pruned": all continuations of it were
        worse than those that were kept; "unfinished": live when the search stopped.
      score: log-probability divided by the length penalty.
    """

    parent: int
    ids: tuple[int, ...]
    log_probability: float
    fate: Fate
    score: float


@dataclasses.dataclass(frozen=True)
class SearchTree:
    """What a search kept, step by step.

    Attributes:
      nodes: the empty hypothesis, then those of the first step, and so on.
      results: their numbers among the nodes, the best first.
      beam: J.
    """

    nodes: list[Node]
    results: list[int]
    beam: int


def trace(translator: Translator, source: str, **search: Any) -> SearchTree:
    """Search, and read the tree from the record that ``decode.recorded_beam`` keeps.

    Args:
      translator: a trained model.
      source: a sentence.
      **search: fields of ``Search`` to change: beam, alpha, length_penalty, n_best,
        constrained.

    Returns:
      The tree; its results are those of ``Translator.hypotheses``.

    Raises:
      UserError: if the sentence has no text.
    """
    settings = translator.search(**search)
    if translator.settings.data.vectors:
        raise UserError(
            "--beam: expected a run that reads text, got data.source = vectors; leave "
            "it out"
        )
    if not source.strip():
        raise UserError("--source: expected a sentence, got none; write one")
    (source_ids,) = translator.source_ids([source])
    limit = len(source_ids) - 1 + translator.settings.decode.extra_tokens
    variables = translator.variables
    ids = jnp.array([source_ids])
    check = fitting.SearchCheck(
        translator.settings, translator.model, settings, 1, len(source_ids), limit
    )
    check.before(variables)
    constraint = translator.constraint(settings)
    counts = jnp.array([constraint.count(source)]) if constraint else None
    arguments = (
        *(settings, translator.model, limit, constraint),
        *(variables, ids, counts),
    )
    with memory.enough(*fitting.search_memory(settings)):
        check.compiled(_record.lower(*arguments).compile())
        record = jax.device_get(_record(*arguments))
    return _Reader(settings).read(jax.tree.map(lambda x: x[0], record))


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _record(
    settings: Search,
    model: Any,
    limit: int,
    constraint: Constraint | None,
    variables: Any,
    source: jax.Array,
    counts: jax.Array | None,
) -> Candidates:
    """Return the candidates of each step of a search for one sentence (1, S)."""
    step, cache = models.start(model, variables, source, settings.beam, limit)
    penalty = length_penalty(settings.length_penalty, settings.alpha)
    return recorded_beam(
        step,
        cache,
        jnp.array([limit]),
        limit,
        penalty,
        settings.beam,
        n_best=settings.n_best,
        constraint=constraint,
        counts=counts,
    )[1]


class _Candidate(NamedTuple):
    total: float
    parent: int  # which of the live hypotheses it continues
    token: int


class _Reader:
    """Reads the record of a search; ``live`` and ``finished`` are numbers of nodes."""

    def __init__(self, settings: Search) -> None:
        self._beam = settings.beam
        self._penalty = length_penalty(settings.length_penalty, settings.alpha)
        self.nodes = [Node(-1, (), 0.0, "continued", 0.0)]
        self.live: list[int] = [0]
        self.finished: list[int] = []

    def read(self, record: Candidates) -> SearchTree:
        """Make the tree of a record without the axis of sentences."""
        for each in zip(*(x[: record.steps] for x in record[:3]), strict=True):
            self._extend(
                [
                    _Candidate(float(total), int(parent), int(token))
                    for total, parent, token in zip(*each, strict=True)
                    if total > NEVER / 2
                ]
            )
        for number in self.live:
            self.nodes[number].fate = "unfinished"
        results = [*self.finished, *self.live][: self._beam]
        return SearchTree(self.nodes, results, self._beam)

    def _extend(self, best: list[_Candidate]) -> None:
        """Add the nodes of one step."""
        beam, nodes, before = self._beam, self.nodes, self.live
        ends = [c for c in best[:beam] if c.token == EOS]
        going = [c for c in best if c.token != EOS][:beam]
        self.finished += [self._add(before[c.parent], c, "finished") for c in ends]
        self.finished.sort(key=lambda number: -nodes[number].score)
        del self.finished[beam:]
        self.live = [self._add(before[c.parent], c, "continued") for c in going]
        for place, number in enumerate(before):
            if not any(c.parent == place for c in [*ends, *going]):
                nodes[number].fate = "pruned"

    def _add(self, parent: int, new: _Candidate, fate: Fate) -> int:
        ids = (*self.nodes[parent].ids, new.token)
        score = new.total / float(self._penalty(len(ids)))
        self.nodes.append(Node(parent, ids, new.total, fate, score))
        return len(self.nodes) - 1


# ---- showing it ----------------------------------------------------------------------


def show(
    workdir: Path, form: str, source: str, *, step: int | None = None, **search: Any
) -> str | bytes:
    """Show how a trained model searches for the translation of a sentence.

    Args:
      workdir: folder of the run.
      form: "html" or one of ``plots.FORMS``.
      source: a sentence.
      step: of the checkpoint, see ``translate.load``.
      **search: fields of ``Search`` to change, None = the configured.

    Returns:
      What the file is to hold.
    """
    translator = load(workdir, step=step)
    tree = trace(translator, source, **search)
    drawn = picture(translator, tree)
    if form == "html":
        title = f"Beam search: {source}"
        return tables_page("html", title, tables(translator, tree), [drawn.svg()])
    return drawn.file(form)


def picture(translator: Translator, tree: SearchTree) -> plots.Picture:
    """Return the tree with a branch for every hypothesis, the best one marked."""
    best = {-1}
    number = tree.results[0]
    while number >= 0:
        best.add(number)
        number = tree.nodes[number].parent
    branches = []
    for number, node in enumerate(tree.nodes):
        note = f"{node.log_probability:.2f}"
        if number in tree.results:
            place = tree.results.index(number) + 1
            note += f", score {node.score:.3f}: no. {place}"
        elif node.fate == "pruned":
            note += ", pruned"
        branches.append(
            plots.Branch(
                node.parent,
                len(node.ids),
                _label(translator, node.ids),
                note if node.ids else "",
                number in best,
                node.fate != "pruned",
            )
        )
    return plots.tree(f"Beam of {tree.beam}", branches)


def _label(translator: Translator, ids: tuple[int, ...]) -> str:
    if not ids or ids[-1] == EOS:
        return SPECIAL[EOS if ids else BOS]
    return translator.vocabulary.target.labels(ids)[-1]


def tables(translator: Translator, tree: SearchTree) -> list[Table]:
    """Return the results, and which hypotheses were pruned at which step."""
    results = [
        (
            str(place),
            _text(translator, node),
            node.fate,
            str(len(node.ids)),
            f"{node.log_probability:.3f}",
            f"{node.score:.4f}",
        )
        for place, node in enumerate((tree.nodes[n] for n in tree.results), start=1)
    ]
    pruned = [
        (
            str(len(node.ids) + 1),
            _text(translator, node),
            f"{node.log_probability:.3f}",
        )
        for node in tree.nodes
        if node.fate == "pruned"
    ]
    columns = ("no.", "translation", "state", "tokens", "log-probability", "score")
    return [
        Table(
            "Results", columns, tuple(results), "Score: nats divided by the penalty."
        ),
        Table(
            "Pruned from the beam",
            ("at step", "hypothesis", "log-probability"),
            tuple(pruned),
            f"Every continuation of these was worse than {tree.beam} others.",
        ),
    ]


def _text(translator: Translator, node: Node) -> str:
    return translator.vocabulary.target.decode(i for i in node.ids if i != EOS)
