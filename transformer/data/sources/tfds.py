"""Translation datasets of tensorflow_datasets, read without TensorFlow."""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Iterator
from typing import Any

from transformer import config
from transformer.config import UserError
from transformer.data.sources.source import Checksums, Pair, Split, limited
from transformer.files.digests import sha256
from transformer.files.lines import joined


class TensorFlowDatasets:
    """Splits of a translation builder, as array_record files.

    ``data.train = "train+validation"`` joins splits; ``"train[:1000]"`` is a part. With
    a builder of many languages, an example that lacks one of the two is left out.
    """

    def __init__(self, data: config.Data):
        import tensorflow_datasets as tfds
        import tensorflow_datasets.translate  # noqa: F401 (registers the builders)

        self.data = data
        self._languages = data.source_language, data.target_language
        try:
            # The default format needs TensorFlow.
            self._builder = tfds.builder(
                data.name, data_dir=data.dir, file_format="array_record"
            )
        except ValueError as error:
            raise UserError(
                f"data.name: expected a dataset of tensorflow_datasets, got "
                f"{data.name!r}: {_first_line(error)}; change it"
            ) from None
        self._key = self._variable_languages()
        self._check_languages()

    def _variable_languages(self) -> str | None:
        """Return the feature with a translation into any number of languages."""
        import tensorflow_datasets as tfds

        kind = tfds.features.TranslationVariableLanguages
        features = self._builder.info.features
        keys = [key for key in features if isinstance(features[key], kind)]
        return keys[0] if keys else None

    def _check_languages(self) -> None:
        there = list(self._builder.info.features)
        if self._key:
            there = self._builder.info.features[self._key].languages
        if len(set(self._languages).intersection(there)) != 2:
            raise UserError(
                f"data.source_language and target_language: expected two of "
                f"{', '.join(there)}, the texts of {self.data.name}, got "
                f"{self._languages[0]} and {self._languages[1]}; change them"
            )

    def _parts(self, split: Split) -> list[Any]:
        """Return the data source of each part of a split, prepared if need be."""
        import tensorflow_datasets as tfds

        try:
            self._builder.download_and_prepare(file_format="array_record")
            return [
                self._builder.as_data_source(split=part)
                for part in getattr(self.data, split).split("+")
            ]
        except (OSError, ValueError, tfds.download.DownloadError) as error:
            raise UserError(
                f"data.{split}: expected {getattr(self.data, split)!r} of "
                f"{self.data.name} in {self.data.dir}, got: {_first_line(error)}; "
                "see the documentation of tensorflow_datasets"
            ) from error

    def pairs(self, split: Split) -> Iterator[Pair]:
        examples = itertools.chain.from_iterable(self._parts(split))
        pairs = filter(None, map(self._pair, examples))
        return limited(self.data, split, pairs)

    def _pair(self, example: dict[str, Any]) -> Pair | None:
        if self._key:
            texts = example[self._key]
            both = zip(texts["language"], texts["translation"], strict=True)
            example = {language.decode(): text for language, text in both}
        if not example.keys() >= set(self._languages):
            return None
        source, target = (joined(example[x].decode()) for x in self._languages)
        return source, target

    def checksums(self, split: Split) -> Checksums:
        self._parts(split)
        sums: Checksums = {}
        for part in getattr(self.data, split).split("+"):
            info = self._builder.info.splits[part.partition("[")[0]]
            files = zip(info.filepaths, info.shard_lengths, strict=True)
            for path, lines in files:
                digest = sha256(pathlib.Path(path))
                sums[str(path)] = {"lines": lines, "sha256": digest}
        return sums


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
