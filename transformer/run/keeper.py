"""Keeps a run's state on disk, and with it the record of the run."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from transformer import config, parallel
from transformer.config import Config, UserError
from transformer.data import sources
from transformer.models import Model, stacks
from transformer.parallel import hosts
from transformer.run import folder
from transformer.run.checkpoints import Checkpoints, check_vocabulary
from transformer.run.course import Course, Mark
from transformer.run.history import Claim
from transformer.run.provenance import now, write_run_record


@dataclasses.dataclass
class Keeper:
    """Saves and restores the state of a run.

    Attributes:
      settings: the configuration as the user wrote it.
      sizes: those chosen for the device, see ``parallel.sizes``.
      workdir: folder of the run.
      mesh: of the devices.
      model: whose layers the state may have stacked; checkpoints have them apart.
      abstract: the state as the loop has it, shapes and shardings.
      checkpoints: of the run.
      vocabulary: digest of the vocabulary.
      checksums: of the data.
      init: what record.json says of the run that parameters are taken from, None if all
        are drawn; from the checkpoint if the run is resumed.
    """

    settings: Config
    sizes: Mapping[str, int]
    workdir: Path
    mesh: Mesh
    model: Model
    abstract: Any
    checkpoints: Checkpoints
    vocabulary: str
    checksums: Mapping[str, Any]
    init: Mapping[str, Any] | None = None
    _started: str = ""
    _changes: Sequence[Mapping[str, Any]] = ()
    _complete: Any = None  # claim of a complete run's record, until a step is made

    @functools.cached_property
    def _is_stacked(self) -> bool:
        return stacks.is_stacked(self.model.stacks, self.abstract.params)

    @functools.cached_property
    def _kept(self) -> Any:
        """The state as checkpoints hold it, shapes and shardings."""
        if not self._is_stacked:
            return self.abstract
        apart = functools.partial(stacks.unstack, self.model.stacks)
        shapes = jax.eval_shape(apart, self.abstract)
        return parallel.placed(self.mesh, self.model.partition, shapes)

    def begin(
        self, draw: Callable[..., Any], given: Any, log: Callable[[str], None]
    ) -> Any:
        """Return what to start or to resume from: state, target tokens, course, mark.

        Args:
          draw: makes the state that a run starts from.
          given: its argument, arrays.
          log: takes what happens, one line at a time.
        """
        before = folder.read_record(self.workdir)
        self._started = now()
        if not self.checkpoints.steps():
            if before:
                log(f"{self.workdir}: no checkpoint found, the run starts over")
            # Each device draws what it holds, sharded like a restored state.
            return sharded(draw, self.abstract)(given), 0, Course(), Mark()
        step, tree, metadata = self.checkpoints.restore(self._kept.parts())
        check_vocabulary(f"checkpoint of step {step}", metadata, self.vocabulary)
        log(f"resuming from step {step:,}")
        self._started = before.get("started") or self._started
        if not before:
            log(f"{self.workdir / 'record.json'}: none found, a new one is started")
        changed = _changes(metadata["config"], self.settings)
        changed |= self._other_data(before.get("data", {}), step)
        if before.get("ended") is not None and not changed:
            self._complete = before.get("metrics")
        earlier = [one for one in before.get("changes", []) if one["step"] < step]
        # The checkpoint has the configuration of before; of the data, the record alone
        # told, and it has been written since.
        for one in before.get("changes", []):
            if one["step"] == step:
                told = {key: x for key, x in one.items() if key.startswith(_OF_DATA)}
                changed = told | changed
        self._changes = earlier + ([{"step": step, **changed}] if changed else [])
        state = type(self.abstract)(**tree)
        if self._is_stacked:
            put = functools.partial(stacks.stack, self.model.stacks)
            state = sharded(put, self.abstract)(state)
        self.init = metadata.get("init")
        course, mark = Course.of_checkpoint(metadata), Mark.of_checkpoint(metadata)
        return state, metadata["tokens"], course, mark

    def _other_data(self, before: Mapping[str, Any], step: int) -> dict[str, list[Any]]:
        """Return which held-out data changed, with their digests before and now.

        Raises:
          UserError: if data changed that the steps depend on.
        """
        needed = {"train"}
        if self.settings.optimizer.schedule == "plateau":
            needed.add("validation")
        found = {}
        for split in sources.SPLITS:
            known, now = before.get(split, {}), self.checksums.get(split, {})
            names = sources.changed(known, now) if known else []
            if names and split in needed:
                raise UserError(
                    f"{names[0]}: expected the content that the {step:,} steps of "
                    f"{self.workdir} were made with, got other content; restore it, or "
                    "use another workdir"
                )
            for name in names:
                old = known.get(name, {}).get("sha256")
                found[_data_key(split, name)] = [old, now[name].get("sha256")]
        return found

    def save(
        self,
        state: Any,
        step: int,
        tokens: int,
        course: Course,
        mark: Mark,
        metrics: Claim,
    ) -> None:
        """Save the state after so many steps and target tokens."""
        metadata = {
            "config": dataclasses.asdict(self.settings),
            "vocabulary": self.vocabulary,
            "batches_taken": step,
            "tokens": tokens,
            "course": dataclasses.asdict(course),
            "mark": dataclasses.asdict(mark),
        }
        if self.init:
            metadata["init"] = self.init
        tree = self._unstack(state) if self._is_stacked else state
        metric = mark.value if mark.kept else None
        self.checkpoints.save(step, tree.parts(), metadata, metric, not mark.kept)
        self._complete = None
        self.record(tokens, metrics)

    @functools.cached_property
    def _unstack(self) -> Callable[[Any], Any]:
        apart = functools.partial(stacks.unstack, self.model.stacks)
        return sharded(apart, self._kept)

    def record(self, tokens: int, metrics: Claim, end: Course | None = None) -> None:
        """Write the record of the run, at its end with how its validations went.

        That of a complete run stays, with the machine and the times of its steps.
        """
        if hosts.primary() and self._complete != dict(metrics):
            write_run_record(
                self.workdir,
                self.settings,
                self.vocabulary,
                self.checksums,
                tokens,
                sizes=self.sizes,
                metrics=metrics,
                changes=self._changes,
                init=self.init,
                started=self._started,
                end=None if end is None else dataclasses.asdict(end),
            )


def _data_key(split: str, name: str) -> str:
    """Return the key of a change of held-out data."""
    return f"data.{split}: {name}"


_OF_DATA = tuple(_data_key(split, "") for split in sources.SPLITS)


def _changes(saved: Any, settings: Config) -> dict[str, list[Any]]:
    """Return how the configuration of a checkpoint differs from that of the run."""
    old = config.flatten(config.resolve_saved(saved))
    new = config.flatten(settings)
    return {key: [old.get(key), new[key]] for key in new if old.get(key) != new[key]}


def sharded(function: Callable[..., Any], abstract: Any) -> Callable[..., Any]:
    """Compile a function whose results are sharded as ``abstract`` has them."""
    places = jax.tree.map(lambda x: x.sharding, abstract)
    return jax.jit(function, out_shardings=places)
