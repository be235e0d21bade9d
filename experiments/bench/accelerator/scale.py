"""The sizes of everything that is measured on an accelerator."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Scale:
    """How large everything is.

    Attributes:
      peak: size of square matrices, and products in a row.
      lengths: of sentences.
      blocks: values of ``loss.block`` besides the configuration's own, by length.
      sentences: number of sentences in a search.
      steps: of the runs that are killed and resumed.
      base, big, numbers: flags that make a configuration smaller.
      bench: flags of each bench.
    """

    peak: tuple[int, int] = (8192, 16)
    lengths: tuple[int, int] = (32, 256)
    blocks: tuple[tuple[int, ...], ...] = ((512, 25_000), (25_000,))
    sentences: tuple[int, int, int] = (1, 128, 2048)
    steps: int = 120
    base: tuple[str, ...] = ()
    big: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    bench: tuple[str, ...] = ()


def flags_of(**changes: object) -> tuple[str, ...]:
    """Return the flags that set keys, ``model__layers=1`` for ``model.layers``."""
    keys = ((key.replace("__", "."), value) for key, value in changes.items())
    return tuple(f"--config.{key}={value}" for key, value in keys)


LITTLE = flags_of(model__layers=1, model__d_model=16, model__d_ff=32, model__heads=2)
LITTLE += flags_of(model__d_k=8, model__d_v=8)
_SHORT = flags_of(tokenizer__vocab_size=60, batch__tokens=128, data__max_length=8)
FEW = flags_of(data__train_pairs=300, batch__tokens=512, decode__tokens=512)
TINY = Scale(
    peak=(64, 2),
    lengths=(8, 16),
    blocks=((16,), ()),
    sentences=(1, 2, 3),
    steps=12,
    base=LITTLE + _SHORT,
    big=LITTLE + _SHORT,
    numbers=LITTLE + FEW + flags_of(train__steps=6, train__evaluate_every=6),
    bench=("--rounds=1",),
)
