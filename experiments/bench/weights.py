"""A model's parameters on their way from this project to other systems.

They keep their names, ``encoder_0.self_attention.query.kernel``, and matrices stay
(I, O). Every measured system reads this file, so it needs numpy alone.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sizes import EPSILON, LENGTH, Convolutional, Recurrent, Size


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


class ComposedWeights(NamedTuple):
    """A model that torch.nn has only the parts of: recurrent or convolutional.

    Attributes:
      size: its sizes.
      arrays: its parameters by name, float32; where "output", or "target_embedding"
        too, is missing, it shares the table before it.
    """

    size: Recurrent | Convolutional
    arrays: dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Task:
    """Sentences to translate, as ids, and how.

    Attributes:
      sources: N sentences, each with EOS.
      groups: which of them form a batch; each is in exactly one group.
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
    """Draw a model to measure its speed; its output means nothing.

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


def composed_shapes(size: Recurrent | Convolutional) -> dict[str, tuple[int, ...]]:
    """Return name and shape of every parameter of such a model."""
    if isinstance(size, Convolutional):
        return _convs2s(size)
    found = {
        "source_embedding": (size.source, size.embedding),
        "target_embedding": (size.target, size.embedding),
        "output": (size.target, size.d_model),
    }
    return found | (_cgru if size.member == "cgru" else _luong)(size)


def _cgru(size: Recurrent) -> dict[str, tuple[int, ...]]:
    m, n, wide = size.embedding, size.units, size.d_model
    cells = {f"encoder_0.cells_{way}": m for way in ("forward", "backward")}
    cells |= {"decoder.first": m, "decoder.second": 2 * n}
    found: dict[str, tuple[int, ...]] = {
        "decoder.kernel_query": (n, 2 * n),
        "decoder.energy": (2 * n,),
    }
    for name, width in cells.items():
        found[f"{name}.kernel_input"] = (width, 3 * n)
        found[f"{name}.kernel_state"] = (n, 3 * n)
        found[f"{name}.bias_input"] = (3 * n,)
        found[f"{name}.bias_state"] = (n,)
        if size.normed and name.startswith("encoder"):
            found[f"{name}.bias_state"] = (3 * n,)
            found[f"{name}.gain_input"] = found[f"{name}.gain_state"] = (3 * n,)
    linears = {"begin": (2 * n, n), "keys": (2 * n, 2 * n)}
    linears |= {f"readouts_{i}": (k, wide) for i, k in enumerate((n, m, 2 * n))}
    for name, (inputs, outputs) in linears.items():
        found[f"decoder.{name}.kernel"] = (inputs, outputs)
        found[f"decoder.{name}.bias"] = (outputs,)
    return found


def _luong(size: Recurrent) -> dict[str, tuple[int, ...]]:
    n, wide = size.units, size.d_model
    found: dict[str, tuple[int, ...]] = {
        "decoder.kernel_query": (n, n),
        "decoder.kernel_context": (n, wide),
        "decoder.kernel_state": (n, wide),
        "decoder.kernel_feeding": (wide, 4 * n),
    }
    for i in range(size.layers):
        width = n if i else size.embedding
        for name in (f"encoder_{i}.cells_forward", f"decoder.cells_{i}"):
            found[f"{name}.kernel_input"] = (width, 4 * n)
            found[f"{name}.kernel_state"] = (n, 4 * n)
            found[f"{name}.bias_input"] = (4 * n,)
    return found


def _convs2s(size: Convolutional) -> dict[str, tuple[int, ...]]:
    wide = size.width
    found: dict[str, tuple[int, ...]] = {
        "source_embedding": (size.source, wide),
        "target_embedding": (size.target, wide),
        "output": (size.target, wide),
        "output_gain": (size.target,),
        "output_bias": (size.target,),
    }
    maps: dict[str, tuple[int, int]] = {}
    for side, layers in (("encoder", size.encoder), ("decoder", size.decoder)):
        maps |= dict.fromkeys((f"{side}_input", f"{side}_output"), (wide, wide))
        for i in range(layers):
            maps[f"{side}_{i}.convolution"] = (size.kernel * wide, 2 * wide)
            if side == "decoder":
                maps |= {f"{side}_{i}.{x}": (wide, wide) for x in ("query", "context")}
    for side in ("source", "target"):
        found[f"{side}_positions"] = (size.positions, wide)
    for name, (inputs, outputs) in maps.items():
        found[f"{name}.direction"] = (inputs, outputs)
        found[f"{name}.gain"] = found[f"{name}.bias"] = (outputs,)
    return found


def draw_composed(size: Recurrent | Convolutional) -> ComposedWeights:
    """Draw such a model, always the same one."""
    numbers = np.random.default_rng(0)

    def parameter(name: str, shape: tuple[int, ...]) -> np.ndarray:
        if name.endswith("gain"):
            return numbers.normal(1, 0.1, shape).astype(np.float32)
        fan = shape[1] if name.endswith(("embedding", "output")) else shape[0]
        deviation = 0.1 if len(shape) == 1 else fan**-0.5
        return numbers.normal(0, deviation, shape).astype(np.float32)

    shapes = composed_shapes(size)
    arrays = {name: parameter(name, shape) for name, shape in shapes.items()}
    return ComposedWeights(size, arrays)


def save(folder: Path, weights: Weights | ComposedWeights, task: Task) -> None:
    """Write parameters.npz and task.json."""
    arrays: dict[str, Any] = dict(weights.arrays)
    facts: dict[str, Any] = {"size": weights.size}
    if isinstance(weights, Weights):
        arrays["positions"] = weights.positions
        facts["epsilon"] = weights.epsilon
    np.savez(folder / "parameters.npz", **arrays)
    facts |= dataclasses.asdict(task)
    (folder / "task.json").write_text(json.dumps(facts))


def load(folder: Path) -> tuple[Weights, Task]:
    """Read what ``save`` wrote of a Transformer."""
    arrays, facts = _read(folder)
    size, epsilon = Size(*facts.pop("size")), facts.pop("epsilon")
    return Weights(size, epsilon, arrays.pop("positions"), arrays), Task(**facts)


def load_recurrent(folder: Path) -> tuple[ComposedWeights, Task]:
    """Read what ``save`` wrote of a recurrent model."""
    arrays, facts = _read(folder)
    size = Recurrent(*facts.pop("size"))
    words, annotations, readout = size.dropout  # a list in JSON
    size = size._replace(dropout=(words, annotations, readout))
    return ComposedWeights(size, arrays), Task(**facts)


def load_task(folder: Path) -> Task:
    """Read the task that ``save`` wrote, whatever the model."""
    _, facts = _read(folder)
    names = {field.name for field in dataclasses.fields(Task)}
    return Task(**{name: facts[name] for name in names})


def _read(folder: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    with np.load(folder / "parameters.npz", allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    return arrays, json.loads((folder / "task.json").read_text())
