"""Recurrent layers and optimisers against torch's, with the same numbers."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import torch_cases as cases
from support.configs import base
from support.reference import assert_close
from support.torch_values import everywhere, values

from transformer.models.rnn.layers import Layer
from transformer.nn import optimizer

KINDS = {"gru": "gru_reset_after", "lstm": "lstm"}
REAL = np.arange(max(cases.LENGTHS)) < np.array(cases.LENGTHS)[:, None]


def by_our_order(kind, rows):
    """Turn the gates r, z, n of torch's GRU, one above the other, to z, r, n."""
    if kind == "lstm":
        return rows
    r, z, n = jnp.split(rows, 3)
    return jnp.concatenate([z, r, n])


def cell(kind, parameters, way):
    """Return the parameters of our cell, which has one bias where torch has two."""
    matrix, state_matrix, bias, state_bias = (
        by_our_order(kind, parameters[f"{name}_l0{way}"])
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )
    made = {"kernel_input": matrix.T, "kernel_state": state_matrix.T}
    if kind == "lstm":
        return made | {"bias_input": bias + state_bias}
    # That of the product which is reset stays apart.
    outside = state_bias.at[2 * cases.UNITS :].set(0.0)
    inside = state_bias[2 * cases.UNITS :]
    return made | {"bias_input": bias + outside, "bias_state": inside}


def run(kind, parameters, x):
    """Run our layer with torch's parameters; return what torch returns."""
    ways = {"forward": "", "backward": "_reverse"}
    params = {f"cells_{w}": cell(kind, parameters, s) for w, s in ways.items()}
    layer = Layer(KINDS[kind], cases.WIDTH, cases.UNITS, "float32", tuple(ways))
    outputs, last = layer.apply({"params": params}, x, jnp.asarray(REAL, jnp.float32))
    parts = zip(*(last[way] for way in ways), strict=True)
    named = zip("hc", map(jnp.stack, parts), strict=False)
    # Behind a row's end torch has zeros, and here the state stays what it was.
    return {"outputs": jnp.where(REAL[..., None], outputs, 0.0), **dict(named)}


@everywhere
@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_over_padded_rows_in_both_directions(kind, values_of):
    slopes, wanted = cases.slopes(kind), values(values_of)

    def loss(parameters, x):
        results = run(kind, parameters, x)
        return sum((results[n] * s).sum() for n, s in slopes.items()), results

    parameters = jax.tree.map(jnp.asarray, cases.layer(kind))
    grad = jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))
    (d_parameters, d_x), results = grad(parameters, jnp.asarray(cases.source()))
    found = results | {f"d_{name}": d for name, d in d_parameters.items()}
    found["d_x"] = d_x
    its = {n.partition(".")[2]: a for n, a in wanted.items() if n.startswith(kind)}
    assert found.keys() == its.keys()
    # Five steps, each of sums of 3 and 4 products and a dozen further operations.
    for name, value in found.items():
        assert_close(value, its[name], roundings=5 * (3 + 4 + 12))


@everywhere
@pytest.mark.parametrize(
    "name, options",
    [("Adadelta", "rho=0.95, eps=1e-6"), ("SGD", "momentum=0.99, nesterov=True")],
)
def test_updates_under_a_rate_that_changes(name, options, values_of):
    settings = dataclasses.replace(
        base().optimizer, name=name.lower(), options=options, clip_norm=0.0
    )
    rule = optimizer.make_optimizer(settings, d_model=16)
    usual = optimizer.make_schedule(settings, d_model=16)
    params = jnp.zeros(5)
    state, history = rule.init(params), []
    for n, (rate, g) in enumerate(zip(cases.RATES, cases.gradients(), strict=True)):
        updates, state = jax.jit(rule.update)(jnp.asarray(g), state, params)
        params += updates * (rate / usual(n))
        history.append(params)
    # A sum of six updates, each with two means of six numbers, a root and a quotient.
    expected = values(values_of)[f"{name}.history"]
    assert_close(jnp.stack(history), expected, roundings=6 * (2 * 6 + 6))
