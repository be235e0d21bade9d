"""What `transformer plot` draws: schedules, targets, curves, positions, embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from transformer import config
from transformer.config import UserError
from transformer.ids import EOS
from transformer.nn import losses, optimizer
from transformer.nn.positions import sinusoidal_positions
from transformer.pictures import plots
from transformer.pictures.tables import Table
from transformer.run.folder import names
from transformer.run.history import read_metrics
from transformer.translate import Translator

Side = Literal["source", "target"]


def schedule(
    d_models: Sequence[int], warmups: Sequence[int], steps: int
) -> plots.Picture:
    """Draw the learning rate of equation 3 for every width and warm-up.

    Args:
      d_models: D.
      warmups: steps of linear growth.
      steps: where the picture ends.
    """
    # Evenly spaced steps, and the peaks themselves.
    peaks = [w for w in warmups if w <= steps]
    at = np.unique([*np.linspace(1, steps, 300).round(), *peaks])
    lines = {}
    for d_model in d_models:
        for warmup in warmups:
            rates = optimizer.learning_rate(jnp.asarray(at), d_model, warmup)
            points = list(zip(at.tolist(), rates.tolist(), strict=True))
            lines[f"d_model {d_model:,}, warm-up {warmup:,}"] = points
    return plots.panels("step", [("learning rate", False, lines)])


def smoothing(epsilon: float, size: int) -> plots.Picture:
    """Draw the distribution that label smoothing trains towards (section 5.4).

    Read off the loss itself: its gradient with respect to the logits is
    ``softmax(z) - q``.

    Args:
      epsilon: the share that is taken from the target.
      size: ids of the vocabulary.
    """
    target = size // 2
    rows = {
        "no smoothing": _target(target, size, 0.0, "all"),
        f"{epsilon:g} over all ids": _target(target, size, epsilon, "all"),
        f"{epsilon:g} over the others": _target(target, size, epsilon, "others"),
    }
    names = [f"id {i}" + "\n(target)" * (i == target) for i in range(size)]
    title = f"Training target, vocabulary of {size}"
    return plots.bars(title, names, "probability", rows)


def _target(target: int, size: int, epsilon: float, over: str) -> list[float]:
    """Return the distribution q that the smoothed loss is lowest for, (V,)."""

    def loss(logits):
        ids, weights = jnp.array([target]), jnp.ones(1)
        total, _ = losses.smoothed_cross_entropy(logits, ids, weights, epsilon, over)
        return total

    even = jnp.zeros((1, size))
    return (1 / size - jax.grad(loss)(even)[0]).tolist()


# ---- runs ----------------------------------------------------------------------------

_CURVES = (
    ("training loss, nats", "loss", False),
    ("validation perplexity", "validation_perplexity", True),
    ("learning rate", "learning_rate", False),
)


def curves(workdirs: Sequence[Path]) -> plots.Picture:
    """Draw loss, validation perplexity and learning rate of runs by step.

    Args:
      workdirs: folders of runs, finished or not.

    Raises:
      UserError: if a folder has no metrics of a run.
    """
    measured = [read_metrics(workdir) for workdir in workdirs]
    for workdir, lines in zip(workdirs, measured, strict=True):
        if not lines:
            raise UserError(
                f"{workdir}: expected the folder of a training run, found no lines in "
                "metrics.jsonl; train first, or leave it out"
            )
    panels = []
    for label, key, logarithmic in _CURVES:
        found = {
            name: [(line["step"], line[key]) for line in lines if _number(line, key)]
            for name, lines in zip(names(workdirs), measured, strict=True)
        }
        shown = {name: points for name, points in found.items() if points}
        if shown:
            panels.append((label, logarithmic, shown))
    return plots.panels("step", panels)


def _number(line: dict, key: str) -> bool:
    return key in line and line[key] is not None  # not finite is written as null


# ---- positions -----------------------------------------------------------------------


def positions(length: int, d_model: int, learned: Translator | None) -> plots.Picture:
    """Draw the sinusoids of section 3.5 and the dot products of positions.

    Args:
      length: how many positions.
      d_model: D of the sinusoids.
      learned: a model with learned positions, to be drawn beside them.

    Raises:
      UserError: if the model has no learned positions, or fewer.
    """
    tables = {"sinusoids": np.asarray(sinusoidal_positions(length, d_model))}
    if learned is not None:
        settings = config.transformer(learned.settings.model)
        if settings.positions != "learned" or settings.max_positions < length:
            raise UserError(
                f"--workdir: expected a run with model.positions=learned and at least "
                f"{length} of them, got {settings.positions} and "
                f"{settings.max_positions}; choose another or a smaller --length"
            )
        for side in ("source", "target"):
            table = np.asarray(learned.params[f"{side}_positions"])
            tables[f"learned, {side}"] = table[:length]
    every = []
    for name, table in tables.items():
        every += [
            plots.Map(name, table.tolist(), "dimension", "position"),
            plots.Map(
                f"{name}: dot products",
                (table @ table.T).tolist(),
                "position",
                "position",
            ),
        ]
    return plots.maps(every)


# ---- embeddings ----------------------------------------------------------------------


def embeddings(
    translator: Translator,
    words: Sequence[str],
    method: Literal["pca", "tsne"],
    side: Side,
) -> plots.Picture:
    """Draw the directions of the embeddings of words in a plane.

    The embeddings are first scaled to equal lengths, which say more about how often a
    word occurs.

    Args:
      translator: a trained model.
      words: at least four; the place of one with several pieces is their mean.
      method: "pca" keeps the two directions of largest variance; "tsne" neighbours
        (van der Maaten and Hinton 2008), at places that differ from seed to seed.
      side: whose vocabulary.

    Raises:
      UserError: if there are too few words, or one without text.
    """
    least = 4
    if len(words) < least:
        raise UserError(
            f"--words: expected at least {least}, got {len(words)}; give more"
        )
    vectors = _unit(_vectors(translator, words, side))
    if np.ptp(vectors, axis=0).max() < 1e-6:
        raise UserError(
            f"--words: expected words with different embeddings, got {', '.join(words)}"
            ", which the vocabulary does not tell apart; give others"
        )
    if method == "pca":
        from sklearn.decomposition import PCA

        model = PCA(2)
        places = model.fit_transform(vectors)
        shares = model.explained_variance_ratio_.sum()
        note = f"two directions with {shares:.0%} of the variance"
    else:
        from sklearn.manifold import TSNE

        near = min(30.0, (len(words) - 1) / 3)
        places = TSNE(perplexity=near, init="pca", random_state=0).fit_transform(
            vectors
        )
        note = f"t-SNE, perplexity {near:.3g}: only who is near whom is meaningful"
    title = f"Embeddings of the {side}"
    return plots.points(title, words, places.tolist(), note)


def neighbours(
    translator: Translator, words: Sequence[str], count: int, side: Side
) -> Table:
    """Return the pieces whose embeddings are nearest to those of words.

    Args:
      translator: a trained model.
      words: as those of ``embeddings``.
      count: how many pieces per word.
      side: whose vocabulary.

    Returns:
      A row per word: pieces, each with the cosine of the angle between both.
    """
    tokenizer, table = _table(translator, side)
    table = _unit(table)
    rows = []
    for word, vector in zip(words, _vectors(translator, words, side), strict=True):
        cosines = table @ _unit(vector[None])[0]
        own = set(tokenizer.encode(word))
        order = (i for i in np.argsort(-cosines).tolist() if i > EOS and i not in own)
        best = [next(order) for _ in range(min(count, len(table) - EOS - 1 - len(own)))]
        pieces = tokenizer.pieces(best)
        shown = [f"{p} {cosines[i]:.2f}" for p, i in zip(pieces, best, strict=True)]
        rows.append((word, ", ".join(shown)))
    title = f"Nearest neighbours in the {side} vocabulary, with cosines"
    return Table(title, ("word", "pieces"), tuple(rows))


def _table(translator: Translator, side: Side) -> tuple[Any, np.ndarray]:
    """Return the tokenizer of a side and its embeddings, (V, D)."""
    if side == "source" and translator.settings.data.vectors:
        raise UserError(
            "--side: expected target for a run whose sources are vectors, which have "
            "no words, got source; change it"
        )
    shared = translator.settings.model.tying == "three"
    table = translator.params[f"{'source' if shared else side}_embedding"]
    tokenizer = getattr(translator.vocabulary, side)
    return tokenizer, np.asarray(table)[: tokenizer.size]


def _vectors(translator: Translator, words: Sequence[str], side: Side) -> np.ndarray:
    tokenizer, table = _table(translator, side)
    ids = [tokenizer.encode(word) for word in words]
    for word, found in zip(words, ids, strict=True):
        if not found:
            raise UserError(f"--words: expected words, got {word!r}; leave it out")
    return np.stack([table[found].mean(0) for found in ids])


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True).clip(1e-12)
