"""What runs measured on a test set, and whether they can be compared."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer.config import Config, UserError
from transformer.files import sealed
from transformer.run import folder


@dataclasses.dataclass(frozen=True)
class Measured:
    """The final results of a run.

    Attributes:
      folder: its workdir.
      settings: the configuration.
      record: record.json.
      results: results.json; with "kept" in place of sentences where it was saved as a
        small file, see ``paper.kept``.
      checkpoint: whose results these are, "average" if checkpoints were averaged,
        otherwise "best" or "last" as ``decode.checkpoint`` says: those that
        ``translate`` uses.
    """

    folder: Path
    settings: Config
    record: Mapping[str, Any]
    results: Mapping[str, Any]
    checkpoint: str

    @property
    def scores(self) -> Mapping[str, Any]:
        """Perplexity, BLEU and what else was measured of that checkpoint."""
        return self.results[self.checkpoint]

    @property
    def test_set(self) -> dict[str, Any]:
        """How many sentences the test set has, and the SHA-256 of its two sides."""
        kept = self.results.get("kept", {})
        if kept and "lines" not in kept:
            raise UserError(
                f"{self.folder}: expected results that name their test set, got those "
                "of a row of Table 3, which do not; use --results for these"
            )
        if kept:
            return {key: kept[key] for key in ("lines", "sources", "references")}
        sides = {"sources": self.sources, "references": self.references}
        return {"lines": len(self.sources)} | {
            name: digest(lines) for name, lines in sides.items()
        }

    @property
    def sources(self) -> list[str]:
        """The source of each sentence, as the data have it."""
        return self._lines("source")

    @property
    def references(self) -> list[str]:
        """The reference of each sentence."""
        return self._lines("reference")

    @property
    def translations(self) -> list[str]:
        """The translation of each sentence by that checkpoint."""
        return self._lines(self.checkpoint)

    def _lines(self, key: str) -> list[str]:
        return [sentence[key] for sentence in self.results["sentences"]]


def digest(lines: Sequence[str]) -> str:
    """Return the SHA-256 (hex) of lines, each with its end."""
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()


def read(workdir: Path) -> Measured:
    """Read the final results of a run.

    Raises:
      UserError: if there is no run in the folder, or it has no results with sentences.
    """
    return _with_sentences(_read(workdir), workdir / "results.json")


def read_scores(workdir: Path) -> Measured:
    """Read the final results of a run, or what ``paper.kept`` has saved of them.

    Raises:
      UserError: if there is no run in the folder, or it has no such results.
    """
    found = _read(workdir)
    if "kept" in found.results:
        return found
    return _with_sentences(found, workdir / "results.json")


def _read(workdir: Path) -> Measured:
    settings = folder.read_settings(workdir)
    results = folder.read_results(workdir)
    path = workdir / "results.json"
    if not results:
        raise UserError(
            f"{path}: expected the results of a run, found none; run transformer "
            f"evaluate --workdir={workdir}"
        )
    return _measured(workdir, settings, results)


def read_any(path: Path) -> Measured:
    """Read the final results of a run, or a file of results in its folder.

    Args:
      path: a workdir, or its ``results.json``, or a file of its ``results``.

    Raises:
      UserError: as ``read``, and for a file that is none of these.
    """
    if not path.is_file():
        return read(path)
    above = path.resolve().parents[:2]
    found = [one for one in above if (one / "config.json").is_file()]
    if not found:
        raise UserError(
            f"{path}: expected a workdir or a file of results in one, got a file "
            "elsewhere; name the workdir"
        )
    results = sealed.read_json(path, "repeat transformer evaluate, which writes it")
    settings = folder.read_settings(found[0])
    return _with_sentences(_measured(found[0], settings, results), path)


def _measured(workdir: Path, settings: Config, results: Mapping[str, Any]) -> Measured:
    usual = settings.decode.checkpoint
    there = [name for name in ("average", usual, "last") if name in results]
    record = folder.read_record(workdir)
    return Measured(workdir, settings, record, results, (there or [usual])[0])


def _with_sentences(found: Measured, path: Path) -> Measured:
    """Check that results have sentences; return them."""
    try:
        _ = found.sources, found.references, found.translations
    except (KeyError, TypeError) as error:
        raise UserError(
            f"{path}: expected the key {error}, which transformer evaluate writes; run "
            "it again"
        ) from None
    return found


def check_same_test_set(runs: Sequence[Measured]) -> None:
    """Check that runs were measured on the same sentences, by the same measure.

    Raises:
      UserError: for two that were not, by their names.
    """
    first, *others = runs
    for run in others:
        different = _difference(first, run)
        if different:
            raise UserError(
                f"expected results on one test set, got {first.folder} and "
                f"{run.folder}, which differ in {different}; leave one of them out"
            )


def _difference(first: Measured, second: Measured) -> str:
    """Return how two test sets differ, "" if they do not."""
    if "kept" in first.results or "kept" in second.results:
        pairs = zip(first.test_set.items(), second.test_set.values(), strict=True)
        unlike = [name for (name, one), other in pairs if one != other]
        if unlike:
            return f"their {' and '.join(unlike)}"
    elif found := _difference_of_lines(first, second):
        return found
    for key in ("target_language", "measure"):
        values = [getattr(run.settings.data, key) for run in (first, second)]
        if values[0] != values[1]:
            return f"data.{key}: {' and '.join(values)}"
    return ""


def _difference_of_lines(first: Measured, second: Measured) -> str:
    if len(first.sources) != len(second.sources):
        return f"their lines: {len(first.sources):,} and {len(second.sources):,}"
    for name in ("sources", "references"):
        pairs = zip(getattr(first, name), getattr(second, name), strict=True)
        for number, (one, other) in enumerate(pairs, start=1):
            if one != other:
                return f"the {name} of line {number}: {one[:40]!r} and {other[:40]!r}"
    return ""
