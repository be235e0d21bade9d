"""Handwritten digits to number words: the encoder reads vectors and no text.

scikit-learn's 8 x 8 images of digits, one to three of them side by side, are cut into
columns; a column is a frame of 8 pixels, and one linear map takes the place of the
source embeddings. The target is the number in words, "four hundred and twenty-one". The
test set has 1,000 three-digit numbers, made of images that training never saw;
docs/experiments.md says how many of them are read exactly.

``:window`` is the same with restricted self-attention (section 4 of the paper): each
position attends to 6 others on each side (r = 13), less than the width of a digit.

    python -m transformer.tools.strips data/digits
    transformer train --config=experiments/digits.py --workdir=runs/digits
    transformer train --config=experiments/digits.py:window --workdir=runs/digits_window
"""

import base
from ml_collections import ConfigDict


def get_config(variant: str = "full") -> ConfigDict:
    """Return the configuration of a model with full or restricted attention."""
    config = base.get_config()
    config.name = "digits"
    config.data.source = "vectors"
    config.data.dir = "data/digits"
    config.data.name = ""
    config.data.source_language = "digits"
    config.data.target_language = "en"
    config.data.train = "train"
    config.data.max_length = 40  # columns: three images and four gaps have at most 36
    config.tokenizer.vocab_size = 64
    config.tokenizer.joint = False
    config.batch.tokens = 2560
    config.batch.shapes = 3
    config.batch.length_multiple = 4
    config.model.layers = 2
    config.model.d_model = 128
    config.model.d_ff = 512
    config.model.heads = 4
    config.model.d_k = 32
    config.model.d_v = 32
    config.model.tying = "two"
    config.model.dtype = "float32"
    config.optimizer.scale = 0.3
    config.optimizer.warmup = 200
    config.train.steps = 1500
    config.train.log_every = 50
    config.train.evaluate_every = 300
    config.train.checkpoint_every = 50
    config.train.checkpoint_minutes = 0.0
    config.train.keep = 10
    config.decode.extra_tokens = 10
    config.decode.beam = 1  # wider ones prefer non-words that have fewer pieces
    config.decode.average = 10
    window = base.choose({"full": 0, "window": 6}, variant)
    if window:
        config.name = "digits_window"
        config.model.window = window
    return config
