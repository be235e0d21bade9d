"""The tree of a beam search: its hypotheses, and where they leave the beam."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer.config import UserError
from transformer.decode import NEVER, length_penalty
from transformer.ids import BOS, EOS, SPECIAL
from transformer.models.transformer import search_variables, start_search
from transformer.pictures import plots
from transformer.pictures.tables import Table
from transformer.pictures.tables import page as tables_page
from transformer.translate import Search, Translator, load

Fate = Literal["goes on", "ended", "left", "unfinished"]


@dataclasses.dataclass
class Node:
    """A hypothesis that was among the best of a step.

    Attributes:
      parent: the number of the node that it continues, -1 for the empty hypothesis.
      ids: its pieces, the end mark included.
      log_probability: of all of them, nats.
      fate: "goes on": continued; "ended": by the end mark; "left": all continuations
        of it were worse than those that were kept; "unfinished": alive when the search
        stopped.
      score: log-probability divided by the length penalty.
    """

    parent: int
    ids: tuple[int, ...]
    log_probability: float
    fate: Fate
    score: float


@dataclasses.dataclass(frozen=True)
class Tree:
    """What a search kept, step by step.

    Attributes:
      nodes: the empty hypothesis, then those of the first step, and so on.
      found: the numbers of the nodes that are the results, the best first.
      beam: J.
    """

    nodes: list[Node]
    found: list[int]
    beam: int


def trace(translator: Translator, source: str, **search: Any) -> Tree:
    """Search as ``decode.beam`` does, on the host, and write down what happens.

    Args:
      translator: a trained model.
      source: a sentence.
      **search: fields of ``Search`` to change: beam, alpha, length_penalty, n_best.

    Returns:
      The tree; its results are those of ``Translator.hypotheses``.

    Raises:
      UserError: if the sentence has no text.
    """
    how = translator.search(**search)
    if not source.strip():
        raise UserError("--source: expected a sentence, got none; write one")
    (source_ids,) = translator.source_ids([source])
    limit = len(source_ids) - 1 + translator.settings.decode.extra_tokens
    model = translator.model
    variables = jax.jit(search_variables, static_argnums=0)(model, translator.params)
    cache = _start(model, how.beam, limit, variables, jnp.array([source_ids]))
    step = functools.partial(_step, model, variables)
    return _Tracer(step, cache, limit, how).run()


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _start(model, beams, length, variables, source):
    _, cache = start_search(model, variables, source, beams, length)
    return cache


@functools.partial(jax.jit, static_argnums=0)
def _step(model, variables, cache, ids, parents):
    return model.apply(variables, cache, ids, parents, method="step")


class _Candidate(NamedTuple):
    total: float
    parent: int  # which of the alive hypotheses it continues
    token: int


class _Tracer:
    """One search; ``alive`` and ``ended`` are numbers of nodes."""

    def __init__(self, step: Any, cache: Any, limit: int, how: Search) -> None:
        self._step, self._cache, self._limit, self._how = step, cache, limit, how
        self._penalty = length_penalty(how.length_penalty, how.alpha)
        self.nodes = [Node(-1, (), 0.0, "goes on", 0.0)]
        self.alive: list[int] = [0]
        self.ended: list[int] = []
        self._parents = [0] * how.beam

    def run(self) -> Tree:
        while not self._extend():
            pass
        for number in self.alive:
            self.nodes[number].fate = "unfinished"
        found = [*self.ended, *self.alive][: self._how.beam]
        return Tree(self.nodes, found, self._how.beam)

    def _extend(self) -> bool:
        """Make one step; return whether the search is done."""
        beam, nodes, before = self._how.beam, self.nodes, self.alive
        best = self._candidates()
        ends = [c for c in best[:beam] if c.token == EOS]
        going = [c for c in best if c.token != EOS][:beam]
        self.ended += [self._add(before[c.parent], c, "ended") for c in ends]
        self.ended.sort(key=lambda number: -nodes[number].score)
        del self.ended[beam:]
        self.alive = [self._add(before[c.parent], c, "goes on") for c in going]
        self._parents = [c.parent for c in going]
        for place, number in enumerate(before):
            if not any(c.parent == place for c in [*ends, *going]):
                nodes[number].fate = "left"
        length = len(nodes[-1].ids)
        return len(self.ended) == beam or length >= self._limit or self._settled()

    def _settled(self) -> bool:
        """Say whether no alive hypothesis can still come among the ``n_best``."""
        wanted = self._how.n_best
        if not self.alive:
            return True
        if len(self.ended) < wanted:
            return False
        highest = self.nodes[self.alive[0]].log_probability
        bound = highest / float(self._penalty(self._limit))
        return bound <= self.nodes[self.ended[wanted - 1]].score

    def _candidates(self) -> list[_Candidate]:
        """Return the best 2 J continuations, the best first."""
        beam = self._how.beam
        filled = len(self.alive)
        spare = [0] * (beam - filled)  # the step function takes J hypotheses
        last = [self.nodes[n].ids[-1] if self.nodes[n].ids else BOS for n in self.alive]
        ids = jnp.array([[*last, *spare]], jnp.int32)
        parents = [*self._parents, *spare][:beam]
        logits, self._cache = self._step(self._cache, ids, jnp.array([parents]))
        gains = np.asarray(jax.nn.log_softmax(logits[0]))[:filled]
        before = [self.nodes[n].log_probability for n in self.alive]
        totals = np.asarray(before, np.float32)[:, None] + gains
        order = np.argsort(-totals, axis=None, kind="stable")[: 2 * beam]
        pairs = (np.unravel_index(place, totals.shape) for place in order)
        return [
            _Candidate(float(totals[parent, token]), int(parent), int(token))
            for parent, token in pairs
            if totals[parent, token] > NEVER / 2
        ]

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


def picture(translator: Translator, tree: Tree) -> plots.Picture:
    """Return the tree with a branch for every hypothesis, the best one marked."""
    best = {-1}
    number = tree.found[0]
    while number >= 0:
        best.add(number)
        number = tree.nodes[number].parent
    branches = []
    for number, node in enumerate(tree.nodes):
        note = f"{node.log_probability:.2f}"
        if number in tree.found:
            place = tree.found.index(number) + 1
            note += f", score {node.score:.3f}: no. {place}"
        elif node.fate == "left":
            note += ", left"
        branches.append(
            plots.Branch(
                node.parent,
                len(node.ids),
                _label(translator, node.ids),
                note if node.ids else "",
                number in best,
                node.fate != "left",
            )
        )
    return plots.tree(f"Beam of {tree.beam}", branches)


def _label(translator: Translator, ids: tuple[int, ...]) -> str:
    if not ids or ids[-1] == EOS:
        return SPECIAL[EOS if ids else BOS]
    return translator.vocabulary.target.labels(ids)[-1]


def tables(translator: Translator, tree: Tree) -> list[Table]:
    """Return what was found, and which hypotheses left the beam at which step."""
    found = [
        (
            str(place),
            _text(translator, node),
            "ended" if node.fate == "ended" else "cut at the limit, or not awaited",
            str(len(node.ids)),
            f"{node.log_probability:.3f}",
            f"{node.score:.4f}",
        )
        for place, node in enumerate((tree.nodes[n] for n in tree.found), start=1)
    ]
    left = [
        (str(len(node.ids) + 1), _text(translator, node), f"{node.log_probability:.3f}")
        for node in tree.nodes
        if node.fate == "left"
    ]
    columns = ("no.", "translation", "state", "tokens", "log-probability", "score")
    return [
        Table("Found", columns, tuple(found), "Score: nats divided by the penalty."),
        Table(
            "Left the beam",
            ("at step", "hypothesis", "log-probability"),
            tuple(left),
            f"Every continuation of these was worse than {tree.beam} others.",
        ),
    ]


def _text(translator: Translator, node: Node) -> str:
    return translator.vocabulary.target.decode(i for i in node.ids if i != EOS)
