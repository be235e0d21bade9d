"""What a split is made of: names of corpora, how often each is read, its tag."""

from __future__ import annotations

import re
from typing import NamedTuple

from transformer.config import UserError
from transformer.data.sources.source import Split

_PART = re.compile(r"(?P<name>[^#]+?)(\*(?P<times>\d{1,4}))?(#(?P<tag>[^\s*#]+))?")


class Part(NamedTuple):
    """One corpus of a split.

    Attributes:
      name: as the source has it.
      times: how often it is read.
      tag: a word that is put before each source sentence, "" = none.
    """

    name: str
    times: int
    tag: str

    def tagged(self, source: str) -> str:
        """Return a source sentence with the tag before it."""
        return f"{self.tag} {source}" if self.tag and source.strip() else source


def parts(split: Split, value: str, what: str) -> list[Part]:
    """Return the corpora that ``data.train = "europarl*2#<ep>+news"`` names.

    >>> parts("train", "europarl*2#<ep>+news", "file stems")
    [Part(name='europarl', times=2, tag='<ep>'), Part(name='news', times=1, tag='')]

    Args:
      split: whose names they are.
      value: ``NAME[*TIMES][#TAG]``, several joined by "+".
      what: what errors call a name.

    Raises:
      UserError: for another form, and for validation or test sentences that would be
        read more than once.
    """
    found = []
    for text in value.split("+"):
        match = _PART.fullmatch(text)
        if match is None or match["times"] and not int(match["times"]):
            raise UserError(
                f"data.{split}: expected {what} joined by '+', each NAME, NAME*TIMES, "
                f"NAME#TAG or NAME*TIMES#TAG, got {value!r}; name the files of the "
                f"{split} split"
            )
        times = int(match["times"] or 1)
        if times > 1 and split != "train":
            raise UserError(
                f"data.{split}: expected each sentence once, got {text!r}; leave "
                f"*{times} out"
            )
        found.append(Part(match["name"], times, match["tag"] or ""))
    return found
