"""How to search for a translation: settings that are not part of a run."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Annotated, Any

from transformer.config import (
    Check,
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

    The text beside a field is the help of its flag. Fields without a default here are
    configured, as ``config.Decode``.
    """

    beam: Annotated[
        Positive[int], "hypotheses kept by beam search (default: the config's)"
    ]
    alpha: Annotated[
        NotNegative[float], "strength of the length penalty (default: the config's)"
    ]
    length_penalty: Annotated[
        LengthPenalty,
        "gnmt: ((5 + length) / 6)^alpha, power: length^alpha (default: the config's)",
    ]
    n_best: Annotated[Positive[int], "translations of each sentence, best first"] = 1
    sample: Annotated[bool, "sample translations instead of searching"] = False
    temperature: Annotated[Temperature, "of --sample; below 1 is more careful"] = 1.0
    top_k: Annotated[
        NotNegative[int], "--sample from the K likeliest pieces, 0 = from all"
    ] = 0
    top_p: Annotated[Share, "--sample from the likeliest pieces of this mass"] = 1.0
    seed: Annotated[Seed, "of --sample"] = 0
    constrained: Annotated[
        bool,
        "of trees: search among whole ones only; --noconstrained: any output, "
        "mended where it is none (default: the config's)",
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
