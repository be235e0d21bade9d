"""The configuration of a run, as frozen dataclasses that are checked once.

Experiments are written as ``ml_collections.ConfigDict`` (see ``experiments/base.py``,
which names every key). ``resolve`` turns one into a ``Config``; below the command line
nothing else is ever passed around, so a wrong name fails where it is written.
"""

from transformer.config.checks import (
    Check,
    Convolution,
    LengthPenalty,
    NotNegative,
    Positive,
    Seed,
    UserError,
    convolutions,
    refuse,
    type_and_checks,
)
from transformer.config.compare import (
    difference,
    digest,
    flatten,
    other_run,
    other_steps,
    to_json,
)
from transformer.config.earlier import NEWER, resolve_saved, upgraded
from transformer.config.keys import (
    MODELS,
    Batch,
    ByteNet,
    Config,
    Convolutional,
    Data,
    Decode,
    Init,
    Loss,
    Model,
    Optimizer,
    Parallel,
    Recurrent,
    Tokenizer,
    Train,
    Transformer,
    transformer,
)
from transformer.config.values import resolve, round_up

__all__ = [
    "MODELS",
    "NEWER",
    "Batch",
    "ByteNet",
    "Check",
    "Config",
    "Convolution",
    "Convolutional",
    "Data",
    "Decode",
    "Init",
    "LengthPenalty",
    "Loss",
    "Model",
    "NotNegative",
    "Optimizer",
    "Parallel",
    "Positive",
    "Recurrent",
    "Seed",
    "Tokenizer",
    "Train",
    "Transformer",
    "UserError",
    "convolutions",
    "difference",
    "digest",
    "flatten",
    "other_run",
    "other_steps",
    "refuse",
    "resolve",
    "resolve_saved",
    "round_up",
    "to_json",
    "transformer",
    "type_and_checks",
    "upgraded",
]
