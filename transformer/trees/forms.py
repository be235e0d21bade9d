"""Trees as sequences of symbols, which a decoder can write.

Each form has one symbol per word and two per constituent, and none for the outermost
``TOP``. ``(TOP (S (NP (NNP John)) (VP (VBZ sleeps))))`` is

* ``(S (NP XX )NP (VP XX )VP )S``: "top_down", of Vinyals et al. (arXiv:1412.7449);
* ``S NP NNP /NP VP VBZ /VP /S``: "tagged", of the paper's authors' first code;
* ``(S (NP 1 )NP (VP 2 )VP )S``: "indexed", the first with the index of each word, which
  a decoder otherwise has to find by counting what it wrote;
* ``SH PJ-NP RE-NP PJ-S SH PJ-VP RE-VP RE-S``: "in_order", the first child before the
  label (Liu & Zhang, arXiv:1707.05000; labelled ends of Fernandez-Gonzalez &
  Gomez-Rodriguez, arXiv:2005.13334);
* ``1 PJ-NP RE-NP PJ-S 2 PJ-VP RE-VP RE-S``: "indexed_in_order", both at once.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar, get_args

from transformer.trees.brackets import CLOSE, TOP, Close, Node, Open, Tree, Word

if TYPE_CHECKING:
    import jax

Number = TypeVar("Number", int, "jax.Array")
Form = Literal["top_down", "tagged", "indexed", "in_order", "indexed_in_order"]
Kind = Literal["open", "close", "word"]
UNTAGGED = "XX"  # the tag of a word whose form has none
ROOT = "S"  # the label put around what a repair finds outside of any constituent
INDICES = 64  # of words; the next word is 1 again, so that long sentences have indices


class Symbol(NamedTuple):
    """A constituent's beginning or end, or a word.

    Attributes:
      kind: which of them; "open" is what names a constituent for the first time.
      label: of the constituent; of a word what its form has: tag, index or "".
    """

    kind: Kind
    label: str


_WRITTEN: dict[Form, dict[Kind, str]] = {
    "top_down": {"open": "({}", "close": "){}", "word": "XX"},
    "tagged": {"open": "{}", "close": "/{}", "word": "{}"},
    "indexed": {"open": "({}", "close": "){}", "word": "{}"},
    "in_order": {"open": "PJ-{}", "close": "RE-{}", "word": "SH"},
    "indexed_in_order": {"open": "PJ-{}", "close": "RE-{}", "word": "{}"},
}
FORMS: tuple[Form, ...] = get_args(Form)
INDEXED: tuple[Form, ...] = ("indexed", "indexed_in_order")  # a word is its index
IN_ORDER: tuple[Form, ...] = ("in_order", "indexed_in_order")


def written(form: Form, symbol: Symbol) -> str:
    """Return a symbol as people read it.

    >>> written("top_down", Symbol("close", "NP"))
    ')NP'
    """
    return _WRITTEN[form][symbol.kind].format(symbol.label)


def index(number: Number) -> Number:
    """Return the index of a word, from 1, by how many words precede it."""
    return number % INDICES + 1


def of_every_vocabulary(form: Form) -> set[Symbol]:
    """Return symbols that are needed even if training trees do not have them.

    They are the indices of sentences longer than those that were trained on.
    """
    if form not in INDEXED:
        return set()
    return {Symbol("word", str(index(number))) for number in range(INDICES)}


def linearise(form: Form, tree: Tree) -> list[Symbol]:
    """Return the symbols of a clean tree.

    A decoder writes one constituent within ``TOP``: an ``S`` is put around the children
    of a ``TOP`` that has others.
    """
    nodes = tree[1:-1]
    if not is_rooted(tree):
        nodes = (Open(ROOT), *nodes, CLOSE)
    return _in_order(form, nodes) if form in IN_ORDER else _top_down(form, nodes)


def is_rooted(tree: Tree) -> bool:
    """Return whether the one child of ``TOP`` is a constituent."""
    depth = roots = 0
    for node in tree[1:-1]:
        roots += depth == 0 and not isinstance(node, Close)
        depth += isinstance(node, Open) - isinstance(node, Close)
    return roots == 1 and isinstance(tree[1], Open)


def _top_down(form: Form, nodes: Tree) -> list[Symbol]:
    symbols: list[Symbol] = []
    labels: list[str] = []
    read = 0  # words
    for node in nodes:
        if isinstance(node, Open):
            labels.append(node.label)
            symbols.append(Symbol("open", node.label))
        elif isinstance(node, Word):
            symbols.append(_word(form, node, read))
            read += 1
        else:
            symbols.append(Symbol("close", labels.pop()))
    return symbols


def _word(form: Form, word: Word, number: int) -> Symbol:
    """Return the symbol of a word that so many precede."""
    if form in INDEXED:
        return Symbol("word", str(index(number)))
    return Symbol("word", word.tag if form == "tagged" else "")


def _in_order(form: Form, nodes: Tree) -> list[Symbol]:
    symbols: list[Symbol] = []
    read = 0  # words
    labels: list[str] = [TOP]
    waiting = [False]  # whether each open constituent still lacks its first child
    for node in nodes:
        if isinstance(node, Open):
            labels.append(node.label)
            waiting.append(True)
            continue
        if isinstance(node, Word):
            symbols.append(_word(form, node, read))
            read += 1
        else:
            waiting.pop()
            symbols.append(Symbol("close", labels.pop()))
        if waiting[-1]:
            waiting[-1] = False
            symbols.append(Symbol("open", labels[-1]))
    return symbols


# What a repair does, each counted.
WRONG_LABEL = "end of another label than the constituent's"
SURPLUS_END = "end without a constituent"
SURPLUS_BEGINNING = "label without a first child"  # in order
UNKNOWN = "unknown symbol"
WRONG_INDEX = "index of another word"
SURPLUS_WORD = "word too many"
MISSING_WORD = "word too few"
UNCLOSED = "constituent without an end"
EMPTY = "constituent without words"
ROOTS = "no single root"


def build(
    form: Form, symbols: Iterable[Symbol | None], words: Sequence[str]
) -> tuple[Tree, collections.Counter[str]]:
    """Return the tree that symbols write over given words, whatever the symbols are.

    What is not a tree is repaired: an end closes the constituent that was opened last;
    surplus ends and unknown symbols are ignored; words come in their order, whatever
    their indices; surplus ones are dropped, missing ones appended to the outermost
    constituent; everything is closed at the end; constituents without words vanish; if
    the outermost is not a single constituent, an ``S`` is put around everything.

    Args:
      form: of the symbols.
      symbols: from the first to the last, None for one that is unknown.
      words: of the sentence, at least one.

    Returns:
      The tree with exactly these words, and how often each repair was made.
    """
    repairs: collections.Counter[str] = collections.Counter()
    maker = _Maker(words, repairs)
    name: Callable[[str], None] = maker.project if form in IN_ORDER else maker.open
    for symbol in symbols:
        if symbol is None:
            repairs[UNKNOWN] += 1
        elif symbol.kind == "open":
            name(symbol.label)
        elif symbol.kind == "word" and form in INDEXED:
            maker.indexed(symbol.label)
        elif symbol.kind == "word":
            maker.word(symbol.label or UNTAGGED)
        else:
            maker.close(symbol.label)
    return maker.end(), repairs


class _Maker:
    """Makes a tree from symbols."""

    def __init__(self, words: Sequence[str], repairs: collections.Counter[str]) -> None:
        self._words, self._repairs = words, repairs
        self._nodes: list[Node] = []
        self._open: list[int] = []  # where in nodes each open constituent begins
        self._children: list[list[int]] = [[]]  # where the finished children begin
        self._read = 0  # words

    def open(self, label: str) -> None:
        self._open.append(len(self._nodes))
        self._children.append([])
        self._nodes.append(Open(label))

    def project(self, label: str) -> None:
        """Open a constituent whose first child is the last finished one."""
        if not self._children[-1]:
            self._repairs[SURPLUS_BEGINNING] += 1
            return
        begin = self._children[-1].pop()
        self._nodes.insert(begin, Open(label))
        self._open.append(begin)
        self._children.append([begin + 1])

    def word(self, tag: str) -> None:
        if self._read == len(self._words):
            self._repairs[SURPLUS_WORD] += 1
            return
        self._children[-1].append(len(self._nodes))
        self._nodes.append(Word(tag, self._words[self._read]))
        self._read += 1

    def indexed(self, label: str) -> None:
        is_next = label == str(index(self._read))
        if not is_next and self._read < len(self._words):
            self._repairs[WRONG_INDEX] += 1
        self.word(UNTAGGED)

    def close(self, label: str) -> None:
        if not self._open:
            self._repairs[SURPLUS_END] += 1
            return
        begin = self._open[-1]
        node = self._nodes[begin]
        assert isinstance(node, Open)
        if node.label != label:
            self._repairs[WRONG_LABEL] += 1
        self._close()

    def _close(self) -> None:
        begin = self._open.pop()
        if self._children.pop():
            self._nodes.append(CLOSE)
            self._children[-1].append(begin)
        else:
            self._repairs[EMPTY] += 1
            del self._nodes[begin:]

    def end(self) -> Tree:
        """Finish what is unfinished and return the tree."""
        missing = self._words[self._read :]
        if missing:
            self._repairs[MISSING_WORD] += len(missing)
            self._append([Word(UNTAGGED, form) for form in missing])
        while self._open:
            self._repairs[UNCLOSED] += 1
            self._close()
        roots = self._children[0]
        if len(roots) != 1 or isinstance(self._nodes[0], Word):
            self._repairs[ROOTS] += 1
            self._nodes = [Open(ROOT), *self._nodes, CLOSE]
        return (Open(TOP), *self._nodes, CLOSE)

    def _append(self, missing: list[Node]) -> None:
        """Give missing words to the outermost constituent, the last where several."""
        while len(self._open) > 1:
            self._repairs[UNCLOSED] += 1
            self._close()
        roots = self._children[0]
        closed = not self._open and roots and isinstance(self._nodes[-1], Close)
        if closed:
            self._nodes[-1:-1] = missing
            return
        self._children[-1] += range(len(self._nodes), len(self._nodes) + len(missing))
        self._nodes += missing
