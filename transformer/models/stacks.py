"""N layers as one compiled program: unrolled or scanned, with some recomputation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from transformer.nn import dropout
from transformer.nn.hardware import Hardware


def _is_kernel(primitive: Any, *_: Any, **__: Any) -> bool:
    """Keep what cuDNN's attention passes to its backward pass."""
    return primitive.name.startswith("dot_product_attention_fwd")


_policies = jax.checkpoint_policies

# What of a layer stays in memory for the backward pass, besides the layer's input.
_KEPT = {
    "layers": _policies.nothing_saveable,
    # What ends in a product with parameters, not the products inside attention, whose
    # results grow with the square of the length.
    "dots": _policies.save_only_these_names("product"),
    # All that takes long to compute. Weights, masks and norms cost an accelerator less
    # to recompute, within a product that reads them, than to write and to read.
    "none": _policies.save_from_both_policies(
        _policies.save_only_these_names("product", "attention", "mean"), _is_kernel
    ),
}


def function_of(layer: Any) -> Callable[..., Any]:
    """Return a layer as a function of its number, variables and inputs, for ``run``.

    If all layers of a stack share this function, they share one trace, and so do all
    steps that see the same shapes.
    """

    @jax.jit
    def apply(x, i, variables, arguments, key):
        return layer.apply(variables, x, *arguments, dropout.fold_in(key, i + 1))

    return apply


def recomputing(
    apply: Callable[..., Any], remat: str, *, apart: bool
) -> Callable[..., Any]:
    """Make the backward pass of a layer recompute what ``remat`` names.

    Args:
      apply: the layer, as a function of arrays only.
      remat: see ``config.Parallel``.
      apart: whether to keep the compiler from merging the recomputation with the
        forward pass; in a scan it cannot.
    """
    return jax.checkpoint(apply, policy=_KEPT[remat], prevent_cse=apart)


def run(
    apply: Callable[..., jax.Array],
    x: jax.Array,
    variables: Sequence[Any],
    stacked: Any,
    arguments: tuple[Any, ...],
    key: Any,
    remat: str,
    hardware: Hardware,
) -> jax.Array:
    """Run the layers of a stack, each on the result of the one before.

    Args:
      apply: ``(x, number, variables, arguments, key)`` to the result of a layer.
      x: input of the first layer (B, T, D).
      variables: of each layer, if they are separate.
      stacked: the parameters of all, with a first axis of N layers, or None.
      arguments: arguments of every layer.
      key: dropout key, None for evaluation.
      remat: what the backward pass recomputes, see ``config.Parallel``.
      hardware: what it is traced for.

    Returns:
      The result of the last layer (B, T, D).
    """
    unrolled = stacked is None
    # Unrolled, the compiler itself sees what to recompute; scanned, it cannot.
    chosen = remat != "none" or (hardware.accelerator and not unrolled)
    if chosen and key is not None:
        # Scanned, nothing can be merged with what the forward pass has computed.
        apply = recomputing(apply, remat, apart=unrolled)
    if unrolled:
        for i, each in enumerate(variables):
            x = apply(x, i, each, arguments, key)
        return x

    def body(x, numbered):
        i, params = numbered
        return apply(x, i, {"params": params}, arguments, key), None

    count = len(jax.tree.leaves(stacked)[0])
    return jax.lax.scan(body, x, (jnp.arange(count), stacked))[0]


def scanned(wanted: str, hardware: Hardware) -> bool:
    """Return whether layers are scanned, by ``parallel.layers`` and the device kind."""
    return wanted == "scanned" or (wanted == "auto" and hardware.accelerator)


def stack(names: Sequence[str], tree: Any) -> Any:
    """Stack the parameters of the layers of each stack, to be scanned.

    Args:
      names: names of the model's stacks.
      tree: a pytree with parameters anywhere in it, like the state of an optimiser.

    Returns:
      The tree with ``encoder`` for ``encoder_0``, ``encoder_1``, ..., each array with a
      first axis of N layers, and the same for the other stacks.
    """

    def is_apart(tree: Any) -> bool:
        return isinstance(tree, dict) and any(f"{name}_0" in tree for name in names)

    def put(params: Any) -> Any:
        if not is_apart(params):
            return params
        layers = {name: _numbered(name, params) for name in names}
        rest = {k: v for k, v in params.items() if k not in sum(layers.values(), [])}
        return rest | {
            name: jax.tree.map(lambda *x: jnp.stack(x), *(params[n] for n in numbered))
            for name, numbered in layers.items()
            if numbered
        }

    return jax.tree.map(put, tree, is_leaf=is_apart)


def _numbered(name: str, params: Any) -> list[str]:
    count = sum(f"{name}_{i}" in params for i in range(len(params)))
    return [f"{name}_{i}" for i in range(count)]


def unstack(names: Sequence[str], tree: Any) -> Any:
    """Separate the layers that ``stack`` has stacked."""

    def take(params: Any) -> Any:
        if not is_stacked(names, params):
            return params
        rest = {k: v for k, v in params.items() if k not in names}
        for name in set(names) & set(params):
            count = len(jax.tree.leaves(params[name])[0])
            for i in range(count):
                rest[f"{name}_{i}"] = jax.tree.map(lambda x, i=i: x[i], params[name])
        return rest

    def stacked(tree: Any) -> bool:
        return is_stacked(names, tree)

    return jax.tree.map(take, tree, is_leaf=stacked)


def is_stacked(names: Sequence[str], tree: Any) -> bool:
    """Return whether these are parameters as ``stack`` returns them."""
    return isinstance(tree, dict) and any(name in tree for name in names)
