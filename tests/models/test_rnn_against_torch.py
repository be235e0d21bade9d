"""Whole recurrent models against the same written with torch.nn.

Those are ``experiments/bench/torch_rnn.py``, which the side-by-side harness has too.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import torch_cases as cases
from support.configs import experiment
from support.paths import BENCH
from support.reference import assert_close
from support.torch_values import everywhere, values

from transformer import config, decode, models, objective
from transformer.search import Search

sys.path.append(str(BENCH))

import ours_composed
import sizes
import weights

SOURCE = jnp.asarray(sizes.padded(cases.SOURCES))


def made(name):
    size = sizes.Recurrent(*cases.MODELS[name])
    values = experiment("base").to_dict()
    values["model"] = ours_composed.recurrent_keys(size, "float32")
    model = models.make(config.resolve(values), size.source, size.target)
    arrays = cases.parameters(weights.composed_shapes(size))
    return model, ours_composed.tree(arrays)


@everywhere
@pytest.mark.parametrize("name", cases.MODELS)
def test_logits_of_given_targets(name, values_of):
    model, params = made(name)
    found = jax.jit(objective.logits, static_argnums=0)(
        model, params, SOURCE, jnp.asarray(cases.TARGET)
    )
    # Six steps of an encoder and four of a decoder; the largest sum of a step has 13
    # products, and some 40 further operations follow one another.
    expected = values(values_of)[f"{name}.logits"]
    assert_close(found, expected, roundings=10 * (13 + 40))


@everywhere
@pytest.mark.parametrize("beam", [1, cases.BEAM])
@pytest.mark.parametrize("name", cases.MODELS)
def test_outputs_of_searches(name, beam, values_of):
    model, params = made(name)
    limits = np.array([len(ids) - 1 + cases.EXTRA for ids in cases.SOURCES])
    how, longest = Search(beam, cases.ALPHA, "power"), int(limits.max())
    variables = models.search_variables(model, params)

    @jax.jit
    def search(variables):
        step, cache = models.start(model, variables, SOURCE, beam, longest)
        keys = jax.random.split(jax.random.key(0), len(limits))
        return decode.search(how, step, cache, jnp.asarray(limits), longest, keys)

    found = search(variables)
    rows = zip(found.ids[:, 0].tolist(), found.lengths[:, 0].tolist(), strict=True)
    ids = [[i for i in row[:length] if i != sizes.EOS] for row, length in rows]
    np.testing.assert_array_equal(
        cases.as_rows(ids), values(values_of)[f"{name}.beam_{beam}"]
    )
