"""A model's parameters on their way from this project to other systems.

They keep their names, ``encoder_0.self_attention.query.kernel``, and matrices their
form (I, O). Whoever is measured reads this file, so it needs numpy alone.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sizes import EPSILON, LENGTH, Size


class Weights(NamedTuple):
    """A post-norm model with ReLU and one table for all embeddings.

    Attributes:
      size: its sizes.
      epsilon: of its layer norms.
      positions: what is added to the embeddings (longest sentence, D).
      arrays: its parameters by name, float32.
    """

    size: Size
    epsilon: float
    positions: np.ndarray
    arrays: dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Task:
    """Sentences to translate, as ids, and how.

    Attributes:
      sources: N sentences, each with EOS.
      groups: which of them are one batch; every one is in one group.
      limit: most tokens of a translation.
      alpha: scores are log-probabilities divided by length^alpha.
      targets: a translation of each, with EOS, to be scored.
      scores: the log-probability of each target, nats, in float32.
    """

    sources: list[list[int]]
    groups: list[list[int]]
    limit: int
    alpha: float
    targets: list[list[int]]
    scores: list[float]


def shapes(size: Size) -> dict[str, tuple[int, ...]]:
    """Return name and shape of every parameter of a model."""
    wide, inner = size.d_model, size.d_ff
    found: dict[str, tuple[int, ...]] = {"source_embedding": (size.vocabulary, wide)}
    attentions = {
        "encoder": ["self_attention"],
        "decoder": ["self_attention", "cross_attention"],
    }
    for side, kinds in attentions.items():
        for layer in (f"{side}_{i}" for i in range(size.layers)):
            for matrix in ("query", "key", "value", "output"):
                for kind in kinds:
                    found[f"{layer}.{kind}.{matrix}.kernel"] = (wide, wide)
                    found[f"{layer}.{kind}.{matrix}.bias"] = (wide,)
            found[f"{layer}.feed_forward.kernel_1"] = (wide, inner)
            found[f"{layer}.feed_forward.bias_1"] = (inner,)
            found[f"{layer}.feed_forward.kernel_2"] = (inner, wide)
            found[f"{layer}.feed_forward.bias_2"] = (wide,)
            for i in range(len(kinds) + 1):
                found[f"{layer}.residual_{i + 1}.norm.scale"] = (wide,)
                found[f"{layer}.residual_{i + 1}.norm.bias"] = (wide,)
    return found


def draw(size: Size, longest: int = LENGTH) -> Weights:
    """Draw a model whose speed is to be measured: its output means nothing.

    Args:
      size: of the model.
      longest: tokens of the longest sentence that it is given.
    """
    numbers = np.random.default_rng(0)

    def parameter(name: str, shape: tuple[int, ...]) -> np.ndarray:
        if len(shape) == 2:
            table = name == "source_embedding"
            deviation = shape[1 if table else 0] ** -0.5
            return numbers.normal(0, deviation, shape).astype(np.float32)
        return np.full(shape, name.endswith("scale"), np.float32)

    positions = numbers.normal(0, 0.5, (2 * longest, size.d_model)).astype(np.float32)
    arrays = {name: parameter(name, shape) for name, shape in shapes(size).items()}
    return Weights(size, EPSILON, positions, arrays)


def save(folder: Path, weights: Weights, task: Task) -> None:
    """Write parameters.npz and task.json."""
    arrays: dict[str, Any] = weights.arrays | {"positions": weights.positions}
    np.savez(folder / "parameters.npz", **arrays)
    facts = {"size": weights.size, "epsilon": weights.epsilon}
    facts |= dataclasses.asdict(task)
    (folder / "task.json").write_text(json.dumps(facts))


def load(folder: Path) -> tuple[Weights, Task]:
    """Read what ``save`` wrote."""
    with np.load(folder / "parameters.npz", allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    facts = json.loads((folder / "task.json").read_text())
    size, epsilon = Size(*facts.pop("size")), facts.pop("epsilon")
    return Weights(size, epsilon, arrays.pop("positions"), arrays), Task(**facts)
