"""This project's recurrent models of the sizes and parameters that peers have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import sizes
from flax.traverse_util import unflatten_dict

_OF_LUONG = {"score": "general", "attention": "global", "feeding": True}
_OF_OTHERS = {"score": "none", "attention": "none", "feeding": False}


def keys(size: sizes.Recurrent, dtype: str) -> dict[str, Any]:
    """Return the keys of ``config.model``.

    Args:
      size: of the model.
      dtype: of the operands of products.
    """
    return {
        "kind": "rnn",
        "vocab_size": 0,
        "member": size.member,
        "d_model": size.d_model,
        "embedding": size.embedding,
        "units": size.units,
        "layers": size.layers,
        "dropout": size.dropout[0],
        "context_dropout": size.dropout[1],
        "readout_dropout": size.dropout[2],
        "encoder_norm": False,  # torch's layers have no such form
        "tying": "none",
        "dtype": dtype,
        "reverse_source": False,
        "window": 0,
        "max_positions": 0,
        **(_OF_LUONG if size.member == "luong" else _OF_OTHERS),
    }


def tree(arrays: Mapping[str, np.ndarray]) -> Any:
    """Return parameters by name as the tree of a model."""
    return unflatten_dict({tuple(n.split(".")): a for n, a in arrays.items()})
