"""Attempts of one logical call to a model (readings row 10): only on retryable errors, with full jitter.

The providers' own retries are off, so that the attempts counted here are the requests that were sent.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

from shared.domain.errors import ExecutionFailed, RateLimited
from shared.domain.retry import RetryPolicy
from worker.llm.settings import ModelSettings

T = TypeVar("T")
Sleep = Callable[[float], Awaitable[None]]
"""Waits that many seconds."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How often and how long to try; `sleep` and `jitter` (a draw from [0, 1)) come in so that tests need no time."""

    settings: ModelSettings
    sleep: Sleep = asyncio.sleep
    jitter: Callable[[], float] = field(default=random.random)

    async def insist(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return the first success of `attempt`.

        Raises the error of the last attempt: one that is not retryable, the one of the last attempt that is allowed,
        or one by which the server asks for a longer wait than `retry_after_cap`.
        """
        number = 0
        while True:
            number += 1
            try:
                return await attempt()
            except ExecutionFailed as error:
                delay = self._delay_after(error, number)
                if delay is None:
                    raise
            await self.sleep(delay.total_seconds())

    def _delay_after(self, error: ExecutionFailed, number: int) -> timedelta | None:
        if not error.retryable or number >= self.settings.max_attempts:
            return None
        settings = self.settings
        policy = RetryPolicy(timedelta(seconds=settings.backoff_base), timedelta(seconds=settings.backoff_cap))
        delay = policy.delay_before(number + 1, self.jitter())
        wish = error.retry_after if isinstance(error, RateLimited) else None
        if wish is None:
            return delay
        return max(delay, wish) if wish <= timedelta(seconds=self.settings.retry_after_cap) else None
