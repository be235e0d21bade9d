"""Programs of a configuration, traced for devices without making any array.

The devices may be real, simulated, or described only (``targets.devices``).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import Mesh, NamedSharding

from transformer import batch_search, config, models, objective, parallel
from transformer.config import Config
from transformer.data.batches import Shape
from transformer.models import Model, sublayers
from transformer.nn.attention import Mask
from transformer.nn.hardware import Hardware, arranged, of
from transformer.programs import compile_step
from transformer.search import configured
from transformer.step import init_state


@dataclasses.dataclass(frozen=True)
class Case:
    """What a program is traced for.

    Attributes:
      settings: the configuration.
      sizes: rows of the source's and of the target's table.
      shape: (R, S, T) of the global batch; for a search R sentences of all devices, at
        most S tokens each, of a translation T.
      devices: those that ``settings.parallel`` arranges; for a search those that share
        the sentences.
      hardware: that the program is for, None = that of the devices.
    """

    settings: Config
    sizes: tuple[int, int]
    shape: Shape
    devices: Sequence[jax.Device]
    hardware: Hardware | None = None

    def mesh(self) -> Mesh:
        """Return the mesh of the devices."""
        return parallel.make_mesh(self.settings.parallel, self.devices)

    def model(self) -> Model:
        """Return the model, as it computes on the hardware."""
        hardware = self.hardware or of(self.devices[0])
        return models.make(self.settings, *self.sizes, hardware)


def train_step(case: Case) -> jax.stages.Traced:
    """Trace the train step of ``jit``; a step of several batches as one of all rows."""
    case = _of_jit(case)
    settings, mesh, model = case.settings, case.mesh(), case.model()
    draw = functools.partial(init_state, settings, model)
    state = parallel.placed(mesh, model.partition, jax.eval_shape(draw))
    step: Any = compile_step(settings, model, mesh, state)
    return step.trace(state, _batch(case, mesh))


def evaluation(case: Case) -> jax.stages.Traced:
    """Trace the sums of ``objective.batch_sums``."""
    case = _of_jit(case)
    mesh, model = case.mesh(), case.model()
    params = parallel.placed(mesh, model.partition, models.abstract(model))
    batch = _batch(case, mesh)
    return objective.mesh_sums.trace(case.settings, model, mesh, params, batch)


def search(case: Case) -> jax.stages.Traced:
    """Trace the configured search of translations."""
    decoding, (rows, source, target) = case.settings.decode, case.shape
    model, mesh = case.model(), parallel.replica_mesh(case.devices)
    by_rows, replicated = (
        NamedSharding(mesh, place) for place in (parallel.BY_ROWS, parallel.REPLICATED)
    )
    variables = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=replicated),
        jax.eval_shape(
            lambda p: models.search_variables(model, p), models.abstract(model)
        ),
    )
    return batch_search.search.trace(
        configured(decoding),
        model,
        mesh,
        target,
        variables,
        _source(case, rows, source, by_rows),
        jax.ShapeDtypeStruct((rows,), jnp.int32, sharding=by_rows),
        jax.ShapeDtypeStruct((rows,), jnp.uint32, sharding=by_rows),
        jax.ShapeDtypeStruct((), jnp.uint32, sharding=replicated),
    )


def choices(
    settings: Config,
    hardware: Hardware,
    lengths: tuple[int, int],
    kinds: Sequence[str] = ("train",),
) -> dict[str, str]:
    """Return what the code chooses for a kind of device, in words.

    Args:
      settings: the configuration.
      hardware: the kind of device.
      lengths: S and T of a batch.
      kinds: of programs: "train", "evaluate", "search".
    """
    model = settings.model
    hardware = arranged(hardware, settings.parallel.tensor) or hardware
    dtype = hardware.operands(model.dtype)
    products = {"products": f"{dtype} x {dtype} -> float32"}
    if not isinstance(model, config.Transformer):
        return products  # attention of other kinds has no kernel to choose
    each = {kind: _attention(model, hardware, lengths, kind) for kind in kinds}
    (text, *others) = dict.fromkeys(each.values())
    if others:
        text = ", ".join(f"{kind}: {its}" for kind, its in each.items())
    return {**products, "attention": text}


def _attention(
    model: config.Transformer, hardware: Hardware, lengths: tuple[int, int], kind: str
) -> str:
    source, target = lengths
    padded: Any = jax.ShapeDtypeStruct((1, source), jnp.int32)
    places = {
        "encoder": ((source, source), Mask(padded, window=model.window)),
        "decoder": ((target, target), Mask(None, causal=True, window=model.window)),
        "cross": ((target, source), Mask(padded)),
    }
    if kind == "search":  # whose decoder reads a cache, unfused
        del places["decoder"], places["cross"]
    fused = {
        place: kernel
        for place, (both, mask) in places.items()
        if (kernel := sublayers.attention_kernel(model, hardware, both, mask, place))
    }
    # Weights have to be there to be dropped.
    if not fused or (kind == "train" and model.attention_dropout > 0):
        return "unfused"
    (kernel,) = set(fused.values())
    text = f"one kernel, {kernel}"
    if len(fused) == 3:
        return text
    names = [place.replace("cross", "cross-attention") for place in fused]
    return f"{text} in the {' and '.join(names)}"


def compile_anew(traced: jax.stages.Traced) -> Any:
    """Compile a program without the cache, as if for the first time."""
    name = "jax_enable_compilation_cache"
    before = getattr(jax.config, name)
    jax.config.update(name, False)
    compilation_cache.reset_cache()  # jax reads the option once
    try:
        return traced.lower().compile()
    finally:
        jax.config.update(name, before)
        compilation_cache.reset_cache()


def _of_jit(case: Case) -> Case:
    """Return the case as one program with one batch per step."""
    spread = dataclasses.replace(case.settings.parallel, how="jit")
    batch = dataclasses.replace(case.settings.batch, lengths=1)
    settings = dataclasses.replace(case.settings, parallel=spread, batch=batch)
    return dataclasses.replace(case, settings=settings)


def _batch(case: Case, mesh: Mesh) -> dict[str, jax.ShapeDtypeStruct]:
    """Return a batch of sources and of targets (R, T), sharded by rows."""
    (rows, source, target), place = case.shape, NamedSharding(mesh, parallel.BY_ROWS)
    return {
        "source": _source(case, rows, source, place),
        "target": jax.ShapeDtypeStruct((rows, target), jnp.int32, sharding=place),
    }


def _source(
    case: Case, rows: int, length: int, place: NamedSharding
) -> jax.ShapeDtypeStruct:
    """Return sources: ids (R, S), or vectors as ``data.vectors.padded`` has them."""
    if case.settings.data.vectors:
        shape = rows, length, 1 + case.sizes[0]
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=place)
    return jax.ShapeDtypeStruct((rows, length), jnp.int32, sharding=place)
