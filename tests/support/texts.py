"""Small corpora, and the configurations that prepare them."""

import gzip
from pathlib import Path
from typing import Any

from support.configs import experiment
from transformer import config
from transformer.config import Config


def make_config(**changes: Any) -> Config:
    """Return the base config with ``data_train="x"`` style changes."""
    values = experiment("base")
    values.data.source = "numbers"
    values.data.train_pairs = 300
    values.tokenizer.vocab_size = 120
    for key, value in changes.items():
        group, _, name = key.partition("_")
        values[group][name] = value
    return config.resolve(values)


def text_config(folder: Path, **changes: Any) -> Config:
    """Return a config that reads the texts of a folder, byte by byte."""
    own = {"data_source": "text", "data_dir": str(folder), "data_train_pairs": 0}
    return make_config(**(own | {"tokenizer_kind": "bytes"} | changes))


def write_texts(folder: Path) -> None:
    """Write texts with lines to keep, leave out or repair; the targets are gzipped."""
    folder.mkdir()
    texts = {
        "train": ("a b@@ c\n\nlong long long long\nd\n", "x\ny\nz\nü\n"),
        "validation": ("one@@ two\n\nthree\u2028four\n", "eins@@ zwei\nx\n\n"),
        "test": ("a\n", "A@@ B\r\n"),
    }
    for split, (source, target) in texts.items():
        (folder / f"{split}.en").write_bytes(source.encode())
        (folder / f"{split}.de.gz").write_bytes(gzip.compress(target.encode()))
