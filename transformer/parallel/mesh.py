"""The mesh: devices along the axes data, fsdp and tensor, and what it must divide."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding

from transformer import config
from transformer.config import UserError
from transformer.parallel.partition import (
    AXES,
    REPLICATED,
    ROWS,
    Rules,
    axes_of,
    name_of,
)


def axis_sizes(settings: config.Parallel, devices: int) -> dict[str, int]:
    """Return the sizes of the axes of the mesh.

    Args:
      settings: sizes, of which ``data`` may be -1 for what the others leave.
      devices: how many there are.

    Raises:
      UserError: if the sizes do not multiply to the number of devices.
    """
    inner = settings.fsdp * settings.tensor
    data = devices // inner if settings.data == -1 else settings.data
    if data * inner != devices:
        raise UserError(
            f"parallel: expected data x fsdp x tensor = {devices}, the number of "
            f"devices, got {settings.data} x {settings.fsdp} x {settings.tensor}; "
            "change them (data=-1 takes what is left)"
        )
    return dict(zip(AXES, (data, settings.fsdp, settings.tensor), strict=True))


def make_mesh(settings: config.Parallel, devices: Sequence[jax.Device]) -> Mesh:
    """Arrange devices along the axes data, fsdp and tensor.

    Args:
      settings: the sizes of the axes.
      devices: all of them are used.

    Returns:
      The mesh.

    Raises:
      UserError: as ``axis_sizes``.
    """
    sizes = axis_sizes(settings, len(devices))
    return _mesh(tuple(sizes.values()), devices)


def replica_mesh(devices: Sequence[jax.Device]) -> Mesh:
    """Return the mesh for a replica of a model on each device."""
    return _mesh((len(devices), 1, 1), devices)


def replicated(tree: Any) -> Any:
    """Return the shapes of a tree that is replicated on all devices."""
    everywhere = NamedSharding(replica_mesh(jax.devices()), REPLICATED)
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=everywhere), tree
    )


def _mesh(sizes: tuple[int, ...], devices: Sequence[jax.Device]) -> Mesh:
    types = (AxisType.Auto,) * len(AXES)
    return jax.make_mesh(sizes, AXES, axis_types=types, devices=devices)


def check(settings: config.Config, sizes: Mapping[str, int]) -> None:
    """Check that a mesh divides the rows of a configuration, and its heads.

    Args:
      settings: the configuration of the run.
      sizes: of the axes of the mesh.

    Raises:
      UserError: if it does not, with the sizes.
    """
    heads, tensor = getattr(settings.model, "heads", 0), sizes["tensor"]
    if tensor > 1 and not heads:
        raise UserError(
            f"parallel.tensor: expected 1 for model.kind = {settings.model.kind}, of "
            f"which nothing is sharded along it, got {tensor}; use fsdp or data"
        )
    if heads % tensor:
        raise UserError(
            f"parallel.tensor: expected a divisor of model.heads = {heads}, got "
            f"{tensor}; change one of them"
        )
    parts, accumulation = row_shards(sizes), settings.optimizer.accumulation
    if settings.batch.multiple % (parts * accumulation):
        raise UserError(
            "batch.multiple: expected a multiple of data x fsdp x "
            f"optimizer.accumulation = {sizes['data']} x {sizes['fsdp']} x "
            f"{accumulation} = {parts * accumulation}, the parts that rows are sharded "
            f"into, got {settings.batch.multiple}; raise it, or use fewer devices"
        )


def check_divides(sizes: Mapping[str, int], rules: Rules, tree: Any) -> None:
    """Check that a mesh divides every parameter.

    Args:
      sizes: of the axes of the mesh.
      rules: of the model.
      tree: the parameters or their shapes.

    Raises:
      UserError: if it does not, with the sizes.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        for size, axis in zip(leaf.shape, axes_of(rules, path, leaf), strict=True):
            if axis is not None and size % sizes[axis]:
                shape = " x ".join(map(str, leaf.shape))
                raise UserError(
                    f"parallel.{axis}: expected a divisor of {size}, a size of the "
                    f"parameter {name_of(path)} ({shape}), got {sizes[axis]}; change "
                    "it or the model"
                )


def row_shards(sizes: Mapping[str, int]) -> int:
    """Return how many shards the rows of a batch have, given the sizes of the axes."""
    return math.prod(sizes[axis] for axis in ROWS)
