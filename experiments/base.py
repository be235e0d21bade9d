"""The base model of "Attention Is All You Need", WMT14 English-German.

Paper: Table 2, Transformer (base): 27.3 BLEU on newstest2014, 3.3e18 training FLOPs
(12 hours on 8 P100). The default is the paper's text; ``:as_run`` is what the authors'
first public code ran (tensor2tensor, commit 3d9c62f2 of 2017-06-15).

    transformer train --config=experiments/base.py --workdir=runs/base
    transformer train --config=experiments/base.py:as_run --workdir=runs/as_run
"""

from collections.abc import Mapping
from typing import TypeVar

from ml_collections import ConfigDict

Choice = TypeVar("Choice")


def choose(choices: Mapping[str, Choice], name: str) -> Choice:
    """Return the choice that the name after the colon of ``--config`` selects.

    Raises:
      ValueError: for an unknown name.
    """
    if name not in choices:
        raise ValueError(f"expected :{', :'.join(choices)}, got :{name}")
    return choices[name]


def get_config(variant: str = "as_written") -> ConfigDict:
    """Return every key there is; where the paper gives a value, it is that one."""
    config = ConfigDict()
    config.name = "base"
    config.seed = 0
    config.device = "any"

    config.data = ConfigDict()
    config.data.source = "tfds"
    config.data.dir = "data"
    config.data.name = "wmt14_translate/de-en"
    config.data.source_language = "en"
    config.data.target_language = "de"
    config.data.train = "train"
    config.data.validation = "validation"  # newstest2013
    config.data.test = "test"  # newstest2014, 3,003 lines
    config.data.train_pairs = 0
    config.data.digits = 9
    config.data.test_digits = 0
    config.data.max_length = 256
    config.data.prepared = ""
    config.data.measure = "bleu"

    config.tokenizer = ConfigDict()
    config.tokenizer.kind = "sentencepiece"
    config.tokenizer.target_kind = "same"
    config.tokenizer.vocab_size = 37_000
    config.tokenizer.joint = True
    config.tokenizer.source_model = ""
    config.tokenizer.target_model = ""
    config.tokenizer.symbols = ""
    config.tokenizer.dropout = 0.0
    config.tokenizer.samples = 1

    config.batch = ConfigDict()
    config.batch.tokens = 25_000
    config.batch.shapes = 12
    config.batch.multiple = 8
    config.batch.length_multiple = 8
    config.batch.lengths = 1

    config.model = ConfigDict()
    config.model.kind = "transformer"
    config.model.vocab_size = 0
    config.model.layers = 6
    config.model.decoder_layers = 0
    config.model.d_model = 512
    config.model.d_ff = 2048
    config.model.activation = "relu"
    config.model.heads = 8
    config.model.d_k = 64
    config.model.d_v = 64
    config.model.dropout = 0.1
    config.model.attention_dropout = 0.0
    config.model.relu_dropout = 0.0
    config.model.norm = "post"
    config.model.norm_epsilon = 1e-6
    config.model.positions = "sinusoidal"
    config.model.max_positions = 1024
    config.model.clip = -1
    config.model.farthest = 0
    config.model.relative_heads = "shared"
    config.model.tying = "three"
    config.model.attention_bias = True
    config.model.score = "scaled_dot"
    config.model.window = 0
    config.model.target_space = False
    config.model.output_bias = False
    config.model.dtype = "bfloat16"

    config.init = ConfigDict()
    config.init.only = ""
    config.init.skip = ""
    config.init.vocabulary = "new"

    config.loss = ConfigDict()
    config.loss.smoothing = 0.1
    config.loss.smoothing_over = "all"
    config.loss.r_drop = 0.0
    config.loss.block = 0  # rows; 0 follows the device: 512 on a CPU

    config.optimizer = ConfigDict()
    config.optimizer.name = "adam"
    config.optimizer.options = ""
    config.optimizer.schedule = "inverse_sqrt"
    config.optimizer.scale = 1.0
    config.optimizer.rate = 0.0
    config.optimizer.warmup = 4000
    config.optimizer.step_offset = 0
    config.optimizer.b1 = 0.9
    config.optimizer.b2 = 0.98
    config.optimizer.epsilon = 1e-9
    config.optimizer.decay = 1.0
    config.optimizer.decay_patience = 0
    config.optimizer.decay_after = 0.0
    config.optimizer.decay_every = 0.0
    config.optimizer.least_rate = 0.0
    config.optimizer.l2 = 0.0
    config.optimizer.clip_norm = 0.0
    config.optimizer.accumulation = 1
    config.optimizer.frozen = ""
    config.optimizer.nonfinite_limit = 10

    config.train = ConfigDict()
    config.train.steps = 100_000
    config.train.log_every = 100
    config.train.evaluate_every = 5000
    config.train.watch = "perplexity"
    config.train.watch_pairs = 0
    config.train.show = 0
    config.train.patience = 0
    config.train.checkpoint_every = 0
    config.train.checkpoint_minutes = 10.0
    config.train.keep = 5

    config.decode = ConfigDict()
    config.decode.checkpoint = "last"
    config.decode.beam = 4
    config.decode.alpha = 0.6
    config.decode.length_penalty = "gnmt"
    config.decode.extra_tokens = 50
    config.decode.tokens = 0  # padded, 0 follows the device: 4,096 on a CPU
    config.decode.average = 5
    config.decode.constrained = True

    config.parallel = ConfigDict()
    config.parallel.data = -1
    config.parallel.fsdp = 1
    config.parallel.tensor = 1
    config.parallel.how = "jit"
    config.parallel.remat = "none"
    config.parallel.layers = "auto"

    if variant == "as_run":
        config.name = "base_as_run"
        config.model.positions = "sinusoidal_concat"
        config.model.target_space = True
        config.model.vocab_size = 40_960
        config.loss.smoothing_over = "others"
        config.optimizer.step_offset = 1
        config.batch.tokens = 32_768
    elif variant != "as_written":
        raise ValueError(f"expected :as_written or :as_run, got :{variant}")
    return config
