"""A ByteNet that is computed both here and by torch; this file needs only numpy."""

from __future__ import annotations

import math

import numpy as np

from support.torch_cases import wave

V, WIDE, SETS, BLOCKS, KERNEL = 13, 6, 2, 3, 3
# 6 and 3 tokens with EOS: grids of 8 and 4 columns; the batch pads the second.
LENGTHS, GRIDS = (6, 3), (8, 4)
SOURCE = np.array([[5, 9, 4, 12, 7, 3], [8, 6, 3, 0, 0, 0]])
# More steps than there are columns.
INPUTS = np.array([[2, 7, 7, 4, 11, 5, 9, 10, 6, 8], [2, 12, 4, 8, 5, 6, 9, 9, 4, 10]])

Shapes = dict[str, tuple[int, ...]]


def shapes() -> Shapes:
    """Return the shapes of all parameters by path, matrices as (in, out)."""
    d = WIDE // 2
    block: Shapes = {
        "narrow.kernel": (WIDE, d),
        "convolve.kernel": (KERNEL * d, d),
        "widen.kernel": (d, WIDE),
        "narrow.bias": (d,),
        "convolve.bias": (d,),
        "widen.bias": (WIDE,),
    }
    for i, size in enumerate((WIDE, d, d), start=1):
        block |= {f"norm_{i}.scale": (size,), f"norm_{i}.bias": (size,)}
    found: Shapes = {
        name: (V, WIDE) for name in ("source_embedding", "target_embedding", "output")
    }
    for stack in ("encoder", "decoder"):
        for i in range(SETS):
            for j in range(BLOCKS):
                prefix = f"{stack}_{i}.blocks_{j}"
                found |= {f"{prefix}.{name}": shape for name, shape in block.items()}
    return found | {"finish.kernel": (WIDE, WIDE), "finish.bias": (WIDE,)}


def arrays() -> dict[str, np.ndarray]:
    """Return the parameters by path; scales are near 1."""
    found = {}
    for seed, (name, shape) in enumerate(shapes().items()):
        inputs = shape[0] if name.endswith("kernel") else 4
        array = wave(*shape, seed=seed) / math.sqrt(inputs)
        found[name] = (array + name.endswith("scale")).astype(np.float32)
    return found
