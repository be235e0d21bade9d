"""Which values a key may have, and how a wrong one is refused."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, TypeVar

from transformer.ids import SPECIAL


class UserError(Exception):
    """A mistake the user can fix: printed as one line, exit code 2."""


@dataclasses.dataclass(frozen=True)
class Check:
    """A condition on the values of a key, and the same in words."""

    passes: Callable[[Any], bool]
    expected: str


Number = TypeVar("Number", int, float)
# On a device numbers are float32 and counts are int32.
_FINITE = Check(lambda x: abs(x) < 2.0**128, "a finite number of float32")
_COUNTED = Check(lambda x: isinstance(x, float) or x < 2**31, "less than 2^31")
# The system turns other bytes into lone surrogates.
UTF8 = Check(lambda x: not re.search("[\ud800-\udfff]", x), "text in UTF-8")
# Devices take smaller numbers for 0: no epsilon would keep 0 / 0 away.
_NORMAL = Check(lambda x: x == 0 or abs(x) >= 2.0**-126, "0, or at least 2^-126")
_OF_ALL = {float: [_FINITE, _NORMAL], str: [UTF8]}
Positive = Annotated[
    Number, Check(lambda x: x > 0, "a number greater than 0"), _COUNTED
]
NotNegative = Annotated[Number, Check(lambda x: x >= 0, "0 or more"), _COUNTED]
Rate = Annotated[float, Check(lambda x: 0 <= x < 1, "at least 0 and less than 1")]
Decay = Annotated[float, Check(lambda x: 0 < x <= 1, "above 0 and at most 1")]
Clip = Annotated[int, Check(lambda x: x >= -1, "0 or more, or -1 for none"), _COUNTED]
LengthPenalty = Literal["gnmt", "power"]  # ((5 + length) / 6)^alpha or length^alpha
# A set of convolutions reads over 2^blocks positions each way.
Blocks = Annotated[Positive[int], Check(lambda x: x <= 16, "at most 16")]
Grid = Annotated[float, Check(lambda x: 1 <= x <= 10, "at least 1 and at most 10")]
Seed = Annotated[int, Check(lambda x: 0 <= x < 2**32, "0 or more and less than 2^32")]
Digits = Annotated[Positive[int], Check(lambda x: x <= 9, "at most 9")]
TestDigits = Annotated[NotNegative[int], Check(lambda x: x <= 9, "at most 9")]


def _are_symbols(text: str) -> bool:
    symbols = text.split(",") if text else []
    whole = all(symbol.split() == [symbol] for symbol in symbols)
    return whole and len({*symbols, *SPECIAL}) == len(symbols) + len(SPECIAL)


Symbols = Annotated[
    str,
    Check(
        _are_symbols,
        "distinct symbols joined by commas, without white space, none of "
        + ", ".join(SPECIAL),
    ),
]
Language = Annotated[
    str,
    Check(
        lambda x: x.isprintable() and not {"/", "\\"} & {*x},
        "the end of a file name, such as en, without / and \\",
    ),
]
# It may name a folder, as in an ablation.
Name = Annotated[
    str,
    Check(
        lambda x: x.isprintable() and all(p.strip(".") for p in re.split(r"[/\\]", x)),
        "a name such as base or table3/base, without .. and empty parts",
    ),
]


class Convolution(NamedTuple):
    """A layer that convolves over time."""

    width: int  # d, of its output
    kernel: int  # k, positions


def convolutions(text: str) -> tuple[Convolution, ...]:
    """Read layers, "NxDkK" for N of width D and kernel K, joined by "+".

    Returns:
      The layers from the first to the last; none if the text has another form.

    >>> convolutions("2x512k3+1x2048k1")[1:]
    (Convolution(width=512, kernel=3), Convolution(width=2048, kernel=1))
    """
    found: list[Convolution] = []
    for part in text.split("+"):
        numbers = re.fullmatch(r"([1-9]\d{0,2})x([1-9]\d{0,5})k([1-9]\d{0,2})", part)
        if not numbers:
            return ()
        count, width, kernel = map(int, numbers.groups())
        found += [Convolution(width, kernel)] * count
    return tuple(found)


Convolutions = Annotated[
    str,
    Check(
        lambda x: bool(convolutions(x)),
        "layers such as 9x512k3+2x2048k1, 9 of width 512 and kernel 3 and 2 more",
    ),
]
Parts = Annotated[
    int,
    Check(lambda x: x == -1 or x >= 1, "1 or more, or -1 for what is left"),
    _COUNTED,
]


def type_and_checks(hint: Any) -> tuple[type, list[Check]]:
    """Split the annotation of a key into type and checks; floats must be finite."""
    if typing.get_origin(hint) is Literal:
        choices = typing.get_args(hint)
        return str, [Check(lambda x: x in choices, f"one of {', '.join(choices)}")]
    if typing.get_origin(hint) is Annotated:
        inner, *notes = typing.get_args(hint)
        kind, checks = type_and_checks(inner)
        return kind, [note for note in notes if isinstance(note, Check)] + checks
    return hint, _OF_ALL.get(hint, [])


def refuse(key: str, expected: str, got: Any) -> NoReturn:
    """Raise the ``UserError`` of a key."""
    raise UserError(f"config: {key}: expected {expected}, got {got!r}; change it")
