"""English to French, WMT14, 32,000 word pieces (section 5.1).

The paper has 36 M pairs, tensorflow-datasets 40.8 M. Table 2: Transformer (base) 38.1
and (big) 41.8 BLEU on newstest2014. The big model's dropout is 0.1 here instead of 0.3
(section 6.1).

    transformer train --config=experiments/en_fr.py:base --workdir=runs/en_fr_base
    transformer train --config=experiments/en_fr.py:big --workdir=runs/en_fr_big
"""

import base
import big
from ml_collections import ConfigDict


def get_config(variant: str = "base") -> ConfigDict:
    """Return the configuration of a variant, "base" or "big"."""
    if variant == "base":
        config = base.get_config()
    elif variant == "big":
        config = big.get_config()
        config.model.dropout = 0.1
    else:
        raise ValueError(f"expected :base or :big, got :{variant}")
    config.name = f"en_fr_{variant}"
    config.data.name = "wmt14_translate/fr-en"
    config.data.target_language = "fr"
    config.tokenizer.vocab_size = 32_000
    return config
