"""The big model of "Attention Is All You Need", WMT14 English-German.

Paper: Table 2, Transformer (big): 28.4 BLEU on newstest2014, 2.3e19 training FLOPs
(3.5 days on 8 P100); Table 3, last row: perplexity 4.33 and 26.4 BLEU on newstest2013.
The last 20 checkpoints, written every 10 minutes, are averaged.

    transformer train --config=experiments/big.py --workdir=runs/big
"""

import base
from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """Return the configuration."""
    config = base.get_config()
    config.name = "big"
    config.model.d_model = 1024
    config.model.d_ff = 4096
    config.model.heads = 16
    config.model.dropout = 0.3
    config.train.steps = 300_000
    config.train.keep = 20
    config.decode.average = 20
    return config
