"""Parameters chosen by their names: regular expressions, separated by commas."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterable
from typing import Annotated

from transformer.config.checks import Check, UserError


def split(text: str) -> list[str]:
    """Return the regular expressions of a text; none of them has a comma in it."""
    return [part.strip() for part in text.split(",") if part.strip()]


def matches(text: str, name: str) -> bool:
    """Return whether a pattern of a text matches a name or its first parts.

    >>> matches("encoder_0, .*bias", "encoder_0.feed_forward.kernel_1")
    True
    >>> matches("encoder", "encoder_0.feed_forward.kernel_1")
    False
    """
    return any(re.fullmatch(rf"(?:{one})(\..*)?", name) for one in split(text))


def check(key: str, text: str, names: Iterable[str]) -> None:
    """Check that each pattern of a key has a match.

    Args:
      key: of the configuration.
      text: its value.
      names: of all parameters.

    Raises:
      UserError: if one has none; the message gives the nearest names.
    """
    known = list(names)
    for pattern in split(text):
        if any(matches(pattern, name) for name in known):
            continue
        near = difflib.get_close_matches(pattern, _beginnings(known), 3, 0)
        raise UserError(
            f"config: {key}: expected patterns of the names that transformer params "
            f"prints, got {pattern!r}, which matches none; the closest "
            f"are {', '.join(near)}; change it"
        )


def _beginnings(names: Iterable[str]) -> list[str]:
    """Return the names and their first parts, each once."""
    parts = (itertools.accumulate(n.split("."), "{}.{}".format) for n in names)
    return list(dict.fromkeys(itertools.chain.from_iterable(parts)))


def _compile(text: str) -> bool:
    try:
        return all(re.compile(f"(?:{one})") for one in split(text))
    except (re.error, OverflowError, RecursionError):
        return False


Patterns = Annotated[
    str, Check(_compile, "regular expressions separated by commas, or ''")
]
