"""Translation and scoring as filters of lines."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TextIO

from transformer import demands
from transformer.config import Data, UserError
from transformer.ensemble import load
from transformer.files.chunks import PAUSE, chunks
from transformer.metrics.heads import pharaoh
from transformer.parallel import hosts, sizes
from transformer.run.texts import line_of
from transformer.translate import LINES_AT_A_TIME, Translation, Translator
from transformer.trees.brackets import retagged, split_tags

_LINES_AT_A_TIME = LINES_AT_A_TIME
_MISSING = Translation("", -math.inf, -math.inf, [])


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def translate_stream(
    workdir: Path | Sequence[Path],
    lines: Iterable[str],
    output: TextIO,
    *,
    step: int | None = None,
    scores: bool = False,
    alignments: bool = False,
    layer: int | None = None,
    tags: bool = False,
    answering: bool = False,
    prefixes: Sequence[str] | None = None,
    forbid: Sequence[str] = (),
    **search: Any,
) -> None:
    """Translate lines of text, one line out per line in (or ``n_best`` lines).

    Where there are fewer than ``n_best`` translations, as of a short sentence by a
    grammar, the rest of the lines are empty, with a score of -inf. After each chunk but
    the last, how many lines are done is printed on standard error.

    Line ends in a translation become spaces (``run.texts.line_of``), and so do tabs if
    there are several fields.

    Args:
      workdir: folder of the run; of several, which translate together, a list.
      lines: without line ends; read some thousands at a time.
      output: is written in order.
      step: of the checkpoint, see ``load``.
      scores: put ``SCORE<tab>`` before each translation.
      alignments: put ``<tab>0-0 1-2`` after each, see ``Translator.alignments``.
      layer: see there.
      tags: the lines are ``word_TAG word_TAG``; trees have these tags.
      answering: write what there is as soon as the lines pause, instead of only when
        thousands have been read.
      prefixes: beginning of each translation, as many as there are lines; "" = any.
      forbid: words that no translation may contain.
      **search: fields of ``Search``, None = the configured.
    """
    translator = load(workdir, step=step, beam=search.get("beam"))
    _check(translator.settings.data, tags, alignments)
    demanded: dict[str, Any] = {"forbid": forbid} if forbid else {}
    if forbid:  # what is not a word is refused before anything is read
        demands.forbidding(translator.vocabulary.target, tuple(forbid))
    note = hosts.once(_note)
    note(sizes.line(translator.settings))
    count, first = translator.search(**search).n_best, 1
    for chunk in chunks(lines, _LINES_AT_A_TIME, PAUSE if answering else None):
        if first > 1 and not answering:
            note(f"{first - 1:,} lines translated")
        given: Sequence[Sequence[str]] = []
        if tags:
            both = [split_tags(x, f"line {i}") for i, x in enumerate(chunk, first)]
            chunk, given = [words for words, _ in both], [tag for _, tag in both]
        if prefixes is not None:
            demanded["prefixes"] = _prefixes_of(prefixes, first, len(chunk))
        results = translator.hypotheses(chunk, first, **demanded, **search)
        every = [
            (line, one)
            for line, found in zip(chunk, results, strict=True)
            for one in [*found, *[_MISSING] * (count - len(found))]
        ]
        texts = [line_of(translator.settings.data, one.text) for _, one in every]
        if tags:
            texts = [
                text and retagged(text, given[i // count])
                for i, text in enumerate(texts)
            ]
        written = _written(translator, every, texts, scores, alignments, layer)
        if hosts.primary():
            output.writelines(f"{line}\n" for line in written)
        output.flush()
        first += len(chunk)
    if prefixes is not None and len(prefixes) >= first:
        raise _other_number(prefixes, f"{first - 1:,}")


def _written(
    translator: Translator,
    every: Sequence[tuple[str, Translation]],
    texts: Sequence[str],
    scores: bool,
    alignments: bool,
    layer: int | None,
) -> list[str]:
    """Return the line of each translation, its fields separated by tabs."""
    if scores or alignments:
        texts = [text.replace("\t", " ") for text in texts]
    fields = [texts]
    if scores:
        fields.insert(0, [f"{one.score:.4f}" for _, one in every])
    if alignments:
        sources, targets = [line for line, _ in every], [one.ids for _, one in every]
        links = translator.alignments(sources, targets, layer)
        fields.append([pharaoh(pairs) for pairs in links])
    return ["\t".join(line) for line in zip(*fields, strict=True)]


def _check(data: Data, tags: bool, alignments: bool) -> None:
    """Refuse fields that the translations of a run do not have."""
    if tags and data.source != "trees":
        raise UserError(
            "--tags: expected a run whose translations are trees, got data.source = "
            f"{data.source}; leave --tags out"
        )
    if alignments and data.vectors:
        raise UserError(
            "--alignments: expected a run whose sources have words, got data.source = "
            "vectors; leave it out"
        )
    if alignments and data.source == "trees":
        raise UserError(
            "--alignments: expected a run whose translations are words, got "
            "data.source = trees; leave it out"
        )


def _prefixes_of(prefixes: Sequence[str], first: int, count: int) -> Sequence[str]:
    """Return the prefixes of some lines."""
    end = first - 1 + count
    if end > len(prefixes):
        raise _other_number(prefixes, f"{end:,} or more")
    return prefixes[first - 1 : end]


def _other_number(prefixes: Sequence[str], lines: str) -> UserError:
    return UserError(
        f"--prefix: expected as many lines as the input has, got {len(prefixes):,} and "
        f"{lines}; give one per line, possibly empty"
    )


def score_stream(
    workdir: Path,
    sources: Iterable[str],
    targets: Iterable[str],
    output: TextIO,
    *,
    step: int | None = None,
) -> None:
    """Write the log-probability of each pair of lines, in nats, one per line."""
    translator = load(workdir, step=step)
    both = itertools.zip_longest(
        chunks(sources, _LINES_AT_A_TIME), chunks(targets, _LINES_AT_A_TIME)
    )
    for number, (left, right) in enumerate(both):
        counts = [number * _LINES_AT_A_TIME + len(x or []) for x in (left, right)]
        if counts[0] != counts[1]:
            raise UserError(
                f"expected as many target as source lines, got {counts[0]} source and "
                f"{counts[1]} target lines or more; give one pair per line"
            )
        first = number * _LINES_AT_A_TIME + 1
        for value in translator.score(left, right, first):
            output.write(f"{value:.4f}\n")
        output.flush()
