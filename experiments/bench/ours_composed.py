"""This project's recurrent and convolutional models as a worker.

They have the sizes and parameters of those that are built from torch.nn's parts.

    python experiments/bench/ours_composed.py captions --size=cgru --dtype=float32 \\
        --beam=5
"""

from __future__ import annotations

import runpy
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import ours
import sizes
import weights
import worker
from flax.traverse_util import unflatten_dict

from transformer import config, models, objective, parallel
from transformer.data import tokenizers
from transformer.tools.bench.training import Stepper
from transformer.translate import Translator

_OF_LUONG = {"score": "general", "attention": "global", "feeding": True}
_OF_OTHERS = {"score": "none", "attention": "none", "feeding": False}


def train(size: str, dtype: str) -> worker.Work:
    """Make updates on one batch, from the parameters that the peers start from."""
    parallel.start("cpu")
    shape = sizes.COMPOSED[size]
    settings = parallel.sizes.here(set_up(shape, dtype), shape.target)
    model = models.make(settings, shape.source, shape.target)
    params = tree(weights.draw_composed(shape).arrays)
    source, target = sizes.composed_batch(size)
    stepper = Stepper(settings, model, {"source": source, "target": target})
    stepper.state = stepper.state._replace(params=params)
    sums = objective.batch_sums(settings, model, params, stepper.batch)
    done = ours.work(stepper, "cpu")
    compiled = {"compile_seconds": stepper.compile_seconds}
    loss = {"loss": float(sums.loss / sums.weight)}  # before dropout
    # The first steps donate the arrays that the sums above are computed from.
    return done._replace(info=done.info | jax.block_until_ready(loss) | compiled)


def captions(size: str, dtype: str, beam: int) -> worker.Work:
    """Translate sentences as long as captions, each into as many tokens."""
    parallel.start("cpu")
    shape = sizes.COMPOSED[size]
    vocabulary = tokenizers.Vocabulary(_words(shape.source), _words(shape.target))
    params = tree(weights.draw_composed(shape).arrays)
    translator = Translator(set_up(shape, dtype), vocabulary, params)
    sources = sizes.captions(shape.source, sizes.CAPTIONS)
    lines = [vocabulary.source.decode(ids[:-1]) for ids in sources]
    return ours.translations(translator, lines, beam)


def _words(rows: int) -> tokenizers.Whitespace:
    return tokenizers.Whitespace([f"w{i}" for i in range(sizes.EOS + 1, rows)])


def set_up(size: sizes.Recurrent | sizes.Convolutional, dtype: str) -> config.Config:
    """Return experiments/base.py with such a model and no label smoothing."""
    values = runpy.run_path(str(ours.BASE))["get_config"]().to_dict()
    if isinstance(size, sizes.Convolutional):
        values["model"] = convolutional_keys(size, dtype)
        values["data"]["max_length"] = size.positions
    else:
        values["model"] = recurrent_keys(size, dtype)
    values["tokenizer"]["joint"] = False
    values["loss"]["smoothing"] = 0.0
    values["decode"] |= {"tokens": sizes.SLOTS, "extra_tokens": sizes.EXTRA}
    return config.resolve(values)


def convolutional_keys(size: sizes.Convolutional, dtype: str) -> dict[str, Any]:
    """Return the keys of ``config.model`` of a ConvS2S.

    Args:
      size: of the model.
      dtype: of the operands of products.
    """
    return {
        "kind": "convs2s",
        "vocab_size": 0,
        "embedding": size.width,
        "d_model": size.width,
        "encoder": f"{size.encoder}x{size.width}k{size.kernel}",
        "decoder": f"{size.decoder}x{size.width}k{size.kernel}",
        "max_positions": size.positions,
        "dropout": size.dropout,
        "tying": "none",
        "dtype": dtype,
    }


def recurrent_keys(size: sizes.Recurrent, dtype: str) -> dict[str, Any]:
    """Return the keys of ``config.model`` of a recurrent model.

    Args:
      size: of the model.
      dtype: of the operands of products.
    """
    return {
        "kind": "rnn",
        "vocab_size": 0,
        "member": size.member,
        "d_model": size.d_model,
        "embedding": size.embedding,
        "units": size.units,
        "layers": size.layers,
        "dropout": size.dropout[0],
        "context_dropout": size.dropout[1],
        "readout_dropout": size.dropout[2],
        "encoder_norm": size.normed,
        "tying": "none",
        "dtype": dtype,
        "reverse_source": False,
        "window": 0,
        "max_positions": 0,
        **(_OF_LUONG if size.member == "luong" else _OF_OTHERS),
    }


def tree(arrays: Mapping[str, np.ndarray]) -> Any:
    """Return parameters by name as the tree of a model."""
    return unflatten_dict(
        {tuple(name.split(".")): jnp.asarray(x) for name, x in arrays.items()}
    )


if __name__ == "__main__":
    worker.run(train, captions)
