"""Table 1, measured: what a layer costs, how serial it is, how far it reaches.

Nothing here is computed from the paper's formulas; they are shown beside what is
counted. Source: section 4 and Table 1.
"""

from transformer.paper.complexity.counts import (
    longest_chain,
    operations,
    sequential_operations,
    whole_operations,
)
from transformer.paper.complexity.laws import (
    Law,
    fit,
    operations_law,
    path_law,
    sequential_law,
)
from transformer.paper.complexity.layers import (
    EVERY,
    MORE,
    RECURRENT,
    ROWS,
    Sizes,
    blocked_self_attention,
    bytenet_block,
    convolution,
    convs2s_block,
    recurrent_step,
    restricted_self_attention,
    self_attention,
    separable_convolution,
)
from transformer.paper.complexity.paths import (
    MORE_PATHS,
    PATHS,
    dependence,
    path_length,
)
from transformer.paper.complexity.timing import seconds

__all__ = [
    "EVERY",
    "MORE",
    "MORE_PATHS",
    "PATHS",
    "RECURRENT",
    "ROWS",
    "Law",
    "Sizes",
    "blocked_self_attention",
    "bytenet_block",
    "convolution",
    "convs2s_block",
    "dependence",
    "fit",
    "longest_chain",
    "operations",
    "operations_law",
    "path_law",
    "path_length",
    "recurrent_step",
    "restricted_self_attention",
    "seconds",
    "self_attention",
    "separable_convolution",
    "sequential_law",
    "sequential_operations",
    "whole_operations",
]
