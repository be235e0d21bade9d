"""English to German by dilated convolutions over characters: ByteNet (2016).

The translation model of Kalchbrenner et al., arXiv:1610.10099v2: 30 blocks of width 800
in each stack, dilations of 1, 2, 4, 8 and 16 six times, 268.8 M parameters in matrices
of blocks, a grid 1.2 times as long as the source; Adam with a constant rate of 3e-4,
searched with a beam of 12 by the probability of the whole output. It had 23.75 BLEU on
newstest2014. Bytes take the place of its 296 English and 323 German characters. The
paper gives neither the batch size nor the number of steps: those used here are not the
paper's. Not trained here.

    transformer train --config=experiments/bytenet.py --workdir=runs/bytenet

``keys`` is the starting point of the ByteNets in the other experiments.
"""

import base
import rnnsearch
from ml_collections import ConfigDict


def keys(**changes: object) -> ConfigDict:
    """Return ``config.model`` of a ByteNet.

    Args:
      **changes: keys that are not as in the paper.
    """
    model = ConfigDict()
    model.kind = "bytenet"
    model.vocab_size = 0
    model.d_model = 2 * 800
    model.sets = 6
    model.blocks = 5
    model.kernel = 3
    model.grid = 1.2
    model.dropout = 0.0
    model.tying = "none"
    model.dtype = "bfloat16"
    model.update(changes)
    return model


def characters(config: ConfigDict) -> None:
    """Set what is common to ByteNets that read and write bytes."""
    config.tokenizer.kind = "bytes"
    config.tokenizer.vocab_size = 0
    config.loss.smoothing = 0.0
    rnnsearch.constant(config, "adam", 3e-4)
    config.optimizer.b2 = 0.999
    config.optimizer.epsilon = 1e-8
    config.decode.beam = 12
    config.decode.alpha = 0.0  # the probability of the whole output


def get_config() -> ConfigDict:
    """Return the configuration."""
    config = base.get_config()
    config.name = "bytenet"
    config.data.max_length = 500
    config.batch.tokens = 16_000
    config.batch.length_multiple = 50
    config.model = keys()
    characters(config)
    config.train.steps = 500_000
    config.decode.extra_tokens = 200
    return config
