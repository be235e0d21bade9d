"""The ids that mean the same in every vocabulary, and where a source has padding."""

from __future__ import annotations

from typing import Any

PAD, UNK, BOS, EOS = range(4)
SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")  # their pieces


def marks(source: Any) -> Any:
    """Return integers that are PAD exactly where a source is padding.

    Args:
      source: ids (B, S); or vectors (B, S, 1 + F), a 1 before the F features of each
        frame, and zeros at padding.

    Returns:
      (B, S) integers.
    """
    return source if source.ndim == 2 else source[..., 0].astype("int32")
