"""Your own text: a folder of train, validation and test files, a sentence per line.

With ``--config.data.source_language=en --config.data.target_language=de`` the folder
holds train.en, train.de, validation.en, validation.de, test.en and test.de (plain or
.gz); line n of two files is a pair. Sized for about ten thousand to a million pairs and
an accelerator.

    transformer train --config=experiments/text.py --config.data.dir=my_text \\
        --workdir=runs/mine

``:quick`` is sized for a laptop: a small model and few steps, with three validation
sentences shown as they are translated at each validation. With the 29,000 captions of
Multi30k it took 12 minutes on two cores and reached 34 BLEU (docs/own_text.md).
``:quick,pairs=5000`` is for a number of pairs other than about 30,000: fewer pieces and
fewer steps.

    transformer train --config=experiments/text.py:quick --config.data.dir=my_text \\
        --workdir=runs/quick
"""

import base
from ml_collections import ConfigDict

_PAIRS = 30_000
_TOKENS = 2048  # padded, per step of :quick


def get_config(variant: str = "full") -> ConfigDict:
    """Return the configuration of a size, as the text above names them."""
    name, _, options = variant.partition(",")
    quick = base.choose({"full": False, "quick": True}, name)
    config = base.get_config()
    config.name = "text"
    config.data.source = "text"
    config.data.dir = "my_text"
    config.data.name = ""
    config.data.max_length = 100
    config.tokenizer.vocab_size = 8000
    config.batch.tokens = 8192
    config.batch.length_multiple = 2
    config.model.layers = 3
    config.model.d_model = 256
    config.model.d_ff = 1024
    config.model.heads = 4
    config.model.dropout = 0.3
    config.optimizer.scale = 2.0
    config.optimizer.warmup = 1000
    config.train.steps = 10_000
    config.train.evaluate_every = 500
    config.train.checkpoint_every = 250
    config.train.checkpoint_minutes = 0.0
    if quick:
        _quick(config, _pairs(options))
    elif options:
        raise ValueError(f"expected no options of :{name}, got {options}")
    return config


def _pairs(options: str) -> int:
    if not options:
        return _PAIRS
    key, _, number = options.replace("_", "").partition("=")
    if key != "pairs" or not number.isdecimal() or not int(number):
        raise ValueError(f"expected pairs=NUMBER behind :quick, got {options}")
    return int(number)


def _quick(config: ConfigDict, pairs: int) -> None:
    """Choose sizes for a number of pairs: at most 30 epochs of 15 tokens a sentence."""
    config.name = "text_quick"
    few = pairs < 10_000
    config.tokenizer.vocab_size = 1000 if few else 4000
    config.batch.tokens = _TOKENS
    config.batch.shapes = 4
    config.model.layers = 2
    config.model.d_model = 128
    config.model.d_ff = 512
    config.model.d_k = 32
    config.model.d_v = 32
    config.model.dropout = 0.1
    config.optimizer.scale = 1.0
    config.train.steps = max(200, min(2000, 30 * 15 * pairs // _TOKENS))
    config.optimizer.warmup = config.train.steps // 4
    config.train.evaluate_every = config.train.steps // 8
    config.train.checkpoint_every = config.train.steps // 16
    config.train.show = 3
    # A model that has seen little finds no sentence likely; with the paper's penalty it
    # would rather write nothing.
    config.decode.length_penalty = "power"
    config.decode.alpha = 1.0
