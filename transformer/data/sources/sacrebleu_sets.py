"""Validation and test sentences out of sacreBLEU's cache, by their name."""

from __future__ import annotations

import dataclasses
import difflib
import pathlib
from collections.abc import Iterator
from typing import Any

from transformer import config
from transformer.config import UserError
from transformer.data.sources.source import SPLITS, Checksums, Pair, Source, Split
from transformer.data.sources.text import checksums_of, parallel_lines

PREFIX = "sacrebleu:"


@dataclasses.dataclass(frozen=True)
class WithTestSets:
    """A source some of whose splits are test sets of sacreBLEU.

    ``data.test = "sacrebleu:wmt14/full"`` is newstest2014 in the direction of the two
    languages. Nothing is downloaded: sacreBLEU's own command does that. If a test set
    has several references, the first is used.

    Args:
      data: names the splits.
      source: of the other splits.
    """

    data: config.Data
    source: Source

    def pairs(self, split: Split) -> Iterator[Pair]:
        if not _is_named(self.data, split):
            return self.source.pairs(split)
        return parallel_lines(*self._files(split))

    def checksums(self, split: Split) -> Checksums:
        if not _is_named(self.data, split):
            return self.source.checksums(split)
        return checksums_of(*self._files(split))

    def _files(self, split: Split) -> tuple[pathlib.Path, pathlib.Path]:
        """Return the files of the source and of the reference.

        Raises:
          UserError: for a test set that sacreBLEU does not know, or has not fetched.
        """
        from sacrebleu import utils
        from sacrebleu.dataset import DATASETS

        name = getattr(self.data, split).removeprefix(PREFIX)
        if name not in DATASETS:
            nearest = difflib.get_close_matches(name, DATASETS, n=1)
            hint = f"did you mean {nearest[0]}?" if nearest else "see sacrebleu --list"
            raise UserError(
                f"data.{split}: expected a test set of sacreBLEU, got {name!r}; {hint}"
            )
        pair = f"{self.data.source_language}-{self.data.target_language}"
        known = list(DATASETS[name].langpairs)
        if pair not in known:
            raise UserError(
                f"data.{split}: expected languages that {PREFIX}{name} has, one of "
                f"{', '.join(known)}; got {pair}; change data.source_language and "
                "data.target_language"
            )
        folder = pathlib.Path(utils.SACREBLEU_DIR) / name
        stem = f"{name.replace('/', '_')}.{pair}"
        source = folder / f"{stem}.src"
        places = [folder / f"{stem}.{field}" for field in fields(DATASETS[name], pair)]
        references = [place for place in places if place.is_file()]
        if not source.is_file() or not references:
            raise UserError(
                f"data.{split}: expected {PREFIX}{name} in {folder}, found no "
                f"{stem}; fetch it once by sacrebleu -t {name} -l {pair} --echo src, "
                "or name your own files"
            )
        return source, references[0]


def fields(dataset: Any, pair: str) -> list[str]:
    """Return the endings that a reference of a test set may have, the first one first.

    From WMT 2021 on, one file has the references of several translators, all of which
    are in the cache. The name of the test set says whose are meant: ``wmt21/B``.
    """
    meant = dataset.langpairs[pair]
    translators = dataset.kwargs.get("refs")
    if isinstance(meant, dict):
        translators = meant.get("refs", translators)
    if translators is None:
        return ["ref", "ref-0"]
    return [f"ref-{one}" if one else "ref" for one in translators]


def with_test_sets(data: config.Data, source: Source) -> Source:
    """Return a source whose splits may be test sets of sacreBLEU.

    Raises:
      UserError: if the training pairs are to be a test set.
    """
    if _is_named(data, "train"):
        raise UserError(
            f"data.train: expected pairs to train on, got the test set {data.train}; "
            f"use {PREFIX} for data.validation or data.test"
        )
    if not any(_is_named(data, split) for split in SPLITS):
        return source
    return WithTestSets(data, source)


def _is_named(data: config.Data, split: Split) -> bool:
    named: str = getattr(data, split)
    return named.startswith(PREFIX)
