"""English number words to German ones, generated: nothing is downloaded.

"four hundred and twenty-one" -> "vierhunderteinundzwanzig". Training, validation and
test numbers (up to 999,999,999) are disjoint. Expected: at least 99 % of the 1,000 test
numbers translated exactly, after at most 3 minutes on 2 CPU cores.

``:cgru``, ``:rnnsearch`` and ``:luong`` are recurrent models on the same numbers, as is
``:encdec``, which has no attention; docs/results.md has their results.

    transformer train --config=experiments/number_words.py --workdir=runs/numbers
    transformer train --config=experiments/number_words.py:cgru --workdir=runs/cgru
    transformer train --config=experiments/number_words.py:rnnsearch \\
        --workdir=runs/rnnsearch
    transformer train --config=experiments/number_words.py:luong --workdir=runs/luong
    transformer train --config=experiments/number_words.py:encdec --workdir=runs/encdec

``:convs2s`` is a convolutional one, with attention in both layers of its decoder; it
reaches 99 % as well.

    transformer train --config=experiments/number_words.py:convs2s \\
        --workdir=runs/convs2s

``:bytenet`` is dilated convolutions over the bytes of the same numbers; it reaches
90.7 %.

    transformer train --config=experiments/number_words.py:bytenet \\
        --workdir=runs/bytenet
"""

import functools
from collections.abc import Callable

import base
import bytenet
import convs2s
import rnnsearch
from ml_collections import ConfigDict


def get_config(variant: str = "transformer") -> ConfigDict:
    """Return the configuration of a model, as the text above names them."""
    config = base.get_config()
    config.name = "numbers"
    config.data.source = "numbers"
    config.data.name = ""
    config.data.train_pairs = 40_000
    config.data.max_length = 64
    config.tokenizer.vocab_size = 300
    config.batch.tokens = 2048
    config.batch.shapes = 2
    config.batch.length_multiple = 2  # numbers have 15 and 7 pieces on average
    config.model.layers = 2
    config.model.d_model = 128
    config.model.d_ff = 512
    config.model.heads = 4
    config.model.d_k = 32
    config.model.d_v = 32
    config.optimizer.scale = 0.3
    config.optimizer.warmup = 200
    config.train.steps = 500
    config.train.log_every = 50
    config.train.evaluate_every = 100
    config.train.checkpoint_every = 50
    config.train.checkpoint_minutes = 0.0
    base.choose(_VARIANTS, variant)(config)
    return config


def _recurrent(config: ConfigDict, member: str) -> None:
    config.name = f"numbers_{member}"
    config.model = rnnsearch.keys(
        member, embedding=128, units=192, d_model=128, tying="two", dropout=0.1
    )
    config.model.context_dropout = 0.1
    config.model.readout_dropout = 0.1
    config.optimizer.warmup = 50
    config.train.steps = 400
    if member == "luong":  # with the others' rate it learnt nothing in 400 steps
        config.optimizer.scale = 1.0
        config.train.steps = 800


def _convs2s(config: ConfigDict) -> None:
    config.name = "numbers_convs2s"
    config.model = convs2s.keys(
        embedding=128,
        d_model=128,
        encoder="2x128k3",
        decoder="2x128k3",
        max_positions=128,
        dropout=0.1,
    )
    convs2s.adam(config, 2e-3, 100)


def _bytenet(config: ConfigDict) -> None:
    config.name = "numbers_bytenet"
    config.model = bytenet.keys(d_model=2 * 96, sets=1, dropout=0.1)
    bytenet.characters(config)
    config.data.max_length = 128  # bytes
    config.batch.tokens = 4096
    config.batch.shapes = 4
    config.optimizer.rate = 1e-3
    config.optimizer.warmup = 50
    config.optimizer.clip_norm = 1.0
    config.train.steps = 1000
    config.decode.beam = 4


_VARIANTS: dict[str, Callable[[ConfigDict], None]] = {
    "transformer": lambda config: None,
    **{x: functools.partial(_recurrent, member=x) for x in rnnsearch.MEMBERS},
    "convs2s": _convs2s,
    "bytenet": _bytenet,
}
