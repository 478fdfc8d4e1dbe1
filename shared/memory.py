"""Keeps the memory of long-lived processes flat.

glibc gives up to eight malloc arenas a core to the threads of a process. What passes through many threads (large
outputs are encoded in them) leaves holes in every arena. Measured with 480 outputs of 1 MB: an `io` worker wavered
between 126 and 130 MB; with two arenas it stayed at 118 to 120 MB.
"""

from __future__ import annotations

import ctypes
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
