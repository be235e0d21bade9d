"""Table 2 of "Attention Is All You Need": the four Transformers, on newstest2014.

Paper: 27.3 (base) and 28.4 (big) BLEU English-German, 38.1 and 41.8 English-French, at
3.3e18 and 2.3e19 training FLOPs. The same configurations as base.py, big.py and
en_fr.py, under the names of the table's rows.

    transformer train --config=experiments/table2.py:base_en_de --workdir=runs/base
    transformer train --config=experiments/table2.py:big_en_de --workdir=runs/big
    transformer train --config=experiments/table2.py:base_en_fr --workdir=runs/base_fr
    transformer train --config=experiments/table2.py:big_en_fr --workdir=runs/big_fr
"""

import base
import big
import en_fr
from ml_collections import ConfigDict

ROWS = {
    "base_en_de": base.get_config,
    "big_en_de": big.get_config,
    "base_en_fr": lambda: en_fr.get_config("base"),
    "big_en_fr": lambda: en_fr.get_config("big"),
}


def get_config(row: str = "base_en_de") -> ConfigDict:
    """Return the configuration of a row."""
    if row not in ROWS:
        raise ValueError(f"expected a row, one of :{', :'.join(ROWS)}; got :{row}")
    config = ROWS[row]()
    config.name = f"table2/{row}"
    return config
