"""Removes what has been kept for long enough: a sweep of its own, at a slow pace."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping

from planq.shared.kernel.sweep import RetentionStore
from planq.shared.platform.errors import DatabaseUnavailable, Unavailable

_log = logging.getLogger("planq.retention")


class Retainer:
    """One pass after the other."""

    def __init__(
        self,
        store: RetentionStore,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`clock` in seconds, monotonic; `sleep` lets so many pass."""
        self._store = store
        self._clock = clock
        self._sleep = sleep

    async def retain(self) -> Mapping[str, int]:
        """Remove all that is due; return how much of each kind (`RemovalBatch.kind`) was removed.

        It rests after every batch for as long as the batch took, so that half of one connection's time is the most
        it costs. Raises `DatabaseUnavailable`; the next pass then goes on, as it does after an object store that did
        not answer.
        """
        removed: Counter[str] = Counter()
        began = self._clock()
        try:
            async for batch in self._store.remove():
                removed[batch.kind] += batch.count
                await self._sleep(self._clock() - began)
                began = self._clock()
        except DatabaseUnavailable:
            raise
        except Unavailable as error:
            _log.warning("retention_interrupted", extra={"cause": error.message})
        finally:
            if removed:
                _log.info("retention_removed", extra={"removed": dict(removed)})
        return removed
