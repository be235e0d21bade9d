"""Functions over the rows of a batch, where each device has its own rows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from transformer.config import UserError
from transformer.parallel import hosts
from transformer.parallel.partition import (
    AXES,
    BY_ROWS,
    REPLICATED,
    ROWS,
    Rules,
    axes_of,
    specs,
)


def row_axes(mesh: Mesh | None) -> tuple[str, ...]:
    """Return the axes that rows are sharded over, none where they are replicated."""
    return () if mesh is None else tuple(x for x in ROWS if mesh.shape[x] > 1)


def fsdp_specs(rules: Rules, tree: Any) -> Any:
    """Return how ``over_rows`` passes parameters: sharded along fsdp alone."""

    def without_tensor(spec: P) -> P:
        return P(*(None if axis == "tensor" else axis for axis in spec))

    return jax.tree.map(without_tensor, specs(rules, tree))


def over_rows(
    mesh: Mesh | None, function: Callable[..., Any], tree: Any, out: Any
) -> Callable[..., Any]:
    """Let each device compute a function of its own rows of a batch.

    The axis tensor of the mesh is left to the compiler.

    Args:
      mesh: of the devices; with None, or replicated rows, the function is returned
        unchanged.
      function: takes a tree, then arrays or trees of arrays whose first axis is the
        batch; keyword arguments are replicated.
      tree: how its first argument is sharded, ``REPLICATED`` or ``fsdp_specs``.
      out: how its results are sharded.

    Returns:
      The function of global arrays.
    """
    if mesh is None or not row_axes(mesh):
        return function
    # The compiler has nothing to do for an axis of one device: map over that too.
    mapped = {axis for axis in AXES if axis in ROWS or mesh.shape[axis] == 1}

    def globally(first: Any, *batch: Any, **rest: Any) -> Any:
        return jax.shard_map(
            lambda first, batch, rest: function(first, *batch, **rest),
            mesh=mesh,
            in_specs=(tree, BY_ROWS, REPLICATED),
            out_specs=out,
            axis_names=mapped,
            check_vma=False,
        )(first, batch, rest)

    return globally


def gather(rules: Rules, tree: Any, axes: Sequence[str]) -> Any:
    """All-gather the parameters that are sharded along fsdp.

    The derivative adds up the gradients of all devices and shards them in the same way
    (a reduce-scatter).

    Args:
      rules: how parameters are sharded, see ``partition.py``.
      tree: this device's shards.
      axes: axes of the mesh that this function is mapped over.
    """
    if "fsdp" not in axes:
        return tree
    return jax.tree_util.tree_map_with_path(
        lambda p, x: _gather(x, axes_of(rules, p, x)), tree
    )


def gathering_again(function: Callable[..., Any], axes: Sequence[str]) -> Any:
    """Make the backward pass gather parameters again instead of keeping them.

    Args:
      function: a function that calls ``gather``, to be differentiated.
      axes: axes of the mesh that this function is mapped over.
    """
    if "fsdp" not in axes:
        return function

    def keep(primitive: Any, *_: Any, **__: Any) -> bool:
        return primitive.name != "all_gather"

    return jax.checkpoint(function, policy=keep)


def _gather(shard: jax.Array, spec: tuple[str | None, ...]) -> jax.Array:
    """All-gather one parameter along fsdp."""
    if "fsdp" not in spec:
        return shard
    gathered = functools.partial(
        lax.all_gather, axis_name="fsdp", axis=spec.index("fsdp"), tiled=True
    )
    unmapped = jax.sharding.get_abstract_mesh().auto_axes
    if not unmapped:
        return gathered(shard)
    # The compiler would gather the shards along tensor too: map over that axis.
    auto_spec = P(*(axis if axis in unmapped else None for axis in spec))
    return jax.shard_map(
        gathered,
        in_specs=auto_spec,
        out_specs=auto_spec,
        axis_names=set(unmapped),
        check_vma=False,
    )(shard)


def add_gradients(rules: Rules, tree: Any, axes: Sequence[str]) -> Any:
    """Add up the gradients of ``gather``'s argument over all devices.

    Args:
      rules: of the model.
      tree: what this device's rows contribute.
      axes: axes of the mesh that this function is mapped over.
    """

    def add(path: Any, leaf: Any) -> Any:
        added = "fsdp" in axes_of(rules, path, leaf)  # by the derivative of gather
        return total(leaf, [axis for axis in axes if not (added and axis == "fsdp")])

    return jax.tree_util.tree_map_with_path(add, tree)


def total(x: Any, axes: Sequence[str]) -> Any:
    """Add up numbers over all devices along some axes of the mesh."""
    return lax.psum(x, tuple(axes)) if axes else x


@functools.lru_cache
def local_rows(mesh: Mesh, count: int) -> np.ndarray:
    """Return which of a batch's rows lie on this process's devices, ascending."""
    indices = NamedSharding(mesh, BY_ROWS).addressable_devices_indices_map((count,))
    mine = np.zeros(count, bool)
    for index in indices.values():
        mine[index] = True
    return np.flatnonzero(mine)


def place_rows(mesh: Mesh, batch: Any) -> Any:
    """Put a batch on the devices.

    Args:
      mesh: of the devices.
      batch: arrays of this process's ``local_rows``.

    Returns:
      The global arrays.
    """
    return jax.make_array_from_process_local_data(NamedSharding(mesh, BY_ROWS), batch)


def first_row(count: int, axes: Sequence[str]) -> jax.Array | int:
    """Return the index in the global batch of the first of this device's rows."""
    return lax.axis_index(tuple(axes)) * count if axes else 0


PMAPPED = ("data",)  # the axis that ``pmapped`` maps over


def pmapped(step: Callable[..., Any], mesh: Mesh) -> jax.stages.Wrapped:
    """Map a train step over devices by ``jax.pmap``.

    Args:
      step: takes a state, which is replicated, and this device's rows; its results are
        the same on all devices.
      mesh: of the devices, all of them along data.

    Returns:
      The step; it takes the state, which is donated, and a batch from ``split_rows``.

    Raises:
      UserError: with several processes.
    """
    if hosts.several():
        raise UserError(
            f"parallel.how: expected jit with {jax.process_count()} processes, got "
            "pmap; change it"
        )
    return jax.pmap(
        step,
        *PMAPPED,
        in_axes=(None, 0),
        out_axes=None,
        devices=list(mesh.devices.flat),
        donate_argnums=0,
    )


def split_rows(mesh: Mesh, batch: Any) -> Any:
    """Give each device of ``pmapped`` its rows.

    Args:
      mesh: of the devices.
      batch: of global arrays (R, ...).

    Returns:
      The same as (devices, R / devices, ...).
    """
    count = mesh.size
    return jax.tree.map(
        lambda x: x.reshape((count, x.shape[0] // count, *x.shape[1:])), dict(batch)
    )
