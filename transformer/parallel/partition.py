"""How parameters are sharded, by their names, over the axes of a mesh."""

from __future__ import annotations

import re
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXES = ("data", "fsdp", "tensor")
ROWS = (
    "data",
    "fsdp",
)  # the axes that the rows of a batch are sharded over
REPLICATED = P()  # on every device
BY_ROWS = P(ROWS)  # the first axis is the batch
# How parameters are sharded, by the end of their names: the axis of the mesh for each
# of their axes. "fsdp" shards what is stored, and a device gathers a parameter when it
# needs it; "tensor" shards what is computed: first into heads or columns of d_ff, then
# back to d_model.
RULES: dict[str, tuple[str | None, ...]] = {
    "(source|target)_embedding": ("tensor", "fsdp"),  # (V, D)
    "output": ("tensor", "fsdp"),  # (V, D)
    "(source|target)_positions": (None, "fsdp"),  # (positions, D)
    "target_space": (None, "fsdp"),  # (spaces, D)
    "(query|key|value)[.]kernel": ("fsdp", "tensor"),  # (D, H * K)
    "(query|key|value)[.]bias": ("tensor",),  # (H * K,)
    "output[.]kernel": ("tensor", "fsdp"),  # (H * W, D)
    "output[.]bias": (None,),  # (D,)
    "kernel_1": ("fsdp", "tensor"),  # (D, F)
    "bias_1": ("tensor",),  # (F,)
    "kernel_2": ("tensor", "fsdp"),  # (F, D)
    "bias_2": (None,),  # (D,)
    "norm[.](scale|bias)": (None,),  # (D,)
}


def specs(tree: Any) -> Any:
    """Return how each array of a tree is sharded, by ``RULES``.

    Args:
      tree: parameters, or what has a part of the same name for each, like the moments
        of an optimiser; scalars are replicated.

    Returns:
      The tree with a ``PartitionSpec`` for each array.
    """
    return jax.tree_util.tree_map_with_path(lambda p, x: P(*axes_of(p, x)), tree)


def shardings(mesh: Mesh, tree: Any) -> Any:
    """Return the tree with the ``NamedSharding`` of each array on a mesh."""
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs(tree))


def placed(mesh: Mesh, tree: Any) -> Any:
    """Return the shapes of a tree with the shardings of its arrays on a mesh."""
    return jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        tree,
        shardings(mesh, tree),
    )


def axes_of(path: Any, leaf: Any) -> tuple[str | None, ...]:
    """Return the axis of the mesh for each axis of an array."""
    name = name_of(path)
    if leaf.ndim == 0:
        return ()
    for pattern, axes in RULES.items():
        if re.search(rf"(^|[._]){pattern}$", name):
            return (None,) * (leaf.ndim - len(axes)) + axes  # layers, with scan, first
    raise KeyError(f"no rule in parallel.RULES for the parameter {name}")


def name_of(path: Any) -> str:
    """Return the dotted name of an array of a tree by its path."""
    return jax.tree_util.keystr(path, simple=True, separator=".")
