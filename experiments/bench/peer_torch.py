"""PyTorch's nn.Transformer as a worker.

python experiments/bench/peer_torch.py train --size=small --dtype=bfloat16
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import sizes
import torch
import torch.nn.functional as F
import worker
from torch import Tensor, nn


class Model(nn.Module):
    """The paper's model around nn.Transformer: no norm after the last layer."""

    def __init__(self, size: sizes.Size) -> None:
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
        self.dropout = nn.Dropout(sizes.DROPOUT)
        self.register_buffer("positions", sinusoids(sizes.LENGTH, size.d_model))

    def embed(self, ids: Tensor) -> Tensor:
        x = self.table(ids) * self.table.embedding_dim**0.5
        return self.dropout(x + self.positions[: ids.shape[1]])

    def forward(self, source: Tensor, inputs: Tensor) -> Tensor:
        """Return logits (B, T, V) for source ids (B, S) and decoder inputs (B, T)."""
        length = inputs.shape[1]
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        x = self.stacks(
            self.embed(source),
            self.embed(inputs),
            tgt_mask=later,
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
    vocabulary: int,
    dtype: str,
) -> Callable[[], float]:
    """Return a function that makes one update and returns its loss.

    Args:
      logits: of source ids and decoder inputs.
      parameters: are trained.
      vocabulary: V.
      dtype: "bfloat16" computes under autocast.
    """
    source, target = sizes.training_batch(vocabulary)
    inputs = torch.from_numpy(sizes.shift_right(target)).long()
    ids, wanted = torch.from_numpy(source).long(), torch.from_numpy(target).long()
    rule = torch.optim.Adam(parameters, 1e-4, (0.9, 0.98), 1e-9, fused=True)

    def step() -> float:
        rule.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
            loss = F.cross_entropy(
                logits(ids, inputs).flatten(0, 1).float(),
                wanted.flatten(),
                ignore_index=sizes.PAD,
                label_smoothing=sizes.SMOOTHING,
            )
        loss.backward()
        rule.step()
        return loss.item()

    return step


def train(size: str, dtype: str) -> worker.Work:
    """Make updates on one batch."""
    torch.set_num_threads(sizes.cores())
    torch.manual_seed(0)
    model = Model(sizes.SIZES[size])
    vocabulary = sizes.SIZES[size].vocabulary
    step = make_step(model, model.parameters(), vocabulary, dtype)
    return worker.Work(step, {"versions": worker.versions("torch")})


if __name__ == "__main__":
    worker.run(train)
