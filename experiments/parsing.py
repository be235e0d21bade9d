"""English constituency parsing (section 6.3, Table 4): sentences in, trees out.

``:wsj`` is the paper's model with 4 layers and d_model 1024, trained on the Wall Street
Journal alone, ``:wsj_semi`` with the larger, automatically parsed corpora too. Both
need treebanks that you have a licence for: put the trees of sections 2 to 21, 22 and
23, plain or .gz, into ``02-21.trees``, ``22.trees`` and ``23.trees`` of a folder, the
larger corpora into ``high-confidence.trees`` and ``berkeley-parser.trees``.
``:as_run`` has the learning rate, batch, form of trees and separate tables of the
authors' first public code (tensor2tensor, commit 3d9c62f2), with the paper's layers,
positions and smoothing. What the paper does not say is chosen here: residual and
attention dropout .2, as in that code for the Wall Street Journal alone.

    transformer train --config=experiments/parsing.py:wsj --config.data.dir=wsj \\
        --workdir=runs/wsj
    transformer train --config=experiments/parsing.py:wsj_semi --config.data.dir=wsj \\
        --workdir=runs/wsj_semi
    transformer train --config=experiments/parsing.py:as_run --config.data.dir=wsj \\
        --workdir=runs/wsj_as_run

``:craft`` is sized for CPUs and for a free treebank, 18,951 trees of biomedical
articles: the repository UCDenver-ccp/CRAFT (CC BY 3.0). It has a file per article,
``structural-annotation/treebank/penn/ARTICLE.tree``, and lists of articles,
``articles/ids/craft-ids-train.txt`` and ``craft-ids-dev.txt``: put the trees of each
list into one file, ``train.clean.trees`` and ``dev.clean.trees``. The development trees
serve for validation and test. ``:craft_tagged``, ``:craft_in_order``,
``:craft_indexed`` and ``:craft_indexed_in_order`` write trees in other forms, see
``transformer/trees/forms.py``; the last two, which are not in the paper, give each word
of the sentence an index and refer to words by it.

    transformer train --config=experiments/parsing.py:craft \\
        --config.data.dir=craft-treebank --workdir=runs/craft
    transformer train --config=experiments/parsing.py:craft_tagged \\
        --config.data.dir=craft-treebank --workdir=runs/craft_tagged
    transformer train --config=experiments/parsing.py:craft_in_order \\
        --config.data.dir=craft-treebank --workdir=runs/craft_in_order
    transformer train --config=experiments/parsing.py:craft_indexed \\
        --config.data.dir=craft-treebank --workdir=runs/craft_indexed
    transformer train --config=experiments/parsing.py:craft_indexed_in_order \\
        --config.data.dir=craft-treebank --workdir=runs/craft_indexed_in_order
"""

import functools
from collections.abc import Callable

import base
from ml_collections import ConfigDict


def get_config(variant: str = "craft") -> ConfigDict:
    """Return the configuration of a variant, as the text above names them."""
    config = base.get_config()
    config.name = f"parsing_{variant}"
    config.data.source = "trees"
    config.data.dir = "trees"
    config.data.name = ""
    config.data.source_language = "en"
    config.data.target_language = "tree"
    config.data.measure = "f1"
    config.tokenizer.target_kind = "top_down"
    config.tokenizer.joint = False
    config.model.layers = 4
    config.model.tying = "two"
    config.model.dropout = 0.2
    config.decode.alpha = 0.3
    config.decode.beam = 21
    config.decode.extra_tokens = 300
    base.choose(_VARIANTS, variant)(config)
    return config


def _wsj(config: ConfigDict) -> None:
    config.data.train = "02-21"
    config.data.validation = "22"
    config.data.test = "23"
    config.tokenizer.vocab_size = 16_000
    config.model.d_model = 1024
    config.model.attention_dropout = 0.2


def _wsj_semi(config: ConfigDict) -> None:
    _wsj(config)
    config.data.train = "02-21+high-confidence+berkeley-parser"
    config.tokenizer.vocab_size = 32_000


def _as_run(config: ConfigDict) -> None:
    _wsj(config)
    config.data.max_length = 512
    config.tokenizer.target_kind = "tagged"
    config.tokenizer.vocab_size = 2**14
    config.batch.tokens = 8 * 4096
    config.model.tying = "none"
    config.optimizer.scale = 5.0
    config.optimizer.warmup = 16_000


def _craft(config: ConfigDict, form: str) -> None:
    config.data.train = "train.clean"
    config.data.validation = "dev.clean"
    config.data.test = "dev.clean"
    config.data.max_length = 200
    config.tokenizer.target_kind = form
    config.tokenizer.vocab_size = 8000
    config.batch.tokens = 4096
    config.batch.shapes = 16
    config.batch.length_multiple = 2
    config.batch.lengths = 2
    config.model.norm = "pre"
    config.model.d_model = 256
    config.model.d_ff = 1024
    config.model.heads = 4
    config.optimizer.scale = 0.536  # the peak is .0015
    config.optimizer.warmup = 500
    config.train.steps = 6000
    config.train.evaluate_every = 500
    config.train.checkpoint_every = 250
    config.train.checkpoint_minutes = 0.0
    config.train.keep = 10
    config.decode.average = 10
    config.decode.beam = 4


def _craft_indexed(config: ConfigDict, form: str) -> None:
    _craft(config, form)
    config.tokenizer.kind = "indexed_words"
    config.train.steps = 8500
    config.decode.average = 5


_VARIANTS: dict[str, Callable[[ConfigDict], None]] = {
    "craft": functools.partial(_craft, form="top_down"),
    "craft_tagged": functools.partial(_craft, form="tagged"),
    "craft_in_order": functools.partial(_craft, form="in_order"),
    "craft_indexed": functools.partial(_craft_indexed, form="indexed"),
    "craft_indexed_in_order": functools.partial(
        _craft_indexed, form="indexed_in_order"
    ),
    "wsj": _wsj,
    "wsj_semi": _wsj_semi,
    "as_run": _as_run,
}
