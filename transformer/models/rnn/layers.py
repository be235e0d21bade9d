"""Recurrent layers over a whole source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer.models.modules import kernel_of
from transformer.nn import dropout, layers, matmul, recurrent

State = tuple[jax.Array, ...]


class Cell(nn.Module):
    """Holds the parameters of a cell.

    Attributes:
      kind: a name in ``recurrent.CELLS``.
      width: m, of its input.
      units: n.
      dtype: dtype of the operands of products.
    """

    kind: str
    width: int
    units: int
    dtype: str

    def setup(self):
        kind, n = recurrent.CELLS[self.kind], self.units
        columns = kind.gates * n
        self.kernel_input = kernel_of(self, "kernel_input", (self.width, columns))
        remembering = _remembering if self.kind == "lstm" else nn.initializers.zeros
        self.bias_input = self.param("bias_input", remembering, (columns,))
        self.kernels = {
            name: kernel_of(self, f"kernel_{name}", (n, width * n), _orthogonal)
            for name, width in kind.products.items()
        }
        self.bias = self.gain_input = self.gain = None
        if kind.bias:
            self.bias = self.param(
                "bias_state", nn.initializers.zeros, (kind.bias * n,)
            )
        if self.kind == "gru_normed":
            self.gain_input, self.gain = (
                self.param(f"gain_{of}", nn.initializers.ones, (columns,))
                for of in ("input", "state")
            )

    def gates(self, x: jax.Array) -> jax.Array:
        """Return the input's part of the gates, ``x W + b``: (..., m) to (..., G n)."""
        if self.gain_input is None:
            return layers.linear(x, self.kernel_input, self.bias_input, self.dtype)
        product = layers.linear(x, self.kernel_input, None, self.dtype)
        return recurrent.norm_gates(product, self.gain_input, self.bias_input)

    def matrices(self, *, with_input: bool = False) -> dict[str, matmul.Kernel]:
        """Return the matrices of the loop, and the input's if it is one of them."""
        its_input = {"input": self.kernel_input} if with_input else {}
        return {**self.kernels, **its_input}

    def bias_of_input(self) -> jax.Array:
        """Return the bias of the input's part, (G n,)."""
        return self.bias_input

    def held(self) -> recurrent.Held:
        """Return the vectors that a step reads."""
        return recurrent.Held(self.bias, self.gain)


def _remembering(key: jax.Array, shape: tuple[int], dtype: Any = jnp.float32):
    """Return biases of i, f, g and o: 1 for f, so that at first a cell is kept."""
    return jnp.repeat(jnp.array([0, 1, 0, 0], dtype), shape[0] // 4)


def _orthogonal(
    key: jax.Array, shape: tuple[int, int], dtype: Any = jnp.float32
) -> jax.Array:
    """Draw orthogonal matrices (n, n) side by side: at first no state fades."""
    n, columns = shape
    keys = jax.random.split(key, columns // n)
    square = nn.initializers.orthogonal()
    return jnp.concatenate([square(k, (n, n), dtype) for k in keys], axis=1)


def named(multiply: recurrent.Multiply, cell: str) -> recurrent.Multiply:
    """Let a cell call its matrices by its own names."""
    return lambda name, operand: multiply(f"{cell}.{name}", operand)


def all_named(matrices: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the matrices of several cells, by the names that ``named`` uses."""
    return {
        f"{cell}.{name}": matrix
        for cell, its in matrices.items()
        for name, matrix in its.items()
    }


def matrices_of_stack(cells: Sequence[Cell]) -> dict[str, matmul.Kernel]:
    """Return the matrices of stacked cells, those of the lowest without its input's.

    The product of the lowest cell's input is computed outside the loop.
    """
    return all_named(
        {f"layer_{i}": cell.matrices(with_input=i > 0) for i, cell in enumerate(cells)}
    )


def between(
    cells: Sequence[Cell], shape: tuple[int, ...], rate: float, key: dropout.Key | None
) -> tuple[jax.Array, ...]:
    """Return the factors that drop out the inputs of all cells but the lowest.

    Dropout is drawn for all steps at once, outside the loop.

    Args:
      cells: cells of a stack, from the lowest.
      shape: (B, T).
      rate: dropout rate.
      key: None in evaluation.

    Returns:
      For each cell but the lowest (B, T, m), 0 or ``1 / (1 - rate)``; nothing at all in
      evaluation.

    Source: Zaremba et al., arXiv:1409.2329, section 3.2.
    """
    if key is None or rate == 0.0:
        return ()
    return tuple(
        dropout.dropout(jnp.ones((*shape, cell.width)), rate, dropout.fold_in(key, i))
        for i, cell in enumerate(cells[1:])
    )


class Layer(nn.Module):
    """A recurrent layer, in one direction or in both at once.

    Attributes:
      kind: a name in ``recurrent.CELLS``.
      width: m, of its input.
      units: n.
      dtype: dtype of the operands of products.
      ways: "forward", "backward" or both.
    """

    kind: str
    width: int
    units: int
    dtype: str
    ways: tuple[str, ...] = ("forward",)

    def setup(self):
        self.cells = {
            way: Cell(self.kind, self.width, self.units, self.dtype)
            for way in self.ways
        }

    def __call__(
        self, x: jax.Array, real: jax.Array
    ) -> tuple[jax.Array, dict[str, State]]:
        """Run over a source.

        Args:
          x: (B, S, m).
          real: 1 or 0 for each token (B, S); padding keeps the state.

        Returns:
          The outputs of all directions side by side (B, S, n each), and the last state
          of each.
        """
        kind, xs = recurrent.CELLS[self.kind], {}
        for way, cell in self.cells.items():
            # Backward, a row begins with its padding, which keeps the state at 0.
            order = slice(None, None, -1 if way == "backward" else 1)
            xs[way] = cell.gates(x).swapaxes(0, 1)[order], real.T[order]

        def step(multiply, held, states, x):
            new = {}
            for way, (gates, real) in x.items():
                multiply_ = named(multiply, way)
                made = kind.step(gates, states[way], held[way], multiply_)
                new[way] = recurrent.keep(real, made, states[way])
            return new, {way: state[0] for way, state in new.items()}

        zeros = (jnp.zeros((len(x), self.units)),) * kind.parts
        begin: dict[str, Any] = dict.fromkeys(self.ways, zeros)
        weights = all_named({w: cell.matrices() for w, cell in self.cells.items()})
        held = {way: cell.held() for way, cell in self.cells.items()}
        last, outputs = recurrent.scan(step, weights, held, begin, xs, self.dtype)
        each = [outputs[w][:: -1 if w == "backward" else 1] for w in self.ways]
        return jnp.concatenate(each, axis=-1).swapaxes(0, 1), last
