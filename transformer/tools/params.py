"""Every parameter of a configuration, and how it is sharded."""

from __future__ import annotations

import math

import jax

from transformer import config, models
from transformer.parallel.mesh import axis_sizes, check, check_divides
from transformer.parallel.partition import axes_of, name_of


def parameter_table(settings: config.Config) -> str:
    """Describe every parameter of a configuration without making any.

    Args:
      settings: the configuration; the devices need not be there, and if
        ``parallel.data`` is -1 there is one replica.

    Returns:
      Lines of name, shape, count, dtype, the axes of the mesh that each of its axes is
      sharded over ("-" = none, "replicated" = none at all), and bytes per device; and
      the total.

    Raises:
      UserError: if sizes are only known once the data are prepared, or the mesh does
        not fit, as ``check`` and ``check_divides``.
    """

    spread = settings.parallel
    devices = max(spread.data, 1) * spread.fsdp * spread.tensor
    sizes = axis_sizes(spread, devices)
    model = models.make(settings, *models.configured_sizes(settings))
    tree = models.abstract(model)
    check(settings, sizes)
    check_divides(sizes, model.partition, tree)
    rows = [
        ("parameter", "shape", "count", "dtype", "sharded over", "bytes per device")
    ]
    total = held = 0
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        axes = [
            a if a and sizes[a] > 1 else "-"
            for a in axes_of(model.partition, path, leaf)
        ]
        shards = math.prod(sizes[axis] for axis in axes if axis != "-")
        size = leaf.size * leaf.dtype.itemsize // shards
        over = ",".join(axes) if shards > 1 else "replicated"
        shape, dtype = "x".join(map(str, leaf.shape)), str(leaf.dtype)
        rows.append((name_of(path), shape, f"{leaf.size:,}", dtype, over, f"{size:,}"))
        total, held = total + leaf.size, held + size
    rows.append(("total", "", f"{total:,}", "", "", f"{held:,}"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            f"{cell:{'<' if i in (0, 3, 4) else '>'}{width}}"
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
