"""Pieces that measure the speed of products, steps, the training loop and searches."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

from side_by_side import HERE

from accelerator.comparisons import DETERMINISTIC, deterministic
from accelerator.place import Place, Skipped
from accelerator.scale import FEW, TINY, flags_of
from accelerator.trainings import NO_DATA


def peaks(place: Place) -> dict[str, Any]:
    """Read versions and flags; measure the rates of products and of memory."""
    size, count = place.scale.peak
    return place.inside("peaks", f"--size={size}", f"--count={count}")


def steps_of(config: str, which: int) -> Callable[[Place], dict[str, Any]]:
    """Return the piece that measures training steps of a configuration.

    Args:
      config: "base" or "big".
      which: index of one of the two lengths.
    """

    def piece(place: Place) -> dict[str, Any]:
        """Measure training steps: time, peaks' shares, memory, a profile."""
        length = place.scale.lengths[which]
        name = f"{config}-{length}"
        flags = (place.experiment(f"{config}.py"), *getattr(place.scale, config))
        flags += (f"--length={length}",)
        profile = place.folder / "profiles" / name
        found = {
            "configured": place.bench(name, *flags, f"--profile={profile}"),
        }
        for block in place.scale.blocks[which] if config == "base" else ():
            found[f"loss.block={block}"] = place.bench(
                f"{name}-block-{block}", *flags, f"--config.loss.block={block}"
            )
        if config == "base" and which == 0 and place.platform() == "gpu":
            found[DETERMINISTIC] = place.bench(
                f"{name}-deterministic", *flags, **deterministic()
            )
        return {"length": length, "variants": found}

    return piece


def loop(place: Place) -> dict[str, Any]:
    """Measure the training loop of base on number words, cold and warm.

    Every machine has that text. The model keeps its 37,000 ids; there are few batch
    shapes because a cold start compiles each one.
    """
    words = flags_of(data__source="numbers", data__name="", data__train_pairs=100_000)
    words += flags_of(data__max_length=64, tokenizer__vocab_size=300, batch__shapes=3)
    words += flags_of(model__vocab_size=37_000)
    if place.scale is TINY:
        words += FEW
    return _loop(place, "base.py", (*place.scale.base, *words))


def multi30k_loop(place: Place) -> dict[str, Any]:
    """Measure the training loop of Multi30k ``:tiny``, cold and warm."""
    if place.data is None:
        raise Skipped(NO_DATA)
    flags = (f"--config.data.dir={place.data}",)
    return _loop(place, "multi30k.py:tiny", flags)


def _loop(place: Place, config: str, flags: Sequence[str]) -> dict[str, Any]:
    """Measure twice: nothing prepared or compiled before the first time."""
    name = config.partition(".")[0]
    corpus = place.corpus(f"loop-{name}")
    cache = str(place.folder / f"xla-loop-{name}")
    found = {
        f"{config}, {turn}": place.bench(
            f"loop-{name}-{turn}",
            *("--what=loop", place.experiment(config), *flags, corpus),
            JAX_COMPILATION_CACHE_DIR=cache,
        )
        for turn in ("cold", "warm")
    }
    return {"loops": found}


def search(place: Place) -> dict[str, Any]:
    """Measure greedy and beam search of base, at three sizes of batch."""
    length = place.scale.lengths[0]
    found = {
        f"{what}, {sentences}": place.bench(
            f"{what}-{sentences}",
            *(place.experiment("base.py"), *place.scale.base, f"--what={what}"),
            *(f"--tokens={sentences * length}", f"--length={length}"),
        )
        for what in ("greedy", "beam")
        for sentences in place.scale.sentences
    }
    return {"searches": found}


def beside(*tables: str) -> Callable[[Place], dict[str, Any]]:
    """Return the piece that measures groups of lines side by side with the peers."""

    def piece(place: Place) -> dict[str, Any]:
        """Measure side by side with PyTorch and transformers."""
        if place.scale is TINY or place.platform() != "gpu":
            raise Skipped("the peers are measured on CUDA GPUs")
        look = "import torch; print(torch.cuda.is_available())"
        run = subprocess.run([place.peers, "-c", look], capture_output=True, text=True)
        if run.stdout.strip() != "True":
            raise Skipped(f"no PyTorch with CUDA in {place.peers}")
        output = place.folder / f"beside-{tables[0]}.numbers.json"
        table = place.command(
            *(str(HERE / "side_by_side.py"), "--device=gpu", "--table", *tables),
            *(f"--peers_python={place.peers}", f"--output={output}"),
        )
        return {"table": table, "numbers": json.loads(output.read_text())}

    return piece
