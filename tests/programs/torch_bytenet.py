"""Compute the hidden states of a ByteNet with torch, in float64.

    PYTHONPATH=tests python tests/programs/torch_bytenet.py FILE

made tests/golden/torch_bytenet.npz, which is committed. Each sentence is run alone, on
a grid that is cut to its own length: the effects of padding are not repeated here.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from support import bytenet_case as case
from torch import Tensor
from torch.nn import functional as F

Values = dict[str, Tensor]


def norm_relu(p: Values, name: str, x: Tensor) -> Tensor:
    """Normalise the channels of x (C, T), and cut off what is below 0."""
    scale, bias = p[f"{name}.scale"], p[f"{name}.bias"]
    return F.relu(F.layer_norm(x.T, scale.shape, scale, bias, eps=1e-6)).T


def convolve(p: Values, name: str, x: Tensor, width: int, rate: int, causal: bool):
    """Convolve x (C, T) with a kernel that is stored as (k C, C')."""
    kernel = p[f"{name}.kernel"].reshape(width, len(x), -1).permute(2, 1, 0)
    reach = (width - 1) * rate
    ends = (reach, 0) if causal else (reach // 2, reach // 2)
    return F.conv1d(F.pad(x, ends)[None], kernel, p[f"{name}.bias"], dilation=rate)[0]


def stack(p: Values, name: str, x: Tensor, causal: bool) -> Tensor:
    """Run the blocks of a stack over x (2 d, T)."""
    for i in range(case.SETS):
        for j in range(case.BLOCKS):
            block = f"{name}_{i}.blocks_{j}"
            y = norm_relu(p, f"{block}.norm_1", x)
            y = convolve(p, f"{block}.narrow", y, 1, 1, causal)
            y = norm_relu(p, f"{block}.norm_2", y)
            y = convolve(p, f"{block}.convolve", y, case.KERNEL, 2**j, causal)
            y = norm_relu(p, f"{block}.norm_3", y)
            x = x + convolve(p, f"{block}.widen", y, 1, 1, causal)
    return x


def logits(p: Values, source: Tensor, inputs: Tensor, grid: int) -> Tensor:
    """Score the ids after each of the inputs (T,) of a source (S,), (T, V)."""
    root, steps = case.WIDE**0.5, len(inputs)
    x = F.pad(root * p["source_embedding"][source].T, (0, grid - len(source)))
    columns = stack(p, "encoder", x, causal=False)
    columns = F.pad(columns, (0, max(steps - grid, 0)))[:, :steps]
    y = root * p["target_embedding"][inputs].T + columns
    y = stack(p, "decoder", y, causal=True)
    hidden = F.relu(convolve(p, "finish", y, 1, 1, causal=True))
    return hidden.T @ p["output"].T


def main(path: str) -> None:
    """Write the logits of both sentences to a file of arrays."""
    p = {name: torch.from_numpy(x).double() for name, x in case.arrays().items()}
    rows = zip(case.SOURCE, case.INPUTS, case.LENGTHS, case.GRIDS, strict=True)
    found = [
        logits(p, torch.from_numpy(source[:length]), torch.from_numpy(inputs), grid)
        for source, inputs, length, grid in rows
    ]
    np.savez_compressed(path, logits=torch.stack(found).numpy().astype(np.float32))


if __name__ == "__main__":
    main(sys.argv[1])
