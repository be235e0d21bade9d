"""English to German with 8 + 8 layers of LSTMs: GNMT (Wu et al. 2016).

The model of arXiv:1609.08144 with the recipe of tensorflow/nmt
(wmt16_gnmt_8_layer.json): newstest2014, 24.4 BLEU in that code's README; Table 2 of
"Attention Is All You Need" lists 24.6 for GNMT + RL, which is fine-tuned by
reinforcement learning, as this is not; 281 M parameters with 32,000 joint pieces in
separate tables. SGD with learning rate 1 for 340,000 steps of 128 sentences, the rate
halved every twentieth of the steps in the second half, nine times, gradients clipped to
norm 5. There the loss is summed over a sentence, here it is averaged over tokens. The
initial matrices differ (uniform in +-.1 there), and so does the plain additive
attention (its v is normed there). Not trained here.

    transformer train --config=experiments/gnmt.py --workdir=runs/gnmt
"""

import base
import rnnsearch
from ml_collections import ConfigDict

TARGET_TOKENS = 28.0  # per sentence, about
EPOCHS = 340_000 * 128 / 4.5e6  # of 4.5 M pairs


def get_config() -> ConfigDict:
    """Return the configuration."""
    config = base.get_config()
    config.name = "gnmt"
    config.data.max_length = 52  # 50 there, without EOS
    config.tokenizer.vocab_size = 32_000
    config.batch.tokens = 128 * 32
    config.batch.length_multiple = 4
    config.model = rnnsearch.keys(
        "gnmt", embedding=1024, units=1024, d_model=1024, layers=8, dropout=0.2
    )
    config.loss.smoothing = 0.0
    rnnsearch.constant(config, "sgd", 1.0 * TARGET_TOKENS)
    config.optimizer.schedule = "epochs"
    config.optimizer.decay = 0.5
    config.optimizer.decay_after = EPOCHS / 2 + EPOCHS / 20
    config.optimizer.decay_every = EPOCHS / 20
    config.optimizer.clip_norm = 5.0 / TARGET_TOKENS
    config.train.steps = 340_000
    config.decode.beam = 10
    config.decode.alpha = 1.0
    return config
