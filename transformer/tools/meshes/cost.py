"""What a step costs each device of a mesh, by formula.

In the letters of the paper, with B rows of S source and T target padded tokens in the
global batch, and a mesh of d x f x t devices (data, fsdp, tensor):

* rows are sharded d f ways; parameters, gradients and moments f t ways, except biases
  and norms, a thousandth of them, which count as replicated; of a layer's results,
  those of its heads and of d_ff t ways, as are the logits;
* with fsdp a device all-gathers all matrices before the first layer;
* collectives are rings: each of n devices sends (n - 1) / n of the bytes to all-gather
  or reduce-scatter an array, twice that to all-reduce it;
* what is stored is float32, operands of products are in ``model.dtype``.

Source: Rajbhandari et al., ZeRO, arXiv:1910.02054 (fsdp is its third stage); Shoeybi et
al., Megatron-LM, arXiv:1909.08053 (tensor).
"""

from __future__ import annotations

from typing import NamedTuple

from transformer import config
from transformer.config import Config
from transformer.models.counts import parameter_count
from transformer.nn import optimizer
from transformer.tools import flops
from transformer.tools.meshes.kept import FLOAT, OPERAND, stack_bytes


class Mesh(NamedTuple):
    """How many ways the rows, the parameters and the heads are sharded."""

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


class Cost(NamedTuple):
    """What a step costs each device by formula."""

    parameters: float  # bytes
    gradients: float  # bytes
    moments: float  # bytes
    activations: float  # bytes, with all else that lives only within a step
    communication: float  # bytes sent in a step
    operations: float  # in a step, 2 per multiply-add


def cost(settings: Config, mesh: Mesh, load: Load) -> Cost:
    """Return what a step costs each device of a mesh.

    Args:
      settings: the model, and how it is trained.
      mesh: d, f and t.
      load: the global batch.
    """
    c = config.transformer(settings.model)
    count = parameter_count(c, load.vocabulary)
    held = FLOAT * (count.matrices / (mesh.fsdp * mesh.tensor) + count.vectors)
    trees = 1 if settings.optimizer.accumulation == 1 else 2  # the sum, and a part's
    return Cost(
        held,
        trees * held,
        optimizer.moments(settings.optimizer) * held,
        activations(settings, mesh, load),
        communication(settings, mesh, load),
        flops.configured_step(settings, *load) / mesh.devices,
    )


def activations(settings: Config, mesh: Mesh, load: Load) -> float:
    """Return the bytes that live only within a step, without gradients.

    For the rows of one microbatch (``optimizer.accumulation``), as often as a step
    reads them (``loss.passes``): ``stack_bytes``; the decoder's output with its
    gradient and the gradients that pass through the stacks, ``4 (S + 3 T) D``; the
    logits of ``loss.block`` rows, or of one column of the batch if that has more, twice
    in float32 and once as an operand. With fsdp also the gathered matrices, and the
    table's gradient before it is scattered.
    """
    c, remat = config.transformer(settings.model), settings.parallel.remat
    b = OPERAND[c.dtype]
    rows = load.rows / (settings.optimizer.accumulation * mesh.data * mesh.fsdp)
    pair = stack_bytes(c, remat, load.source, load.target, mesh.tensor)
    pair += FLOAT * (load.source + 3 * load.target) * c.d_model
    scored = min(max(rows, settings.loss.block), rows * load.target)
    total = rows * pair + (2 * FLOAT + b) * scored * load.vocabulary / mesh.tensor
    total *= settings.loss.passes
    if mesh.fsdp > 1:
        gathered = parameter_count(c, load.vocabulary).matrices
        table = load.vocabulary * c.d_model
        total += FLOAT * (gathered + table) / mesh.tensor
    return total


def communication(settings: Config, mesh: Mesh, load: Load) -> float:
    """Return the bytes that a device sends in a step.

    With M numbers in matrices, W in vectors, and k microbatches:

    * data, gradients of what a device holds all-reduced: ``2 (d - 1) / d 4 M / (f
      t)``; those of vectors over all rows, ``2 (d f - 1) / (d f) 4 W``;
    * fsdp, matrices all-gathered and their gradients reduce-scattered per microbatch:
      ``k 2 (f - 1) / f 4 M / t``. The backward pass asks for the layers' matrices once
      more; JAX's CPU compiler reuses the first ones up to JAX 0.11.0, newer ones send
      half as much again;
    * tensor, results of (B / (d f), n, D) in float32 all-reduced, ``2 (t - 1) / t``
      of their bytes. Forward, two in an encoder layer and three in a decoder layer;
      backward, one for each product that a sub-layer begins with (Q, K, V, d_ff):
      four and five, and two of the memory in each decoder layer; at the ends, the
      embeddings of both sides and the gradient of the decoder's output. With
      ``remat="layers"`` those of the forward pass once more.
    """
    c, k = config.transformer(settings.model), settings.optimizer.accumulation
    (d, f, t), (_, source, target, _) = mesh, load
    count, rows = parameter_count(c, load.vocabulary), d * f
    reduced = 2 * (d - 1) / d * count.matrices / (f * t)
    reduced += 2 * (rows - 1) / rows * count.vectors
    gathered = k * 2 * (f - 1) / f * count.matrices / t
    forwards = 2 if settings.parallel.remat == "layers" else 1
    encoder = (2 * forwards + 4) * source
    decoder = 2 * source + (3 * forwards + 5) * target
    positions = c.layers * encoder + c.depth * decoder + source + 2 * target
    results = 2 * (t - 1) / t * load.rows / rows * positions * c.d_model
    results *= settings.loss.passes
    return FLOAT * (reduced + gathered + results)
