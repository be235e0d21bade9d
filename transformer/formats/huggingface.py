"""Folders of Transformers (Hugging Face), ``MarianMTModel``: read, and written."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from transformer import config
from transformer.config import UserError
from transformer.data.tokenizers import Marian, SentencePiece
from transformer.data.tokenizers.marian import read_numbers, rest_of
from transformer.files.digests import sha256
from transformer.files.objects import read_object
from transformer.files.whole import write_json, write_whole
from transformer.formats import card
from transformer.formats.arrays import (
    Arrays,
    halved,
    rows_of,
    their_rows,
)
from transformer.formats.foreign import (
    ANOTHER,
    EPSILON,
    Foreign,
    beam,
    check,
    check_depth,
    exponent,
    marian_vocabulary,
    number,
    ours,
    post_norm,
    refuse,
)
from transformer.formats.names import Name, names
from transformer.formats.outgoing import (
    Outgoing,
    cannot,
    numbered,
    one_numbering,
    outgoing,
    pieces_model,
)
from transformer.nn.positions import POSITIONS
from transformer.translate import Translator

QUANTIZATIONS = ("float16", "bfloat16")
_ACTIVATIONS = {"relu": "relu", "swish": "swish", "silu": "swish", "gelu": "gelu"}
# Keys of a search, with the value that changes nothing.
_NEUTRAL: dict[str, Any] = {
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "repetition_penalty": 1.0,
    "diversity_penalty": 0.0,
    "min_length": 0,
    "min_new_tokens": 0,
    "num_beam_groups": 1,
    "suppress_tokens": [],
    "begin_suppress_tokens": [],
    "bad_words_ids": [],
    "forced_bos_token_id": None,
    "do_sample": False,
}
# Keys of config.json: the value that each must have, and the value of one left out.
_FIXED: dict[str, tuple[Any, Any]] = {
    "scale_embedding": (True, False),
    "normalize_before": (False, False),
    "normalize_embedding": (False, False),
    "add_final_layer_norm": (False, False),
    "static_position_embeddings": (True, True),
    "add_bias_logits": (False, False),
    "is_encoder_decoder": (True, True),
}
_SINUSOIDS = 1e-6  # how far tables may be from them: they are rounded to float32
_POSITIONS = 1024  # rows of the tables of an exported model


def load(folder: Path) -> Foreign:
    """Read a folder.

    Args:
      folder: with config.json, model.safetensors, vocab.json and both .spm files.

    Raises:
      UserError: if it is of another architecture, incomplete, or holds pickles only.
    """
    settings = read_object(folder / "config.json", ANOTHER)
    place = folder / "config.json"
    if (kind := settings.get("model_type")) != "marian":
        refuse(place, "model_type marian", repr(kind))
    for key, (value, absent) in _FIXED.items():
        if (got := settings.get(key, absent)) != value:
            refuse(place, f"{key} = {json.dumps(value)}", json.dumps(got))
    stored, files = _stored(folder)
    numbers = read_numbers(folder / "vocab.json")
    pieces = rest_of(numbers, str(folder / "vocab.json"))
    _check_numbers(folder, settings, numbers)
    model = _keys(place, settings, stored)
    arrays = _named(folder, model, stored, len(numbers))
    check(folder, model, arrays, len(numbers))
    vocabulary, digests = marian_vocabulary(folder, pieces)
    search, unused = _search(folder, settings)
    start = settings["decoder_start_token_id"]
    pad, unknown, end = (numbers[piece] for piece in ("<pad>", "<unk>", "</s>"))
    rows = rows_of(pad, unknown, start, end, len(numbers))
    return Foreign(
        model,
        ours(model, arrays, rows),
        vocabulary,
        search,
        _languages(folder),
        min(settings.get("max_position_embeddings", 512), 512),
        files | digests | {"vocab.json": sha256(folder / "vocab.json")},
        unused,
    )


def _keys(
    place: Path, settings: Mapping[str, Any], stored: Mapping[str, np.ndarray]
) -> config.Transformer:
    """Return the keys of the model."""

    def one(*keys: str) -> int:
        values: list[Any] = [settings.get(key) for key in keys]
        first = values[0]
        whole = all(type(value) is int for value in values)
        if not whole or len({*values}) != 1 or first < 1:
            refuse(place, f"one number above 0 for {' and '.join(keys)}", values)
        return first

    width = one("d_model")
    heads = one("encoder_attention_heads", "decoder_attention_heads")
    if width % heads or width % 2:
        refuse(place, f"an even d_model, a multiple of {heads} heads", width)
    name = settings.get("activation_function", "gelu")
    if not isinstance(name, str) or name not in _ACTIVATIONS:
        refuse(place, f"activation_function of {', '.join(_ACTIVATIONS)}", name)
    shared = settings.get("share_encoder_decoder_embeddings", True)
    tied = settings.get("tie_word_embeddings", True)
    layers, depth = one("encoder_layers"), one("decoder_layers")
    check_depth(place, layers, depth, stored)
    rows = one("max_position_embeddings")
    positions: dict[str, Any] = {}
    if not _are_sinusoids(stored, rows, width):
        positions = {"positions": "learned", "max_positions": rows}
    return post_norm(
        layers=layers,
        decoder_layers=0 if depth == layers else depth,
        d_model=width,
        d_ff=one("encoder_ffn_dim", "decoder_ffn_dim"),
        activation=_ACTIVATIONS[name],
        heads=heads,
        d_k=width // heads,
        d_v=width // heads,
        dropout=float(number(place, settings, "dropout", 0.1)),
        tying="three" if shared else "two" if tied else "none",
        **positions,
    )


def _are_sinusoids(stored: Mapping[str, np.ndarray], rows: int, width: int) -> bool:
    """Return whether all tables of positions in a file are the computed sinusoids."""
    tables = [
        x for name, x in stored.items() if name.endswith("embed_positions.weight")
    ]

    def is_plain(table: np.ndarray) -> bool:
        plain = halved(np.asarray(POSITIONS["sinusoidal"](rows, width)), 1)
        return abs(table - plain).max() <= _SINUSOIDS

    # No table is computed for more rows than are there, whatever config.json says.
    return all(table.shape == (rows, width) and is_plain(table) for table in tables)


def _check_numbers(
    folder: Path, settings: Mapping[str, Any], numbers: Mapping[str, int]
) -> None:
    """Check that config.json and vocab.json belong together."""
    place, size = folder / "config.json", len(numbers)
    if (folder / "target_vocab.json").exists():
        refuse(folder, "one vocab.json for both languages", "target_vocab.json too")
    if "<pad>" not in numbers:
        refuse(folder / "vocab.json", "<pad> among the pieces", "none")
    wanted = {
        "vocab_size": size,
        "decoder_vocab_size": size,
        "eos_token_id": numbers["</s>"],
        "pad_token_id": numbers["<pad>"],
    }
    for key, value in wanted.items():
        if settings.get(key, value) != value:
            refuse(place, f"{key} = {value}, as in vocab.json", settings[key])
    start = settings.get("decoder_start_token_id")
    if type(start) is not int or not 0 <= start < size:
        refuse(place, f"decoder_start_token_id from 0 to {size - 1}", start)


def _stored(folder: Path) -> tuple[Arrays, dict[str, str]]:
    """Return the arrays of a folder's safetensors files, and the files' digests."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    index = folder / "model.safetensors.index.json"
    paths = [folder / "model.safetensors"]
    if index.is_file():
        named = read_object(index, ANOTHER).get("weight_map", {})
        shards: list[Any] = [*named.values()] if isinstance(named, dict) else [None]
        if not all(isinstance(name, str) for name in shards):
            refuse(index, "a file name for each array in weight_map", "others")
        paths = [folder / Path(name).name for name in sorted({*shards})]
    missing = [path for path in paths if not path.is_file()]
    if missing and list(folder.glob("pytorch_model*.bin")):
        raise UserError(
            f"{folder}: expected model.safetensors, found pytorch_model.bin, a pickle, "
            "which may run any code and is not opened; take a revision with "
            "safetensors, the .npz of the original release, or convert it with "
            "save_pretrained(safe_serialization=True) where you trust it"
        )
    if missing or not paths:
        refuse(folder, "model.safetensors", "none")
    arrays: Arrays = {}
    try:
        for path in paths:
            arrays |= load_file(path)
    except (SafetensorError, ValueError, TypeError) as error:
        refuse(path, "a safetensors file", error)
    except (AttributeError, KeyError) as error:
        refuse(path, "arrays of types that numpy supports", error)
    arrays = {name: np.asarray(x, np.float32) for name, x in arrays.items()}
    return arrays, {path.name: sha256(path) for path in paths}


# If an array has several names, a file keeps one of them.
_TABLES = ("encoder.embed_tokens", "decoder.embed_tokens", "shared")


def _named(
    folder: Path, c: config.Transformer, stored: Mapping[str, np.ndarray], size: int
) -> dict[Name, np.ndarray]:
    """Return the arrays of a file by the parameter that each is, matrices (I, O).

    ``size``: pieces, the rows of a table.
    """
    left, found = dict(stored), {}
    aliases = [f"model.{table}.weight" for table in _TABLES] + ["lm_head.weight"]
    tables = {name: left.pop(name) for name in aliases if name in left}
    for name in names(c):
        theirs = name.transformers
        if theirs in aliases:
            candidates = [theirs] if theirs in tables else _same_table(c, theirs)
            array = next((tables[x] for x in candidates if x in tables), None)
        else:
            array = left.pop(theirs, None)
        if array is None:
            continue
        if theirs == "final_logits_bias":
            array = array.reshape(-1)
        found[name] = array.T if name.turned else array
    kept = {id(array) for array in found.values()}
    if any(
        id(array) not in kept
        and not any(np.array_equal(array, other) for other in found.values())
        for array in tables.values()
    ):
        refuse(folder, "one table where config.json ties them", "several")
    if "output_bias" not in [name.ours for name in found]:
        bias = next(name for name in names(c) if name.ours == "output_bias")
        found[bias] = np.zeros(size, np.float32)
    rest = [x for x in left if not x.endswith("embed_positions.weight")]
    if rest:
        refuse(folder, "the arrays of a MarianMTModel", f"{sorted(rest)[0]} too")
    return found


def _same_table(c: config.Transformer, name: str) -> list[str]:
    """Return what else a table may be called."""
    decoder = ["model.decoder.embed_tokens.weight", "lm_head.weight"]
    if c.tying == "three":
        return ["model.encoder.embed_tokens.weight", *decoder]
    return decoder if c.tying == "two" and name in decoder else []


def _search(
    folder: Path, settings: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return how to search, and what of it is not used."""
    path = folder / "generation_config.json"
    own = read_object(path, ANOTHER) if path.is_file() else {}
    given = {**settings, **own}

    def place(key: str) -> Path:
        return path if key in own else folder / "config.json"

    used = {
        "beam": beam(place("num_beams"), given, "num_beams", 1),
        "alpha": exponent(place("length_penalty"), given, "length_penalty"),
    }
    # No search here writes <pad>, which a usual configuration forbids.
    neutral: dict[str, tuple[Any, ...]] = {k: (v, None) for k, v in _NEUTRAL.items()}
    neutral["bad_words_ids"] += ([[given.get("pad_token_id")]],)
    kept = {k: given[k] for k in neutral if k in given and given[k] not in neutral[k]}
    return used, kept


def _languages(folder: Path) -> dict[str, str]:
    path = folder / "tokenizer_config.json"
    given = read_object(path, ANOTHER) if path.is_file() else {}
    found = {f"{x}_language": given.get(f"{x}_lang") for x in ("source", "target")}
    return {key: value for key, value in found.items() if isinstance(value, str)}


# ---- written -------------------------------------------------------------------------


def save(
    translator: Translator, folder: Path, quantization: str, results: dict[str, Any]
) -> None:
    """Write a folder that ``AutoModelForSeq2SeqLM`` and its tokenizer load.

    The row of ``<pad>``, from which the decoder starts there, is that of our ``<s>``.

    Args:
      translator: the run.
      folder: exists and is empty.
      quantization: "", or one of ``QUANTIZATIONS``, the dtype of the arrays.
      results: of its evaluation, for the card.

    Raises:
      UserError: for what the format cannot hold.
    """
    from safetensors.numpy import save as serialized

    it = _fitting(translator)
    dtype = quantization or "float32"
    c, rows = it.model, their_rows(translator.vocabulary.source.size)
    arrays = it.arrays | {f"{x}_positions": table for x, table in it.positions.items()}
    computed = c.positions == "sinusoidal" and not c.target_space
    kept = dataclasses.replace(
        c, positions="sinusoidal" if computed else "learned", output_bias=True
    )
    zeros = np.zeros(len(arrays["source_embedding"]), np.float32)
    arrays.setdefault("output_bias", zeros)
    stored = {}
    for name in names(kept):
        array = theirs(name, arrays[name.ours], rows)
        stored[name.transformers] = array.astype(jnp.dtype(dtype))
    content = serialized(stored, metadata={"format": "pt"})
    write_whole(folder / "model.safetensors", content)
    last, longest = len(rows) - 1, len(it.positions["source"])
    write_json(folder / "config.json", _config_of(kept, last, longest, dtype))
    how = translator.settings.decode
    search = _special(last) | {
        "num_beams": how.beam,
        "length_penalty": how.alpha,
        "early_stopping": True,
        "renormalize_logits": True,
        "bad_words_ids": [[last]],
        "max_length": min(512, longest),
    }
    write_json(folder / "generation_config.json", search)
    _write_tokenizer(translator, folder, min(512, longest))
    notes = _notes(translator, kept, quantization)
    page = card.text(translator.settings, "transformers", results, notes)
    write_whole(folder / "README.md", page.encode())


def theirs(name: Name, array: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return a parameter as Transformers has it: the inverse of ``foreign.ours``."""
    if name.rows is not None:
        array = np.take(array, rows, name.rows)
    if name.width is not None:
        array = halved(array, name.width)
    if name.ours == "output_bias":
        array = array[None].copy()
        array[0, -1] = 0.0  # of <pad>, which bad_words_ids forbids
    return np.ascontiguousarray(array.T if name.turned else array)


def _fitting(translator: Translator) -> Outgoing:
    """Return the model if the format can hold it."""
    c = config.transformer(translator.settings.model)
    if c.norm != "post":
        cannot("model.norm", "post", c.norm)
    if c.d_model % 2:
        cannot("model.d_model", "an even number", c.d_model)
    vocabulary = translator.vocabulary
    if not isinstance(vocabulary.source, Marian | SentencePiece):
        kind = translator.settings.tokenizer.kind
        cannot("tokenizer.kind", "sentencepiece or marian", kind)
    if not one_numbering(vocabulary):
        cannot("tokenizer.joint", True, False)
    pieces = numbered(vocabulary.source)
    if len({*pieces, "</s>", "<unk>", "<pad>"}) != len(pieces) + 3:
        cannot("tokenizer", "distinct pieces, none of them special", "others")
    return outgoing(translator, _POSITIONS)


def _special(last: int) -> dict[str, Any]:
    return {
        "bos_token_id": None,
        "eos_token_id": 0,
        "pad_token_id": last,
        "decoder_start_token_id": last,
        "forced_eos_token_id": 0,
    }


def _config_of(
    c: config.Transformer, last: int, positions: int, dtype: str
) -> dict[str, Any]:
    return _special(last) | {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "is_encoder_decoder": True,
        "vocab_size": last + 1,
        "decoder_vocab_size": last + 1,
        "d_model": c.d_model,
        "encoder_layers": c.layers,
        "decoder_layers": c.depth,
        "encoder_attention_heads": c.heads,
        "decoder_attention_heads": c.heads,
        "encoder_ffn_dim": c.d_ff,
        "decoder_ffn_dim": c.d_ff,
        "activation_function": c.activation,
        "dropout": c.dropout,
        "attention_dropout": c.attention_dropout,
        "activation_dropout": c.relu_dropout,
        "scale_embedding": True,
        "static_position_embeddings": True,
        "share_encoder_decoder_embeddings": c.tying == "three",
        "tie_word_embeddings": c.tying != "none",
        "max_position_embeddings": positions,
        "dtype": dtype,
    }


def _write_tokenizer(translator: Translator, folder: Path, longest: int) -> None:
    vocabulary, data = translator.vocabulary, translator.settings.data
    pieces = ["</s>", "<unk>", *numbered(vocabulary.source), "<pad>"]
    write_json(folder / "vocab.json", {piece: i for i, piece in enumerate(pieces)})
    for side in ("source", "target"):
        model = pieces_model(translator, side)
        assert model is not None
        write_whole(folder / f"{side}.spm", model)
    values = {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": data.source_language,
        "target_lang": data.target_language,
        "separate_vocabs": False,
        "model_max_length": longest,
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "pad_token": "<pad>",
    }
    write_json(folder / "tokenizer_config.json", values)


def _notes(
    translator: Translator, c: config.Transformer, quantization: str
) -> list[str]:
    epsilon = translator.settings.model.norm_epsilon  # type: ignore[attr-defined]
    notes = [
        card.search_note(translator.settings, "`length_penalty`"),
        "The decoder starts from `<pad>`, whose embedding is learned: software that "
        "takes it for zeros, such as CTranslate2's converter, translates worse; "
        "`transformer export --to=ctranslate2` writes a CTranslate2 folder directly.",
    ]
    if c.positions == "learned":
        notes.append(
            "The file has tables of positions (`embed_positions`). They are read, but "
            "`save_pretrained` leaves them out: copy model.safetensors instead."
        )
    if epsilon != EPSILON:
        notes.append(
            f"Layer norms add {EPSILON:g} to the variance there, {epsilon:g} here."
        )
    if quantization:
        notes.append(f"Its arrays were rounded to {quantization}.")
    return notes
