"""The model that passes every self-check, and how it is broken."""

import dataclasses

from support.configs import base
from transformer.config import Config

SOUND = base(
    **{
        "model.vocab_size": 23,
        "model.layers": 1,
        "model.d_model": 16,
        "model.d_ff": 24,
        "model.heads": 2,
        "model.d_k": 8,
        "model.d_v": 8,
        "data.max_length": 64,
    }
)


def changed(settings: Config, **model) -> Config:
    """Return the settings with another model."""
    return dataclasses.replace(
        settings, model=dataclasses.replace(settings.model, **model)
    )
