"""Keep the memory of long-lived processes flat, and garbage collection short.

glibc gives threads up to eight malloc arenas per core, each with holes: an `io` worker used 126 to 130 MB, with two
arenas 118 to 120 MB. Python's collector would scan all modules, for 70 to 100 ms.
"""

from __future__ import annotations

import ctypes
import gc
import os

_M_ARENA_MAX = -8
"""glibc's number for `mallopt` (malloc.h)."""

_ARENAS = 2


def bound_arenas() -> bool:
    """Bound malloc's arenas before the first thread; False without glibc, or if `MALLOC_ARENA_MAX` is set."""
    if "MALLOC_ARENA_MAX" in os.environ:
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_M_ARENA_MAX, _ARENAS))


_YOUNG = 100_000
"""New objects until a collection. A plan of 1000 steps makes 90 000, none of them garbage.

Circular garbage costs 15 MB or more before it is freed: frequent code must leave none (`tests/support/garbage.py`).
"""


def settle_heap() -> None:
    """Exclude all present objects from collection; call it when a process is loaded."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])
