"""Pieces that train to the end and read the results."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from typing import Any

from accelerator.place import Place, Skipped
from accelerator.scale import LITTLE, TINY, flags_of

NO_DATA = "no --data, the folder of Multi30k, segmented"


def number_words(place: Place) -> dict[str, Any]:
    """Train on number words to the end."""
    return _train(place, "numbers", "number_words.py", place.scale.numbers)


def multi30k(place: Place) -> dict[str, Any]:
    """Train on Multi30k, ``:tiny``, to the end."""
    if place.data is None:
        raise Skipped(NO_DATA)
    flags: tuple[str, ...] = (f"--config.data.dir={place.data}",)
    if place.scale is TINY:
        flags += LITTLE + flags_of(train__steps=4, decode__beam=1)
    return _train(place, "multi30k", "multi30k.py:tiny", flags)


def _train(
    place: Place, name: str, config: str, flags: Sequence[str]
) -> dict[str, Any]:
    workdir = place.workdir(name)
    again = (workdir / "checkpoints").exists()
    place.transformer("train", place.experiment(config), f"--workdir={workdir}", *flags)
    results = json.loads((workdir / "results.json").read_text())
    record = json.loads((workdir / "record.json").read_text())
    started, ended = (
        datetime.datetime.fromisoformat(record[key]) for key in ("started", "ended")
    )
    return {
        "config": config,
        "steps": results["step"],
        "training seconds": (ended - started).total_seconds(),
        "in several calls": again,
        "scores": {
            which: {
                "perplexity": results[which]["perplexity"],
                "exact": results[which]["exact_match"],
                "bleu": {
                    variant: score["value"]
                    for variant, score in results[which]["bleu"].items()
                },
            }
            for which in ("average", "last")
            if which in results
        },
    }
