"""Convolutions that are computed both here and by torch.

This file needs only numpy. Parameters have this project's names; none is drawn.
"""

from __future__ import annotations

import numpy as np

from support.torch_cases import wave

# For the layer alone.
KERNEL, WIDTH, UNITS = 3, 4, 5
ROWS, LENGTH = 2, 6
WAYS = {"symmetric": False, "causal": True}

# For the whole model, with widths that vary.
EMBEDDING, OUTPUT, POSITIONS = 4, 7, 12
ENCODER = [(5, 3), (6, 3), (6, 1)]  # width and kernel of each layer
DECODER = [(6, 3), (5, 2)]
SOURCE_SIZE, TARGET_SIZE = 13, 11
SOURCES = [[7, 4, 9, 3], [5, 6, 12, 8, 10, 3], [11, 3]]
TARGET = np.array([[8, 5, 9, 3], [6, 6, 3, 0], [7, 10, 4, 5]])
EXTRA = 5  # a translation has at most length of source + this many tokens


def layer() -> dict[str, np.ndarray]:
    """Return input, parameters and the slope of a loss, of one convolution.

    Its direction v is (k m, n), the earliest input first.
    """
    return {
        "x": wave(ROWS, LENGTH, WIDTH),
        "direction": wave(KERNEL * WIDTH, UNITS, seed=1),
        "gain": wave(UNITS, seed=2),
        "bias": wave(UNITS, seed=3),
        "slopes": wave(ROWS, LENGTH, UNITS, seed=4),
    }


def shapes() -> dict[str, tuple[int, ...]]:
    """Return the shapes of the parameters of the model, by their names."""
    found: dict[str, tuple[int, ...]] = {
        "source_embedding": (SOURCE_SIZE, EMBEDDING),
        "target_embedding": (TARGET_SIZE, EMBEDDING),
        "source_positions": (POSITIONS, EMBEDDING),
        "target_positions": (POSITIONS, EMBEDDING),
        "output": (TARGET_SIZE, OUTPUT),
        "output_gain": (TARGET_SIZE,),
        "output_bias": (TARGET_SIZE,),
    }

    def linear(name: str, inputs: int, outputs: int) -> None:
        found[f"{name}.direction"] = inputs, outputs
        found[f"{name}.gain"] = found[f"{name}.bias"] = (outputs,)

    for side, blocks in (("encoder", ENCODER), ("decoder", DECODER)):
        inputs = blocks[0][0]
        linear(f"{side}_input", EMBEDDING, inputs)
        for i, (width, kernel) in enumerate(blocks):
            name = f"{side}_{i}"
            linear(f"{name}.convolution", kernel * inputs, 2 * width)
            if inputs != width:
                linear(f"{name}.residual", inputs, width)
            if side == "decoder":
                linear(f"{name}.query", width, EMBEDDING)
                linear(f"{name}.context", EMBEDDING, width)
            inputs = width
        outputs = EMBEDDING if side == "encoder" else OUTPUT
        linear(f"{side}_output", inputs, outputs)
    return found


def parameters() -> dict[str, np.ndarray]:
    """Return the parameters of the model; gains keep attention from one position."""
    found = {
        name: wave(*shape, seed=i) * (1.6 if name.endswith("gain") else 1)
        for i, (name, shape) in enumerate(shapes().items())
    }
    found["output_bias"][:3] = -9  # no padding is written
    return found


def source() -> np.ndarray:
    """Return the sources as one array, padded."""
    longest = max(map(len, SOURCES))
    return np.array([ids + [0] * (longest - len(ids)) for ids in SOURCES])


def slopes() -> np.ndarray:
    """Return the slope of a loss in each logit of the targets."""
    return wave(*TARGET.shape, TARGET_SIZE, seed=40)
