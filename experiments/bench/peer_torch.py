"""PyTorch's nn.Transformer as a worker.

    python experiments/bench/peer_torch.py train --device=gpu --compiled=1 \\
        --size=base --dtype=bfloat16 --rows=776 --length=32

Attention is ``scaled_dot_product_attention``: nn.Transformer asks for no weights, and
for no mask if it is told that the mask is causal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
import sizes
import torch
import torch.nn.functional as F
import worker
from torch import Tensor, nn


class Model(nn.Module):
    """The paper's model around nn.Transformer: no norm after the last layer."""

    def __init__(self, size: sizes.Size, length: int, inner_dropout: float) -> None:
        super().__init__()
        self.table = nn.Embedding(size.vocabulary, size.d_model, sizes.PAD)
        nn.init.normal_(self.table.weight, std=size.d_model**-0.5)
        self.stacks = nn.Transformer(
            size.d_model,
            size.heads,
            size.layers,
            size.layers,
            size.d_ff,
            sizes.DROPOUT,
            batch_first=True,
        )
        self.stacks.encoder.norm = self.stacks.decoder.norm = None
        for layer in (*self.stacks.encoder.layers, *self.stacks.decoder.layers):
            layer.dropout.p = layer.self_attn.dropout = inner_dropout
        for layer in self.stacks.decoder.layers:
            layer.multihead_attn.dropout = inner_dropout
        self.dropout = nn.Dropout(sizes.DROPOUT)
        self.register_buffer("positions", sinusoids(length, size.d_model))

    def embed(self, ids: Tensor) -> Tensor:
        x = self.table(ids) * self.table.embedding_dim**0.5
        return self.dropout(x + self.positions[: ids.shape[1]])

    def forward(self, source: Tensor, inputs: Tensor) -> Tensor:
        """Return logits (B, T, V) for source ids (B, S) and decoder inputs (B, T)."""
        length = inputs.shape[1]
        every = torch.ones(length, length, dtype=torch.bool, device=inputs.device)
        x = self.stacks(
            self.embed(source),
            self.embed(inputs),
            tgt_mask=every.triu(1),
            src_key_padding_mask=source == sizes.PAD,
            memory_key_padding_mask=source == sizes.PAD,
            tgt_is_causal=True,
        )
        return F.linear(x, self.table.weight)


def sinusoids(length: int, d_model: int) -> Tensor:
    """Make the position encodings of section 3.5, (length, D)."""
    rates = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10_000) / d_model))
    angles = torch.arange(length)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


def make_step(
    logits: Callable[[Tensor, Tensor], Tensor],
    parameters: Iterable[nn.Parameter],
    batch: tuple[np.ndarray, np.ndarray],
    dtype: str,
    compiled: bool,
    smoothing: float = sizes.SMOOTHING,
) -> Callable[[], Tensor]:
    """Return a function that makes one update and returns its loss.

    Args:
      logits: of source ids and decoder inputs.
      parameters: to train; the batch is moved to their device.
      batch: source and target ids.
      dtype: "bfloat16" computes under autocast.
      compiled: whether model and loss go through ``torch.compile``.
      smoothing: of labels.
    """
    parameters = list(parameters)
    device = parameters[0].device
    source, target = batch
    arrays = source, sizes.shift_right(target), target
    ids, inputs, wanted = (torch.from_numpy(x).long().to(device) for x in arrays)
    rule = torch.optim.Adam(parameters, 1e-4, (0.9, 0.98), 1e-9, fused=True)

    def loss_of() -> Tensor:
        return F.cross_entropy(
            logits(ids, inputs).flatten(0, 1).float(),
            wanted.flatten(),
            ignore_index=sizes.PAD,
            label_smoothing=smoothing,
        )

    if compiled:
        loss_of = torch.compile(loss_of)

    def step() -> Tensor:
        rule.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=dtype == "bfloat16"):
            loss = loss_of()
        loss.backward()
        rule.step()
        return loss

    return step


def start(device: str) -> torch.device:
    """Choose the device and make runs repeatable."""
    torch.set_num_threads(sizes.cores())
    torch.manual_seed(0)
    return torch.device("cuda" if device == "gpu" else "cpu")


def work(step: Callable[[], object], device: torch.device, *names: str) -> worker.Work:
    """Return what the arena repeats, with the versions of these distributions."""
    info: dict[str, object] = {"versions": worker.versions(*names)}
    if device.type == "cpu":
        return worker.Work(step, info)
    info["device"] = torch.cuda.get_device_name()
    return worker.Work(step, info, torch.cuda.synchronize)


def train(
    size: str, dtype: str, rows: int, length: int, device: str, compiled: int
) -> worker.Work:
    """Make updates on one batch."""
    there = start(device)
    shape = sizes.SIZES[size]
    model = Model(shape, length, sizes.inner_dropout(device)).to(there)
    batch = sizes.training_batch(shape.vocabulary, rows, length)
    step = make_step(model, model.parameters(), batch, dtype, bool(compiled))
    return work(step, there, "torch")


@torch.inference_mode()
def product(rows: int, inner: int, outer: int, dtype: str) -> worker.Work:
    """Multiply (rows, inner) by (inner, outer), as nn.Linear does."""
    there, kind = start("cpu"), getattr(torch, dtype)
    x = torch.ones(rows, inner, dtype=kind)
    weight = torch.ones(outer, inner, dtype=kind)
    return work(lambda: F.linear(x, weight), there, "torch")


if __name__ == "__main__":
    worker.run(train, product)
