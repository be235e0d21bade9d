"""Modules that any architecture may be built of; they only hold parameters."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
from flax.traverse_util import flatten_dict, unflatten_dict

from transformer.nn import hardware, layers, matmul
from transformer.nn.hardware import Hardware


class Base(nn.Module):
    """What every model has.

    Attributes:
      config: sizes and choices.
      source_size: V of the source vocabulary.
      target_size: V of the target vocabulary.
      remat: what the backward pass of training, that is of a call with a dropout key,
        recomputes: "none", all of "layers" but their inputs, or all but these and the
        products with parameters, "dots".
      hardware: that programs are traced for; None = this process's first device.
    """

    config: Any
    source_size: int
    target_size: int
    remat: str = "none"
    hardware: Hardware | None = None

    @property
    def kind(self) -> Hardware:
        """The hardware that programs are traced for."""
        return self.hardware or hardware.here()

    @property
    def operands(self) -> str:
        """The dtype of the operands of products with parameters."""
        return self.kind.operands(self.config.dtype)

    def search_variables(self, params: Any) -> Any:
        """Return variables for ``apply`` that are stored as a search reads them."""
        return transposed_kernels(params, self.operands)


def kernel_of(
    module: nn.Module,
    name: str,
    shape: tuple[int, int],
    draw: nn.initializers.Initializer | None = None,
) -> matmul.Kernel:
    """Return a matrix of the module, as ``transposed`` has stored it if it is there."""
    kernel = module.param(name, draw or nn.initializers.glorot_uniform(), shape)
    return module.get_variable("transposed", name, kernel)


class Linear(nn.Module):
    """Holds the kernel and bias of ``layers.linear``."""

    features: int
    dtype: str
    use_bias: bool = True
    result: str = "float32"

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        kernel = kernel_of(self, "kernel", (x.shape[-1], self.features))
        bias = None
        if self.use_bias:
            bias = self.param("bias", nn.initializers.zeros, (self.features,))
        return layers.linear(x, kernel, bias, self.dtype, self.result)


class LayerNorm(nn.Module):
    """Holds the scale and bias of ``layers.layer_norm``."""

    epsilon: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],))
        bias = self.param("bias", nn.initializers.zeros, (x.shape[-1],))
        return layers.layer_norm(x, scale, bias, self.epsilon)


def transposed_kernels(params: Any, dtype: str) -> Any:
    """Store the matrices the way that a search, with its few rows, reads them.

    Args:
      params: of a model whose matrices ``kernel_of`` returns.
      dtype: of the operands of products.

    Returns:
      Variables for ``model.apply``: ``params``, and beside them the collection
      "transposed", every matrix (I, O) as (O, I) in ``dtype``. Results are the same
      with and without it, to rounding.
    """

    matrices = {
        path: transposed(leaf, dtype)
        for path, leaf in flatten_dict(params).items()
        if path[-1].startswith("kernel")
    }
    return {"params": params, "transposed": unflatten_dict(matrices)}


def transposed(matrix: jax.Array, dtype: str) -> matmul.Transposed:
    """Store a matrix (I, O) as (O, I) in ``dtype``."""
    # Without the barrier the transposition would become a part of the products, which
    # lack that form.
    return matmul.Transposed(jax.lax.optimization_barrier(matrix.T.astype(dtype)))
