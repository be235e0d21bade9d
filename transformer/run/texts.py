"""The sentences of an evaluation as text files, one line a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from transformer.config import Data
from transformer.files import whole
from transformer.files.lines import one_line


def line_of(data: Data, translation: str) -> str:
    """Return a translation as one line: line ends in it become spaces.

    A tree is one line already. Its words are those of the source line, which only ASCII
    white space separates: what only Unicode takes for a line end stays.
    """
    return translation if data.source == "trees" else one_line(translation)


def write(
    folder: Path,
    data: Data,
    sources: Sequence[str],
    references: Sequence[str],
    translations: Mapping[str, Sequence[str]],
) -> None:
    """Write a text file of each side: of the sources, references and hypotheses.

    ``sources.en``, ``references.de`` and ``hypotheses.last.de``, by the languages and
    by what was evaluated; translations as ``translate`` writes them.

    Args:
      folder: is made if absent.
      data: names the languages.
      sources: one text per sentence.
      references: one text per sentence.
      translations: by what was evaluated, "last", "best" or "average".
    """
    source, target = data.source_language, data.target_language
    texts = {f"sources.{source}": sources, f"references.{target}": references}
    for name, lines in translations.items():
        texts[f"hypotheses.{name}.{target}"] = [line_of(data, line) for line in lines]
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in texts.items():
        with whole.replacing(folder / name) as file:
            file.writelines(f"{line}\n".encode() for line in lines)
