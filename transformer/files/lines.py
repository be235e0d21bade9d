r"""Text by lines: one reader for all text that is trained on, translated or scored.

A line ends at ``"\n"`` and nowhere else; one ``"\r"`` before it belongs to the line
end, and a byte order mark at the start of a file is not part of its text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from transformer.config import UserError

# What Python, editors or Unicode take for the end of a line.
_LINE_ENDS = re.compile("\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_GZIP = b"\x1f\x8b"  # how such a file begins


def decoded(raw_lines: Iterable[bytes], name: object) -> Iterator[str]:
    r"""Yield lines of UTF-8 as text, without their ends.

    Args:
      raw_lines: what a file opened in binary mode yields.
      name: of the file, for messages.

    Raises:
      UserError: for invalid UTF-8, naming the line, and for a .gz file.
    """
    for number, raw in enumerate(raw_lines, 1):
        try:
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            if number == 1 and raw.startswith(_GZIP):
                raise UserError(
                    f"{name}: expected text, got a .gz file; decompress it"
                ) from None
            raise UserError(
                f"{name}, line {number}: expected UTF-8, got byte "
                f"0x{error.object[error.start]:02x} at position {error.start}; convert "
                "the file to UTF-8"
            ) from None
        yield line.removesuffix("\n").removesuffix("\r")


def one_line(text: str) -> str:
    r"""Return a text as one line: each line end in it becomes a space.

    >>> one_line("a\u2028b\r\nc")
    'a b c'
    """
    return _LINE_ENDS.sub(" ", text)


def joined(text: str) -> str:
    r"""Return a field of a table as one line: where a file's line would end, a space.

    >>> joined("a\u2028b\r\nc")
    'a\u2028b c'
    """
    return text.replace("\r\n", " ").replace("\n", " ")
