"""Keeping an outcome through a short loss of the database."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from shared.domain.errors import DatabaseUnavailable

_log = logging.getLogger("planq.engine")

_PAUSES_SECONDS = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0)
"""15.6 s in all: about one lease, after which another worker may have taken the work anyway."""

T = TypeVar("T")


async def persist(write: Callable[[], Awaitable[T]]) -> T:
    """Carry out a fenced write, trying again while the database does not answer.

    A repeat of a write that did commit does not land; the sweeper then dispatches what it unlocked. Raises
    `DatabaseUnavailable` when the database stays away.
    """
    for pause in _PAUSES_SECONDS:
        try:
            return await write()
        except DatabaseUnavailable:
            _log.warning("outcome_not_stored_yet", extra={"pause_seconds": pause})
            await asyncio.sleep(pause)
    return await write()
