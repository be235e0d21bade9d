"""Folders of CTranslate2: a Transformer, written without that package.

``model.bin`` is its binary format, version 6: names, shapes and bytes of arrays, then
other names of the same arrays. Pieces are words of a list, so any tokenizer will do.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import jax.numpy as jnp
import numpy as np

from transformer.files.whole import write_json, write_whole
from transformer.formats import card
from transformer.formats.outgoing import Outgoing, cannot, outgoing, pieces_model
from transformer.translate import Translator

QUANTIZATIONS = ("int8", "float16", "bfloat16")
_VERSION, _SPECIFICATION, _REVISION = 6, "TransformerSpec", 7
_TYPES = ("float32", "int8", "int16", "int32", "float16", "bfloat16")  # by number
_ACTIVATIONS = {"relu": 0, "swish": 2, "gelu": 3}
_POSITIONS = 2048  # rows of tables; a source is cut at 1,024 there

Variables = dict[str, np.ndarray]


def save(
    translator: Translator, folder: Path, quantization: str, results: dict[str, Any]
) -> None:
    """Write a folder that ``ctranslate2.Translator`` loads.

    Args:
      translator: the run.
      folder: exists and is empty.
      quantization: "", or one of ``QUANTIZATIONS``: int8 matrices have a scale of each
        row, ``127 / max|w|``.
      results: of its evaluation, for the card.

    Raises:
      UserError: for what the format cannot hold.
    """
    it = outgoing(translator, _POSITIONS, relative=True)
    vocabulary = translator.vocabulary
    lists = {
        side: tokenizer.pieces(range(tokenizer.size))
        for side, tokenizer in (
            ("source", vocabulary.source),
            ("target", vocabulary.target),
        )
    }
    for side, pieces in lists.items():
        if len({*pieces}) != len(pieces):
            cannot("tokenizer", f"distinct {side} pieces", "duplicates")
    variables, aliases = unique(variables_of(it))
    variables = quantized(variables, quantization)
    with open(folder / "model.bin", "wb") as file:
        write_variables(file, variables, aliases)
    write_json(folder / "config.json", _configuration(it))
    if lists["source"] == lists["target"]:
        lists = {"shared": lists["source"]}
    for side, pieces in lists.items():
        write_json(folder / f"{side}_vocabulary.json", pieces)
    for side in ("source", "target"):
        if (model := pieces_model(translator, side)) is not None:
            write_whole(folder / f"{side}.spm", model)
    notes = [
        "A source is a list of pieces, without `</s>`, which is added.",
        card.search_note(translator.settings, "`length_penalty`"),
        "Lengths there do not count `</s>` unless `return_end_token` is set.",
    ]
    page = card.text(translator.settings, "ctranslate2", results, notes)
    write_whole(folder / "README.md", page.encode())


def _configuration(it: Outgoing) -> dict[str, Any]:
    return {
        "add_source_bos": False,
        "add_source_eos": True,
        "bos_token": "<s>",
        "decoder_start_token": "<s>",
        "eos_token": "</s>",
        "layer_norm_epsilon": it.model.norm_epsilon,
        "multi_query_attention": False,
        "unk_token": "<unk>",
    }


# ---- variables -----------------------------------------------------------------------


def variables_of(it: Outgoing) -> Variables:
    """Return the variables of CTranslate2's ``TransformerSpec`` by name."""
    c, arrays = it.model, it.arrays
    found: Variables = {}
    source = arrays["source_embedding"]
    target = arrays.get("target_embedding", source)
    for side, stack, table in (
        ("source", "encoder", source),
        ("target", "decoder", target),
    ):
        found |= {
            f"{stack}/num_heads": _number(c.heads, "int16"),
            f"{stack}/pre_norm": _number(c.norm == "pre", "int8"),
            f"{stack}/activation": _number(_ACTIVATIONS[c.activation], "int8"),
            f"{stack}/scale_embeddings": _number(c.d_model**0.5, "float32"),
        }
        if it.positions:
            found[f"{stack}/position_encodings/encodings"] = it.positions[side]
        name = "embeddings_0" if stack == "encoder" else "embeddings"
        found[f"{stack}/{name}/weight"] = table
        if c.norm == "pre":
            found |= _norm(f"{stack}/layer_norm", f"{stack}_norm", arrays)
    found |= {
        "encoder/embeddings_merge": _number(0, "int8"),
        "encoder/multi_query_attention": _number(0, "int8"),
        "decoder/alibi": _number(0, "int8"),
        "decoder/alibi_use_positive_positions": _number(0, "int8"),
        "decoder/scale_alibi": _number(0, "int8"),
        "decoder/alignment_layer": _number(-1, "int16"),
        "decoder/alignment_heads": _number(1, "int16"),
        "decoder/projection/weight": arrays.get("output", target),
    }
    if c.output_bias:
        found["decoder/projection/bias"] = arrays["output_bias"]
    for stack, count in (("encoder", c.layers), ("decoder", c.depth)):
        for i in range(count):
            found |= _layer(f"{stack}/layer_{i}", f"{stack}_{i}", arrays)
    return found


def _layer(theirs: str, ours: str, arrays: Variables) -> Variables:
    """Return the variables of one layer: queries, keys and values above each other."""
    kinds = [("self_attention", [["query", "key", "value"], ["output"]])]
    if ours.startswith("decoder"):
        cross = [["query"], ["key", "value"], ["output"]]
        kinds.append(("attention", cross))
    found: Variables = {}
    for number, (kind, linears) in enumerate(kinds, start=1):
        mine = "cross_attention" if kind == "attention" else kind
        for n, parts in enumerate(linears):
            matrices = [arrays[f"{ours}.{mine}.{part}.kernel"].T for part in parts]
            biases = [arrays[f"{ours}.{mine}.{part}.bias"] for part in parts]
            found[f"{theirs}/{kind}/linear_{n}/weight"] = np.concatenate(matrices)
            found[f"{theirs}/{kind}/linear_{n}/bias"] = np.concatenate(biases)
        for part in ("key", "value"):  # rows of the distances -k to k (Shaw et al.)
            if f"{ours}.{mine}.distances.{part}" in arrays:
                table = arrays[f"{ours}.{mine}.distances.{part}"]
                found[f"{theirs}/{kind}/relative_position_{part}s"] = table
        norm = f"{ours}.residual_{number}.norm"
        found |= _norm(f"{theirs}/{kind}/layer_norm", norm, arrays)
    for n in (1, 2):
        matrix = arrays[f"{ours}.feed_forward.kernel_{n}"].T
        found[f"{theirs}/ffn/linear_{n - 1}/weight"] = matrix
        bias = arrays[f"{ours}.feed_forward.bias_{n}"]
        found[f"{theirs}/ffn/linear_{n - 1}/bias"] = bias
    norm = f"{ours}.residual_{len(kinds) + 1}.norm"
    return found | _norm(f"{theirs}/ffn/layer_norm", norm, arrays)


def _number(value: float, dtype: str) -> np.ndarray:
    return np.asarray(value, dtype)


def _norm(theirs: str, ours: str, arrays: Variables) -> Variables:
    return {
        f"{theirs}/gamma": arrays[f"{ours}.scale"],
        f"{theirs}/beta": arrays[f"{ours}.bias"],
    }


def unique(variables: Variables) -> tuple[Variables, dict[str, str]]:
    """Return every array once, under its first name, and the first names of others."""
    kept: Variables = {}
    aliases: dict[str, str] = {}
    for name in sorted(variables):
        array = variables[name]
        same = (
            other
            for other, values in kept.items()
            if array.ndim == 2 and np.array_equal(values, array)
        )
        if first := next(same, ""):
            aliases[name] = first
        else:
            kept[name] = array
    return kept, aliases


def quantized(variables: Variables, quantization: str) -> Variables:
    """Return variables in another dtype.

    Args:
      variables: float32, but for what the format counts.
      quantization: "" for none, "float16", "bfloat16", or "int8": of matrices alone,
        each row times ``127 / max|w|``, with these scales stored beside it.
    """
    if not quantization:
        return variables
    found: Variables = {}
    for name, array in variables.items():
        if array.ndim == 0:
            found[name] = array
        elif quantization != "int8":
            found[name] = array.astype(jnp.dtype(quantization))
        elif name.endswith("/weight"):
            largest = np.abs(array).max(axis=1)
            scale = np.float32(127) / np.where(largest == 0, np.float32(127), largest)
            found[name] = np.rint(array * scale[:, None]).astype(np.int8)
            found[f"{name}_scale"] = scale.astype(np.float32)
        else:
            found[name] = array
    return found


# ---- the binary format ---------------------------------------------------------------


def write_variables(
    file: BinaryIO, variables: Variables, aliases: dict[str, str]
) -> None:
    """Write ``model.bin``.

    Args:
      file: to write.
      variables: arrays by name.
      aliases: other name -> name.
    """
    file.write(struct.pack("<I", _VERSION))
    file.write(_string(_SPECIFICATION))
    file.write(struct.pack("<II", _REVISION, len(variables)))
    for name in sorted(variables):
        array = np.asarray(variables[name])
        file.write(_string(name))
        file.write(struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape))
        kind = _TYPES.index(array.dtype.name)
        file.write(struct.pack("<BI", kind, array.nbytes))
        file.write(array.tobytes())
    file.write(struct.pack("<I", len(aliases)))
    for name in sorted(aliases):
        file.write(_string(name) + _string(aliases[name]))


def read_variables(content: bytes) -> Iterator[tuple[str, np.ndarray]]:
    """Yield what ``write_variables`` wrote, arrays with several names under each."""
    place = 0

    def read(form: str) -> Any:
        nonlocal place
        values = struct.unpack_from(f"<{form}", content, place)
        place += struct.calcsize(f"<{form}")
        return values

    def string() -> str:
        nonlocal place
        (size,) = read("H")
        place += size
        return content[place - size : place - 1].decode()

    read("I")
    string()
    found: Variables = {}
    for _ in range(read("II")[1]):
        name, (rank,) = string(), read("B")
        shape = read(f"{rank}I")
        kind, size = read("BI")
        place += size
        raw = content[place - size : place]
        found[name] = np.frombuffer(raw, jnp.dtype(_TYPES[kind])).reshape(shape)
    yield from found.items()
    for _ in range(read("I")[0]):
        name, first = string(), string()
        yield name, found[first]


def _string(text: str) -> bytes:
    """Return a text with its length before it and a zero byte after it."""
    content = text.encode()
    return struct.pack("<H", len(content) + 1) + content + b"\0"
