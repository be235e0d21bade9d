"""Where models drop out, and that no two places share a mask."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from support.models import (
    bytenet_config,
    convolutional_config,
    model_config,
    recurrent_config,
)

from transformer import models
from transformer.models import bytenet, convs2s, rnn
from transformer.models.transformer import Transformer
from transformer.nn import dropout, layers

V = 23
SOURCE = jnp.array([[7, 4, 9, 3, 0, 0], [5, 6, 7, 8, 9, 3]])
INPUTS = jnp.array([[2, 8, 5, 9], [2, 6, 6, 7]])
LUONG = {"member": "luong", "score": "dot", "attention": "global"}
# A model and its places of dropout: embeddings, then encoder, decoder, readout.
MODELS: dict[str, tuple[Any, int]] = {
    "transformer": (Transformer(model_config(layers=2), V, V), 2 + 2 * 4 + 2 * 6),
    "ConvS2S": (convs2s.Model(convolutional_config(), V, V), 2 + 2 + 2 + 1),
    "ByteNet": (bytenet.Model(bytenet_config(sets=2), V, V), 2 + 4 + 4),
    "conditional GRU": (
        rnn.Model(recurrent_config(member="cgru", layers=2), V, V),
        1 + 2 + 1 + 1,
    ),
    "Luong's": (
        rnn.Model(recurrent_config(**LUONG, layers=3), V, V),
        2 + 3 + 2 + 1,
    ),
    "GNMT": (
        rnn.Model(recurrent_config(member="gnmt", layers=3, d_model=12), V, V),
        2 + 3 + 2 + 1,
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_no_two_places_share_a_mask(name, monkeypatch):
    model, places = MODELS[name]
    found = []
    key: Any = ()

    def fold_in(key, data):
        return None if key is None else (*key, int(data))

    def drop(x, rate, key):
        if key is not None and rate:
            found.append(key)
        return x

    monkeypatch.setattr(dropout, "fold_in", fold_in)
    monkeypatch.setattr(dropout, "dropout", drop)
    monkeypatch.setattr(layers, "dropout", drop)
    with jax.disable_jit():  # so that keys stay tuples; nothing is computed
        jax.eval_shape(
            lambda params: models.features(model, params, SOURCE, INPUTS, key),
            models.abstract(model),
        )
    assert len(set(found)) == len(found) == places
