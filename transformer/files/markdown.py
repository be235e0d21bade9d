"""Texts in Markdown."""

from __future__ import annotations

import re

# What Markdown reads as markup anywhere in a text: links, code, emphasis (not that of
# x_1), entities and tags. Addresses that it would find by itself are cut in two.
_MARKS = re.compile(
    r"[\\`*~|\[]|(?<![^\W_])_|_(?![^\W_])|&(?=#|\w)|<(?=[A-Za-z/!?])"
    r"|:(?=//)|(?<=www)\.|@"
)


def plain(text: str) -> str:
    """Escape a text for Markdown, so that every renderer shows it as it is.

    >>> print(plain("a_1 | <b> [x](y) *z* < 3"))
    a_1 \\| &lt;b> \\[x](y) \\*z\\* < 3
    """
    return _MARKS.sub(_escaped, " ".join(text.splitlines()))


def _escaped(mark: re.Match[str]) -> str:
    if mark[0] in "&<:.@":
        return {"&": "&amp;", "<": "&lt;"}.get(mark[0], f"&#{ord(mark[0])};")
    return f"\\{mark[0]}"
