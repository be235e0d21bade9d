"""The table of a side-by-side measurement, as Markdown."""

from __future__ import annotations

import datetime
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import sizes
from arena import Worker, ratio
from weights import Task

# A peer's column; where it names no form, the peer computes in that of the line.
PEERS = {
    "cpu": ("PyTorch", "transformers", "CTranslate2 float32", "CTranslate2 int8"),
    "gpu": ("PyTorch", "PyTorch compiled", "transformers"),
}


def table(rows: Iterable[Sequence[str]], device: str) -> str:
    """Write rows of cells as a Markdown table, with a column for each peer."""
    head = ("work", "ours", *PEERS[device])
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for row in rows:
        cells = [*row, *[""] * (len(head) - len(row))]
        lines.append("|" + "".join(f" {cell} |" if cell else " |" for cell in cells))
    return "\n".join(lines)


def ratio_row(
    title: str, dtype: str, workers: Mapping[str, Worker], device: str = "cpu"
) -> list[str]:
    """Return the cells of one line: ours in one form against every peer.

    Args:
      title: what the work is.
      dtype: our form.
      workers: all of an arena by "SYSTEM FORM".
      device: whose peers they are.
    """
    ours = workers[f"ours {dtype}"]
    if ours.trouble:
        return [title, f"{dtype}, {_state(ours)}"]
    cells = []
    for column in PEERS[device]:
        peer = workers.get(column, workers.get(f"{column} {dtype}"))
        cells.append("" if peer is None else _cell(ours, peer))
    return [title, dtype, *cells]


def _cell(ours: Worker, peer: Worker) -> str:
    if peer.trouble:
        return _state(peer)
    found = ratio(ours.seconds, peer.seconds)
    text = f"{found.median:.2f} ({found.least:.2f} to {found.most:.2f})"
    if "outputs" in ours.info:
        same = agreement(ours.info["outputs"], peer.info["outputs"])
        text += f", {100 * same:.1f} % the same"
    return text


def _state(worker: Worker) -> str:
    return "not installed" if worker.missing else "failed"


def agreement(outputs: Sequence[object], others: Sequence[object]) -> float:
    """Return the share of sentences that two systems translate alike."""
    pairs = list(zip(outputs, others, strict=True))
    return sum(a == b for a, b in pairs) / len(pairs)


def start_row(title: str, facts: Mapping[str, float]) -> list[str]:
    """Return the cells of the line in seconds, as ``transformer bench`` wrote them."""
    middle, least, most = (
        facts[f"start to first step, s ({which})"]
        for which in ("median", "least", "most")
    )
    return [title, f"{middle:.2f} s ({least:.2f} to {most:.2f})"]


def score_notes(task: Task, workers: Mapping[str, Worker]) -> list[str]:
    """Return how far each peer's log-probabilities are from ours, both in float32.

    Args:
      task: what they were given, with our scores.
      workers: all of an arena by "SYSTEM FORM".
    """
    notes = []
    for name, worker in workers.items():
        if "scores" in worker.info and name.endswith(" float32"):
            each = zip(task.scores, worker.info["scores"], task.targets, strict=True)
            most = max(abs(a - b) / len(target) for a, b, target in each)
            notes.append(
                f"{name.split()[0]} has the same parameters and batches: the "
                f"log-probabilities that it gives {len(task.targets):,} of our "
                f"translations in float32 differ from ours by at most {most:.1e} per "
                "token."
            )
    return notes


def loss_notes(title: str, workers: Mapping[str, Worker]) -> list[str]:
    """Return how far each peer's loss is from ours, with the same parameters and batch.

    Args:
      title: what the work is.
      workers: all of an arena by "SYSTEM FORM".
    """
    losses = {
        name: worker.info["loss"]
        for name, worker in workers.items()
        if "loss" in worker.info and name.endswith(" float32")
    }
    ours = losses.pop("ours float32", None)
    if ours is None:
        return []
    return [
        f"{name.split()[0]} has the same parameters and batch in {title}: its loss "
        f"without dropout is {loss:.6f}, and ours differs by {abs(ours - loss):.1e}."
        for name, loss in losses.items()
    ]


_TURNS = {
    "cpu": "the ratio of the median times of {rounds} rounds, in which all take turns; "
    "in brackets the least and the most of the ratios within a round",
    "gpu": "the ratio of the median times of {rounds} rounds of half a second at "
    "least, each waited for once; one process after another has the card for itself; "
    "in brackets the least and the most of the ratios of rounds",
}


def caption(rounds: int, workers: Sequence[Worker], device: str = "cpu") -> str:
    """Return how a table was measured, with which versions and on which machine."""
    versions = {"Python": platform.python_version()}
    for worker in workers:
        versions |= worker.info.get("versions", {})
    used = ", ".join(f"{name} {version}" for name, version in versions.items())
    kinds = {one.info["device"] for one in workers if "device" in one.info}
    machine = f"{sizes.cores()} cores of {cpu()}"
    if device != "cpu":
        machine = f"{', '.join(sorted(kinds))}; {machine}"
    absent = {one.name.split()[0]: one.missing for one in workers if one.missing}
    lines = [
        "How many times as fast this project is as each peer at the same work: "
        f"{_TURNS[device].format(rounds=rounds)}. PyTorch "
        "(`nn.Transformer`; where the model is recurrent, layers and loops of cells of "
        "torch.nn) and transformers (`MarianMTModel`) compute in the form of "
        "the line, which in training is autocast for bfloat16.",
        f"Measured on {datetime.date.today()}: {machine}; {used}.",
    ]
    lines += [
        f"Not installed: {who} (no module {what})." for who, what in absent.items()
    ]
    return "\n\n".join(lines)


def cpu() -> str:
    """Return the name of the processor."""
    facts = Path("/proc/cpuinfo")
    if facts.exists():
        found = re.search(r"^model name\s*: (.+)$", facts.read_text(), re.M)
        if found:
            return found[1]
    return platform.processor() or platform.machine()
