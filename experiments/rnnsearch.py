"""English to French with additive attention: RNNsearch (Bahdanau et al. 2014).

``:as_written`` is RNNsearch-50 of arXiv:1409.0473: one layer of 1,000 GRUs each way,
embeddings of 620, a maxout layer of 500, Adadelta, batches of 80 sentences of at most
50 tokens, gradients clipped to norm 1, no dropout. On newstest2014, tokenised, it has
26.75 BLEU after 288,000 updates and 28.45 after the 667,000 that are set here (Tables 1
and 2). Differences: 30,000 pieces of each language, where the paper has words; all
pairs of WMT14, where it selects sentences with 348 M words; Glorot's initial matrices;
and batches of similar length, where it sorts 20 batches at a time. ``:encdec`` is its
baseline without attention, RNNencdec-50: 17.82 BLEU. Neither was trained here.

    transformer train --config=experiments/rnnsearch.py --workdir=runs/rnnsearch
    transformer train --config=experiments/rnnsearch.py:encdec --workdir=runs/encdec

``keys`` is the starting point of every recurrent model in the other experiments.
"""

import en_fr
from ml_collections import ConfigDict

# Members that other experiments train beside the Transformer.
MEMBERS = ("cgru", "rnnsearch", "luong", "encdec")


def keys(member: str, **changes: object) -> ConfigDict:
    """Return ``config.model`` of a recurrent model.

    Args:
      member: "encdec", "rnnsearch", "cgru", "luong" or "gnmt".
      **changes: keys that are not as in RNNsearch.
    """
    model = ConfigDict()
    model.kind = "rnn"
    model.member = member
    model.vocab_size = 0
    model.embedding = 620
    model.units = 1000
    model.d_model = 500
    model.layers = 1
    model.dropout = 0.0
    model.context_dropout = 0.0
    model.readout_dropout = 0.0
    model.encoder_norm = False
    model.reverse_source = False
    model.tying = "none"
    model.score = "none"
    model.attention = "none"
    model.feeding = False
    model.window = 0
    model.max_positions = 0
    model.dtype = "float32"
    if member == "luong":
        model.score = "general"
        model.attention = "global"
        model.feeding = True
    model.update(changes)
    return model


def adadelta(config: ConfigDict) -> None:
    """Set the optimiser of the paper: Adadelta, clipped, without a schedule."""
    constant(config, "adadelta", 1.0)
    config.optimizer.options = "rho=0.95, eps=1e-6"
    config.optimizer.clip_norm = 1.0


def constant(config: ConfigDict, name: str, rate: float) -> None:
    """Set an optimiser with a constant learning rate."""
    config.optimizer.name = name
    config.optimizer.schedule = "constant"
    config.optimizer.rate = rate
    config.optimizer.scale = 1.0
    config.optimizer.step_offset = 0
    config.optimizer.warmup = 1


def get_config(variant: str = "as_written") -> ConfigDict:
    """Return the configuration of a variant, "as_written" or "encdec"."""
    if variant not in ("as_written", "encdec"):
        raise ValueError(f"expected :as_written or :encdec, got :{variant}")
    config = en_fr.get_config()
    config.name = f"rnnsearch_{variant}"
    config.data.max_length = 64  # pieces, for 50 words
    config.tokenizer.vocab_size = 30_000
    config.tokenizer.joint = False
    config.batch.tokens = 80 * 32
    config.batch.length_multiple = 2
    config.model = keys("encdec" if variant == "encdec" else "rnnsearch")
    config.loss.smoothing = 0.0
    adadelta(config)
    config.train.steps = 667_000  # of Table 2, the longer run
    config.decode.beam = 10
    config.decode.alpha = 1.0
    config.decode.length_penalty = "power"
    return config
