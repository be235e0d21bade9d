"""Compute with torch, in float64, the ConvS2S that the tests compare with.

    PYTHONPATH=tests python tests/programs/torch_convs2s.py \\
        tests/golden/torch_convs2s.npz

made the committed values; see ``torch_values.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from support import convs2s_cases as cases
from support.torch_cases import as_rows
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

PAD, BOS, EOS = 0, 2, 3
HALF = 0.5**0.5


class ScaleGradient(torch.autograd.Function):
    """The identity, whose gradient is multiplied by a factor."""

    @staticmethod
    def forward(context, x, factor):
        context.factor = factor
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient * context.factor, None


class Model:
    """ConvS2S as functions of named parameters, one sentence pair at a time."""

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        self.params = {
            name: torch.tensor(array, dtype=torch.float64, requires_grad=True)
            for name, array in arrays.items()
        }

    def weights(self, name: str, kernel: int) -> Tensor:
        """Return the normalised weights (O, I, k) of a map."""
        direction, gain = (self.params[f"{name}.{x}"] for x in ("direction", "gain"))
        inputs = direction.shape[0] // kernel
        v = direction.reshape(kernel, inputs, -1).permute(2, 1, 0)
        return gain[:, None, None] * v / v.flatten(1).norm(dim=1)[:, None, None]

    def linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.weights(name, 1)[..., 0], self.params[f"{name}.bias"])

    def convolution(self, name: str, x: Tensor, kernel: int, before: int) -> Tensor:
        padded = F.pad(x.T[None], (before, kernel - 1 - before))
        weights, bias = self.weights(name, kernel), self.params[f"{name}.bias"]
        return F.glu(F.conv1d(padded, weights, bias)[0].T, dim=-1)

    def residual(self, block: str, x: Tensor) -> Tensor:
        name = f"{block}.residual"
        return self.linear(name, x) if f"{name}.gain" in self.params else x

    def embedded(self, side: str, ids: list[int]) -> Tensor:
        table, places = (self.params[f"{side}_{x}"] for x in ("embedding", "positions"))
        return table[ids] + places[: len(ids)]

    def encode(self, ids: list[int]) -> tuple[Tensor, Tensor]:
        w = self.embedded("source", ids)
        x = self.linear("encoder_input", w)
        for i, (_, kernel) in enumerate(cases.ENCODER):
            name = f"encoder_{i}"
            y = self.convolution(f"{name}.convolution", x, kernel, kernel // 2)
            x = (y + self.residual(name, x)) * HALF
        factor = 1 / (2 * len(cases.DECODER))
        z = ScaleGradient.apply(self.linear("encoder_output", x), factor)
        return z, (z + w) * HALF

    def logits(self, source: list[int], inputs: list[int]) -> Tensor:
        keys, values = self.encode(source)
        g = self.embedded("target", inputs)
        x = self.linear("decoder_input", g)
        for i, (_, kernel) in enumerate(cases.DECODER):
            name = f"decoder_{i}"
            h = self.convolution(f"{name}.convolution", x, kernel, kernel - 1)
            query = (self.linear(f"{name}.query", h) + g) * HALF
            weights = torch.softmax(query @ keys.T, dim=-1)
            found = weights @ values * len(source) ** 0.5
            h = (self.linear(f"{name}.context", found) + h) * HALF
            x = (h + self.residual(name, x)) * HALF
        v, gain = self.params["output"], self.params["output_gain"]
        weights = gain[:, None] * v / v.norm(dim=1, keepdim=True)
        hidden = self.linear("decoder_output", x)
        return F.linear(hidden, weights, self.params["output_bias"])

    def greedy(self, source: list[int]) -> list[int]:
        written: list[int] = []
        while len(written) < len(source) - 1 + cases.EXTRA:
            ids = self.logits(source, [BOS, *written])[-1]
            written.append(int(ids.argmax()))
            if written[-1] == EOS:
                return written[:-1]
        return written


def layer(causal: bool) -> Iterator[tuple[str, Tensor]]:
    """Yield result and gradients of a convolution with normalised weights."""
    arrays = {k: torch.tensor(x).double() for k, x in cases.layer().items()}
    before = cases.KERNEL - 1 if causal else cases.KERNEL // 2
    made = weight_norm(nn.Conv1d(cases.WIDTH, cases.UNITS, cases.KERNEL))
    gain, direction = (
        getattr(made.parametrizations.weight, f"original{i}") for i in "01"
    )
    v = arrays["direction"].reshape(cases.KERNEL, cases.WIDTH, cases.UNITS)
    direction.data.copy_(v.permute(2, 1, 0))
    gain.data.copy_(arrays["gain"][:, None, None])
    made.bias.data.copy_(arrays["bias"])
    x = arrays["x"].requires_grad_()
    y = made(F.pad(x.mT, (before, cases.KERNEL - 1 - before))).mT
    (y * arrays["slopes"]).sum().backward()
    yield "y", y
    yield "d_x", x.grad
    yield "d_direction", direction.grad.permute(2, 1, 0).reshape(-1, cases.UNITS)
    yield "d_gain", gain.grad.flatten()


def whole() -> Iterator[tuple[str, Tensor]]:
    """Yield logits of given targets, their gradients and greedy outputs."""
    made = Model(cases.parameters())
    inputs = np.pad(cases.TARGET, ((0, 0), (1, 0)), constant_values=BOS)[:, :-1]
    rows = zip(cases.SOURCES, inputs.tolist(), strict=True)
    logits = torch.stack([made.logits(source, ids) for source, ids in rows])
    (logits * torch.from_numpy(cases.slopes())).sum().backward()
    yield "logits", logits
    for name, parameter in made.params.items():
        yield f"d_{name}", parameter.grad
    found = [made.greedy(source) for source in cases.SOURCES]
    yield "greedy", torch.from_numpy(as_rows(found))


def main(path: str) -> None:
    """Write all values to a file of arrays."""
    torch.set_default_dtype(torch.float64)
    values = dict(whole())
    for name, causal in cases.WAYS.items():
        values |= {f"{name}.{part}": value for part, value in layer(causal)}
    arrays = {name: value.detach().numpy() for name, value in values.items()}
    small = {n: a.astype(np.float32) for n, a in arrays.items()}
    np.savez_compressed(path, **small)


if __name__ == "__main__":
    main(sys.argv[1])
