"""Compute next to an event loop, in one thread: with n threads the loop is one of n + 1 that want the interpreter."""

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
"""A tenth of Python's switch interval: the loop waits this long after each system call."""

INLINE_CHARS = 8 * 1024
"""Longer texts are parsed in the thread: 45 kB of numbers may take 40 ms."""

_threads: list[ThreadPoolExecutor] = []

os.register_at_fork(after_in_child=_threads.clear)


async def off_loop(work: Callable[P, T], /, *arguments: P.args, **options: P.kwargs) -> T:
    """Run pure computation in the thread, with context variables; if cancelled, it is abandoned."""
    if not _threads:
        sys.setswitchinterval(_SWITCH_SECONDS)
        _threads.append(ThreadPoolExecutor(1, thread_name_prefix="computing"))
    call = partial(contextvars.copy_context().run, partial(work, *arguments, **options))
    return await asyncio.get_running_loop().run_in_executor(_threads[0], call)
