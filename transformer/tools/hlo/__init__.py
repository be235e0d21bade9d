"""What a compiled program multiplies, moves and sends, read from its text.

The text is HLO, as ``compiled.as_text()`` gives it; for a program on several devices it
is what each of them does. Products are ``dot`` in a CPU's program, ``convolution`` in a
TPU's.
"""

from transformer.tools.hlo.collectives import sent
from transformer.tools.hlo.products import operations
from transformer.tools.hlo.shapes import dimensions
from transformer.tools.hlo.traffic import moved

__all__ = ["dimensions", "moved", "operations", "sent"]
