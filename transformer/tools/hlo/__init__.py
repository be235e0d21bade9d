"""What a compiled program multiplies, moves and sends, read from its text.

The text is HLO, as ``compiled.as_text()`` gives it: of a program for several devices it
is what each of them does. A CPU's program has its products as ``dot``, a TPU's as
``convolution``.
"""

from transformer.tools.hlo.collectives import sent
from transformer.tools.hlo.products import operations
from transformer.tools.hlo.shapes import dimensions
from transformer.tools.hlo.traffic import moved

__all__ = ["dimensions", "moved", "operations", "sent"]
