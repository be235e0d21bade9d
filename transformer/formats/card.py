"""The page that tells readers what an exported model is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import transformer
from transformer import config
from transformer.config import Config
from transformer.files.markdown import plain
from transformer.metrics import measures

_CARD = """---
language:
- {source_text}
- {target_text}
library_name: {library}
pipeline_tag: translation
---

# {name}

A Transformer ("Attention Is All You Need") from {source} to {target}, exported by
version {version} of the reference code in JAX; digest of its configuration: {digest}.

{scores}
{notes}
"""


def text(
    settings: Config, library: str, results: dict[str, Any], notes: Sequence[str]
) -> str:
    """Return the page, in Markdown.

    Args:
      settings: of the run.
      library: that reads the folder.
      results: of its evaluation, empty where there was none.
      notes: what a user of the folder has to know, a sentence each.
    """
    source, target = settings.data.source_language, settings.data.target_language
    return _CARD.format(
        source=plain(source),
        target=plain(target),
        # In YAML, no is a truth value and 1 a number.
        source_text=json.dumps(source, ensure_ascii=False),
        target_text=json.dumps(target, ensure_ascii=False),
        library=library,
        name=plain(settings.name),
        version=transformer.__version__,
        digest=config.digest(settings),
        scores="\n".join(_scores(settings, results)),
        notes="\n".join(f"* {note}" for note in notes),
    )


def _scores(settings: Config, results: dict[str, Any]) -> list[str]:
    if not results:
        return ["It was not evaluated before its export."]
    measure = settings.data.measure
    lines = [f"On its {results['split']} pairs, before its export:", ""]
    for kind in ("last", "best", "average"):
        for variant, score in results.get(kind, {}).get(measure, {}).items():
            signature = score.get("signature", "")
            name = measures.name_of(settings.data, variant)
            value = f"{name} {score['value']:.2f}"
            lines.append(f"* {kind}: {value}, {variant} {signature}")
    return [*lines, ""]


def search_note(settings: Config, alpha: str) -> str:
    """Return the sentence about the search, whose penalty others may not have.

    Args:
      settings: of the run.
      alpha: what the other system calls the exponent.
    """
    how = settings.decode
    if how.length_penalty == "power":
        return f"{alpha} = {how.alpha:g} divides by length^{how.alpha:g} as here."
    return (
        f"{alpha} = {how.alpha:g} divides by length^{how.alpha:g}, which the run does "
        f"not: its ((5 + length) / 6)^{how.alpha:g} has no counterpart. Beam search "
        "may find other translations; greedy search does not."
    )
