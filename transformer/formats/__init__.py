"""Other systems' files: a file and a line of ``FORMATS`` for each system."""

from __future__ import annotations

from types import ModuleType

from transformer.formats import ctranslate2, huggingface, marian

# One with ``load`` can be imported, one with ``save`` exported; see ``incoming``.
FORMATS: dict[str, ModuleType] = {
    "huggingface": huggingface,
    "marian": marian,
    "ctranslate2": ctranslate2,
}
