"""Image captions, English to German: Multi30k, 29,000 pairs (Elliott et al. 2016).

The data are the files of the repository multi30k/dataset, folder data/task1: put
train.en, train.de, val.en, val.de, test_2016_flickr.en and test_2016_flickr.de (plain
or .gz) into a folder and name it.

``:tiny`` is the published setting of Wu et al. (ACL 2021; LividWo/Revisit-MMT, baseline
README): 41.02 BLEU, lower-cased and tokenised, on text that is already segmented into
10,000 joint BPE merges, joins marked "@@ "; here it reached 41.0, the mean of three
seeds, on a GPU. The default is cased raw text: 38.7 BLEU (sacreBLEU 13a, cased; mean of
three seeds), 25 minutes per seed on 2 CPU cores, measured with batch.length_multiple=1
and batch.shapes=8: see docs/results.md.

    transformer train --config=experiments/multi30k.py --config.data.dir=multi30k/raw \\
        --workdir=runs/multi30k
    transformer train --config=experiments/multi30k.py:tiny \\
        --config.data.dir=multi30k/bpe --workdir=runs/tiny

``:transformer`` is the default's model and recipe on that segmented text, with one
vocabulary per language as in the systems below, so that one table compares all of them.

    transformer train --config=experiments/multi30k.py:transformer \\
        --config.data.dir=multi30k/bpe --workdir=runs/transformer

``:cgru`` is the conditional GRU with the recipe of nmtpy's monomodal baseline for WMT17
(lium-lst/wmt17-mmt, config/monomodal-en-de.conf): 39.00 BLEU on the same tokens, one
run. ``:rnnsearch``, ``:luong`` (general, input feeding) and ``:encdec``, without
attention, have the same sizes and recipe; docs/results.md has their results.

    transformer train --config=experiments/multi30k.py:cgru \\
        --config.data.dir=multi30k/bpe --workdir=runs/cgru
    transformer train --config=experiments/multi30k.py:rnnsearch \\
        --config.data.dir=multi30k/bpe --workdir=runs/rnnsearch
    transformer train --config=experiments/multi30k.py:luong \\
        --config.data.dir=multi30k/bpe --workdir=runs/luong
    transformer train --config=experiments/multi30k.py:encdec \\
        --config.data.dir=multi30k/bpe --workdir=runs/encdec

``:convs2s`` is the small size of ConvS2S, 4 and 3 layers of 256, with Adam.

    transformer train --config=experiments/multi30k.py:convs2s \\
        --config.data.dir=multi30k/bpe --workdir=runs/convs2s

``:bytenet`` reads and writes the bytes of the raw text with 10 + 10 blocks of dilated
convolutions. It has no expected BLEU: small reproductions of ByteNet are poor. What
counts is its bits per byte, which ``transformer evaluate`` prints beside the
perplexity, compared with ``experiments/bench/byte_ngram.py``. A step takes about 1.0 s
on one core with AMX.

    transformer train --config=experiments/multi30k.py:bytenet \\
        --config.data.dir=multi30k/raw --workdir=runs/bytenet
"""

import functools
from collections.abc import Callable

import base
import bytenet
import convs2s
import rnnsearch
from ml_collections import ConfigDict

# Per sentence, EOS included: the published recipe sums the losses of a sentence; here
# they are averaged over tokens.
TARGET_TOKENS = 15.0


def get_config(variant: str = "raw") -> ConfigDict:
    """Return the configuration of a variant, as the text above names them."""
    config = base.get_config()
    config.name = f"multi30k_{variant}"
    config.data.source = "text"
    config.data.dir = "multi30k"
    config.data.name = ""
    config.data.validation = "val"
    config.data.test = "test_2016_flickr"
    config.data.max_length = 100
    config.batch.tokens = 8192
    config.batch.shapes = 16
    config.batch.length_multiple = 2  # 8 would make a fifth of the tokens PAD
    config.model.layers = 4
    config.model.d_model = 128
    config.model.d_ff = 256
    config.model.heads = 4
    config.model.d_k = 32
    config.model.d_v = 32
    config.model.dropout = 0.3
    config.train.evaluate_every = 500
    config.train.checkpoint_every = 100
    config.train.checkpoint_minutes = 0.0
    config.train.keep = 10
    config.decode.beam = 5
    config.decode.average = 10
    base.choose(_VARIANTS, variant)(config)
    return config


def _segmented(config: ConfigDict, *, joint: bool) -> None:
    """Read text that is segmented already, and search as its published scores do."""
    config.tokenizer.kind = "whitespace"
    config.tokenizer.vocab_size = 0
    config.tokenizer.joint = joint
    config.decode.alpha = 1.0
    config.decode.length_penalty = "power"


def _tiny(config: ConfigDict) -> None:
    _segmented(config, joint=True)
    config.batch.lengths = 2  # the published run had two devices, each its own
    config.optimizer.scale = 2.53  # the peak is .005
    config.optimizer.warmup = 2000
    config.train.steps = 8000


def _raw(config: ConfigDict) -> None:
    config.tokenizer.vocab_size = 8000
    config.batch.tokens = 2048
    config.model.layers = 3
    config.model.d_model = 256
    config.model.d_ff = 1024
    config.model.d_k = 64
    config.model.d_v = 64
    config.model.dropout = 0.2
    config.optimizer.scale = 0.506  # the peak is .001
    config.optimizer.warmup = 1000
    config.train.steps = 4500
    config.train.evaluate_every = 250


def _transformer(config: ConfigDict) -> None:
    _raw(config)
    _segmented(config, joint=False)
    config.model.tying = "two"


def _recurrent(config: ConfigDict, member: str) -> None:
    _segmented(config, joint=False)
    config.data.max_length = 50
    config.batch.tokens = 512  # about 32 sentences
    config.batch.shapes = 8
    config.model = rnnsearch.keys(
        member, embedding=128, units=256, d_model=128, dropout=0.3
    )
    config.model.context_dropout = 0.5
    config.model.readout_dropout = 0.5
    config.model.encoder_norm = member == "cgru"
    config.loss.smoothing = 0.0
    rnnsearch.constant(config, "adam", 4e-4)
    config.optimizer.b2 = 0.999
    config.optimizer.epsilon = 1e-8
    config.optimizer.l2 = 1e-5 / TARGET_TOKENS
    config.optimizer.clip_norm = 5.0 / TARGET_TOKENS
    config.train.steps = 40_000
    config.train.log_every = 250
    config.train.evaluate_every = 1000
    config.train.checkpoint_every = 1000
    config.train.keep = 1
    config.train.watch = "tokens"
    config.train.patience = 10
    config.decode.checkpoint = "best"
    config.decode.average = 1
    config.decode.beam = 12


def _convs2s(config: ConfigDict) -> None:
    _segmented(config, joint=False)
    config.batch.tokens = 2048
    config.model = convs2s.keys(**convs2s.SMALL, max_positions=128, dropout=0.3)
    convs2s.adam(config, 1e-3, 500)
    config.train.steps = 5000
    config.train.evaluate_every = 250
    config.train.checkpoint_every = 250
    config.train.keep = 5
    config.decode.average = 5


def _bytenet(config: ConfigDict) -> None:
    config.model = bytenet.keys(d_model=2 * 192, sets=2, dropout=0.1)
    bytenet.characters(config)
    config.data.max_length = 256  # bytes; one pair is longer
    config.batch.tokens = 4096
    config.batch.length_multiple = 8
    config.optimizer.rate = 1e-3
    config.optimizer.warmup = 200
    config.optimizer.clip_norm = 1.0
    config.train.steps = 2000
    config.train.evaluate_every = 250
    config.train.checkpoint_every = 100
    config.decode.extra_tokens = 100
    config.decode.beam = 5


_VARIANTS: dict[str, Callable[[ConfigDict], None]] = {
    "raw": _raw,
    "tiny": _tiny,
    "transformer": _transformer,
    **{x: functools.partial(_recurrent, member=x) for x in rnnsearch.MEMBERS},
    "convs2s": _convs2s,
    "bytenet": _bytenet,
}
