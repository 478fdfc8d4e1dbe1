"""Keeps the memory of long-lived processes flat, and its upkeep short.

glibc gives up to eight malloc arenas a core to the threads of a process. What passes through many threads (large
outputs are encoded in them) leaves holes in every arena. Measured with 480 outputs of 1 MB: an `io` worker wavered
between 126 and 130 MB; with two arenas it stayed at 118 to 120 MB.

Python's collector looks at everything from time to time: in an API or a worker that is 70 to 100 ms (2026-11), mostly
over modules that never go away, in the middle of whatever is under way.
"""

from __future__ import annotations

import ctypes
import gc
import os

_M_ARENA_MAX = -8
"""glibc's number for `mallopt` (malloc.h)."""

_ARENAS = 2


def bound_arenas() -> bool:
    """Bound malloc's arenas; call it before the first thread. False where glibc is not, or the operator decided.

    `MALLOC_ARENA_MAX` in the environment wins.
    """
    if "MALLOC_ARENA_MAX" in os.environ:
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_M_ARENA_MAX, _ARENAS))


_YOUNG = 100_000
"""New objects until the collector looks at them. A plan of 1000 steps makes 90 000 while it is carried out: with
Python's 700, or with 10 000, all of them were looked at again and again (25 ms), and nothing of it was garbage.

So what leaves circles behind, only to be freed by the collector, costs 15 MB before it comes, and more where objects
hold memory that Python does not count. What is done all the time must leave none (`tests/support/garbage.py`)."""


def settle_heap() -> None:
    """Let the collector pass over all that there is now; call it when a process has loaded what it needs."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])
