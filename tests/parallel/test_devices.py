"""How a configuration is spread over devices; and that it makes no difference."""

import dataclasses
import functools
import os
import re
import subprocess
import sys
from typing import Any

import jax
import numpy as np
import pytest
from support.cases import leave
from support.configs import base
from support.paths import PROGRAMS, ROOT
from support.runs import tiny

from transformer import config, models, parallel
from transformer import step as steps
from transformer.config import UserError
from transformer.models.transformer import PARTITION
from transformer.tools.params import parameter_table

V = 64


@pytest.mark.parametrize("tests", leave(["quick", "thorough"], ["thorough"]))
def test_eight_devices_make_no_difference(tests):
    pytest_ = [sys.executable, "-m", "pytest", "-n0", "-p", "no:cacheprovider"]
    chosen = ["-m", "thorough"] if tests == "thorough" else []
    run = subprocess.run(
        [*pytest_, *chosen, str(PROGRAMS / "on_eight_devices.py")],
        cwd=ROOT,
        env=os.environ | {"JAX_NUM_CPU_DEVICES": "8"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout


KINDS = [
    {},
    {"model.tying": "none", "model.positions": "learned", "model.norm": "pre"},
    {"model.target_space": True, "model.tying": "two", "model.attention_bias": False},
]


@pytest.mark.parametrize("changes", KINDS, ids=str)
def test_every_parameter_has_one_rule_that_fits(changes):
    settings = tiny(**changes)
    tree = models.abstract(models.make(settings, V, V))
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        fitting = [
            axes
            for pattern, axes in PARTITION.items()
            if re.search(rf"(^|[._]){pattern}$", name)
        ]
        assert len(fitting) == 1, name
        assert len(fitting[0]) == leaf.ndim
        if leaf.ndim == 2:
            assert "fsdp" in fitting[0], name


def test_a_parameter_without_a_rule_is_an_error():
    with pytest.raises(KeyError, match="no rule in the model's PARTITION .* lstm.gate"):
        parallel.specs(PARTITION, {"lstm": {"gate": np.zeros((2, 2))}})


def test_moments_are_cut_like_their_parameter():
    settings = tiny(**{"optimizer.name": "adam"})
    model = models.make(settings, V, V)
    state = jax.eval_shape(functools.partial(steps.init_state, settings, model))
    cut = parallel.specs(model.partition, state)
    adam = cut.opt_state.inner_state[0]
    assert adam.mu == adam.nu == cut.params
    kernel = cut.params["encoder_0"]["feed_forward"]["kernel_1"]
    assert tuple(kernel) == ("fsdp", "tensor")
    assert tuple(cut.step) == tuple(adam.count) == ()


def test_sums_that_an_optimiser_keeps_of_an_array_are_on_every_device():
    settings = tiny(**{"optimizer.name": "adafactor", "model.d_ff": 256})
    model = models.make(settings, 256, 256)
    state = jax.eval_shape(functools.partial(steps.init_state, settings, model))
    for axes, leaf in zip(
        jax.tree.leaves(parallel.specs(model.partition, state.opt_state)),
        jax.tree.leaves(state.opt_state),
        strict=True,
    ):
        assert len(axes) == leaf.ndim
        assert all(
            axis is None for axis, n in zip(axes, leaf.shape, strict=True) if n == 1
        )


def parallel_of(**changes: Any) -> config.Parallel:
    return dataclasses.replace(base().parallel, **changes)


@pytest.mark.parametrize(
    "changes, devices, expected",
    [
        ({}, 8, (8, 1, 1)),
        ({"fsdp": 4}, 8, (2, 4, 1)),
        ({"fsdp": 2, "tensor": 2}, 12, (3, 2, 2)),
        ({"data": 1, "tensor": 2}, 2, (1, 1, 2)),
    ],
)
def test_data_takes_what_is_left(changes, devices, expected):
    sizes = parallel.axis_sizes(parallel_of(**changes), devices)
    assert tuple(sizes.values()) == expected


@pytest.mark.parametrize(
    "changes, devices, expected",
    [
        ({"fsdp": 3}, 8, "= 8, the number of devices, got -1 x 3 x 1"),
        ({"data": 2}, 8, "= 8, the number of devices, got 2 x 1 x 1"),
        ({"data": 8, "tensor": 2}, 8, "= 8, the number of devices, got 8 x 1 x 2"),
        ({"tensor": 2}, 1, "= 1, the number of devices, got -1 x 1 x 2"),
    ],
)
def test_a_mesh_that_does_not_fit_the_devices(changes, devices, expected):
    with pytest.raises(UserError, match=re.escape(expected)):
        parallel.axis_sizes(parallel_of(**changes), devices)


@pytest.mark.parametrize(
    "changes, sizes, expected",
    [
        ({"model.heads": 4}, (1, 1, 8), "parallel.tensor: .* model.heads = 4, got 8"),
        ({}, (16, 1, 1), "batch.multiple: .* = 16 x 1 x 1 = 16, .* got 8"),
        ({"optimizer.accumulation": 4}, (2, 2, 1), "= 2 x 2 x 4 = 16, .* got 8"),
    ],
)
def test_a_mesh_that_does_not_fit_the_configuration(changes, sizes, expected):
    with pytest.raises(UserError, match=expected) as error:
        given = dict(zip(parallel.AXES, sizes, strict=True))
        parallel.check(base(**changes), given)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "sizes, expected",
    [
        ((1, 3, 1), r"parallel.fsdp: expected a divisor of 512, .* got 3; change"),
        ((1, 1, 16), r"parallel.tensor: .* 37000, .* source_embedding \(37000 x 512\)"),
    ],
)
def test_a_mesh_that_does_not_divide_a_parameter(sizes, expected):
    tree = models.abstract(models.make(base(), 37_000, 37_000))
    with pytest.raises(UserError, match=expected):
        mesh = dict(zip(parallel.AXES, sizes, strict=True))
        parallel.check_divides(mesh, PARTITION, tree)


def test_the_parameter_table_says_what_a_device_holds():
    changes = {"parallel.fsdp": 4, "parallel.tensor": 2, "model.vocab_size": 40_960}
    settings = base(**changes)
    text = parameter_table(settings)
    (row,) = [x for x in text.splitlines() if x.startswith("source_embedding")]
    assert row.split()[-2:] == ["tensor,fsdp", f"{40_960 * 512 * 4 // 8:,}"]
    (row,) = [x for x in text.splitlines() if "decoder_0.residual_1.norm.sc" in x]
    assert row.split()[-2:] == ["replicated", "2,048"]
    tree = models.abstract(models.make(settings, 40_960, 40_960))
    held = sum(int(line.split()[-1].replace(",", "")) for line in table_rows(text))
    total = text.splitlines()[-1].split()
    assert total[-1] == f"{held:,}"
    every = sum(leaf.size for leaf in jax.tree.leaves(tree))
    assert total[1] == f"{every:,}" and 4 * every / 8 < held < 4.1 * every / 8


def table_rows(text: str) -> list[str]:
    return [x for x in text.splitlines() if " float32 " in x]
