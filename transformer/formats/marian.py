"""Marian's own files: an ``.npz`` with its settings in YAML, and pieces beside it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from transformer import config
from transformer.data.tokenizers.marian import read_numbers, rest_of
from transformer.files.digests import sha256
from transformer.formats.arrays import rows_of
from transformer.formats.foreign import (
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

_SETTINGS = "special:model.yml"  # an array of bytes that end with NUL
# Its gelu is x sigmoid(1.702 x), which models here do not have.
_ACTIVATIONS = {"relu": "relu", "swish": "swish"}
_EPSILON = 1e-6  # of its layer norms
# Settings with the value that they must have, and have if absent.
_FIXED: dict[str, Any] = {
    "type": "transformer",
    "right-left": False,
    "transformer-preprocess": "",
    "transformer-postprocess-top": "",
    "transformer-ffn-depth": 2,
    "transformer-decoder-autoreg": "self-attention",
    "transformer-train-position-embeddings": False,
    "transformer-tied-layers": [],
    "transformer-no-projection": False,
    "lemma-dim-emb": 0,
}
_BESIDE = ("vocab.yml", "vocab.json")  # the number of each piece
_DEEPEST = 4  # lists within lists of settings


def load(path: Path) -> Foreign:
    """Read a model.

    Args:
      path: the ``.npz``. Beside it lie source.spm, target.spm and the number of each
        piece: one file named vocab.json, vocab.yml or ending in .vocab.yml; perhaps
        also how to search: NAME.npz.decoder.yml, which Marian writes, or decoder.yml.

    Raises:
      UserError: if it is of another architecture, or incomplete.
    """
    stored = _stored(path)
    settings = _settings(path, stored)
    for key, value in _FIXED.items():
        if settings.get(key, value) != value:
            refuse(path, f"{key}: {json.dumps(value)}", settings[key])
    names_file = _beside(path)
    numbers = _numbers(names_file)
    pieces = rest_of(numbers, str(names_file))
    pad = len(numbers)  # there is none: a row of zeros, from which the decoder starts
    numbers |= {"<pad>": pad}
    model = _keys(path, settings, stored)
    given = _named(path, model, stored)
    check(path, model, given, len(numbers))
    vocabulary, digests = marian_vocabulary(path.parent, pieces)
    rows = rows_of(pad, numbers["<unk>"], pad, numbers["</s>"], len(numbers))
    decoder = _decoder(path)
    place = decoder or path
    how = settings | (_yaml_file(place) if decoder else {})
    if how.get("word-penalty", 0) != 0:
        refuse(place, "word-penalty: 0", how["word-penalty"])
    return Foreign(
        model,
        ours(model, given, rows),
        vocabulary,
        {
            "beam": beam(place, how, "beam-size", 6),
            "alpha": exponent(place, how, "normalize"),
        },
        {},
        512,
        {p.name: sha256(p) for p in (path, names_file, decoder) if p} | digests,
    )


def _stored(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as file:
            found = {name: file[name] for name in file.files}
    except (OSError, ValueError, KeyError, EOFError) as error:
        refuse(path, "an .npz of Marian", str(error).splitlines()[0])
    except Exception as error:  # of zipfile, for what is no archive
        refuse(path, "an .npz of Marian", f"{type(error).__name__}: {error}")
    for name, array in found.items():
        if np.asarray(array).dtype.kind not in "fiu":
            refuse(path, f"numbers in {name}", np.asarray(array).dtype)
    return found


def _settings(path: Path, stored: dict[str, np.ndarray]) -> dict[str, Any]:
    if _SETTINGS not in stored:
        refuse(path, f"settings in {_SETTINGS}", "none")
    text = stored.pop(_SETTINGS).tobytes().rstrip(b"\0").decode("utf-8", "replace")
    return _yaml(path, text)


def _yaml_file(path: Path, texts: bool = False) -> dict[str, Any]:
    return _yaml(path, path.read_bytes().decode("utf-8", "replace"), texts)


def _yaml(path: Path, text: str, texts: bool = False) -> dict[str, Any]:
    import yaml

    # Neither loader makes objects; those in C are 10 times as fast.
    safe = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    plain = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    loader = plain if texts else safe
    try:
        _check_flat(path, yaml.parse(text, loader))
        values = yaml.load(text, loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        refuse(path, "YAML", str(error).splitlines()[0])
    if not isinstance(values, dict):
        refuse(path, "settings by name in YAML", type(values).__name__)
    return values


def _check_flat(path: Path, events: Iterable[Any]) -> None:
    """Refuse what overflows the parser's stack or grows when expanded."""
    import yaml

    depth = 0
    for event in events:
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST or isinstance(event, yaml.AliasEvent):
            refuse(path, "settings and lists in YAML", "nested ones or an alias")


def _beside(path: Path) -> Path:
    found = [path.parent / name for name in _BESIDE if (path.parent / name).is_file()]
    lists = sorted(path.parent.glob("*.vocab.yml"))
    if not (found := found or lists):
        refuse(path.parent, f"one of {', '.join(_BESIDE)}, *.vocab.yml", "none")
    if len({sha256(one) for one in found}) > 1:
        names = " and ".join(one.name for one in found[:2])
        refuse(path.parent, "one list of pieces for both languages", names)
    return found[0]


def _decoder(path: Path) -> Path | None:
    """Return the file that says how a model is to be searched, if there is one."""
    places = path.with_name(f"{path.name}.decoder.yml"), path.with_name("decoder.yml")
    return next((place for place in places if place.is_file()), None)


def _numbers(path: Path) -> dict[str, int]:
    """Return the number of each piece but the padding."""
    # YAML does not read every JSON text.
    given = read_numbers(path) if path.suffix == ".json" else _listed(path)
    return {piece: n for piece, n in given.items() if piece != "<pad>"}


def _listed(path: Path) -> dict[str, int]:
    """Return the number of each piece of a list in YAML."""
    # Strings only: a piece such as "no" or "1" is neither a truth value nor a number.
    values = _yaml_file(path, texts=True)
    texts = values.values()
    if not all(isinstance(n, str) and n.isdecimal() and len(n) < 10 for n in texts):
        refuse(path, "a number for each piece", "something else")
    return {piece: int(n) for piece, n in values.items()}


def _keys(
    path: Path, settings: Mapping[str, Any], stored: Mapping[str, np.ndarray]
) -> config.Transformer:
    def one(key: str) -> int:
        if type(value := settings.get(key)) is not int or value < 1:
            refuse(path, f"a number above 0 for {key}", value)
        return value

    heads, width = one("transformer-heads"), one("dim-emb")
    if width % heads or width % 2:
        refuse(path, f"an even dim-emb, a multiple of {heads} heads", width)
    name = settings.get("transformer-ffn-activation", "swish")
    if not isinstance(name, str) or name not in _ACTIVATIONS:
        wanted = ", ".join(_ACTIVATIONS)
        refuse(path, f"transformer-ffn-activation of {wanted}", name)
    if settings.get("transformer-postprocess", "dan") not in ("dan", "an"):
        got = settings["transformer-postprocess"]
        refuse(path, "transformer-postprocess: dan", got)
    if not settings.get("tied-embeddings-all"):
        refuse(path, "tied-embeddings-all: true", "other tables")
    layers, depth = one("enc-depth"), one("dec-depth")
    check_depth(path, layers, depth, stored)
    dropout = float(number(path, settings, "transformer-dropout", 0.1))
    return post_norm(
        layers=layers,
        decoder_layers=0 if depth == layers else depth,
        d_model=width,
        d_ff=one("transformer-dim-ffn"),
        activation=_ACTIVATIONS[name],
        heads=heads,
        d_k=width // heads,
        d_v=width // heads,
        dropout=dropout,
        norm_epsilon=_EPSILON,
    )


def _named(
    path: Path, c: config.Transformer, stored: Mapping[str, np.ndarray]
) -> dict[Name, np.ndarray]:
    """Return the arrays by the parameter that each is, with the row of the padding."""
    left, found = dict(stored), {}
    for name in names(c):
        if (array := left.pop(name.marian, None)) is None:
            continue
        array = np.asarray(array, np.float32)
        if not (name.turned or name.width == 1):
            array = array.reshape(-1)
        if name.rows is not None and array.ndim:
            array = np.concatenate([array, np.zeros_like(array[:1])])
        found[name] = array
    rest = [name for name in left if not name.startswith("special:")]
    if rest:
        refuse(path, "the arrays of a plain Transformer", f"{sorted(rest)[0]} too")
    return found
