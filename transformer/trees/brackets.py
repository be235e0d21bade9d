"""Constituency trees in brackets, as the files of the Penn treebank have them.

A tree is flat: what a reader of its brackets meets, in order. No function here
recurses, so trees may be deeper than Python's stack.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from transformer.config import UserError

TOP = "TOP"  # the outermost constituent, which no linearisation writes
TRACE = "-NONE-"  # the tag of what is not spoken


class Open(NamedTuple):
    """The beginning of a constituent."""

    label: str


class Word(NamedTuple):
    """A word and its tag (part of speech)."""

    tag: str
    form: str


class Close(NamedTuple):
    """The end of the constituent that was opened last and not closed."""


CLOSE = Close()
Node = Open | Word | Close
Tree = tuple[Node, ...]

# Only ASCII white space separates two tokens: a word may hold any other.
_TOKEN = re.compile(r"[()]|[^()\t\n\v\f\r ]+")
_SPACE = re.compile(r"[\t\n\v\f\r ]+")


def split_words(text: str) -> list[str]:
    """Return the words of a sentence, which ASCII white space separates."""
    return [word for word in _SPACE.split(text) if word]


def escaped(sentence: str) -> str:
    """Return a sentence as treebanks write it: no word holds a bracket.

    >>> escaped("f(x)  is")
    'f-LRB-x-RRB- is'
    """
    bare = sentence.replace("(", "-LRB-").replace(")", "-RRB-")
    return " ".join(split_words(bare))


def split_tags(sentence: str, name: object) -> tuple[str, list[str]]:
    """Return the words of ``word_TAG word_TAG``, a space between two, and the tags.

    Args:
      sentence: whose words have a tag after their last ``_``.
      name: of the line, for messages.

    Raises:
      UserError: for a word that has none.
    """
    parts = [word.rpartition("_") for word in split_words(sentence)]
    for form, mark, tag in parts:
        if not form or not tag or "(" in tag or ")" in tag:
            word = form + mark + tag
            raise UserError(
                f"{name}: expected word_TAG, got {word!r}; give each word a tag, or "
                "leave --tags out"
            )
    return " ".join(form for form, _, _ in parts), [tag for _, _, tag in parts]


def retagged(text: str, tags: Sequence[str]) -> str:
    """Return a tree in brackets, its words with other tags."""
    others = iter(tags)
    return write(
        tuple(
            node._replace(tag=next(others)) if isinstance(node, Word) else node
            for node in parse(text)
        )
    )


def words(tree: Tree) -> list[Word]:
    """Return the words of a tree with their tags, in order."""
    return [node for node in tree if isinstance(node, Word)]


def read(lines: Iterable[str], name: object) -> Iterator[tuple[int, Tree]]:
    """Yield each tree of a file with the number of the line on which it begins.

    A tree may span lines, and a line may hold several trees.

    Args:
      lines: of the file, from line 1.
      name: of the file, for messages.

    Raises:
      UserError: for brackets that do not match, a word without a tag and text outside
        brackets, naming the line.
    """
    reader = _Reader(name)
    for reader.line, line in enumerate(lines, 1):
        for token in _TOKEN.findall(line):
            if (tree := reader.take(token)) is not None:
                yield reader.begun, tree
    reader.end()


def parse(text: str, name: object = "tree") -> Tree:
    """Return the one tree of a text.

    Raises:
      UserError: if it is none, or more than one.
    """
    reader = _Reader(name)
    took = map(reader.take, _TOKEN.findall(text))
    trees = [tree for tree in took if tree is not None]
    reader.end()
    if len(trees) != 1:
        raise UserError(f"{name}: expected one tree, got {len(trees)}; change it")
    return trees[0]


class _Reader:
    """Tokens to trees: one at a time, with a stack of what is open.

    Its user sets ``line`` if there are lines; with 0, messages name none.
    """

    def __init__(self, name: object) -> None:
        self.name, self.line, self.begun = name, 0, 0
        self._nodes: list[Node] = []
        self._open: list[int] = []  # where in nodes each open constituent begins
        self._last = ""  # token

    def take(self, token: str) -> Tree | None:
        """Return a tree if the token completes one."""
        last, self._last = self._last, token
        if token == "(":
            if not self._open:
                self.begun = self.line
            elif isinstance(self._nodes[-1], Word) and last != ")":
                self._refuse("')' after a word", "'('")
            self._open.append(len(self._nodes))
            self._nodes.append(Open(""))
            return None
        if not self._open:
            self._refuse("brackets", f"{token!r} outside of them")
        if token != ")":
            self._text(token, last)
            return None
        begin = self._open.pop()
        if not isinstance(self._nodes[-1], Word) or len(self._nodes) - begin > 1:
            self._nodes.append(CLOSE)
        if self._open:
            return None
        tree, self._nodes = tuple(self._nodes), []
        return tree

    def _text(self, token: str, last: str) -> None:
        node = self._nodes[-1]
        if last == "(":
            self._nodes[-1] = Open(token)
        elif last in ("", ")") or not isinstance(node, Open) or not node.label:
            self._refuse("a tag before each word, as in (NN word)", f"{token!r} alone")
        else:
            self._nodes[-1] = Word(node.label, token)

    def end(self) -> None:
        """Refuse a file that ends within a tree."""
        if self._open:
            got = "the end"
            if self.line:
                got += f" of the file in the tree that begins on line {self.begun}"
            self._refuse(f"{len(self._open)} more ')'", got)

    def _refuse(self, expected: str, got: str) -> None:
        place = f"{self.name}, line {self.line}" if self.line else self.name
        raise UserError(f"{place}: expected {expected}, got {got}; correct it")


def write(tree: Tree) -> str:
    """Return a tree as one line of brackets.

    >>> write((Open("TOP"), Open("NP"), Word("NN", "dog"), CLOSE, CLOSE))
    '(TOP (NP (NN dog)))'
    """
    parts: list[str] = []
    for node in tree:
        if isinstance(node, Open):
            parts.append(f" ({node.label}")
        elif isinstance(node, Word):
            parts.append(f" ({node.tag} {node.form})")
        else:
            parts.append(")")
    return "".join(parts).strip()


def clean(tree: Tree) -> Tree:
    """Return a tree without traces and functions, its outermost label ``TOP``.

    In this order: terminals tagged ``-NONE-`` go, and with them constituents that have
    no words left; labels of constituents are cut at the first ``-`` or ``=``, unless
    they begin with ``-`` (``NP-SBJ-1`` is an ``NP``; tags stay whole); an outermost
    bracket without label, ``ROOT`` or ``S1`` becomes ``TOP``, and one is put around a
    tree that has none. A constituent of one of its own label stays.
    """
    nodes: list[Node] = []
    for node in tree:
        if isinstance(node, Open):
            nodes.append(Open(_bare(node.label)))
        elif isinstance(node, Word):
            if node.tag != TRACE:
                nodes.append(node)
        elif isinstance(nodes[-1], Open):
            nodes.pop()  # without words
        else:
            nodes.append(node)
    if not nodes:
        return ()
    first = nodes[0]
    if isinstance(first, Open) and first.label in ("", "ROOT", "S1", TOP):
        return (Open(TOP), *nodes[1:])
    return (Open(TOP), *nodes, CLOSE)


def _bare(label: str) -> str:
    """Return the label of a constituent without function tags and indices."""
    return label if label.startswith("-") else re.split("[-=]", label, maxsplit=1)[0]
