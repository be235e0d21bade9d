"""Self-checks of a model for mistakes that other reproductions made."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer import decode, models, objective, translate
from transformer.config import Config
from transformer.data import vectors
from transformer.ids import EOS, PAD
from transformer.models import Model
from transformer.nn import losses
from transformer.objective import batch_sums
from transformer.parallel import sizes
from transformer.run.records import announce

# Float32 sums in another order differ by some units in the last place, 1.2e-7 of the
# largest number, per product; a leak moves logits by a good part of their size.
TOLERANCE = 1e-4

_ROWS, _SOURCE, _TARGET = 4, 9, 20  # more than a block of the cache holds


class Subject(NamedTuple):
    """The model under test, in float32, and random sentences or vectors."""

    settings: Config
    model: Model
    params: Any
    source: np.ndarray  # (B, S), of vectors (B, S, 1 + F), of different lengths
    target: np.ndarray  # (B, T), also of different lengths

    def logits(self, source: np.ndarray, target: np.ndarray) -> np.ndarray:
        """Return the logits of whole targets, (B, T, V)."""
        return np.asarray(_logits(self.model, self.params, source, target))


_logits = jax.jit(objective.logits, static_argnums=0)


def future_leak(it: Subject) -> float:
    """Change the later half of each target; earlier predictions must stay."""
    half = _TARGET // 2
    other = it.target.copy()
    other[:, half:] = np.roll(other[:, half:], 1, axis=0)
    # Predictions up to this one are made from targets before the change.
    a, b = it.logits(it.source, it.target), it.logits(it.source, other)
    return _difference(a[:, : half + 1], b[:, : half + 1])


def pad_leak(it: Subject) -> float:
    """Add padding to both sides; predictions must stay."""
    wider = [
        np.pad(x, ((0, 0), (0, 5), (0, 0))[: x.ndim], constant_values=PAD)
        for x in (it.source, it.target)
    ]
    padded = it.logits(*wider)[:, :_TARGET]
    return _difference(it.logits(it.source, it.target), padded)


def batch_dependence(it: Subject) -> float:
    """Run each sentence alone; predictions must be those in the batch."""
    alone = [
        it.logits(it.source[i : i + 1], it.target[i : i + 1]) for i in range(_ROWS)
    ]
    return _difference(it.logits(it.source, it.target), np.concatenate(alone))


def cached_decoding(it: Subject) -> float:
    """Decode token by token with the cache; compare with the whole target at once."""
    parents = jnp.zeros((_ROWS, 1), jnp.int32)

    @jax.jit
    def stepwise(variables, source, inputs):
        step, cache = models.start(it.model, variables, source, 1, _TARGET)

        def score(cache, ids):
            return step(cache, ids[:, None], parents)[::-1]

        return jax.lax.scan(score, cache, inputs.T)[1][:, :, 0].swapaxes(0, 1)

    variables = models.search_variables(it.model, it.params)
    each = stepwise(
        variables, it.source, objective.decoder_inputs(jnp.asarray(it.target))
    )
    return _difference(it.logits(it.source, it.target), np.asarray(each))


def beam_of_one(it: Subject) -> float:
    """Search with a beam of 1; return the share of tokens unlike greedy search's."""
    length = 12
    limits = jnp.full((_ROWS,), length)
    penalty = decode.length_penalty(
        it.settings.decode.length_penalty, it.settings.decode.alpha
    )

    @jax.jit
    def both(variables, source):
        step, cache = models.start(it.model, variables, source, 1, length)
        one = decode.beam(step, cache, limits, length, penalty, 1)
        return one.ids, decode.greedy(step, cache, limits, length, penalty).ids

    one, greedy = both(models.search_variables(it.model, it.params), it.source)
    return float((one != greedy).mean())


def smoothed_loss(it: Subject) -> float:
    """Compare the loss with -sum q log p, every q written out, in float64."""
    logits = it.logits(it.source, it.target).astype(np.float64)
    peak = logits.max(-1, keepdims=True)
    log_p = logits - peak - np.log(np.exp(logits - peak).sum(-1, keepdims=True))
    size, smoothing = logits.shape[-1], it.settings.loss.smoothing
    here = np.eye(size)[it.target]
    if it.settings.loss.smoothing_over == "all":
        q = (1 - smoothing) * here + smoothing / size
    else:
        q = (1 - smoothing) * here + smoothing / (size - 1) * (1 - here)
    expected = -(q * log_p).sum(-1)[it.target != PAD].sum()
    batch = {"source": jnp.asarray(it.source), "target": jnp.asarray(it.target)}
    sums = jax.jit(functools.partial(batch_sums, it.settings, it.model))
    return abs(float(sums(it.params, batch).loss) / expected - 1)


def empty_rows(it: Subject) -> float:
    """Differentiate a batch with an empty sentence; count what is not finite."""
    source, target = it.source.copy(), it.target.copy()
    source[0], target[0] = PAD, PAD
    batch = {"source": jnp.asarray(source), "target": jnp.asarray(target)}

    def loss(params: Any) -> jax.Array:
        sums: losses.Sums = batch_sums(it.settings, it.model, params, batch)
        return sums.loss

    leaves = jax.tree.leaves(jax.jit(jax.grad(loss))(it.params))
    return float(sum((~np.isfinite(leaf)).sum() for leaf in leaves))


CHECKS: dict[str, Callable[[Subject], float]] = {
    "no future leak": future_leak,
    "no pad leak": pad_leak,
    "batch invariance": batch_dependence,
    "cached = uncached decoding": cached_decoding,
    "beam 1 = greedy": beam_of_one,
    "smoothed loss = closed form": smoothed_loss,
    "empty rows leave gradients finite": empty_rows,
}


def check(
    workdir: Path | None = None,
    settings: Config | None = None,
    log: Callable[[str], None] = announce,
) -> int:
    """Run every check on a trained model, or on an untrained one of a configuration.

    The model is computed in float32 here, whatever ``model.dtype``: rounding to
    bfloat16 would hide small leaks.

    Args:
      workdir: folder of a run, or None.
      settings: a configuration, where there is no workdir.
      log: takes a line per check.

    Returns:
      0 if all passed, else 1.
    """
    it = subject(workdir, settings)
    width = max(map(len, CHECKS))
    failed = 0
    for name, measure in CHECKS.items():
        value = measure(it)
        passed = value <= TOLERANCE  # NaN fails
        failed += not passed
        verdict = "pass" if passed else "FAIL"
        log(f"{verdict}  {name:{width}}  difference {value:.1e}, allowed {TOLERANCE}")
    log(f"{len(CHECKS) - failed} of {len(CHECKS)} checks passed")
    return int(failed > 0)


def subject(workdir: Path | None, settings: Config | None) -> Subject:
    """Return a trained model, or an untrained one of a configuration, and sentences."""
    if workdir is not None:
        trained = translate.load(workdir)
        settings, params = trained.settings, trained.params
        vocabularies = trained.vocabulary.sizes
    else:
        assert settings is not None
        vocabularies = (models.configured_vocabulary(settings),) * 2
    exact = dataclasses.replace(settings.model, dtype="float32")
    settings = dataclasses.replace(settings, model=exact)
    settings = sizes.here(settings, vocabularies[1])
    model = models.make(settings, *vocabularies)
    if workdir is None:
        params = jax.jit(lambda: models.init(model, jax.random.key(settings.seed)))()
    draw = np.random.default_rng(settings.seed)
    sources = _frames if settings.data.vectors else _sentences
    source = sources(draw, _SOURCE, vocabularies[0])
    return Subject(
        settings, model, params, source, _sentences(draw, _TARGET, vocabularies[1])
    )


def _sentences(draw: np.random.Generator, length: int, size: int) -> np.ndarray:
    """Return random sentences (B, length), each one token shorter than the last."""
    ids = draw.integers(EOS + 1, size, (_ROWS, length), dtype=np.int32)
    for row in range(_ROWS):
        ids[row, length - 1 - row] = EOS
        ids[row, length - row :] = PAD
    return ids


def _frames(draw: np.random.Generator, length: int, size: int) -> np.ndarray:
    """Return random vectors (B, length, 1 + F), each a frame shorter than the last."""
    lengths = range(length, length - _ROWS, -1)
    arrays = [draw.standard_normal((n, size), np.float32) for n in lengths]
    return vectors.padded(arrays, (_ROWS, length), size)


def _difference(a: np.ndarray, b: np.ndarray) -> float:
    """Return the largest difference, relative to the largest number."""
    return float(np.abs(a - b).max() / np.abs(a).max())
