"""How to search for a translation: settings that are not part of a run."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Annotated, Any

from transformer.config import (
    Check,
    Decode,
    LengthPenalty,
    NotNegative,
    Positive,
    Seed,
    UserError,
    type_and_checks,
)

OF_SAMPLING = ("temperature", "top_k", "top_p", "seed")
Temperature = Annotated[
    float, Check(lambda x: 1e-6 <= x <= 1e6, "at least 1e-6 and at most 1e6")
]
Share = Annotated[float, Check(lambda x: 0 < x <= 1, "above 0 and at most 1")]


@dataclasses.dataclass(frozen=True)
class Search:
    """How to search for a translation; see ``transformer.decode``.

    The text in a field's annotation is the help of its flag. Fields without a default
    here get theirs from the config, see ``config.Decode``.
    """

    beam: Annotated[
        Positive[int], "hypotheses kept by beam search (default: from the config)"
    ]
    alpha: Annotated[
        NotNegative[float], "strength of the length penalty (default: from the config)"
    ]
    length_penalty: Annotated[
        LengthPenalty,
        "gnmt: ((5 + length) / 6)^alpha, power: length^alpha (default: from the "
        "config)",
    ]
    n_best: Annotated[Positive[int], "translations per sentence, best first"] = 1
    sample: Annotated[bool, "sample translations instead of searching"] = False
    temperature: Annotated[
        Temperature, "for --sample; below 1 is more conservative"
    ] = 1.0
    top_k: Annotated[
        NotNegative[int], "for --sample: only the K most likely pieces, 0 = all"
    ] = 0
    top_p: Annotated[
        Share, "for --sample: only the most likely pieces with this total probability"
    ] = 1.0
    seed: Annotated[Seed, "random seed for --sample"] = 0
    constrained: Annotated[
        bool,
        "for trees: search complete trees only; --noconstrained: search all outputs "
        "and repair those that are not trees (default: from the config)",
    ] = True

    def __post_init__(self) -> None:
        for name, hint in typing.get_type_hints(Search, include_extras=True).items():
            value = getattr(self, name)
            for check in type_and_checks(hint)[1]:
                if not check.passes(value):
                    raise UserError(
                        f"{name}: expected {check.expected}, got {value!r}; change it"
                    )
        for name in OF_SAMPLING:
            if not self.sample and getattr(self, name) != getattr(Search, name):
                raise UserError(
                    f"{name}: expected with sample=True only; add that or leave {name} "
                    "out"
                )
        if not self.sample and self.n_best > self.beam:
            raise UserError(
                f"expected n_best of at most beam = {self.beam}, got {self.n_best}; "
                "use a larger beam"
            )


def configured(usual: Decode) -> Search:
    """Return the search that a configuration describes."""
    return Search(
        usual.beam,
        usual.alpha,
        usual.length_penalty,
        constrained=usual.constrained,
    )


def changed(usual: Search, changes: Mapping[str, Any]) -> Search:
    """Return a search with some settings changed, None = unchanged.

    Raises:
      UserError: for a change without effect, and for a value out of range.
    """
    given = {name: value for name, value in changes.items() if value is not None}
    if given.get("sample") and "beam" in given:
        raise UserError(
            "beam: expected with sample=False only; n_best is how many samples are "
            "drawn; leave beam out"
        )
    return dataclasses.replace(usual, **given)
