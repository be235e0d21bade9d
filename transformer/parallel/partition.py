"""How parameters are sharded, by their names, over the axes of a mesh."""

from __future__ import annotations

import re
from collections.abc import Mapping
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
# How a model's parameters are sharded: a regular expression for the end of their names,
# and the axis of the mesh for each of their axes. "fsdp" shards what is stored, and a
# device gathers a parameter when it needs it; "tensor" shards what is computed.
Rules = Mapping[str, tuple[str | None, ...]]


def specs(rules: Rules, tree: Any) -> Any:
    """Return how each array of a tree is sharded.

    Args:
      rules: of the model.
      tree: parameters, or a tree with a part of the same name for each, like the
        moments of an optimiser; scalars are replicated.

    Returns:
      The tree with a ``PartitionSpec`` for each array.
    """
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: P(*axes_of(rules, path, leaf)), tree
    )


def shardings(mesh: Mesh, rules: Rules, tree: Any) -> Any:
    """Return the tree with the ``NamedSharding`` of each array on a mesh."""
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs(rules, tree))


def placed(mesh: Mesh, rules: Rules, tree: Any) -> Any:
    """Return the shapes of a tree with the shardings of its arrays on a mesh."""
    return jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        tree,
        shardings(mesh, rules, tree),
    )


def axes_of(rules: Rules, path: Any, leaf: Any) -> tuple[str | None, ...]:
    """Return the axis of the mesh for each axis of an array."""
    name = name_of(path)
    if leaf.ndim == 0:
        return ()
    for pattern, axes in rules.items():
        if re.search(rf"(^|[._]){pattern}$", name):
            if leaf.ndim < len(axes):  # of an optimiser that keeps sums of an array
                return (None,) * leaf.ndim
            axes = (None,) * (leaf.ndim - len(axes)) + axes  # layers, with scan, first
            pairs = zip(axes, leaf.shape, strict=True)
            return tuple(axis if size > 1 else None for axis, size in pairs)
    raise KeyError(f"no rule in the model's PARTITION for the parameter {name}")


def name_of(path: Any) -> str:
    """Return the dotted name of an array of a tree by its path."""
    return jax.tree_util.keystr(path, simple=True, separator=".")
