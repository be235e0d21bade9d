"""ConvS2S written with torch.nn, with this project's parameters.

Whole sentences go through nn.Conv1d, one token of each hypothesis through the same
weights as one product with the last k inputs of a layer.
"""

from __future__ import annotations

import numpy as np
import sizes
import torch
import torch.nn.functional as F
import weights
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.parametrize import remove_parametrizations
from torch_rnn import Memory, State

HALF = 0.5**0.5


class _Scaled(torch.autograd.Function):
    """The identity, whose gradient is multiplied by a factor."""

    @staticmethod
    def forward(context, x, factor):
        context.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient):
        return gradient * context.factor, None


class ConvS2S(nn.Module):
    """Gated convolutions on both sides, attention in every decoder layer."""

    def __init__(self, size: sizes.Convolutional) -> None:
        super().__init__()
        wide, k = size.width, size.kernel

        def linear(outputs: int = wide) -> nn.Linear:
            return weight_norm(nn.Linear(wide, outputs))

        def each(layers: int, make) -> nn.ModuleList:
            return nn.ModuleList(make() for _ in range(layers))

        def convolution() -> nn.Conv1d:
            return weight_norm(nn.Conv1d(wide, 2 * wide, k))

        self.ends = k // 2, k - 1 - k // 2
        self.kernel, self.layers = k, size.decoder
        self.source = nn.Embedding(size.source, wide)
        self.target = nn.Embedding(size.target, wide)
        self.source_positions = nn.Embedding(size.positions, wide)
        self.target_positions = nn.Embedding(size.positions, wide)
        self.encoder_input, self.encoder_output = linear(), linear()
        self.decoder_input, self.decoder_output = linear(), linear()
        self.encoder = each(size.encoder, convolution)
        self.decoder = each(size.decoder, convolution)
        self.queries, self.contexts = (each(size.decoder, linear) for _ in range(2))
        self.output = linear(size.target)
        self.dropout = nn.Dropout(size.dropout)

    def read(self, ids: Tensor) -> Memory:
        """Return keys, values and which are real (B, 1, S) of source ids (B, S)."""
        real = ids != sizes.PAD
        pads = ~real[:, None]
        places = self.source_positions.weight[: ids.shape[1]]
        embedded = self.dropout(self.source(ids) + places)
        x = self.encoder_input(embedded).mT
        for convolution in self.encoder:
            y = self.dropout(x.masked_fill(pads, 0.0))
            x = HALF * (F.glu(convolution(F.pad(y, self.ends)), 1) + x)
        z = self.encoder_output(x.masked_fill(pads, 0.0).mT)
        z = _Scaled.apply(z * real[..., None], 1 / (2 * self.layers))
        return Memory(HALF * (z + embedded), z, real[:, None])

    def attend(self, i: int, h: Tensor, embedded: Tensor, memory: Memory) -> Tensor:
        """Apply the attention of layer i to h (B, T, D) and a source."""
        query = HALF * (self.queries[i](h) + embedded)
        energies = (query @ memory.keys.mT).masked_fill(~memory.real, -torch.inf)
        root = memory.real.sum(-1, keepdim=True).to(h.dtype).sqrt()
        found = energies.softmax(-1) @ memory.annotations * root
        return HALF * (self.contexts[i](found) + h)

    def forward(self, source: Tensor, inputs: Tensor) -> Tensor:
        """Return logits (B, T, V) for source ids (B, S) and decoder inputs (B, T)."""
        memory = self.read(source)
        places = self.target_positions.weight[: inputs.shape[1]]
        embedded = self.dropout(self.target(inputs) + places)
        x = self.decoder_input(embedded)
        for i, convolution in enumerate(self.decoder):
            y = F.pad(self.dropout(x).mT, (self.kernel - 1, 0))
            h = F.glu(convolution(y), 1).mT
            x = HALF * (self.attend(i, h, embedded, memory) + x)
        return self.output(self.dropout(self.decoder_output(x)))

    def remember(self, source: Tensor) -> tuple[Memory, State]:
        """Return what is read of a source, and the first state (B, 1, ...)."""
        rows, width = len(source), self.target.embedding_dim
        memory, place = self.read(source), torch.zeros(rows, 1, 1, dtype=torch.long)
        before = memory.annotations.new_zeros(rows, 1, (self.kernel - 1) * width)
        return memory, (*[before] * self.layers, place)

    def next(self, memory: Memory, state: State, ids: Tensor) -> tuple[Tensor, State]:
        """Take one token of each hypothesis (B, J); score the next (B, J, V)."""
        *before, place = state
        embedded = self.target(ids) + self.target_positions(place[..., 0])
        x, new = self.decoder_input(embedded), []
        for i, (convolution, seen) in enumerate(zip(self.decoder, before, strict=True)):
            window = torch.cat([seen, x], -1)
            new.append(window[..., x.shape[-1] :])
            flat = convolution.weight.permute(0, 2, 1).flatten(1)
            h = F.glu(F.linear(window, flat, convolution.bias), -1)
            x = HALF * (self.attend(i, h, embedded, memory) + x)
        return self.output(self.decoder_output(x)), (*new, place + 1)

    def fixed(self) -> ConvS2S:
        """Return the model with every normalised matrix computed once, for a search."""
        for module in self.modules():
            if nn.utils.parametrize.is_parametrized(module):
                remove_parametrizations(module, "weight")
        return self


def make(given: weights.ComposedWeights) -> ConvS2S:
    """Return the model that has these parameters."""
    assert isinstance(given.size, sizes.Convolutional)
    size, get = given.size, given.arrays
    model = ConvS2S(size)
    named = {
        f"{side}{kind}.weight": get[f"{side}_{kind.strip('_') or 'embedding'}"]
        for side in ("source", "target")
        for kind in ("", "_positions")
    }

    def put(place: str, gain: np.ndarray, direction: np.ndarray, bias: np.ndarray):
        form = f"{place}.parametrizations.weight.original"
        named[f"{form}0"] = gain.reshape(-1, *[1] * (direction.ndim - 1))
        named[f"{form}1"], named[f"{place}.bias"] = direction, bias

    parts = ("gain", "direction", "bias")
    linears = {f"{side}_{x}": f"{side}_{x}" for side, x in _ENDS}
    for i in range(size.decoder):
        linears |= {f"decoder_{i}.query": f"queries.{i}"}
        linears |= {f"decoder_{i}.context": f"contexts.{i}"}
    for name, place in linears.items():
        gain, direction, bias = (get[f"{name}.{part}"] for part in parts)
        put(place, gain, direction.T, bias)
    for side, layers in (("encoder", size.encoder), ("decoder", size.decoder)):
        for i in range(layers):
            name = f"{side}_{i}.convolution"
            gain, direction, bias = (get[f"{name}.{part}"] for part in parts)
            each = direction.reshape(size.kernel, size.width, -1)
            put(f"{side}.{i}", gain, each.transpose(2, 1, 0), bias)
    put("output", get["output_gain"], get["output"], get["output_bias"])
    tensors = {name: torch.from_numpy(array.copy()) for name, array in named.items()}
    model.load_state_dict(tensors)  # refuses missing and unexpected names
    return model


_ENDS = [(side, x) for side in ("encoder", "decoder") for x in ("input", "output")]
