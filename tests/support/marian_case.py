"""The small model of programs/marian_values.py, as files of Transformers and Marian."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from transformer.formats.foreign import post_norm
from transformer.formats.names import names

LIMIT = 12  # tokens of an output beyond those of the source, </s> not counted
Values = dict[str, np.ndarray]


def arrays(values: Values) -> dict[str, np.ndarray]:
    """Return the parameters by their names in Transformers."""
    return {
        name.removeprefix("array "): array
        for name, array in values.items()
        if name.startswith("array ")
    }


def write_folder(values: Values, folder: Path) -> Path:
    """Write the folder that Transformers wrote."""
    folder.mkdir(parents=True)
    for name, content in values.items():
        if name.startswith("file "):
            (folder / name.removeprefix("file ")).write_bytes(content.tobytes())
    save_file(arrays(values), folder / "model.safetensors", {"format": "pt"})
    return folder


def write_npz(values: Values, folder: Path) -> Path:
    """Write the same model as Marian stores it: no padding, matrices (I, O), YAML."""
    write_folder(values, folder)
    stored, model = arrays(values), post_norm(**sizes(values))
    found: dict[str, Any] = {}
    for name in names(model):
        array = stored[name.transformers]
        if name.rows is not None:
            array = array[..., :-1] if name.width is None else array[:-1]
        array = array.T if name.turned else array
        found[name.marian] = np.atleast_2d(array)
    settings = {
        "type": "transformer",
        "dim-emb": model.d_model,
        "enc-depth": model.layers,
        "dec-depth": model.depth,
        "transformer-heads": model.heads,
        "transformer-dim-ffn": model.d_ff,
        "transformer-ffn-activation": "swish",
        "transformer-postprocess": "dan",
        "transformer-preprocess": "",
        "tied-embeddings-all": True,
        "beam-size": 4,
        "normalize": 1,
    }
    text = "".join(f"{key}: {json.dumps(x)}\n" for key, x in settings.items())
    found["special:model.yml"] = np.frombuffer(text.encode() + b"\0", np.int8)
    numbers = json.loads((folder / "vocab.json").read_text())
    for file in ("vocab.json", "config.json", "model.safetensors"):
        (folder / file).unlink()
    lines = (f"{json.dumps(x)}: {n}\n" for x, n in numbers.items() if x != "<pad>")
    (folder / "opus.vocab.yml").write_text("".join(lines))
    np.savez(folder / "model.npz", **found)
    return folder / "model.npz"


def sizes(values: Values) -> dict[str, Any]:
    """Return the keys of the model."""
    c = json.loads(values["file config.json"].tobytes())
    width, heads = c["d_model"], c["encoder_attention_heads"]
    return {
        "layers": c["encoder_layers"],
        "decoder_layers": c["decoder_layers"],
        "d_model": width,
        "d_ff": c["encoder_ffn_dim"],
        "activation": "swish",
        "heads": heads,
        "d_k": width // heads,
        "d_v": width // heads,
    }


def renumbered(values: Values) -> np.ndarray:
    """Return our id for each of theirs, by the rule, not by the code."""
    numbers = json.loads(values["file vocab.json"].tobytes())
    ordinary = [n for piece, n in numbers.items() if piece not in _SPECIAL]
    ours = {numbers[piece]: id_ for piece, id_ in _SPECIAL.items()}
    ours |= {n: 4 + i for i, n in enumerate(sorted(ordinary))}
    return np.array([ours[n] for n in range(len(numbers))])


_SPECIAL = {"<pad>": 0, "<unk>": 1, "</s>": 3}
