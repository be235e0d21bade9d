"""Compute with torch, in float64, what the tests compare this project with.

    PYTHONPATH=tests python tests/programs/torch_values.py tests/golden/torch.npz

made the committed values. Where torch is installed, the tests also run this file and
compare with its output; PEERS_PYTHON names a Python that has torch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
import torch
from support import torch_cases as cases
from support.paths import BENCH
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

sys.path.append(str(BENCH))

import sizes
import torch_rnn
import torch_search
import weights

Values = Iterator[tuple[str, Tensor]]


def layer(kind: str) -> Values:
    """Yield outputs, last states and gradients of a layer in both directions."""
    sizes = cases.WIDTH, cases.UNITS
    made = getattr(nn, kind.upper())(*sizes, batch_first=True, bidirectional=True)
    parameters = dict(made.named_parameters())
    for name, array in cases.layer(kind).items():
        parameters[name].data.copy_(torch.from_numpy(array))
    x = torch.from_numpy(cases.source()).double().requires_grad_()
    packed = pack_padded_sequence(
        x, torch.tensor(cases.LENGTHS), batch_first=True, enforce_sorted=False
    )
    packed_outputs, last = made(packed)
    outputs, _ = pad_packed_sequence(packed_outputs, batch_first=True)
    results = {"outputs": outputs}
    results |= zip("hc", last if kind == "lstm" else [last], strict=False)
    yield from results.items()
    slopes = cases.slopes(kind)
    loss = sum((results[n] * torch.from_numpy(s)).sum() for n, s in slopes.items())
    loss.backward()
    yield "d_x", x.grad
    for name, parameter in parameters.items():
        yield f"d_{name}", parameter.grad


def optimizer(name: str) -> Values:
    """Yield the parameters after each update."""
    parameter = nn.Parameter(torch.zeros(5))
    rule = getattr(torch.optim, name)([parameter], lr=1.0, **cases.OPTIMIZERS[name])
    history = []
    for rate, gradient in zip(cases.RATES, cases.gradients(), strict=True):
        rule.param_groups[0]["lr"] = rate
        parameter.grad = torch.from_numpy(gradient).double()
        rule.step()
        history.append(parameter.detach().clone())
    yield "history", torch.stack(history)


def model(name: str) -> Values:
    """Yield logits and the outputs of searches of a whole model."""
    size = sizes.Recurrent(*cases.MODELS[name])
    arrays = cases.parameters(weights.composed_shapes(size))
    made = torch_rnn.make(weights.ComposedWeights(size, arrays)).double().eval()
    source = torch.from_numpy(sizes.padded(cases.SOURCES))
    inputs = torch.from_numpy(sizes.shift_right(cases.TARGET))
    yield "logits", made(source, inputs)
    for beam in (1, cases.BEAM):
        found = torch_search.search(made, cases.SOURCES, beam, cases.ALPHA, cases.EXTRA)
        yield f"beam_{beam}", torch.from_numpy(cases.as_rows(found))


def main(path: str) -> None:
    """Write all values to a file of arrays."""
    torch.set_default_dtype(torch.float64)
    values = {
        f"{name}.{part}": value
        for make, names in (
            (layer, cases.GATES),
            (optimizer, cases.OPTIMIZERS),
            (model, cases.MODELS),
        )
        for name in names
        for part, value in make(name)
    }
    arrays = {name: value.detach().numpy() for name, value in values.items()}
    small = {n: a.astype(np.float32) for n, a in arrays.items()}
    np.savez_compressed(path, **small)


if __name__ == "__main__":
    main(sys.argv[1])
