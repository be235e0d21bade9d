"""Warm start from a trained model: which of its parameters are taken, and how."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer import config, models
from transformer.config import Config, UserError, patterns
from transformer.data.tokenizers import Tokenizer, Vocabulary
from transformer.ids import EOS
from transformer.models import Model
from transformer.run.checkpoints import Checkpoints, steps_in
from transformer.step import State, init_state
from transformer.trained import Restored, restore

Shapes = Mapping[str, tuple[int, ...]]
Side = Literal["source", "target"]


class Part(NamedTuple):
    """The initial values of a parameter.

    Attributes:
      values: of its shape.
      mask: which of them are used, in a shape that broadcasts; None = all. The rest is
        drawn.
    """

    values: np.ndarray
    mask: np.ndarray | None


@dataclasses.dataclass(frozen=True)
class Start:
    """What a run starts from.

    Attributes:
      parts: values of parameters by name; the others are drawn.
      record: what record.json says about it, None if all are drawn.
    """

    parts: Mapping[str, Part] = dataclasses.field(default_factory=dict)
    record: Mapping[str, Any] | None = None


@dataclasses.dataclass(frozen=True)
class Origin:
    """Another run, whose parameters are to be taken.

    Attributes:
      workdir: its workdir.
      found: the trained model.
      params: its parameters by name.
    """

    workdir: Path
    found: Restored
    params: Mapping[str, np.ndarray]

    def vocabulary(self, settings: Config) -> Vocabulary | None:
        """Return the vocabulary that a run takes from this one, None = none."""
        old = settings.init.vocabulary == "old"
        return self.found.vocabulary if old else None

    def start(
        self, settings: Config, vocabulary: Vocabulary, log: Callable[[str], None]
    ) -> Start:
        """Choose what a run takes from this one, and say so in a line.

        Args:
          settings: the configuration of the run.
          vocabulary: of the run.
          log: takes the line.

        Raises:
          UserError: if the data were prepared with another vocabulary than this run's
            where ``init.vocabulary`` asks for it.
        """
        old = self.found.vocabulary
        if settings.init.vocabulary == "old" and vocabulary.digest != old.digest:
            raise UserError(
                f"init.vocabulary: expected data prepared with the vocabulary of "
                f"{self.workdir}, {old.digest[:12]}, got {vocabulary.digest[:12]}; use "
                "another workdir or data.prepared"
            )
        shapes = _shapes(settings, *vocabulary.sizes)
        axes, names = axes_of_ids(settings), _chosen(settings, shapes)
        parts, rows = {}, {}
        for name in names:
            values, mask = self.params[name], None
            if name in axes:
                side, axis = axes[name]
                new, before = getattr(vocabulary, side), getattr(old, side)
                if side == "source" and settings.data.vectors:
                    self._check_features(name, values.shape, shapes[name])
                elif new.digest != before.digest or values.shape != shapes[name]:
                    pairs = shared_ids(new, before)
                    rows[side] = f"{len(pairs):,} of {new.size:,} {side} pieces"
                    values, mask = _by_ids(values, shapes[name], axis, pairs)
            parts[name] = Part(values, mask)
        left = [name for name in self.params if name not in parts]
        counts = {"taken": len(parts), "drawn": len(shapes) - len(parts)}
        both = " and ".join(rows.values()) or "all pieces"
        log(
            f"parameters: {counts['taken']:,} arrays taken from "
            f"{self.found.checkpoint}, with the rows of {both}; {counts['drawn']:,} "
            f"drawn, {len(left):,} of the other run left out"
        )
        theirs = self.found
        if changes := _other_model(theirs.settings, settings):
            log(f"model: differs from that of {self.workdir}: {'; '.join(changes)}")
        record = {
            "run": str(self.workdir.resolve()),
            "checkpoint": "/".join(theirs.checkpoint.parts[-2:]),
            "checkpoint_digest": theirs.digest,
            "config_digest": config.digest(theirs.settings),
            "vocabulary_digest": old.digest,
            "arrays": counts,
            "rows": rows,
        }
        return Start(parts, record)

    def _check_features(
        self, name: str, old: tuple[int, ...], new: tuple[int, ...]
    ) -> None:
        """Check that a table of features, which have no names, has the same size."""
        if old != new:
            raise UserError(
                f"init_from: expected vectors with as many features as {self.workdir} "
                f"reads, got {new} for {name} in place of {old}; skip it by init.skip"
            )


def _other_model(old: Config, new: Config) -> list[str]:
    """Return what changes the function that parameters of the same shapes compute."""
    lines = [x for x in config.difference(old, new) if x.startswith("model.")]
    rest = re.compile(r"model\.(\w*dropout|dtype|vocab_size):")
    return [line for line in lines if not rest.match(line)]


def open_origin(
    settings: Config,
    workdir: Path,
    init_from: str | None,
    log: Callable[[str], None],
) -> Origin | None:
    """Read the run that parameters are taken from, and check that they fit.

    A run that has its own checkpoint resumes from that, and reads no other.

    Args:
      settings: the configuration of the run.
      workdir: of the run.
      init_from: WORKDIR or WORKDIR:STEP, None = parameters are drawn.
      log: takes messages, one line at a time.

    Returns:
      The other run; None where there is none, or it is no longer needed.

    Raises:
      UserError: if the other run has no such checkpoint, or does not fit; if a pattern
        matches no parameter, or no parameter is left to train; if keys of ``init`` are
        set without effect; if the run began with something else.
    """
    _check_patterns(settings)
    if steps_in(workdir / "checkpoints"):
        _check_same_origin(workdir, init_from)
        return None
    if init_from is None:
        for key, value in config.flatten(settings.init).items():
            if (default := config.NEWER[f"init.{key}"]) != value:
                expected = f"{default!r} without --init_from"
                config.refuse(f"init.{key}", expected, value)
        return None
    place, step = split_step(init_from)
    if place.resolve() == workdir.resolve():
        raise UserError(
            f"--init_from: expected a run other than --workdir, got {init_from}; "
            "choose another workdir"
        )
    found = restore(place, step, log)
    params = {
        name: np.asarray(leaf) for name, leaf in models.by_name(found.params).items()
    }
    origin = Origin(place, found, params)
    _check_fits(settings, origin)
    return origin


def split_step(text: str) -> tuple[Path, int | None]:
    """Read WORKDIR or WORKDIR:STEP.

    >>> split_step("runs/numbers:300")
    (PosixPath('runs/numbers'), 300)
    """
    place, colon, step = text.rpartition(":")
    if colon and step.isdecimal() and not Path(text).exists():
        return Path(place), int(step)
    return Path(text), None


def begin(settings: Config, model: Model, parts: Mapping[str, Part]) -> State:
    """Return the state that a run starts from: what is given, the rest drawn."""
    params = models.init(model, jax.random.key(settings.seed))

    def put(name: str, drawn: jax.Array) -> jax.Array:
        if name not in parts:
            return drawn
        values, mask = parts[name]
        return jnp.asarray(values) if mask is None else jnp.where(mask, values, drawn)

    return init_state(settings, model, models.map_by_name(put, params))


# ------------------------------------------------------------------------ vocabularies


def axes_of_ids(settings: Config) -> dict[str, tuple[Side, int]]:
    """Return which parameters have a row for each id: by name, the side and the axis.

    They are those whose shape changes with the size of a vocabulary. Where one table
    serves both sides, so does its vocabulary, which counts as the source's.
    """
    settings = _of_any_rows(settings)
    target_size = 9 if settings.model.tying == "three" else 10
    changed = _shapes(settings, 9, target_size)
    sides: dict[int, Side] = {1: "source", 2: "target"}
    found = {}
    for name, shape in _shapes(settings, 8, 8).items():
        for axis, (size, new) in enumerate(zip(shape, changed[name], strict=True)):
            if new != size:
                found[name] = sides[new - size], axis
    return found


def shared_ids(new: Tokenizer, old: Tokenizer) -> list[tuple[int, int]]:
    """Return the ids that mean the same in two vocabularies, (new, old).

    They are those of the same kind and written form, and the four special ones.
    """

    def forms(tokenizer: Tokenizer) -> dict[tuple[str, str], int]:
        pieces = enumerate(tokenizer.pieces(range(tokenizer.size)))
        return {(tokenizer.kind_of(i), piece): i for i, piece in pieces if i > EOS}

    mine, theirs = forms(new), forms(old)
    both = [(i, theirs[form]) for form, i in mine.items() if form in theirs]
    return [*((i, i) for i in range(EOS + 1)), *both]


def _by_ids(
    values: np.ndarray, shape: tuple[int, ...], axis: int, pairs: list[tuple[int, int]]
) -> Part:
    """Put rows of another vocabulary where this one has them."""
    mine, theirs = np.array(pairs).T
    moved, known = np.zeros(shape, values.dtype), np.zeros(shape[axis], bool)
    np.moveaxis(moved, axis, 0)[mine] = np.moveaxis(values, axis, 0)[theirs]
    known[mine] = True
    others = [i for i in range(len(shape)) if i != axis]
    return Part(moved, np.expand_dims(known, others))


# ------------------------------------------------------------------------------- checks


@functools.cache
def _shapes(settings: Config, source_size: int, target_size: int) -> Shapes:
    model = models.make(settings, source_size, target_size)
    found = models.by_name(models.abstract(model))
    return {name: leaf.shape for name, leaf in found.items()}


def _of_any_rows(settings: Config) -> Config:
    """Return settings whose model has as many rows as the vocabulary."""
    model = dataclasses.replace(settings.model, vocab_size=0)
    return dataclasses.replace(settings, model=model)


def _chosen(settings: Config, names: Mapping[str, Any]) -> list[str]:
    """Return the names of the parameters that are taken."""
    only, skip = settings.init.only, settings.init.skip
    return [
        name
        for name in names
        if (not only or patterns.matches(only, name))
        and not patterns.matches(skip, name)
    ]


def _check_patterns(settings: Config) -> None:
    """Check that patterns match parameters, before anything is prepared."""
    chosen = {
        "optimizer.frozen": settings.optimizer.frozen,
        "init.only": settings.init.only,
        "init.skip": settings.init.skip,
    }
    if not any(chosen.values()):
        return
    names = list(_shapes(_of_any_rows(settings), 8, 8))
    for key, text in chosen.items():
        patterns.check(key, text, names)
    frozen = functools.partial(patterns.matches, settings.optimizer.frozen)
    if all(map(frozen, names)):
        expected = "patterns that leave a parameter to train"
        config.refuse("optimizer.frozen", expected, settings.optimizer.frozen)


def _check_same_origin(workdir: Path, init_from: str | None) -> None:
    """Check that a run that has begun is not asked to begin with something else."""
    if init_from is None:
        return
    with Checkpoints(workdir / "checkpoints", keep=1) as checkpoints:
        began = checkpoints.metadata().get("init") or {"run": "none"}
    place, step = split_step(init_from)
    expected, same = began["run"], began["run"] == str(place.resolve())
    if same and step is not None:
        expected += f" ({began['checkpoint']})"
        same = began["checkpoint"] == f"checkpoints/{step}"
    if not same:
        raise UserError(
            f"--init_from: expected {expected}, with which {workdir} began, got "
            f"{init_from}; leave it out to go on, or choose another workdir"
        )


_OF_TEXT = ("kind", "target_kind", "joint")


def _check_fits(settings: Config, origin: Origin) -> None:
    """Check that another run has what is to be taken, except for the rows of ids.

    Raises:
      UserError: with the names of what it lacks.
    """
    theirs = origin.found.settings
    if (kind := theirs.model.kind) != settings.model.kind:
        expected = f"{kind}, as {origin.workdir} has"
        config.refuse("model.kind", expected, settings.model.kind)
    if settings.init.vocabulary == "old":
        for key in _OF_TEXT:
            value = getattr(theirs.tokenizer, key)
            if (got := getattr(settings.tokenizer, key)) != value:
                expected = f"{value!r}, as {origin.workdir} has, with init.vocabulary"
                config.refuse(f"tokenizer.{key}", f"{expected} = old", got)
    # The vocabulary is not known yet.
    shapes, axes = _shapes(_of_any_rows(settings), 8, 8), axes_of_ids(settings)
    wrong = []
    for name in _chosen(settings, shapes):
        mine, its = shapes[name], origin.params.get(name, np.empty(0)).shape
        if name in axes and len(mine) == len(its):  # rows are matched by their pieces
            axis = axes[name][1]
            mine, its = (x[:axis] + x[axis + 1 :] for x in (mine, its))
        if name not in origin.params:
            wrong.append(f"{name} absent")
        elif mine != its:
            wrong.append(f"{name} of shape {its} instead of {mine}")
    if wrong:
        more = f" and {len(wrong) - 5:,} more" if len(wrong) > 5 else ""
        raise UserError(
            f"--init_from: expected all parameters in {origin.workdir}, got "
            f"{', '.join(wrong[:5])}{more}; use the model that it was trained with, or "
            "name them in init.skip"
        )
