"""Modules that any architecture may be built from; they only hold parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from transformer.models import stacks
from transformer.nn import dropout, hardware, layers, matmul
from transformer.nn.hardware import Hardware


def with_bias(
    hidden: jax.Array, table: jax.Array, bias: jax.Array, dtype: str
) -> tuple[jax.Array, jax.Array]:
    """Return hidden states and an output matrix whose product includes a bias.

    ``[x, 1] [W, b]^T = x W^T + b``; for bfloat16 the bias takes two columns, its
    rounded value and the rest, which together keep 16 of its bits.

    Args:
      hidden: x (B, T, D).
      table: W (V, D).
      bias: b (V,).
      dtype: of the model.

    Returns:
      (B, T, D + n) and (V, D + n).
    """
    columns = [bias]
    if dtype == "bfloat16":
        # Not by two conversions, which a compiler may leave out as excess precision.
        rounded = jax.lax.stop_gradient(jax.lax.reduce_precision(bias, 8, 7))
        columns = [rounded, bias - rounded]
    ones = jnp.ones((*hidden.shape[:2], len(columns)))
    return (
        jnp.concatenate([hidden, ones], axis=-1),
        jnp.concatenate([table, jnp.stack(columns, axis=-1)], axis=-1),
    )


class Base(nn.Module):
    """What every model has.

    Attributes:
      config: sizes and choices.
      source_size: V of the source vocabulary.
      target_size: V of the target vocabulary.
      remat: what the backward pass recomputes in training, that is, in a call with a
        dropout key: "none"; "layers", all of them but their inputs; "dots", all but
        these and the products with parameters.
      hardware: what programs are traced for; None = this process's first device.
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

    def embedding_tables(
        self, width: int, output: int
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Hold the tables that ``config.tying`` keeps separate (section 3.4).

        Args:
          width: width of embeddings.
          output: width of what the output matrix is multiplied by.

        Returns:
          The tables of source (V, width) and target, and the output matrix.
        """

        def table(name: str, rows: int, width: int) -> jax.Array:
            narrow = nn.initializers.normal(width**-0.5)
            return self.param(name, narrow, (rows, width))

        tying = self.config.tying
        source = target = table("source_embedding", self.source_size, width)
        if tying != "three":
            target = table("target_embedding", self.target_size, width)
        if tying != "none":
            return source, target, target
        return source, target, table("output", self.target_size, output)

    def with_one_layer(self) -> tuple[Any, dict[str, int]]:
        """Return a model with one layer in each stack whose layers have equal shapes.

        Returns:
          The model, and how many layers those stacks have here.
        """
        return self, {}

    def run_stack(
        self,
        name: str,
        layer_of: Callable[..., Any],
        x: jax.Array,
        arguments: tuple[Any, ...],
        key: Any,
    ) -> jax.Array:
        """Run the layers of a stack, each on the result of the one before.

        Args:
          name: name of the stack, and of the attribute that holds its layers.
          layer_of: makes a function from name, configuration and hardware, as
            ``stacks.function_of`` does.
          x: input of the first layer (B, T, D).
          arguments: arguments of every layer.
          key: dropout key, None for evaluation.
        """
        stack = getattr(self, name)
        stacked: Any = self.get_variable("params", name)
        weights_wanted = self.is_mutable_collection("attention")
        if self.is_initializing() or (weights_wanted and stacked is None):
            for i, layer in enumerate(stack):
                x = layer(x, *arguments, dropout.fold_in(key, i + 1))
            return x
        assert not weights_wanted, "a scan keeps no weights: unstack the layers"
        apply = layer_of(name, self.config, self.kind)
        variables = [] if stacked is not None else [one.variables for one in stack]
        return stacks.run(
            apply, x, variables, stacked, arguments, key, self.remat, self.kind
        )

    def search_variables(self, params: Any) -> Any:
        """Return variables for ``apply``, stored in the form a search reads."""
        return transposed_kernels(params, self.operands)


def kernel_of(
    module: nn.Module,
    name: str,
    shape: tuple[int, int],
    draw: nn.initializers.Initializer | None = None,
) -> matmul.Kernel:
    """Return a matrix of the module, as stored by ``transposed`` if it is there."""
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
    """Store the matrices in the form that is fastest for the few rows of a search.

    Args:
      params: parameters of a model whose matrices ``kernel_of`` returns.
      dtype: dtype of the operands of products.

    Returns:
      Variables for ``model.apply``: ``params`` and the collection "transposed", every
      matrix (I, O) as (O, I) in ``dtype``. Results are the same with and without it, up
      to rounding.
    """

    matrices = {
        path: transposed(leaf, dtype)
        for path, leaf in flatten_dict(params).items()
        if path[-1].startswith("kernel")
    }
    return {"params": params, "transposed": unflatten_dict(matrices)}


def transposed(matrix: jax.Array, dtype: str) -> matmul.Transposed:
    """Store a matrix (I, O) as (O, I) in ``dtype``."""
    # Without the barrier the transposition would become part of the products, which
    # lack that form.
    return matmul.Transposed(jax.lax.optimization_barrier(matrix.T.astype(dtype)))
