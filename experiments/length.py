"""Longer sources than in training: number words, by the kind of positions.

Trained on numbers of at most six digits, and on those of seven to nine digits that are
as short to say, "seven million, two thousand and five": at most nine words. Tested on
numbers of seven to nine digits that take 11 to 14 words: all their words, and what may
follow what, are known from training, but no training source was that long. The variants
are the values of ``model.positions``. The table of learned positions ends with the
training pairs; positions beyond it get its last row, as evaluation reports.

    transformer train --config=experiments/length.py --workdir=runs/sinusoidal
    transformer train --config=experiments/length.py:learned --workdir=runs/learned
    transformer train --config=experiments/length.py:none --workdir=runs/none
    transformer train --config=experiments/length.py:relative --workdir=runs/relative
    transformer train --config=experiments/length.py:disentangled \\
        --workdir=runs/disentangled
    transformer train --config=experiments/length.py:rotary --workdir=runs/rotary
    transformer train --config=experiments/length.py:alibi --workdir=runs/alibi
    transformer plot --what=length --variant=exact --edges=8,10,12,14,16 \\
        --workdir=runs/sinusoidal,runs/learned,runs/none,runs/relative \\
        --output=length.svg

docs/results.md has the results of each kind.
"""

from typing import Any

import base
import number_words
from ml_collections import ConfigDict

LONGEST = 32  # tokens per side in training, EOS included
# What a kind of position changes, besides its name.
POSITIONS: dict[str, dict[str, Any]] = {
    "sinusoidal": {},
    "learned": {"model.max_positions": LONGEST},
    "none": {},
    "relative": {"model.clip": 16},
    "disentangled": {"model.clip": 16},
    "rotary": {},
    "alibi": {},
}


def get_config(positions: str = "sinusoidal") -> ConfigDict:
    """Return the configuration of a kind of position, one of ``POSITIONS``."""
    changes = base.choose(POSITIONS, positions)
    config = number_words.get_config()
    config.name = f"length_{positions}"
    config.data.digits = 6
    config.data.test_digits = 9
    config.data.max_length = LONGEST
    config.model.positions = positions
    config.update_from_flattened_dict(changes)
    return config
