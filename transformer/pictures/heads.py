"""What the heads of a trained model look at: a page, pictures and statistics."""

from __future__ import annotations

import base64
import dataclasses
import importlib.resources
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transformer import config
from transformer.config import UserError
from transformer.ids import BOS, EOS, SPECIAL
from transformer.metrics.heads import STATISTICS, Statistics
from transformer.pictures import plots
from transformer.pictures.tables import Table
from transformer.pictures.tables import page as tables_page
from transformer.translate import Translator, load

# Who attends to whom: the sides of the rows and of the columns of a map.
KINDS = {
    "encoder": ("source", "source"),
    "decoder": ("target", "target"),
    "cross": ("target", "source"),
}
_TITLES = {
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
    "cross": "attention of the decoder to the source",
}
_PAIRS_AT_A_TIME = 500  # of a file
_LONGEST = 160  # positions of a side that a picture or a page can show


@dataclasses.dataclass(frozen=True)
class Maps:
    """The attention weights of one sentence pair, of chosen layers and heads.

    Attributes:
      texts: the sentences of "source" and "target".
      labels: the positions of both sides, for people to read. Those of the target are
        what the decoder reads, from the begin mark.
      following: what the decoder writes at each of its positions.
      words: for both sides the number of the word of each position, -1 for a mark.
      layers: their numbers, from 1.
      heads: their numbers, from 1.
      weights: of each kind, (layers, heads, rows, columns).
    """

    texts: dict[str, str]
    labels: dict[str, list[str]]
    following: list[str]
    words: dict[str, list[int]]
    layers: list[int]
    heads: list[int]
    weights: dict[str, np.ndarray]


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
        a word.
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
    if form != "html" and kind is None:
        kind = "cross" if word is None else "encoder"
    chosen = {"layers": layers, "heads": heads, "kind": kind}
    maps = look(load(workdir, step=step), source, target, **chosen)
    if form == "html":
        return page(maps)
    drawn = picture(maps) if word is None else word_picture(maps, word)
    return drawn.file(form)


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
      layers: numbers from 1, "1,3" or "1-3"; None for all.
      heads: the same.
      kind: one of ``KINDS``, None for all.

    Raises:
      UserError: for a sentence without text or too long for a page, and for numbers of
        layers or heads that the model does not have.
    """
    settings, vocabulary = translator.settings, translator.vocabulary
    model = config.transformer(settings.model)
    chosen = [
        _numbers("layers", layers, model.layers),
        _numbers("heads", heads, model.heads),
    ]
    (source_ids,) = translator.source_ids([_with_text("source", source)])
    if target is None:
        (found,) = translator.hypotheses([source])
        target, target_ids = found[0].text, found[0].ids
    else:
        target_ids = vocabulary.target.encode(_with_text("target", target))
    longest = max(len(source_ids), len(target_ids) + 1)
    if longest > _LONGEST:
        raise UserError(
            f"expected sentences of at most {_LONGEST - 1} tokens, got {longest - 1}; "
            "give shorter ones"
        )
    ((_, found_weights),) = translator.attentions([source_ids], [target_ids])
    picked = np.ix_(*(np.array(numbers) - 1 for numbers in chosen))
    inner = source_ids[:-1]
    written = vocabulary.target.labels(target_ids)
    return Maps(
        texts={"source": source, "target": target},
        labels={
            "source": [*vocabulary.source.labels(inner), SPECIAL[EOS]],
            "target": [SPECIAL[BOS], *written],
        },
        following=[*written, SPECIAL[EOS]],
        words={
            "source": [*vocabulary.source.words(inner), -1],
            "target": [-1, *vocabulary.target.words(target_ids)],
        },
        layers=chosen[0],
        heads=chosen[1],
        weights={
            name: getattr(found_weights, name)[picked].clip(0, 1)
            for name in ([kind] if kind else KINDS)
        },
    )


def _with_text(side: str, text: str) -> str:
    if not text.strip():
        raise UserError(f"--{side}: expected a sentence, got none; write one")
    return text


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


# ---- the page and the pictures -------------------------------------------------------


def page(maps: Maps) -> str:
    """Return one HTML page that needs no network, with weights to 8 bits."""
    values = {
        **maps.texts,
        "labels": maps.labels,
        "next": maps.following,
        "layers": maps.layers,
        "heads": maps.heads,
        "kinds": {
            kind: {"from": KINDS[kind][0], "to": KINDS[kind][1], "weights": _bytes(w)}
            for kind, w in maps.weights.items()
        },
    }
    text = json.dumps(values, ensure_ascii=False).replace("<", "\\u003c")
    files = importlib.resources.files("transformer.pictures")
    template = files.joinpath("page.html").read_text(encoding="utf-8")
    before, after = template.split("@DATA@")
    return before + text + after


def _bytes(weights: np.ndarray) -> str:
    """Return weights as base64 of a byte each, 255 = 1."""
    rounded = np.rint(255 * weights).astype(np.uint8)
    return base64.b64encode(rounded.tobytes()).decode()


def picture(maps: Maps) -> plots.Picture:
    """Return the heads of one kind as heat maps, a row of the grid a layer."""
    ((kind, weights),) = maps.weights.items()
    rows, columns = (maps.labels[side] for side in KINDS[kind])
    grid = [
        [
            plots.HeadMap(f"layer {layer}, head {head}", weights[i, j].tolist())
            for j, head in enumerate(maps.heads)
        ]
        for i, layer in enumerate(maps.layers)
    ]
    return plots.head_maps(_TITLES[kind].capitalize(), grid, rows, columns)


def word_picture(maps: Maps, word: str) -> plots.Picture:
    """Return what a word attends to, a panel a layer (the paper's Figures 3 to 5).

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
    """Return for each position the whole word that it belongs to, "" for a mark."""
    whole: dict[int, str] = {-1: ""}
    for label, word in zip(labels, words, strict=True):
        if word >= 0:
            whole[word] = whole.get(word, "") + label.strip("\u2026\u2423")
    return [whole[word] for word in words]


# ---- statistics ----------------------------------------------------------------------


def show_statistics(
    workdir: Path,
    form: str,
    sources: Iterable[str],
    targets: Iterable[str] | None = None,
    *,
    step: int | None = None,
) -> str | bytes:
    """Show ``statistics`` of a trained model.

    Args:
      workdir: folder of the run.
      form: "md", "csv", "html" or one of ``plots.FORMS``.
      sources: see ``statistics``.
      targets: see ``statistics``.
      step: of the checkpoint, see ``translate.load``.

    Returns:
      What the file is to hold.
    """
    measured = statistics(load(workdir, step=step), sources, targets)
    drawn, tables = statistics_picture(measured), statistics_tables(measured)
    if form in plots.FORMS:
        return drawn.file(form)
    written: Any = {"md": "markdown"}.get(form, form)
    return tables_page(written, "What the heads attend to", tables, [drawn.svg()])


def statistics(
    translator: Translator,
    sources: Iterable[str],
    targets: Iterable[str] | None = None,
) -> dict[str, dict[str, np.ndarray]]:
    """Measure every head over many sentences.

    Args:
      translator: a trained model.
      sources: sentences; those without text do not count.
      targets: a translation of each, None for the model's own.

    Returns:
      For each kind the means of ``metrics.heads.STATISTICS``, each (N, H).

    Raises:
      UserError: if there is no sentence, or not one target for each source.
    """
    measured = {kind: Statistics() for kind in KINDS}
    count = 0
    for source_ids, target_ids in _encoded(translator, sources, targets):
        for _, found in translator.attentions(source_ids, target_ids):
            count += 1
            for kind, one in measured.items():
                one.add(getattr(found, kind))
    if not count:
        raise UserError("expected sentences to measure, got none; give a file of them")
    return {kind: one.means() for kind, one in measured.items()}


def _encoded(
    translator: Translator, sources: Iterable[str], targets: Iterable[str] | None
) -> Iterator[tuple[list[list[int]], list[list[int]]]]:
    """Yield the ids of sources and of targets, some hundred pairs at a time."""
    given = itertools.repeat("") if targets is None else iter(targets)
    pairs, number = zip(sources, given, strict=targets is not None), 1
    while chunk := _next_pairs(pairs):
        left = [source for source, _ in chunk]
        source_ids = translator.source_ids(left, number)
        if targets is None:
            best = translator.hypotheses(left, number)
            target_ids = [found[0].ids for found in best]
        else:
            encode = translator.vocabulary.target.encode_many
            target_ids = encode([target for _, target in chunk])
        rows = [i for i, ids in enumerate(source_ids) if len(ids) > 1]
        yield [source_ids[i] for i in rows], [target_ids[i] for i in rows]
        number += len(chunk)


def _next_pairs(pairs: Iterator[tuple[str, str]]) -> list[tuple[str, str]]:
    try:
        return list(itertools.islice(pairs, _PAIRS_AT_A_TIME))
    except ValueError as error:
        if "zip()" not in str(error):
            raise
        raise UserError(
            "expected as many translations as sentences, got different numbers of "
            "lines; give one pair a line"
        ) from None


def statistics_tables(measured: dict[str, dict[str, np.ndarray]]) -> list[Table]:
    """Return a table for each kind, a row a head."""
    tables = []
    for kind, means in measured.items():
        layers, heads = means["entropy"].shape
        rows = [
            (
                str(i + 1),
                str(j + 1),
                *(f"{means[name][i, j]:.3f}" for name in STATISTICS),
            )
            for i in range(layers)
            for j in range(heads)
        ]
        columns = ("layer", "head", *STATISTICS)
        title = _TITLES[kind].capitalize()
        note = _NOTE + (_CROSS_NOTE if kind == "cross" else "")
        tables.append(Table(title, columns, tuple(rows), note))
    return tables


_NOTE = (
    "Means over all positions: entropy of the weights in nats; distance to what is "
    "attended to, in positions; share of the weight on the previous, the same and the "
    "next position."
)
_CROSS_NOTE = (
    " Position t of the decoder is the one that writes piece t of the target; the same "
    "position is piece t of the source."
)


def statistics_picture(measured: dict[str, dict[str, np.ndarray]]) -> plots.Picture:
    """Return the statistics as heat maps of layers by heads, a row of them a kind."""
    every = [
        plots.Map(f"{kind}: {name}", means[name].tolist(), "head", "layer")
        for kind, means in measured.items()
        for name in STATISTICS
    ]
    return plots.maps(every, wide=len(STATISTICS), first=1, signed=False)
