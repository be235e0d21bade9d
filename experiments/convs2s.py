"""English to German by convolutions: ConvS2S (Gehring et al. 2017).

Recipe of arXiv:1705.03122, sizes of its authors' programs (fairseq). ``:en_de``, the
default: 9 layers of 512 and 4 of 1,024 with kernels of 3 and 2 of 2,048 with kernels of
1 on both sides, embeddings of 768, batches of 64 sentences; 25.16 BLEU on newstest2014,
tokenised. The paper's text has 10 layers of 512, 3 of 768 and 2 of 2,048, embeddings of
512 and batches of 48. ``:en_ro``: 20 layers of 512 on both sides; the paper has 30.02
BLEU on newstest2016, detokenised, trained on 2.8 M pairs, most of them back-translated;
here there are the 610,000 others. ``:iwslt``: the small size, 4 and 3 layers of 256,
for German to English of IWSLT14, segmented into 10,000 BPE merges (train, valid and
test .de and .en in data.dir). Nesterov momentum .99, learning rate .25, gradients
clipped to norm .1, the rate divided by 10 after each epoch that does not improve
validation (in the paper, after every epoch from the first of these on), until it is
below 1e-4. ``:adam`` is the model of ``:en_de`` with Adam, warmed up to 1e-3
(OpenSeq2Seq: 25.0 BLEU). None was trained here.

    transformer train --config=experiments/convs2s.py --workdir=runs/convs2s
    transformer train --config=experiments/convs2s.py:en_ro --workdir=runs/en_ro
    transformer train --config=experiments/convs2s.py:iwslt \\
        --config.data.dir=iwslt14 --workdir=runs/iwslt
    transformer train --config=experiments/convs2s.py:adam --workdir=runs/adam

``keys`` is the starting point of every convolutional model in the other experiments.
"""

import base
from ml_collections import ConfigDict

DEEP = "9x512k3+4x1024k3+2x2048k1"


def keys(**changes: object) -> ConfigDict:
    """Return ``config.model``, of English to German but for the changes."""
    model = ConfigDict()
    model.kind = "convs2s"
    model.vocab_size = 0
    model.embedding = 768
    model.d_model = 512
    model.encoder = DEEP
    model.decoder = DEEP
    model.max_positions = 1024
    model.dropout = 0.2
    model.tying = "none"
    model.dtype = "bfloat16"
    model.update(changes)
    return model


def nesterov(config: ConfigDict, steps: int) -> None:
    """Set the optimiser of the paper; its rate falls after epochs without improvement.

    Args:
      config: is changed.
      steps: per epoch.
    """
    config.optimizer.name = "sgd"
    config.optimizer.options = "momentum=0.99, nesterov=True"
    config.optimizer.schedule = "plateau"
    config.optimizer.rate = 0.25
    config.optimizer.warmup = 1
    config.optimizer.decay = 0.1
    config.optimizer.least_rate = 1e-4
    config.optimizer.clip_norm = 0.1
    config.train.evaluate_every = steps
    config.train.steps = 100 * steps  # more than the rate lasts


def adam(config: ConfigDict, peak: float, warmup: int) -> None:
    """Set Adam, whose rate rises to a peak and falls with the root of the steps."""
    config.optimizer.scale = peak * (config.model.d_model * warmup) ** 0.5
    config.optimizer.warmup = warmup
    config.optimizer.clip_norm = 0.1


def get_config(variant: str = "en_de") -> ConfigDict:
    """Return the configuration of a variant: "en_de", "en_ro", "iwslt" or "adam"."""
    config = base.get_config()
    config.name = f"convs2s_{variant}"
    config.model = keys()
    config.tokenizer.vocab_size = 40_000
    config.batch.tokens = 64 * 32
    config.loss.smoothing = 0.0
    config.decode.beam = 5
    config.decode.alpha = 1.0
    config.decode.length_penalty = "power"
    if variant == "en_de":
        nesterov(config, 4_500_000 // 64)
    elif variant == "en_ro":
        config.data.name = "wmt16_translate/ro-en"
        config.data.target_language = "ro"
        config.model = keys(embedding=512, encoder="20x512k3", decoder="20x512k3")
        nesterov(config, 610_000 // 64)
    elif variant == "iwslt":
        _iwslt(config)
    elif variant == "adam":
        adam(config, 1e-3, 4000)
        config.train.steps = 20 * 4_500_000 // 64
    else:
        names = ":en_de, :en_ro, :iwslt or :adam"
        raise ValueError(f"expected {names}, got :{variant}")
    return config


def _iwslt(config: ConfigDict) -> None:
    config.data.source = "text"
    config.data.dir = "iwslt14"
    config.data.name = ""
    config.data.source_language = "de"
    config.data.target_language = "en"
    config.data.validation = "valid"
    config.tokenizer.kind = "whitespace"
    config.tokenizer.vocab_size = 0
    config.tokenizer.joint = False
    config.batch.tokens = 4096
    config.model = keys(**SMALL)
    nesterov(config, 1000)


SMALL = {"embedding": 256, "d_model": 256, "encoder": "4x256k3", "decoder": "3x256k3"}
