"""Retries a read or a fenced write until the database answers again, so that an outage loses no outcome."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import ParamSpec, TypeVar

from planq.shared.platform.errors import DatabaseUnavailable
from planq.shared.platform.values.backoff import pause_after

_log = logging.getLogger("planq.engine")

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 8.0

_PATIENCE_SECONDS = 300.0
"""Longer than a database takes to restart or fail over. Once the heartbeat is back nobody else takes the work, so an
outcome that is dropped earlier would leave it lying until its deadline."""

P = ParamSpec("P")
T = TypeVar("T")


async def persist(ask: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `ask`, a read or a fenced write of work at hand, again and again while the database does not answer.

    A repeat of a write that did commit does not land, and counts no model call again; the sweeper then dispatches
    what it unlocked. Raises `DatabaseUnavailable` when the database stays away for five minutes.
    """
    until = monotonic() + _PATIENCE_SECONDS
    failures = 0
    while True:
        try:
            return await ask(*args, **kwargs)
        except DatabaseUnavailable:
            failures += 1
            pause = pause_after(failures, _FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
            if monotonic() + pause > until:
                raise
        _log.warning("database_awaited", extra={"pause_seconds": pause})
        await asyncio.sleep(pause)
