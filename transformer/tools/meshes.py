"""A step on many devices: memory, communication and operations.

As compiled for real or simulated devices, or by formula, in the letters of the paper,
with B rows of S source and T target slots in the global batch, and a mesh of d x f x t
devices (data, fsdp, tensor):

* rows are cut d f ways; parameters, gradients and moments f t ways, but for biases and
  norms, a thousandth of them, which count as whole; of a layer's results those of its
  heads and of d_ff t ways, as are the logits;
* with fsdp a device gathers all matrices before the first layer;
* collectives are rings: of n devices each sends (n - 1) / n of the bytes to gather or
  to reduce and scatter an array, twice that to reduce it for all;
* what is stored is float32, operands of products are in ``model.dtype``.

Source: Rajbhandari et al., ZeRO, arXiv:1910.02054 (fsdp is its third stage); Shoeybi et
al., Megatron-LM, arXiv:1909.08053 (tensor); Korthikanti et al., arXiv:2205.05198
(results kept of a layer).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from transformer import config
from transformer.config import Config
from transformer.models.transformer import TARGET_SPACES, configured_vocabulary
from transformer.parallel import sizes
from transformer.pictures.tables import Table, digits
from transformer.tools import flops, hlo, traces
from transformer.tools.traces import Case

_FLOAT = 4  # bytes of what is stored
_OPERAND = {"float32": 4, "bfloat16": 2}
_DEVICES = 512  # at most


class Mesh(NamedTuple):
    """How many ways the rows, the parameters and the heads are cut."""

    data: int
    fsdp: int
    tensor: int

    @property
    def devices(self) -> int:
        return self.data * self.fsdp * self.tensor

    def __str__(self) -> str:
        return " x ".join(map(str, self))


class Load(NamedTuple):
    """One global batch."""

    rows: int  # B
    source: int  # S
    target: int  # T
    vocabulary: int  # V


class Figures(NamedTuple):
    """What a step costs each device, by formula or as compiled."""

    held: float  # bytes, from step to step: parameters and moments
    within: float  # bytes, within a step: gradients, activations and all else
    sent: float  # bytes
    operations: float  # 2 a multiply-add


class Cost(NamedTuple):
    """What a step costs each device by formula."""

    parameters: float  # bytes
    gradients: float  # bytes
    moments: float  # bytes
    activations: float  # bytes, with all else that lives only within a step
    communication: float  # bytes sent in a step
    operations: float  # in a step, 2 a multiply-add


MESHES = [
    Mesh(1, 1, 1),
    *(Mesh(8, 1, 1), Mesh(1, 8, 1), Mesh(1, 1, 8), Mesh(1, 4, 2)),
    *(Mesh(64, 1, 1), Mesh(1, 64, 1), Mesh(8, 8, 1), Mesh(8, 1, 8), Mesh(1, 8, 8)),
    *(Mesh(512, 1, 1), Mesh(1, 512, 1), Mesh(64, 8, 1), Mesh(64, 1, 8)),
    *(Mesh(1, 64, 8), Mesh(8, 8, 8)),
]


def _size(layers: int, d_model: int) -> dict[str, Any]:
    """Widths in the paper's proportions: d_ff = 4 d_model, heads of 64."""
    wide = {"d_ff": 4 * d_model, "heads": d_model // 64, "d_k": 64, "d_v": 64}
    return {"layers": layers, "d_model": d_model, **wide}


SIZES = {
    "base": _size(6, 512),
    "big": _size(6, 1024),
    "1 B": _size(8, 2048),
    "10 B": _size(21, 4096),
}


class Count(NamedTuple):
    """Numbers of parameters."""

    matrices: int  # and tables
    vectors: int  # biases and norms


def layers_count(c: config.Model) -> Count:
    """Count both stacks: N layers of each, in a pair 3 attentions and 5 norms.

    An attention has matrices of ``D h (2 d_k + 2 d_v)``, a feed-forward of ``2 D F``.
    """
    attention = 2 * c.d_model * c.heads * (c.d_k + c.d_v)
    matrices = 3 * attention + 2 * 2 * c.d_model * c.d_ff
    biases = c.attention_bias * (c.heads * (2 * c.d_k + c.d_v) + c.d_model)
    vectors = 3 * biases + 2 * (c.d_ff + c.d_model) + 5 * 2 * c.d_model
    return Count(c.layers * matrices, c.layers * vectors)


def parameter_count(c: config.Model, vocabulary: int) -> Count:
    """Count all parameters.

    Args:
      c: sizes and choices.
      vocabulary: V, rows of a table.
    """
    rows = {"three": 1, "two": 2, "none": 3}[c.tying] * vocabulary
    rows += 2 * c.max_positions * (c.positions == "learned")
    rows += TARGET_SPACES * c.target_space
    stacks = layers_count(c)
    ends = 4 * c.d_model * (c.norm == "pre")
    return Count(stacks.matrices + rows * c.d_model, stacks.vectors + ends)


# ------------------------------------------------------------- results kept of a layer


def attention_bytes(c: config.Model, queries: int, keys: int, tensor: int) -> float:
    """Return what the backward pass of an attention reads, for one sentence.

    ``(4 (n h d_k + m h (d_k + d_v)) + 8 h n m + b n h d_v) / t + b n D`` for n queries
    and m keys, b bytes an operand: Q, K, V; the weights before and after the mask; the
    operands of the output's and of the first projections.

    The kernel that a GPU has for the whole (``attention.fused_attention``) keeps no
    weights; here they are counted.
    """
    b, weights = _OPERAND[c.dtype], c.heads * queries * keys
    projected = queries * c.heads * c.d_k + keys * c.heads * (c.d_k + c.d_v)
    inner = _FLOAT * projected + 2 * _FLOAT * weights + b * queries * c.heads * c.d_v
    if c.attention_dropout:  # the weights that are left, and the mask
        inner += (_FLOAT + 1) * weights
    return inner / tensor + b * queries * c.d_model


def feed_forward_bytes(c: config.Model, positions: int, tensor: int) -> float:
    """Return what it keeps, operands and signs: ``b n D + (b + 1) n F / t``."""
    b = _OPERAND[c.dtype]
    marks = 2 if c.relu_dropout else 1
    return positions * (b * c.d_model + (b + marks) * c.d_ff / tensor)


def residual_bytes(c: config.Model, positions: int) -> float:
    """Return what it keeps: the normed sum and the dropout mask, ``5 n D``."""
    return positions * c.d_model * (_FLOAT + (c.dropout > 0))


def layer_bytes(
    c: config.Model, source: int, target: int, tensor: int
) -> tuple[float, float]:
    """Return what an encoder and a decoder layer keep for one sentence pair."""
    encoder = (
        attention_bytes(c, source, source, tensor)
        + feed_forward_bytes(c, source, tensor)
        + 2 * residual_bytes(c, source)
    )
    decoder = (
        attention_bytes(c, target, target, tensor)
        + attention_bytes(c, target, source, tensor)
        + feed_forward_bytes(c, target, tensor)
        + 3 * residual_bytes(c, target)
    )
    return encoder, decoder


def product_bytes(c: config.Model, source: int, target: int, tensor: int) -> float:
    """Return what ``remat="dots"`` keeps of a pair of layers beside their inputs.

    Args:
      c: sizes.
      source: S.
      target: T.
      tensor: t.

    Returns:
      Bytes of a sentence pair: the float32 results of products with parameters.
    """
    query, key_value = c.heads * c.d_k, c.heads * (c.d_k + c.d_v)
    cut = (source + 2 * target) * query + (2 * source + target) * key_value
    cut += (source + target) * c.d_ff
    return _FLOAT * (cut / tensor + (2 * source + 3 * target) * c.d_model)


def stack_bytes(
    c: config.Model, remat: str, source: int, target: int, tensor: int
) -> float:
    """Return what both stacks keep for one sentence pair under ``parallel.remat``.

    With "none" N times ``layer_bytes``. Otherwise N times the layers' inputs,
    ``4 (S + T) D``, with "dots" ``product_bytes`` too, and once the larger of
    ``layer_bytes``: one layer is computed again at a time.
    """
    each = layer_bytes(c, source, target, tensor)
    if remat == "none":
        return c.layers * sum(each)
    kept: float = _FLOAT * (source + target) * c.d_model
    if remat == "dots":
        kept += product_bytes(c, source, target, tensor)
    return c.layers * kept + max(each)


# --------------------------------------------------------------------- cost of a device


def cost(settings: Config, mesh: Mesh, load: Load) -> Cost:
    """Return what a step costs each device of a mesh.

    Args:
      settings: the model, and how it is trained.
      mesh: d, f and t.
      load: the global batch.
    """
    c = settings.model
    count = parameter_count(c, load.vocabulary)
    held = _FLOAT * (count.matrices / (mesh.fsdp * mesh.tensor) + count.vectors)
    moments = 2 if settings.optimizer.name == "adam" else 0
    trees = 1 if settings.optimizer.accumulation == 1 else 2  # the sum, and a part's
    again = flops.recomputed(c, load.source, load.target, settings.parallel.remat)
    operations = flops.train_step(c, *load) + load.rows * again
    return Cost(
        held,
        trees * held,
        moments * held,
        activations(settings, mesh, load),
        communication(settings, mesh, load),
        operations / mesh.devices,
    )


def activations(settings: Config, mesh: Mesh, load: Load) -> float:
    """Return the bytes that live within a step only, gradients apart.

    For the rows of one part of a batch (``optimizer.accumulation``): ``stack_bytes``;
    the decoder's output with its gradient and the gradients that pass through the
    stacks, ``4 (S + 3 T) D``; the logits of ``loss.block`` rows, or of one column of
    the batch where that has more, twice in float32 and once as an operand. With fsdp
    the gathered matrices, and the table's gradient before it is scattered.
    """
    c, how, b = settings.model, settings.parallel, _OPERAND[settings.model.dtype]
    rows = load.rows / (settings.optimizer.accumulation * mesh.data * mesh.fsdp)
    pair = stack_bytes(c, how.remat, load.source, load.target, mesh.tensor)
    pair += _FLOAT * (load.source + 3 * load.target) * c.d_model
    scored = min(max(rows, settings.loss.block), rows * load.target)
    total = rows * pair + (2 * _FLOAT + b) * scored * load.vocabulary / mesh.tensor
    if mesh.fsdp > 1:
        gathered = parameter_count(c, load.vocabulary).matrices
        table = load.vocabulary * c.d_model
        total += _FLOAT * (gathered + table) / mesh.tensor
    return total


def communication(settings: Config, mesh: Mesh, load: Load) -> float:
    """Return the bytes that a device sends in a step.

    With M numbers in matrices, W in vectors, and k parts of a batch:

    * data, gradients of what a device holds reduced for all: ``2 (d - 1) / d 4 M / (f
      t)``; those of vectors over all rows, ``2 (d f - 1) / (d f) 4 W``;
    * fsdp, matrices gathered in each part and their gradients reduced and scattered:
      ``k 2 (f - 1) / f 4 M / t``. The backward pass asks for the layers' matrices once
      more; JAX's CPU compiler takes the first ones up to JAX 0.11.0, newer ones send
      half as much again;
    * tensor, results of (B / (d f), n, D) in float32 reduced for all, ``2 (t - 1) / t``
      of their bytes. Forward, two in an encoder layer and three in a decoder layer;
      backward, one for each product that a layer's parts begin with (Q, K, V, d_ff):
      four and five, and two of the memory in each decoder layer; at the ends, the
      embeddings of both sides and the gradient of the decoder's output. With
      ``remat="layers"`` those of the forward pass once more.
    """
    c, parts = settings.model, settings.optimizer.accumulation
    (d, f, t), (_, source, target, _) = mesh, load
    count, rows = parameter_count(c, load.vocabulary), d * f
    reduced = 2 * (d - 1) / d * count.matrices / (f * t)
    reduced += 2 * (rows - 1) / rows * count.vectors
    gathered = parts * 2 * (f - 1) / f * count.matrices / t
    forward, backward = 2 * source + 3 * target, (4 + 2) * source + 5 * target
    if settings.parallel.remat == "layers":
        forward *= 2
    positions = c.layers * (forward + backward) + source + 2 * target
    results = 2 * (t - 1) / t * load.rows / rows * positions * c.d_model
    return _FLOAT * (reduced + gathered + results)


# ---------------------------------------------------------------------------- the table


def by_formula(settings: Config, mesh: Mesh, load: Load) -> Figures:
    """Return what a step costs each device of a mesh, on paper."""
    found = cost(settings, mesh, load)
    return Figures(
        found.parameters + found.moments,
        found.gradients + found.activations,
        found.communication,
        found.operations,
    )


def as_compiled(
    settings: Config, mesh: Mesh, load: Load, devices: Sequence[jax.Device]
) -> Figures:
    """Compile a step for devices and read the program; nothing is computed.

    Args:
      settings: the model, and how it is trained.
      mesh: d, f and t.
      load: the global batch.
      devices: real or simulated, as many as the mesh has.
    """
    spread = dataclasses.replace(settings.parallel, **mesh._asdict())
    settings = dataclasses.replace(settings, parallel=spread)
    both = load.vocabulary, load.vocabulary
    traced = traces.train_step(Case(settings, both, load[:3], devices))
    program = traces.compile_anew(traced)
    memory, text = program.memory_analysis(), program.as_text()
    return Figures(
        memory.argument_size_in_bytes,
        memory.temp_size_in_bytes,
        hlo.sent(text),
        hlo.operations(text),
    )


def table(
    settings: Config,
    tokens: int,
    length: int,
    devices: Sequence[jax.Device] = (),
    say: Callable[[str], None] = lambda line: None,
) -> Table:
    """Put four sizes of model on each mesh.

    Args:
      settings: all but the sizes.
      tokens: slots a side of the global batch; rounded to what all meshes can cut.
      length: of the sentences on both sides.
      devices: real or simulated; for meshes of at most so many a step is compiled, for
        larger ones the formula serves.
      say: is told before each compilation, which may take minutes.
    """
    vocabulary = configured_vocabulary(settings)
    settings = sizes.here(settings, vocabulary)
    rows = max(round(tokens / length / _DEVICES), 1) * _DEVICES
    load = Load(rows, length, length, vocabulary)
    cells = []
    for name, size in SIZES.items():
        sized = _resized(settings, size)
        for mesh in MESHES:
            here, source = devices[: mesh.devices], "formula"
            if len(here) == mesh.devices:
                say(f"compiling {name} for {mesh} devices")
                found, source = as_compiled(sized, mesh, load, here), "compiled"
            else:
                found = by_formula(sized, mesh, load)
            cells.append((name, str(mesh.devices), str(mesh), *_cells(found), source))
    how = settings.parallel
    return Table(
        f"One step of {rows:,} x {length} tokens a side, V = {vocabulary:,}, "
        f"{settings.model.dtype}, remat={how.remat}, layers={how.layers}",
        ("model", "devices", "data x fsdp x tensor", "parameters and moments, GB")
        + ("gradients and activations, GB", "sum, GB")
        + ("sent, GB", "operations, 10^12", "from"),
        tuple(cells),
        "Each figure is of one device; GB are 10^9 bytes; sent and operations are of "
        "one step.",
    )


def _resized(settings: Config, size: dict[str, Any]) -> Config:
    model = dataclasses.replace(settings.model, **size)
    return dataclasses.replace(settings, model=model)


def _cells(found: Figures) -> list[str]:
    gigabytes = [found.held, found.within, found.held + found.within, found.sent]
    figures = [x / 1e9 for x in gigabytes] + [found.operations / 1e12]
    return [*map(digits, figures)]
