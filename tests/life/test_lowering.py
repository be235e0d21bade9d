"""Every program is lowered for the accelerators themselves, of which none is needed.

What is checked here is what a GPU or a TPU would be given: the functions that the
commands call, traced for that hardware and lowered for that platform. Only the version
of cuDNN is made up, because JAX asks an installed one.
"""

import dataclasses
import functools
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from support.cases import leave
from support.configs import base
from support.models import bytenet_config, convolutional_config, recurrent_config

from transformer import (
    batch_search,
    config,
    models,
    objective,
    parallel,
    programs,
    translate,
)
from transformer import step as steps
from transformer.config import Config
from transformer.models import Model
from transformer.nn import attention_window
from transformer.nn.hardware import Hardware
from transformer.search import Search

V, ROWS, LENGTH = 40, 8, 16

H100, T4 = Hardware("cuda", (9, 0)), Hardware("cuda", (7, 5), bfloat16=False)
TPU, CPU = Hardware("tpu"), Hardware("cpu")

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "base": {},
    "float32": {"model.dtype": "float32"},
    "pre-norm": {"model.norm": "pre"},
    "attention dropout": {"model.attention_dropout": 0.1},
    "dropout inside feed-forward": {"model.relu_dropout": 0.1},
    "window": {"model.window": 4},
    "unscaled": {"model.score": "dot"},
    "d_k is not d_v": {"model.d_v": 16},
    "learned positions": {"model.positions": "learned"},
    "relative positions": {"model.positions": "relative", "model.clip": 4},
    "wide heads": {"model.d_k": 64, "model.d_v": 64},
    "recompute in a scan": {"parallel.remat": "dots", "parallel.layers": "scanned"},
}
# And those of which the train step alone is looked at, or the only one that differs.
TRAINED = CONFIGURATIONS | {
    "microbatches": {"optimizer.accumulation": 2},
    "clipping": {"optimizer.clip_norm": 1.0},
    "sgd": {"optimizer.name": "sgd"},
    "additive scores": {"model.score": "additive"},
    "general scores": {"model.score": "general"},
    "blocks": {"model.window": 1},
    "two passes": {"loss.r_drop": 5.0},
}
# Of these the products and kernels are those of others.
NEAR = (
    "pre-norm",
    "dropout inside feed-forward",
    "unscaled",
    "learned positions",
    "clipping",
    "sgd",
    "general scores",
)
# Attentions of a train step that are cuDNN's: of the encoder, the decoder, and cross.
KERNELS = dict.fromkeys(TRAINED, 3) | {
    "float32": 0,
    "attention dropout": 0,
    "window": 2,  # its kernel has none that also looks ahead, as the encoder's does
    "d_k is not d_v": 0,
    "additive scores": 0,
    "relative positions": 1,  # of attention to the source: it takes no bias
    "blocks": 2,  # as with the window
}


def settings_of(name: str) -> Config:
    sizes = {
        "data.max_length": LENGTH,
        "batch.tokens": ROWS * LENGTH,
        "batch.multiple": ROWS,
        "model.layers": 1,
        "model.d_model": 16,
        "model.d_ff": 32,
        "model.heads": 2,
        "model.d_k": 8,
        "model.d_v": 8,
        "loss.block": 64,
        "decode.beam": 3,
        "decode.extra_tokens": 4,
    }
    return base(**(sizes | TRAINED[name]))


def ids(rows: int = ROWS) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((rows, LENGTH), jnp.int32)


def numbers(dtype: type = np.int32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((ROWS,), dtype)


def train_step(c: Config, model: Model) -> Any:
    """Trace what the loop runs."""
    mesh = parallel.make_mesh(c.parallel, jax.devices()[:1])
    draw = functools.partial(steps.init_state, c, model)
    state = parallel.placed(mesh, model.partition, jax.eval_shape(draw))
    step: Any = programs.compile_step(c, model, mesh, state)
    return step.trace(state, {"source": ids(), "target": ids()})


def evaluation(c: Config, model: Model) -> Any:
    batch = {"source": ids(), "target": ids()}
    return objective.mesh_sums.trace(
        c, model, one_device(), models.abstract(model), batch
    )


def search(how: Search, c: Config, model: Model) -> Any:
    seed = jax.ShapeDtypeStruct((), np.uint32)
    return batch_search.search.trace(
        *(how, model, one_device(), LENGTH, variables(model), ids()),
        *(numbers(), numbers(np.uint32), seed),
    )


def score(c: Config, model: Model) -> Any:
    trace = translate._log_probabilities.trace
    return trace(model, one_device(), models.abstract(model), ids(), ids())


def encode(c: Config, model: Model) -> Any:
    return translate._encode.trace(model, one_device(), models.abstract(model), ids())


def one_device() -> Any:
    return parallel.replica_mesh(jax.devices()[:1])


def variables(model: Model) -> Any:
    return jax.eval_shape(
        functools.partial(models.search_variables, model), models.abstract(model)
    )


PROGRAMS: dict[str, Callable[[Config, Model], Any]] = {
    "train step": train_step,
    "evaluation": evaluation,
    "greedy": functools.partial(search, Search(1, 0.6, "gnmt")),
    "beam": functools.partial(search, Search(3, 0.6, "gnmt")),
    "sample": functools.partial(
        search,
        Search(3, 0.6, "gnmt", 1, sample=True, top_k=3, top_p=0.9),
    ),
    "score": score,
    "encode": encode,
}


@pytest.fixture
def lowered(monkeypatch):
    """Return the StableHLO of a program of a configuration for some hardware."""
    monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 91000)

    def lower(program: str, name: str, hardware: Hardware) -> str:
        c = settings_of(name)
        model = models.make(c, V, V, hardware)
        traced = PROGRAMS[program](c, model)
        return traced.lower(lowering_platforms=(hardware.platform,)).as_text()

    return lower


def kernels(text: str) -> tuple[int, int]:
    """Count the calls of cuDNN's attention, forward and backward."""
    calls = re.findall(r"@__cudnn\$fmha\w*", text)
    backward = sum(call.endswith("Backward") for call in calls)
    return len(calls) - backward, backward


def operands(text: str) -> set[tuple[str, ...]]:
    """Return the types of the operands and the result of all products."""
    lines = [line for line in text.splitlines() if "stablehlo.dot_general" in line]
    signatures = [line[line.index(" : (") :] for line in lines]
    return {tuple(re.findall(r"tensor<(?:\d+x)*(\w+)>", x)) for x in signatures}


def precisions(text: str) -> set[str]:
    lines = [line for line in text.splitlines() if "stablehlo.dot_general" in line]
    return {re.search(r"precision = \[(\w+), \w+\]", x)[1] for x in lines}  # type: ignore[index]


FLOAT32: set[tuple[str, ...]] = {("f32", "f32", "f32")}
BFLOAT16: set[tuple[str, ...]] = {("bf16", "bf16", "f32")}


def products_of(name: str) -> set[tuple[str, ...]]:
    return FLOAT32 if name == "float32" else BFLOAT16


@pytest.mark.parametrize("name", leave(TRAINED, NEAR))
def test_a_train_step_for_cuda(lowered, name, patch):
    patch.setattr(attention_window, "_LEAST", 0)
    text = lowered("train step", name, H100)
    again = 2 if settings_of(name).parallel.remat == "dots" else 1
    assert kernels(text) == (again * KERNELS[name], KERNELS[name])
    assert operands(text) == products_of(name)


@pytest.mark.parametrize("name", leave(TRAINED, NEAR))
def test_a_train_step_for_tpu(lowered, name, patch):
    patch.setattr(attention_window, "_LEAST", 0)
    text = lowered("train step", name, TPU)
    assert kernels(text) == (0, 0)
    assert operands(text) == products_of(name)
    # Of the encoder, the decoder, and cross, forward and backward; none made again.
    wide = config.transformer(settings_of(name).model).d_k == 64
    assert text.count("@tpu_custom_call") == (6 if wide else 0)


# Samples take the steps of a beam, and both encode as `encode` does.
PARTS_OF_BEAM = {"sample", "encode"}
OTHERS = [
    (program, name)
    for program in sorted(PROGRAMS.keys() - {"train step"})
    for name in CONFIGURATIONS
    if program not in PARTS_OF_BEAM or name in ("base", "float32")
]
NEAR_OTHERS = [case for case in OTHERS if case[1] in NEAR]


@pytest.mark.parametrize("program, name", leave(OTHERS, NEAR_OTHERS))
def test_other_programs_for_cuda(lowered, program, name):
    text = lowered(program, name, H100)
    # A search encodes; its decoder reads a cache by unfused products.
    whole = program in ("evaluation", "score")
    there = products_of(name) == BFLOAT16 and name != "d_k is not d_v"
    encoder = int(there and name not in ("window", "relative positions"))
    decoder = 2 if whole and there else 0
    if name == "relative positions":
        decoder = int(whole)
    assert kernels(text) == (encoder + decoder, 0)
    assert operands(text) == products_of(name)


@pytest.mark.parametrize("program, name", leave(OTHERS, NEAR_OTHERS))
def test_other_programs_for_tpu(lowered, program, name):
    text = lowered(program, name, TPU)
    assert kernels(text) == (0, 0)
    assert operands(text) == products_of(name)


def test_the_kernel_is_told_lengths_and_order_and_no_bias(lowered):
    text = lowered("train step", "window", H100).replace("\\22", '"')
    kinds = re.findall(r'"mask_type": *"(\w+)"', text)
    windows = re.findall(r'"sliding_window_length": *(\d+)', text)
    found = Counter(zip(kinds, map(int, windows), strict=True))
    # Forward and backward; the window of cuDNN counts the query's own position.
    assert found == {("CAUSAL", 4 + 1): 2, ("PADDING", 0): 2}
    assert "Bias" not in text


@pytest.mark.parametrize("program", ["train step", "beam"])
def test_float32_is_float32(lowered, program):
    """Else GPUs multiply TF32, and TPUs bfloat16."""
    for hardware in (H100, TPU, CPU):
        assert precisions(lowered(program, "float32", hardware)) == {"HIGHEST"}


OTHER_MODELS: dict[str, Callable[[], config.Model]] = {
    "conditional GRU": functools.partial(recurrent_config, member="cgru"),
    "Luong's": functools.partial(
        recurrent_config,
        member="luong",
        score="general",
        attention="local_p",
        window=2,
        layers=2,
    ),
    "ConvS2S": convolutional_config,
    "ByteNet": bytenet_config,
}


@pytest.mark.parametrize("name", leave(OTHER_MODELS, ("ConvS2S", "ByteNet")))
def test_float32_of_other_models_is_float32(name):
    c = dataclasses.replace(settings_of("base"), model=OTHER_MODELS[name]())
    model = models.make(c, V, V, H100)
    for program in ("train step", "beam"):
        traced = PROGRAMS[program](c, model)
        text = traced.lower(lowering_platforms=(H100.platform,)).as_text()
        assert precisions(text) == {"HIGHEST"}


def test_a_gpu_without_bfloat16_multiplies_float32(lowered):
    text = lowered("train step", "base", T4)
    assert kernels(text) == (0, 0)
    assert operands(text) == FLOAT32
