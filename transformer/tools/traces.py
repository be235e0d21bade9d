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
from jax.sharding import NamedSharding

from transformer import evaluate, parallel, translate
from transformer.config import Config
from transformer.data.batches import Shape
from transformer.models.transformer import (
    Transformer,
    abstract_params,
    attention_kernel,
    make_model,
    search_variables,
)
from transformer.nn.attention import Mask
from transformer.nn.hardware import Hardware, arranged, of
from transformer.train import compile_step, init_state

Sizes = tuple[int, int]  # rows of the source's and of the target's table


def train_step(
    settings: Config,
    sizes: Sizes,
    shape: Shape,
    devices: Sequence[jax.Device],
    hardware: Hardware | None = None,
) -> jax.stages.Traced:
    """Trace the train step of ``jit``; a step of several batches as one of all rows.

    Args:
      settings: the configuration.
      sizes: of the vocabularies.
      shape: (R, S, T) of the global batch.
      devices: that ``settings.parallel`` arranges.
      hardware: that the program is traced for, None = the devices.
    """
    settings = _of_jit(settings)
    mesh = parallel.make_mesh(settings.parallel, devices)
    model = _model(settings, sizes, hardware or of(devices[0]))
    draw = functools.partial(init_state, settings, model)
    state = parallel.placed(mesh, jax.eval_shape(draw))
    step: Any = compile_step(settings, model, mesh, state)
    return step.trace(state, _batch(shape, NamedSharding(mesh, parallel.BY_ROWS)))


def evaluation(
    settings: Config,
    sizes: Sizes,
    shape: Shape,
    devices: Sequence[jax.Device],
    hardware: Hardware | None = None,
) -> jax.stages.Traced:
    """Trace the sums of ``evaluate.batch_sums``; arguments as of ``train_step``."""
    settings = _of_jit(settings)
    mesh = parallel.make_mesh(settings.parallel, devices)
    model = _model(settings, sizes, hardware or of(devices[0]))
    params = parallel.placed(mesh, abstract_params(model))
    batch = _batch(shape, NamedSharding(mesh, parallel.BY_ROWS))
    return evaluate.mesh_sums.trace(settings, model, mesh, params, batch)


def search(
    settings: Config,
    sizes: Sizes,
    shape: Shape,
    devices: Sequence[jax.Device],
    hardware: Hardware | None = None,
) -> jax.stages.Traced:
    """Trace the configured search of translations.

    Args:
      settings: the configuration.
      sizes: of the vocabularies.
      shape: R sentences of all devices, at most S tokens each, of a translation T.
      devices: that share the sentences.
      hardware: that the program is traced for, None = the devices.
    """
    how, (rows, source, target) = settings.decode, shape
    model = _model(settings, sizes, hardware or of(devices[0]))
    mesh = parallel.replica_mesh(devices)
    by_rows, whole = (
        NamedSharding(mesh, place) for place in (parallel.BY_ROWS, parallel.REPLICATED)
    )
    variables = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=whole),
        jax.eval_shape(lambda p: search_variables(model, p), abstract_params(model)),
    )
    return translate.beam_or_greedy.trace(
        model,
        mesh,
        target,
        how.beam,
        how.length_penalty,
        how.alpha,
        1,
        variables,
        jax.ShapeDtypeStruct((rows, source), jnp.int32, sharding=by_rows),
        jax.ShapeDtypeStruct((rows,), jnp.int32, sharding=by_rows),
    )


def choices(
    settings: Config, hardware: Hardware, lengths: tuple[int, int]
) -> dict[str, str]:
    """Return what the code chooses for a kind of device, in words.

    Args:
      settings: the configuration.
      hardware: the kind of device.
      lengths: queries and keys of the decoder's attention.
    """
    dtype = hardware.operands(settings.model.dtype)
    kernel = attention_kernel(settings.model, hardware, lengths, Mask(causal=True))
    return {
        "products": f"{dtype} x {dtype} -> float32",
        "attention": f"one kernel, {kernel}" if kernel else "written out",
    }


def compile_anew(traced: jax.stages.Traced) -> Any:
    """Compile a program without the cache, whose copies tell no memory."""
    name = "jax_enable_compilation_cache"
    before = getattr(jax.config, name)
    jax.config.update(name, False)
    try:
        return traced.lower().compile()
    finally:
        jax.config.update(name, before)


def _of_jit(settings: Config) -> Config:
    spread = dataclasses.replace(settings.parallel, how="jit")
    batch = dataclasses.replace(settings.batch, lengths=1)
    return dataclasses.replace(settings, parallel=spread, batch=batch)


def _model(settings: Config, sizes: Sizes, hardware: Hardware) -> Transformer:
    kind = arranged(hardware, settings.parallel.tensor)
    return make_model(settings.model, *sizes, settings.parallel.remat, kind)


def _batch(shape: Shape, place: NamedSharding) -> dict[str, jax.ShapeDtypeStruct]:
    rows, source, target = shape
    return {
        name: jax.ShapeDtypeStruct((rows, length), jnp.int32, sharding=place)
        for name, length in (("source", source), ("target", target))
    }
