"""Checkpoints on disk: saved atomically, verified, kept by age and by metric.

A folder holds one folder per step, written by Orbax. Beside Orbax's files is
``digests.json`` with the SHA-256 of each of them. It is written last, and only then
does the folder get the name of its step; before it is removed it gets another name. So
what a kill interrupts does not count, and a step whose files differ from the digests,
or that has none, was damaged later.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import re
import resource
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np

from transformer.config import UserError
from transformer.files.digests import sha256
from transformer.files.whole import write_whole
from transformer.parallel import hosts
from transformer.parallel.partition import name_of

_DIGESTS = "digests.json"
_RECORDED = {"metadata", "metric", "temporary", "arrays"}


class Damaged(Exception):
    """A checkpoint that is no longer what was saved."""


class Checkpoints:
    """The checkpoints of one run.

    Use it as a context manager: leaving it waits until the last one is on disk.
    """

    def __init__(
        self,
        folder: Path,
        keep: int,
        log: Callable[[str], None] = print,
        remedy: str = "remove the folder to train from scratch",
    ) -> None:
        """Look at a folder; nothing is created or removed before the first ``save``.

        Args:
          folder: holds one folder per step; need not exist.
          keep: how many of the latest to keep, besides the one with the lowest metric.
          log: takes one line for each damaged checkpoint.
          remedy: what to do where all are damaged.
        """
        self.folder = Path(folder).absolute()
        self._keep = keep
        self._log = log
        self._remedy = remedy
        self._worker = ThreadPoolExecutor(max_workers=1)
        self._pending: Future[None] | None = None
        self._seen: dict[int, dict[str, Any]] = {}  # record of each step, to read once
        self._digests: dict[int, str] = {}  # of those that were restored

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, failure: object, *_: object) -> None:
        try:
            if failure is None:
                self.wait()
        finally:
            self._worker.shutdown()

    def steps(self) -> list[int]:
        """Return the steps of the complete checkpoints, ascending.

        Raises:
          UserError: if there is a file where the folder should be.
        """
        return steps_in(self.folder)

    def save(
        self,
        step: int,
        tree: Any,
        metadata: dict[str, Any],
        metric: float | None = None,
        temporary: bool = False,
    ) -> None:
        """Save a checkpoint in the background; the arrays may be donated at once.

        Existing later steps are removed: they are damaged ones before which a run
        resumed, or belong to a history that this one replaces.

        Args:
          step: number of updates made.
          tree: arrays, among them keys of either kind; its top-level names can be
            restored one by one.
          metadata: values that JSON can hold.
          metric: lower is better; None or not finite = not a candidate for the best.
          temporary: replaced by the next save, whatever ``keep`` is. For the checkpoint
            of an interrupted run, which an uninterrupted one would not have.

        Raises:
          OSError: if there is no room for it.
        """
        self.wait()
        if hosts.primary():
            # The checkpoint of this step stays until the new one can take its place.
            self._remove_unless(lambda other: other <= step)
            self.folder.mkdir(parents=True, exist_ok=True)
            _check_room(self.folder, tree)
        ranked = metric is not None and math.isfinite(metric)
        record = {
            "metadata": metadata,
            "metric": metric if ranked else None,
            "temporary": temporary,
            "arrays": _describe(tree),
        }
        scratch = self.folder / f"{step}.saving"
        with _written(scratch):
            response = _orbax().save_async(scratch, tree, custom_metadata=record)
        self._pending = self._worker.submit(self._finish, scratch, response, record)

    def wait(self) -> None:
        """Wait until the last save is on disk, and raise what went wrong with it."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            pending.result()
            # The others see what the primary process has added and removed.
            hosts.barrier("checkpoint")

    def restore(
        self, abstract: Any, step: int | None = None
    ) -> tuple[int, Any, dict[str, Any]]:
        """Restore the latest undamaged checkpoint, or the one of a step.

        Args:
          abstract: a tree of ``jax.ShapeDtypeStruct`` (a leaf without a sharding goes
            to the first local device). It may have fewer top-level names than what was
            saved, e.g. ``{"params": ...}``; the others are not read.
          step: None = the latest; damaged ones are reported and passed over.

        Returns:
          (step, tree of the structure of ``abstract``, metadata).

        Raises:
          UserError: no such checkpoint, a damaged one whose step was asked for, or
            arrays of other names or shapes.
        """
        self.wait()
        steps = self.steps()
        if not steps:
            raise UserError(
                f"expected a checkpoint in {self.folder}, found none; train first"
            )
        if step is not None and step not in steps:
            raise UserError(
                f"expected a checkpoint of step {_listed(steps)} in {self.folder}, got "
                f"step {step}; choose one of these"
            )
        for candidate in reversed(steps) if step is None else [step]:
            try:
                return candidate, *self._restore(candidate, abstract)
            except Damaged as error:
                problem = (
                    f"checkpoint {self.folder / str(candidate)} is damaged: {error}"
                )
                if step is None:
                    self._log(f"{problem}; going back to the one before it")
        if step is not None:
            raise UserError(f"{problem}; choose another of {_listed(steps)}")
        raise UserError(
            f"expected an undamaged checkpoint in {self.folder}, all of "
            f"{_listed(steps)} are damaged; {self._remedy}"
        )

    def digest(self, step: int) -> str:
        """Return the SHA-256 (hex) of the digests of a checkpoint's files."""
        path = self.folder / str(step) / _DIGESTS
        return self._digests.get(step) or _sha256(path.read_bytes())

    def best(self) -> int | None:
        """Return the step of the lowest metric, None where none has one."""
        return _best(self._records())

    def _records(self) -> dict[int, dict[str, Any]]:
        """Return the record of each step; a damaged one is reported and has none."""
        steps = self.steps()
        for step in steps:
            if step not in self._seen:
                path = self.folder / str(step)
                try:
                    self._seen[step] = _record(path)
                except Damaged as error:
                    self._seen[step] = {}
                    self._log(
                        f"checkpoint {path} is damaged: {error}; it cannot be the best"
                    )
        return {step: self._seen[step] for step in steps}

    def metadata(self) -> dict[str, Any]:
        """Return the metadata of the latest checkpoint that has some, or nothing."""
        for step in reversed(self.steps()):
            with contextlib.suppress(Damaged):
                return _record(self.folder / str(step))["metadata"]
        return {}

    def _restore(self, step: int, abstract: Any) -> tuple[Any, dict[str, Any]]:
        path = self.folder / str(step)
        # A run that goes on may remove the checkpoint as soon as it has been read.
        self._digests[step] = _verify(path)
        record = _record(path)
        _compare(record, _describe(abstract), path)
        ocp = _orbax()
        context = ocp.Context()
        context.pytree.loading.partial_load = True
        with context:
            return ocp.load(path, _with_shardings(abstract)), record["metadata"]

    def _finish(self, scratch: Path, response: Any, record: dict[str, Any]) -> None:
        """Wait for Orbax, write the digests and remove what is not kept."""
        with _written(scratch):
            response.result()
        if not hosts.primary():
            return
        path = scratch.with_suffix("")
        write_whole(
            scratch / _DIGESTS, json.dumps(_digests(scratch), indent=1).encode()
        )
        replaced = _set_aside(path) if os.path.lexists(path) else None
        os.rename(scratch, path)
        if replaced:
            _remove(replaced)
        step = int(path.name)
        self._seen[step] = record
        self._remove_unless(self._kept(step).__contains__)

    def clean(self) -> None:
        """Remove what is not kept, as a kill after the last save may leave it."""
        self.wait()
        if hosts.primary() and (steps := self.steps()):
            self._remove_unless(self._kept(steps[-1]).__contains__)
        hosts.barrier("clean")  # all of them average what is left

    def recover(self) -> None:
        """Finish replacing a checkpoint, where a kill came between two renames."""
        for path in [*self.folder.glob("*.saving")] if hosts.primary() else []:
            place = path.with_suffix("")
            if (path / _DIGESTS).is_file() and not os.path.lexists(place):
                os.rename(path, place)
        hosts.barrier("recover")

    def _kept(self, newest: int) -> set[int]:
        """Return the steps to keep: the newest, the latest ones and the best."""
        records = self._records()
        regular = [step for step, record in records.items() if not _temporary(record)]
        best = _best(records)
        return {newest, *regular[-self._keep :], *([] if best is None else [best])}

    def _remove_unless(self, wanted: Callable[[int], bool]) -> None:
        """Remove incomplete checkpoints, and those of steps that are not wanted."""
        if not self.folder.is_dir():
            return
        for path in sorted(self.folder.iterdir()):
            if _INCOMPLETE.fullmatch(path.name):
                if path.is_dir():
                    _remove(path)
            elif _is_step(path.name) and not wanted(int(path.name)):
                _remove(_set_aside(path))


# What a kill leaves of a save, orbax's own folder for it, and what was set aside.
_INCOMPLETE = re.compile(r"\d+\.(saving(\..*)?|removed)")


def _temporary(record: Mapping[str, Any]) -> bool:
    return bool(record.get("temporary"))


def _best(records: Mapping[int, Mapping[str, Any]]) -> int | None:
    """Return the step of the lowest metric among those that are to be kept."""
    ranked = {
        step: record["metric"]
        for step, record in records.items()
        if record.get("metric") is not None and not _temporary(record)
    }
    return min(ranked, key=lambda step: ranked[step]) if ranked else None


def steps_in(folder: Path) -> list[int]:
    """Return the steps of the complete checkpoints in a folder, ascending."""
    if not folder.is_dir():
        if folder.exists():
            raise UserError(
                f"{folder}: expected a folder of checkpoints, got a file; move it away"
            )
        return []
    return sorted(int(path.name) for path in folder.iterdir() if _is_step(path.name))


def _is_step(name: str) -> bool:
    return name.isdecimal() and name == str(int(name))


def check_vocabulary(place: object, metadata: Mapping[str, Any], digest: str) -> None:
    """Check that a checkpoint was trained with the vocabulary that is here.

    Args:
      place: of the checkpoint.
      metadata: of it.
      digest: of the vocabulary.

    Raises:
      UserError: if it was another.
    """
    if (expected := metadata["vocabulary"]) != digest:
        raise UserError(
            f"{place}: expected vocabulary {expected[:12]}, which it was trained with, "
            f"got {digest[:12]}; restore its corpus, or choose another workdir"
        )


def average(folder: Path, steps: Sequence[int], abstract: Any, vocabulary: str) -> Any:
    """Average the parameters of several checkpoints (section 6.1).

    Args:
      folder: the checkpoints.
      steps: which of them.
      abstract: the tree of the parameters, as for ``Checkpoints.restore``.
      vocabulary: the digest of theirs.

    Returns:
      Their arithmetic mean, summed in float64, in the structure, dtypes and shardings
      of ``abstract``.

    Raises:
      UserError: a step is absent or damaged, its parameters differ in shape, or it was
        trained with another vocabulary.
    """
    wanted, structure = jax.tree.flatten(_with_shardings(abstract))
    total = [np.zeros(like.shape, np.float64) for like in wanted]
    with Checkpoints(folder, keep=len(steps)) as checkpoints:
        for step in steps:
            _, tree, metadata = checkpoints.restore({"params": abstract}, step)
            check_vocabulary(folder / str(step), metadata, vocabulary)
            for sum_, leaf in zip(total, jax.tree.leaves(tree), strict=True):
                sum_ += np.asarray(leaf, np.float64)
    means = []
    for sum_, like in zip(total, wanted, strict=True):
        mean = (sum_ / len(steps)).astype(like.dtype)
        means.append(
            jax.make_array_from_callback(mean.shape, like.sharding, mean.__getitem__)
        )
    return jax.tree.unflatten(structure, means)


def save_inference(
    folder: Path, step: int, params: Any, metadata: dict[str, Any]
) -> None:
    """Save parameters alone, e.g. averaged ones, marked as inference-only."""
    with Checkpoints(folder, keep=1) as checkpoints:
        checkpoints.save(step, {"params": params}, metadata | {"inference_only": True})


def remove_averages(folder: Path, step: int) -> None:
    """Remove the averages of evaluations, and all averages before a step.

    What ``transformer average`` made for this step or a later one stays.
    """

    def stays(other: int) -> bool:
        asked = True  # earlier versions did not say
        with contextlib.suppress(Damaged):
            asked = _record(folder / str(other))["metadata"].get("asked", True)
        return other >= step and asked

    with Checkpoints(folder, keep=1) as averages:
        averages._remove_unless(stays)


def _check_room(folder: Path, tree: Any) -> None:
    """Raise if there is no room, before Orbax begins to write."""
    need = sum(leaf.nbytes for leaf in jax.tree.leaves(tree))
    largest, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    free = shutil.disk_usage(folder).free
    number, room = errno.ENOSPC, free
    if largest != resource.RLIM_INFINITY and largest < free:
        number, room = errno.EFBIG, largest
    if need > room:
        said = f"{os.strerror(number)}: a checkpoint takes {need:,} bytes of {room:,}"
        raise OSError(number, said, str(folder))


@contextlib.contextmanager
def _written(path: Path) -> Iterator[None]:
    """Raise the system's error that TensorStore wraps, such as a full disk."""
    try:
        yield
    except ValueError as error:
        if found := re.search(r"os_error_code='(\d+)'", str(error)):
            number = int(found[1])
            raise OSError(number, os.strerror(number), str(path)) from error
        raise


def _orbax() -> Any:
    """Import Orbax, which takes a while: the first step of a run need not wait."""
    from orbax.checkpoint import v1

    return v1


def _describe(tree: Any) -> dict[str, str]:
    """Return "dtype shape" of each array by its dotted name."""
    return {
        name_of(path): f"{leaf.dtype} {tuple(leaf.shape)}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def _compare(record: dict[str, Any], expected: dict[str, str], path: Path) -> None:
    """Check that the arrays of a checkpoint are as expected, by ``_describe``."""
    groups = {name.split(".")[0] for name in expected}
    saved = {k: v for k, v in record["arrays"].items() if k.split(".")[0] in groups}
    missing = groups - {name.split(".")[0] for name in saved}
    if missing and record["metadata"].get("inference_only"):
        raise UserError(
            f"{path} is inference-only, it holds no {', '.join(sorted(missing))}: "
            "training cannot resume from it; evaluate or translate with it"
        )
    for name in [*expected, *saved]:
        mine, its = expected.get(name, "absent"), saved.get(name, "absent")
        if mine != its:
            raise UserError(
                f"{path} has a different shape: expected {name} {mine}, got {its}; use "
                "the config it was trained with"
            )


def _with_shardings(abstract: Any) -> Any:
    """Return a tree of ``jax.ShapeDtypeStruct`` in which every leaf has a sharding."""
    here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=getattr(leaf, "sharding", None) or here
        ),
        abstract,
    )


def _record(path: Path) -> dict[str, Any]:
    """Return what ``save`` recorded of a checkpoint beside its arrays."""
    _check_readable(path)
    ocp = _orbax()
    try:
        record = ocp.metadata(path).custom_metadata
    except Exception as error:  # Orbax raises errors of every kind for bad files
        raise Damaged(f"unreadable ({type(error).__name__})") from error
    if not isinstance(record, dict) or not record.keys() >= _RECORDED:
        raise Damaged("its metadata are missing")
    return record


def _check_readable(path: Path) -> None:
    """Raise the system's error for a file that Orbax would take for an empty one."""
    try:
        for file in path.iterdir():
            if file.is_file():
                with file.open("rb") as content:
                    content.read(1)
    except _ALTERED as error:
        raise Damaged(f"unreadable ({error})") from error


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _digests(path: Path) -> dict[str, str]:
    def refuse(error: OSError) -> None:  # a folder that cannot be listed is not empty
        raise error

    found = [
        Path(folder, name)
        for folder, _, names in os.walk(path, onerror=refuse)
        for name in names
    ]
    return {
        str(file.relative_to(path)): sha256(file)
        for file in sorted(found)
        if file.is_file() and file != path / _DIGESTS
    }


def _set_aside(path: Path) -> Path:
    """Rename a checkpoint, so that a kill leaves no part of it that counts."""
    aside = path.with_suffix(".removed")
    if aside.exists():  # by a kill
        _remove(aside)
    os.rename(path, aside)
    return aside


def _remove(path: Path) -> None:
    """Remove a checkpoint that was set aside, or was never complete.

    A disk with a bin, like Google Drive, keeps removed files and counts them, so the
    files are emptied first. Those that cannot be emptied are removed as they are, and
    so are those with another name, which may be somebody's copy.
    """
    if path.is_symlink() or not path.is_dir():
        path.unlink()
        return
    (path / _DIGESTS).unlink(missing_ok=True)  # first: the bin may give it back
    for file in path.rglob("*"):
        if file.is_file() and not file.is_symlink() and file.stat().st_nlink == 1:
            with contextlib.suppress(PermissionError):
                os.truncate(file, 0)
    shutil.rmtree(path)


# Errors that show that the content has changed. A file that may not be read, or whose
# disk does not answer, may be as it was saved, and a run that went back before it would
# replace it.
_ALTERED = (
    *(FileNotFoundError, IsADirectoryError, NotADirectoryError),
    *(ValueError, AttributeError, TypeError),
)


def _verify(path: Path) -> str:
    """Check the digests of a checkpoint's files; return the digest of them all."""
    try:
        saved = (path / _DIGESTS).read_bytes()
        expected, found = json.loads(saved), _digests(path)
        changed = set(expected.items()) ^ set(found.items())
    except _ALTERED as error:
        raise Damaged(f"its digests are unreadable ({error})") from error
    if changed:
        raise Damaged(f"file {min(changed)[0]} is not what was saved")
    return _sha256(saved)


def _listed(steps: Sequence[int]) -> str:
    return ", ".join(map(str, steps))
