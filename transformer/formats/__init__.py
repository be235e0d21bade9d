"""Other systems' files: a file and a line of ``FORMATS`` for each system."""

from __future__ import annotations

from types import ModuleType

from transformer.formats import ctranslate2, huggingface, marian

# One with ``load`` can be imported once ``incoming.format_of`` recognises its files,
# one with ``save`` exported once ``--to`` of ``transformer export`` has its name.
FORMATS: dict[str, ModuleType] = {
    "huggingface": huggingface,
    "marian": marian,
    "ctranslate2": ctranslate2,
}
