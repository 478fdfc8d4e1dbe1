"""Waiting for something to become true, with a bound: the only way in which a test lets time pass."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 60.0
"""Far more than anything here takes, on a machine four times slower that runs other tests too."""


def eventually(condition: Callable[[], T], timeout: float = PATIENCE, *, every: float = 0.02, what: str = "") -> T:
    """Return the first true value of `condition`, asked every `every` seconds for at most `timeout` seconds.

    Raises AssertionError that names `what` (or the condition) and its last value. An AssertionError raised by the
    condition counts as "not yet", so that a condition may be a block of asserts that returns True.
    """
    pause = threading.Event()
    give_up = monotonic() + timeout
    while True:
        last: object
        try:
            value = condition()
        except AssertionError as not_yet:
            last = not_yet
        else:
            if value:
                return value
            last = value
        if monotonic() >= give_up:
            name = what or getattr(condition, "__name__", repr(condition))
            raise AssertionError(f"{name}: not within {timeout:g} s; last seen: {last!r}")
        pause.wait(every)


async def until(condition: Callable[[], object], timeout: float = PATIENCE) -> None:
    """Wait until `condition` is true, asked between the turns of the loop that it looks at.

    Raises TimeoutError after `timeout` seconds.
    """
    pause = asyncio.Event()
    async with asyncio.timeout(timeout):
        while not condition():
            with suppress(TimeoutError):
                await asyncio.wait_for(pause.wait(), 0.01)
