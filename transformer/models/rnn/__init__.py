"""Recurrent encoder-decoders: one fixed vector, or attention to all of the source."""

from transformer.models.rnn.model import Model

__all__ = ["Model"]
