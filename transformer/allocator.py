"""What the allocator of the C library does with the memory that a step frees."""

from __future__ import annotations

import ctypes
import sys


def keep_memory() -> None:
    """Make glibc's allocator keep what is freed; call it before a thread is started.

    XLA frees its temporaries after each step on a CPU. Returned to the kernel, they
    come back page by page, zeroed: 193,000 page faults and a quarter of the CPU time of
    a step of ``multi30k.py:tiny``, and none with these settings. There is one arena,
    because the others are made of mappings too small for such blocks. How many there
    may be is read once, when the first thread after the main one allocates.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # not glibc
        return
    trim_threshold, mmap_max, arena_max = -1, -4, -8  # the names of malloc.h
    mallopt(arena_max, 1)
    mallopt(mmap_max, 0)
    mallopt(trim_threshold, 2**31 - 1)
