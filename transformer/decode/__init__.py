"""Section 6.1: searches for outputs, over any step function."""

from transformer.decode.beam_search import Candidates, beam, recorded_beam
from transformer.decode.constraints import Constraint
from transformer.decode.forbidden import Forbidden, forbid, is_word
from transformer.decode.hypotheses import (
    NEVER,
    Hypotheses,
    Penalty,
    largest,
    length_penalty,
    take,
)
from transformer.decode.loop import Step
from transformer.decode.searches import greedy, sample, search, side_by_side
from transformer.decode.steps import ensemble, prefixed

__all__ = [
    "NEVER",
    "Candidates",
    "Constraint",
    "Forbidden",
    "Hypotheses",
    "Penalty",
    "Step",
    "beam",
    "ensemble",
    "forbid",
    "greedy",
    "is_word",
    "largest",
    "length_penalty",
    "prefixed",
    "recorded_beam",
    "sample",
    "search",
    "side_by_side",
    "take",
]
