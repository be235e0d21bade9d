"""Compute with transformers' DeBERTa what the tests compare this project with.

    python tests/programs/deberta_values.py tests/golden/deberta.npz

made the committed values, with torch and transformers installed. The file also holds
weights and inputs.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from transformers import DebertaV2Config
from transformers.models.deberta_v2 import modeling_deberta_v2 as deberta

# Numbers of buckets, and the distance that the last one is for.
BUCKETS = [(256, 512), (32, 128), (4, 9), (5, 40)]
# By name: length, k, farthest distance; 0 = no buckets.
CASES = {"linear": (6, 3, 0), "buckets": (14, 4, 10)}
ROWS, WIDTH, HEADS = 2, 8, 2


def attention(name: str) -> dict[str, np.ndarray]:
    """Return weights, inputs and results of one self-attention."""
    length, clip, farthest = CASES[name]
    settings = DebertaV2Config(
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        relative_attention=True,
        pos_att_type=["c2p", "p2c"],
        share_att_key=False,
        position_buckets=clip if farthest else -1,
        max_relative_positions=farthest or clip,
    )
    made = deberta.DisentangledSelfAttention(settings).double().eval()
    draw = np.random.default_rng(sum(map(ord, name)))
    arrays: dict[str, np.ndarray] = {"x": draw.normal(size=(ROWS, length, WIDTH))}
    arrays["table"] = draw.normal(size=(2 * clip, WIDTH))
    for part, parameter in made.named_parameters():
        arrays[part] = draw.normal(size=tuple(parameter.shape)) / 2
        parameter.data.copy_(torch.from_numpy(arrays[part]))
    mask = np.arange(length) < np.array([[length], [length - 2]])
    arrays["mask"] = mask
    output, weights = made(
        torch.from_numpy(arrays["x"]),
        torch.from_numpy(mask)[:, None, None],
        output_attentions=True,
        rel_embeddings=torch.from_numpy(arrays["table"]),
    )
    arrays |= {"output": output.detach().numpy(), "weights": weights.detach().numpy()}
    return {f"{name}.{part}": array for part, array in arrays.items()}


def main(path: str) -> None:
    """Write all values to a file of arrays."""
    arrays: dict[str, np.ndarray] = {}
    for name in CASES:
        arrays |= attention(name)
    for buckets, farthest in BUCKETS:
        distances = torch.arange(-2 * farthest, 2 * farthest + 1)
        found = deberta.make_log_bucket_position(distances, buckets, farthest)
        arrays[f"of_{buckets}_to_{farthest}"] = found.to(torch.long).numpy()
    for name, array in arrays.items():
        if array.dtype.kind == "f":
            arrays[name] = array.astype(np.float32)
    np.savez_compressed(path, allow_pickle=False, **arrays)


if __name__ == "__main__":
    main(sys.argv[1])
