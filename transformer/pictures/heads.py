"""What the heads of a trained model look at in a sentence pair: a page and pictures."""

from __future__ import annotations

import base64
import dataclasses
import functools
import importlib.resources
import json
import re
from collections.abc import Collection, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from transformer import models
from transformer.config import UserError
from transformer.ids import BOS, EOS, SPECIAL
from transformer.metrics.heads import KINDS
from transformer.pictures import plots
from transformer.translate import Translator, lacks_attention, load
from transformer.trees import brackets
from transformer.trees.brackets import Tree

TITLES = {
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
    "cross": "attention of the decoder to the source",
}
_LONGEST = 160  # positions of a side that a picture or a page can show


@dataclasses.dataclass(frozen=True)
class Maps:
    """The attention weights of one sentence pair, of chosen layers and heads.

    Attributes:
      texts: the sentences of "source" and "target".
      labels: the positions of both sides, for people to read. Those of the target are
        what the decoder reads, from BOS.
      following: what the decoder writes at each of its positions.
      words: for both sides the number of each position's word, -1 for special ids.
      layers: their numbers, from 1.
      heads: their numbers, from 1.
      weights: of each kind, (layers, heads, rows, columns).
      single: whether the model's layers have one head each.
      tree: the target, where it is a constituency tree.
    """

    texts: dict[str, str]
    labels: dict[str, list[str]]
    following: list[str]
    words: dict[str, list[int]]
    layers: list[int]
    heads: list[int]
    weights: dict[str, np.ndarray]
    single: bool = False
    tree: Tree | None = None


def show(
    workdir: Path,
    form: str,
    source: str,
    target: str | None = None,
    *,
    layers: str | None = None,
    heads: str | None = None,
    kind: str | None = None,
    word: str | None = None,
    step: int | None = None,
) -> str | bytes:
    """Show what the heads of a trained model look at in a sentence pair.

    Args:
      workdir: folder of the run.
      form: "html" or one of ``plots.FORMS``.
      source: a sentence.
      target: its translation, None for the model's own.
      layers: see ``look``.
      heads: see ``look``.
      kind: one of ``KINDS``; None for all in HTML, else for "cross", or "encoder" with
        a word, if the model has it.
      word: draw what this word attends to, in any form but HTML.
      step: of the checkpoint, see ``translate.load``.

    Returns:
      What the file is to hold.
    """
    if word is not None and form == "html":
        raise UserError(
            "--word: expected --output=FILE.png, .svg or .pdf with it, got .html; "
            "change it, or point at the word in the page"
        )
    translator = load(workdir, step=step)
    if form != "html" and kind is None:
        self_attends = "encoder" in sizes(translator)
        kind = "encoder" if word is not None and self_attends else "cross"
    maps = look(translator, source, target, layers=layers, heads=heads, kind=kind)
    if form == "html":
        return page(maps)
    drawn = picture(maps) if word is None else word_picture(maps, word)
    return drawn.file(form)


def sizes(translator: Translator) -> dict[str, tuple[int, int]]:
    """Return layers and heads of each kind of attention that a model has.

    Raises:
      UserError: if it has none.
    """
    ids = jax.ShapeDtypeStruct((1, 2), jnp.int32)
    weights = functools.partial(models.attention_weights, translator.model)
    found = jax.eval_shape(weights, translator.params, ids, ids)
    if not found:
        raise lacks_attention(translator.settings)
    return {kind: found[kind].shape[1:3] for kind in KINDS if kind in found}


def look(
    translator: Translator,
    source: str,
    target: str | None = None,
    *,
    layers: str | None = None,
    heads: str | None = None,
    kind: str | None = None,
) -> Maps:
    """Return what the heads look at in a sentence pair.

    Args:
      translator: a trained model.
      source: a sentence.
      target: its translation, None for the model's own.
      layers: numbers from 1, "1,3" or "1-3"; None for all, with several kinds for those
        that all of them have.
      heads: the same.
      kind: one of ``KINDS``, None for all that the model has.

    Raises:
      UserError: for a sentence without text or too long for a page, and for a kind of
        attention and numbers of layers or heads that the model does not have.
    """
    kinds = sizes(translator)
    shown = _shown(kinds, kind)
    # A picture of several kinds has the layers that all of them have.
    counts = [
        min(found) for found in zip(*(kinds[name] for name in shown), strict=True)
    ]
    asked = zip(("layers", "heads"), (layers, heads), counts, strict=True)
    chosen = [_numbers(*one) for one in asked]
    vocabulary = translator.vocabulary
    (source_ids,) = translator.source_ids([with_text("source", source)])
    if target is None:
        (found,) = translator.hypotheses([source])
        text, target_ids = found[0].text, found[0].ids
    else:
        text, target_ids = target, vocabulary.target.encode(with_text("target", target))
    tree = tree_of(translator, text)
    longest = max(len(source_ids), len(target_ids) + 1)
    if longest > _LONGEST:
        raise UserError(
            f"expected sentences of at most {_LONGEST - 1} tokens, got {longest - 1}; "
            "give shorter ones"
        )
    ((_, attention),) = translator.attentions([source_ids], [target_ids])
    picked = np.ix_(*(np.array(numbers) - 1 for numbers in chosen))
    inner = source_ids[:-1]
    source_words = vocabulary.source.words(inner, vocabulary.target.reads(source))
    labels = vocabulary.target.labels(target_ids)
    return Maps(
        texts={"source": source, "target": text},
        labels={
            "source": [*vocabulary.source.labels(inner), SPECIAL[EOS]],
            "target": [SPECIAL[BOS], *labels],
        },
        following=[*labels, SPECIAL[EOS]],
        words={
            "source": [*source_words, -1],
            "target": [-1, *vocabulary.target.words(target_ids, target)],
        },
        layers=chosen[0],
        heads=chosen[1],
        weights={name: attention.weights[name][picked].clip(0, 1) for name in shown},
        single=kinds[shown[0]][1] == 1,
        tree=tree,
    )


def _shown(kinds: Collection[str], kind: str | None) -> list[str]:
    """Return the kinds of attention that are asked for."""
    if kind is not None and kind not in kinds:
        raise UserError(
            f"--kind: expected {' or '.join(kinds)}, all that this model has, got "
            f"{kind}; change it"
        )
    return [kind] if kind else list(kinds)


def with_text(side: str, text: str) -> str:
    """Return the text of a flag.

    Raises:
      UserError: if there is none.
    """
    if not text.strip():
        raise UserError(f"--{side}: expected a sentence, got none; write one")
    return text


def tree_of(translator: Translator, target: str) -> Tree | None:
    """Return the tree that a target is, None where targets are none.

    Raises:
      UserError: if it has no words.
    """
    tree = translator.vocabulary.target.tree(target)
    if tree is not None and not brackets.words(tree):
        raise UserError(
            f"--target: expected a tree with words, got {target}; write one"
        )
    return tree


def _numbers(name: str, text: str | None, count: int) -> list[int]:
    """Read numbers from 1 to count.

    >>> _numbers("layers", "1,3-5", 6)
    [1, 3, 4, 5]
    """
    if text is None:
        return list(range(1, count + 1))
    found: list[int] = []
    for part in text.split(","):
        ends = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        first, last = (int(ends[1]), int(ends[2] or ends[1])) if ends else (0, 0)
        if not 1 <= first <= last <= count:
            raise UserError(
                f"--{name}: expected numbers from 1 to {count}, such as 1,{count} or "
                f"1-{count}, got {text}; change it"
            )
        found += range(first, last + 1)
    return sorted(set(found))


def page(maps: Maps) -> str:
    """Return one HTML page that needs no network, with weights to 8 bits.

    Layers with a single map each are followed by their mean.
    """
    layers: list[int | str] = [*maps.layers]
    weights = maps.weights
    if _has_mean(maps):
        layers.append("mean")
        weights = {
            kind: np.concatenate([each, _mean(each)]) for kind, each in weights.items()
        }
    values = {
        **maps.texts,
        "labels": maps.labels,
        "next": maps.following,
        "layers": layers,
        "heads": maps.heads,
        "kinds": {
            kind: {"from": KINDS[kind][0], "to": KINDS[kind][1], "weights": _bytes(w)}
            for kind, w in weights.items()
        },
    }
    text = json.dumps(values, ensure_ascii=False).replace("<", "\\u003c")
    files = importlib.resources.files("transformer.pictures")
    template = files.joinpath("page.html").read_text(encoding="utf-8")
    before, between, after = re.split("@(?:TREE|DATA)@", template)
    return before + _drawn(maps) + between + text + after


def _has_mean(maps: Maps) -> bool:
    """Return whether the mean of the layers is shown after them."""
    return maps.single and len(maps.layers) > 1


def _mean(weights: np.ndarray) -> np.ndarray:
    """Return the mean of the layers as one of them: (N, H, T, S) to (1, H, T, S)."""
    return weights.mean(0, keepdims=True)


def _drawn(maps: Maps) -> str:
    """Return the section of a page that has the target's tree, "" if there is none."""
    if maps.tree is None:
        return ""
    drawn = plots.constituents(maps.tree).svg()
    return f'<section class="tree">\n<h2>Tree</h2>\n{drawn}</section>\n'


def _bytes(weights: np.ndarray) -> str:
    """Return weights as base64 of a byte each, 255 = 1."""
    rounded = np.rint(255 * weights).astype(np.uint8)
    return base64.b64encode(rounded.tobytes()).decode()


def picture(maps: Maps) -> plots.Picture:
    """Return the heads of one kind as heat maps, a row of the grid a layer.

    A single map of the decoder's attention to the source is an alignment: a row for
    each piece that is written, and not for the one that is read before it. Layers with
    a single map each are followed by their mean.
    """
    ((kind, weights),) = maps.weights.items()
    if kind == "cross" and weights.shape[:2] == (1, 1):
        return _alignment(maps, weights[0, 0])
    rows, columns = (maps.labels[side] for side in KINDS[kind])
    grid = [
        [
            plots.HeadMap(f"layer {layer}, head {head}", weights[i, j].tolist())
            for j, head in enumerate(maps.heads)
        ]
        for i, layer in enumerate(maps.layers)
    ]
    if _has_mean(maps):
        mean = _mean(weights)[0, 0].tolist()
        grid.append([plots.HeadMap("mean of the layers", mean)])
    return plots.head_maps(TITLES[kind].capitalize(), grid, rows, columns)


def _alignment(maps: Maps, weights: np.ndarray) -> plots.Picture:
    title = TITLES["cross"].capitalize()
    if (maps.layers, maps.heads) != ([1], [1]):
        title += f", layer {maps.layers[0]}, head {maps.heads[0]}"
    columns = maps.labels["source"]
    return plots.alignment(title, weights.tolist(), maps.following, columns)


def word_picture(maps: Maps, word: str) -> plots.Picture:
    """Return what a word attends to, a panel per layer (the paper's Figures 3 to 5).

    Args:
      maps: of one kind.
      word: of the sentence that attends; all its pieces, wherever it occurs.

    Raises:
      UserError: if the sentence has no such word.
    """
    ((kind, weights),) = maps.weights.items()
    side, other = KINDS[kind]
    spelt = _spelt(maps.labels[side], maps.words[side])
    chosen = [t for t, w in enumerate(spelt) if w == word]
    if not chosen:
        found = " ".join(dict.fromkeys(w for w in spelt if w))
        raise UserError(
            f"--word: expected a word of the {side}, one of {found}; got {word}; "
            "choose one"
        )
    every = [
        plots.HeadLines(f"layer {layer}", chosen, weights[i].tolist())
        for i, layer in enumerate(maps.layers)
    ]
    names = [f"head {head}" for head in maps.heads]
    return plots.head_lines(every, names, maps.labels[side], maps.labels[other])


def _spelt(labels: Sequence[str], words: Sequence[int]) -> list[str]:
    """Return the full word of each position, "" for special ids."""
    full: dict[int, str] = {-1: ""}
    for i, (label, word) in enumerate(zip(labels, words, strict=True)):
        if word < 0:
            continue
        # What ``Tokenizer.labels`` put where pieces meet; a text may have these, too.
        if word in full:
            label = label.removeprefix("\u2026")
        if word in words[i + 1 : i + 2]:
            label = label.removesuffix("\u2026")
            label = "" if label == "\u2423" else label  # a piece of a space alone
        full[word] = full.get(word, "") + label
    return [full[word] for word in words]
