"""Computing beside an event loop: in one thread of the process, one piece of work after the other.

Threads share the interpreter with the loop. Where n of them compute, the loop is one of n + 1 that want it, and waits
as long as Python lets the others have it, each time. So there is one thread, and it has to let go often.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_SWITCH_SECONDS = 0.0005
"""How long a thread keeps the interpreter from another: a tenth of Python's own. Measured 2026-11 with a thread that
computes without end: the loop waits that long after each call of the system."""

INLINE_CHARS = 8 * 1024
"""What is longer is read and checked in the thread: a body of 45 kB may hold numbers that take 40 ms."""

_threads: list[ThreadPoolExecutor] = []

os.register_at_fork(after_in_child=_threads.clear)


async def off_loop(work: Callable[P, T], /, *arguments: P.args, **options: P.kwargs) -> T:
    """Return what `work` comes to, computed in the thread for this; context variables are carried over.

    For what computes and waits for nothing. Cancelled, it is left behind; what has not begun by then never does.
    """
    if not _threads:
        sys.setswitchinterval(_SWITCH_SECONDS)
        _threads.append(ThreadPoolExecutor(1, thread_name_prefix="computing"))
    call = partial(contextvars.copy_context().run, partial(work, *arguments, **options))
    return await asyncio.get_running_loop().run_in_executor(_threads[0], call)
