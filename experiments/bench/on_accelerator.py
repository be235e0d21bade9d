"""Measure all that docs/devices.md says of an accelerator, and print that section.

    python experiments/bench/on_accelerator.py --folder=measured --data=multi30k/bpe \\
        --peers_python=PEERS/bin/python

runs where JAX finds an accelerator, piece by piece, each in its own processes, and
writes a JSON file for each piece into the folder. A piece that is already there is not
measured again; the same command retries one that failed or was stopped. --list shows
the pieces, the time each takes and what has been done; --only=NAME,NAME runs some of
them; --within=SECONDS starts none that would not end in time; --report prints the
section from what is there. Without --data (Multi30k, segmented) and without PyTorch
(in --peers_python) the pieces that need them are skipped, and say so. --tiny tries out
the script where there is no accelerator; its numbers mean nothing.

    python experiments/bench/on_accelerator.py --folder=cpu --write_losses

computes on a CPU the losses that a device is compared with.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import math
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import report
import sizes
import worker
from accelerator.comparisons import ALLOWED, LOSSES, first_losses
from accelerator.pieces import PIECES, section
from accelerator.place import LIMIT, Failed, Place, Skipped, say
from accelerator.scale import TINY, Scale


def main(arguments: Sequence[str]) -> int:
    """Measure what is missing and print the section; 1 if something failed."""
    values = _parse(arguments)
    values.folder.mkdir(parents=True, exist_ok=True)
    place = Place(
        values.folder.resolve(),
        TINY if values.tiny else Scale(),
        values.data and values.data.resolve(),
        values.peers_python,
    )
    if values.write_losses:
        write_losses(place)
        return 0
    if values.list:
        for name, piece in PIECES.items():
            about = (piece.run.__doc__ or "").partition("\n")[0]
            print(f"{name:16} {piece.minutes:4} min  {_state(place, name):12} {about}")
        return 0
    if not values.report:
        measure(place, values.only or list(PIECES), values.within)
    found = read(place.folder)
    print(section(PIECES, found))
    troubled = [
        name
        for name, one in found.items()
        if "failed" in one or not one.get("found", {}).get("passed", True)
    ]
    if troubled:
        say(f"failed: {', '.join(troubled)}")
    return int(bool(troubled))


def measure(place: Place, names: Sequence[str], within: float) -> None:
    """Measure pieces in their order, except those already measured.

    Args:
      place: where to measure.
      names: of pieces.
      within: seconds after which nothing may still be running.
    """
    end = time.monotonic() + within
    for name, piece in PIECES.items():
        if name not in names or _state(place, name) == "measured":
            continue
        if time.monotonic() + 60 * piece.minutes > end:
            say(f"--- {name}: no time left for {piece.minutes} minutes")
            continue
        say(f"--- {name}")
        begun = time.monotonic()
        here = dataclasses.replace(place, ends=min(begun + LIMIT, end))
        try:
            result: dict[str, Any] = {"found": piece.run(here)}
        except Skipped as reason:
            result = {"skipped": str(reason)}
        except Failed as reason:
            result = {"failed": str(reason)}
        except Exception as error:  # the other pieces need not wait for a fix
            traceback.print_exc()
            result = {"failed": f"{type(error).__name__}: {error}"}
        for kind in ("skipped", "failed"):
            if kind in result:
                say(f"{name} {kind}: {result[kind]}")
        result |= {
            "date": str(datetime.date.today()),
            "host": f"{sizes.cores()} cores of {report.cpu()}",
            "seconds": time.monotonic() - begun,
        }
        path = place.folder / f"{name}.json"
        beside = path.with_suffix(".partial")  # a kill leaves no half-written file
        beside.write_text(json.dumps(result, indent=1) + "\n")
        beside.replace(path)
        say(f"{name}: {result['seconds']:.0f} s")
        if name == "peaks" and place.scale is not TINY and "found" in result:
            _require_accelerator(place)


def _require_accelerator(place: Place) -> None:
    if place.platform() == "cpu":
        (place.folder / "peaks.json").unlink()
        say("expected an accelerator, got a CPU; --tiny tries the script without one")
        sys.exit(2)


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the files of all pieces that have one, by name."""
    paths = {name: folder / f"{name}.json" for name in PIECES}
    return {n: json.loads(p.read_text()) for n, p in paths.items() if p.exists()}


def _state(place: Place, name: str) -> str:
    one = read(place.folder).get(name)
    if one is None:
        return "missing"
    return next(k for k in ("failed", "skipped", "found") if k in one).replace(
        "found", "measured"
    )


def write_losses(place: Place) -> None:
    """Write on a CPU the file that ``losses`` compares with."""
    found: dict[str, Any] = {
        "config": "experiments/number_words.py",
        "host": f"{sizes.cores()} cores of {report.cpu()}",
        "date": str(datetime.date.today()),
        "versions": worker.versions("jax", "jaxlib"),
    }
    for dtype in ALLOWED:
        found[dtype] = first_losses(place, dtype, JAX_PLATFORMS="cpu")
    LOSSES.write_text(json.dumps(found, indent=1) + "\n")


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    summary = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(description=summary)

    def pieces(text: str) -> list[str]:
        names = text.split(",")
        for name in names:
            if name not in PIECES:
                raise argparse.ArgumentTypeError(
                    f"expected of {', '.join(PIECES)}, got {name}"
                )
        return names

    add = parser.add_argument
    add("--folder", type=Path, required=True, help="for results")
    add("--data", type=Path, help="folder of Multi30k, segmented (BPE)")
    add("--peers_python", default=sys.executable, help="Python that has PyTorch")
    add("--only", type=pieces, help="NAME,NAME (default: all)")
    add("--within", type=float, default=math.inf, help="seconds of this call")
    add("--list", action="store_true", help="print the pieces and their state")
    add("--report", action="store_true", help="measure nothing, print the section")
    add("--tiny", action="store_true", help="try the script; its numbers mean nothing")
    add("--write_losses", action="store_true", help="make losses_cpu.json on a CPU")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
