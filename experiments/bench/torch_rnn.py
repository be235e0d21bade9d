"""Two recurrent models written with torch.nn, with this project's parameters.

The encoders are nn.GRU and nn.LSTM over packed sequences, the decoders loops of
nn.GRUCell and nn.LSTMCell with the logits of all positions outside. Arrays of a step
have sentences and hypotheses on their first two axes, (B, J, ...).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import sizes
import torch
import weights
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

State = tuple[Tensor, ...]


class Memory(NamedTuple):
    """What a decoder reads of a source."""

    annotations: Tensor  # (B, S, W)
    keys: Tensor  # (B, S, A)
    real: Tensor  # (B, 1, S)


class Recurrent(nn.Module):
    """Encoder, tables and the loop; a subclass has the decoder's step."""

    encoder: nn.GRU | nn.LSTM | NormedGru

    def __init__(self, size: sizes.Recurrent) -> None:
        super().__init__()
        self.source = nn.Embedding(size.source, size.embedding)
        self.target = nn.Embedding(size.target, size.embedding)
        self.output = nn.Linear(size.d_model, size.target, bias=False)
        self.words, self.context, self.readout = map(nn.Dropout, size.dropout)

    def encode(self, ids: Tensor) -> tuple[Tensor, Tensor, Any]:
        """Return annotations (B, S, W), which are real (B, 1, S), and last states."""
        real, x = ids != sizes.PAD, self.words(self.source(ids))
        if isinstance(self.encoder, NormedGru):
            return self.context(self.encoder(x, real)), real[:, None], None
        x = pack_padded_sequence(x, real.sum(1).cpu(), True, enforce_sorted=False)
        packed, last = self.encoder(x)
        found, _ = pad_packed_sequence(packed, True, total_length=ids.shape[1])
        return self.context(found), real[:, None], last

    def embed(self, ids: Tensor) -> Tensor:
        """Return the embeddings of inputs, zeros before the first word."""
        return self.words(self.target(ids) * (ids != sizes.BOS)[..., None])

    def remember(self, source: Tensor) -> tuple[Memory, State]:
        """Return what is read of a source, and the first state (B, 1, ...)."""
        raise NotImplementedError

    def step(self, memory: Memory, state: State, y: Tensor) -> tuple[State, State]:
        """Return the new state, and what is read out beside the embeddings y."""
        raise NotImplementedError

    def read_out(self, found: State, y: Tensor) -> Tensor:
        """Return what the output matrix is multiplied by."""
        raise NotImplementedError

    def forward(self, source: Tensor, inputs: Tensor) -> Tensor:
        """Return logits (B, T, V) for source ids (B, S) and decoder inputs (B, T)."""
        memory, state = self.remember(source)
        y, found = self.embed(inputs), []
        for now in y.split(1, dim=1):
            state, made = self.step(memory, state, now)
            found.append(made)
        every = tuple(torch.cat(parts, 1) for parts in zip(*found, strict=True))
        return self.output(self.readout(self.read_out(every, y)))

    def next(self, memory: Memory, state: State, ids: Tensor) -> tuple[Tensor, State]:
        """Take one token of each hypothesis (B, J); score the next (B, J, V)."""
        y = self.embed(ids)
        state, found = self.step(memory, state, y)
        return self.output(self.read_out(found, y)), state


def attend(energies: Tensor, memory: Memory) -> Tensor:
    """Return the context (B, J, W) of energies (B, J, S)."""
    return energies.masked_fill(~memory.real, -torch.inf).softmax(-1) @ (
        memory.annotations
    )


class NormedCell(nn.Module):
    """The GRU with normalised products: both gates together, the candidate apart.

    Its columns are those of gates z and r and of the candidate, as ours.
    """

    def __init__(self, width: int, units: int) -> None:
        super().__init__()
        self.parts = [2 * units, units]
        self.input = nn.Linear(width, 3 * units, bias=False)
        self.state = nn.Linear(units, 3 * units, bias=False)
        self.of_input, self.of_state = (
            nn.ModuleList(nn.LayerNorm(part, 1e-5) for part in self.parts)
            for _ in range(2)
        )

    def normed(self, x: Tensor) -> list[Tensor]:
        """Return what inputs add to the gates, and to the candidate."""
        return self._each(self.of_input, self.input(x))

    def forward(self, gates: Tensor, candidate: Tensor, h: Tensor) -> Tensor:
        its_gates, its_candidate = self._each(self.of_state, self.state(h))
        z, r = torch.sigmoid(gates + its_gates).chunk(2, -1)
        return z * h + (1 - z) * torch.tanh(candidate + r * its_candidate)

    def _each(self, norms: nn.ModuleList, x: Tensor) -> list[Tensor]:
        parts = x.split(self.parts, -1)
        return [norm(part) for norm, part in zip(norms, parts, strict=True)]


class NormedGru(nn.Module):
    """Both directions of ``NormedCell``, for which torch has no layer."""

    def __init__(self, width: int, units: int) -> None:
        super().__init__()
        self.forwards, self.backwards = (NormedCell(width, units) for _ in range(2))

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        """Return outputs (B, S, 2 n) of inputs (B, S, m)."""
        both = []
        for cell, way in ((self.forwards, 1), (self.backwards, -1)):
            h, found = x.new_zeros(len(x), cell.parts[1]), []
            inputs = (*cell.normed(x), real[..., None])
            steps = [*zip(*(each.unbind(1) for each in inputs), strict=True)]
            for gates, candidate, kept in steps[::way]:
                h = torch.where(kept, cell(gates, candidate, h), h)
                found.append(h)
            both.append(torch.stack(found[::way], 1))
        return torch.cat(both, -1)


class ConditionalGru(Recurrent):
    """Two cells per step, with attention between them."""

    def __init__(self, size: sizes.Recurrent) -> None:
        super().__init__(size)
        m, n = size.embedding, size.units
        if size.normed:
            self.encoder = NormedGru(m, n)
        else:
            self.encoder = nn.GRU(m, n, batch_first=True, bidirectional=True)
        self.begin, self.keys = nn.Linear(2 * n, n), nn.Linear(2 * n, 2 * n)
        self.query = nn.Linear(n, 2 * n, bias=False)
        self.energy = nn.Linear(2 * n, 1, bias=False)
        self.first, self.second = nn.GRUCell(m, n), nn.GRUCell(2 * n, n)
        self.joined = nn.Linear(n + m + 2 * n, size.d_model)

    def remember(self, source):
        annotations, real, _ = self.encode(source)
        each = real[:, 0, :, None]
        mean = (annotations * each).sum(1) / each.sum(1)
        state = torch.tanh(self.begin(mean))[:, None]
        return Memory(annotations, self.keys(annotations), real), (state,)

    def step(self, memory, state, y):
        rows = y.shape[:2]
        inner = self.first(y.flatten(0, 1), state[0].flatten(0, 1))
        query = self.query(inner).unflatten(0, rows)
        energies = self.energy(torch.tanh(query[:, :, None] + memory.keys[:, None]))
        context = attend(energies[..., 0], memory)
        new = self.second(context.flatten(0, 1), inner).unflatten(0, rows)
        return (new,), (new, context)

    def read_out(self, found, y):
        state, context = found
        return torch.tanh(self.joined(torch.cat([state, y, context], -1)))


class Luong(Recurrent):
    """Stacked LSTM, score general, global attention, input feeding."""

    def __init__(self, size: sizes.Recurrent) -> None:
        super().__init__(size)
        m, n, wide = size.embedding, size.units, size.d_model
        between = size.dropout[0] if size.layers > 1 else 0.0
        self.encoder = nn.LSTM(m, n, size.layers, batch_first=True, dropout=between)
        self.cells = nn.ModuleList(
            nn.LSTMCell(n if i else m + wide, n) for i in range(size.layers)
        )
        self.query = nn.Linear(n, n, bias=False)
        self.joined = nn.Linear(2 * n, wide, bias=False)

    def remember(self, source):
        annotations, real, last = self.encode(source)
        layers = [x[:, None] for hc in zip(*last, strict=True) for x in hc]
        fed = annotations.new_zeros(len(source), 1, self.output.in_features)
        return Memory(annotations, annotations, real), (*layers, fed)

    def step(self, memory, state, y):
        rows, (*layers, fed), new = y.shape[:2], state, []
        below = torch.cat([y, fed], -1).flatten(0, 1)
        for cell, h, c in zip(self.cells, layers[::2], layers[1::2], strict=True):
            made = cell(below, (h.flatten(0, 1), c.flatten(0, 1)))
            new += [x.unflatten(0, rows) for x in made]
            below = made[0]
        h = new[-2]
        context = attend(self.query(h) @ memory.keys.mT, memory)
        found = torch.tanh(self.joined(torch.cat([context, h], -1)))
        return (*new, found), (found,)

    def read_out(self, found, y):
        return found[0]


# ---- parameters ----------------------------------------------------------------------


def make(given: weights.ComposedWeights) -> Recurrent:
    """Return the model that has these parameters."""
    size = given.size
    assert isinstance(size, sizes.Recurrent)
    kind = {"cgru": ConditionalGru, "luong": Luong}[size.member]
    model = kind(size)
    named = {"cgru": _cgru, "luong": _luong}[size.member](size, given.arrays)
    table = given.arrays["source_embedding"]
    for name, place in _TABLES.items():
        # Of two tables that are shared, only the first is there.
        named[place] = table = given.arrays.get(name, table)
    tensors = {name: torch.from_numpy(array.copy()) for name, array in named.items()}
    model.load_state_dict(tensors)  # refuses missing and unexpected names
    return model


_TABLES = {
    "source_embedding": "source.weight",
    "target_embedding": "target.weight",
    "output": "output.weight",
}
Arrays = dict[str, np.ndarray]


def _cgru(size: sizes.Recurrent, get: Arrays) -> Arrays:
    n = size.units
    readouts = [f"decoder.readouts_{i}" for i in range(3)]
    named = {
        "energy.weight": get["decoder.energy"][None],
        "query.weight": get["decoder.kernel_query"].T,
        "joined.weight": np.concatenate([get[f"{x}.kernel"] for x in readouts]).T,
        "joined.bias": np.sum([get[f"{x}.bias"] for x in readouts], axis=0),
    }
    for name in ("begin", "keys"):
        named[f"{name}.weight"] = get[f"decoder.{name}.kernel"].T
        named[f"{name}.bias"] = get[f"decoder.{name}.bias"]
    for name in ("first", "second"):
        cell = _gru(get, f"decoder.{name}", n)
        named |= {f"{name}.{part}": array for part, array in cell.items()}
    if size.normed:
        for way in ("forward", "backward"):
            cell = _normed(get, f"encoder_0.cells_{way}", n)
            named |= {f"encoder.{way}s.{part}": a for part, a in cell.items()}
        return named
    for way, suffix in (("forward", ""), ("backward", "_reverse")):
        cell = _gru(get, f"encoder_0.cells_{way}", n)
        named |= {f"encoder.{part}_l0{suffix}": a for part, a in cell.items()}
    return named


def _gru(arrays: Mapping[str, np.ndarray], name: str, n: int) -> Arrays:
    """Return a cell as torch has it: gates r, z, n, where ours are z, r, n."""

    def turned(columns: np.ndarray) -> np.ndarray:
        z, r, candidate = np.split(columns, 3, axis=-1)
        return np.concatenate([r, z, candidate], axis=-1).T

    nothing = np.zeros(2 * n, np.float32)
    return {
        "weight_ih": turned(arrays[f"{name}.kernel_input"]),
        "weight_hh": turned(arrays[f"{name}.kernel_state"]),
        "bias_ih": turned(arrays[f"{name}.bias_input"]),
        "bias_hh": np.concatenate([nothing, arrays[f"{name}.bias_state"]]),
    }


def _normed(arrays: Mapping[str, np.ndarray], name: str, n: int) -> Arrays:
    made = {}
    for of in ("input", "state"):
        made[f"{of}.weight"] = arrays[f"{name}.kernel_{of}"].T
        for kind, vector in (("weight", "gain"), ("bias", "bias")):
            parts = np.split(arrays[f"{name}.{vector}_{of}"], [2 * n])
            made |= {f"of_{of}.{i}.{kind}": part for i, part in enumerate(parts)}
    return made


def _luong(size: sizes.Recurrent, get: Arrays) -> Arrays:
    joined = [get["decoder.kernel_context"], get["decoder.kernel_state"]]
    named = {
        "query.weight": get["decoder.kernel_query"].T,
        "joined.weight": np.concatenate(joined).T,
    }
    for i in range(size.layers):
        cell = _lstm(get, f"encoder_{i}.cells_forward")
        named |= {f"encoder.{part}_l{i}": array for part, array in cell.items()}
        fed = () if i else (get["decoder.kernel_feeding"],)
        cell = _lstm(get, f"decoder.cells_{i}", *fed)
        named |= {f"cells.{i}.{part}": array for part, array in cell.items()}
    return named


def _lstm(arrays: Mapping[str, np.ndarray], name: str, *further: np.ndarray) -> Arrays:
    """Return a cell as torch has it, with the matrices of further inputs."""
    inputs = np.concatenate([arrays[f"{name}.kernel_input"], *further])
    bias = arrays[f"{name}.bias_input"]
    return {
        "weight_ih": inputs.T,
        "weight_hh": arrays[f"{name}.kernel_state"].T,
        "bias_ih": bias,
        "bias_hh": np.zeros_like(bias),
    }
