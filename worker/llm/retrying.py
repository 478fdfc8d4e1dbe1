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


class GaveUp(Exception):
    """The last error of a call and the number of attempts made."""

    def __init__(self, error: ExecutionFailed, attempts: int) -> None:
        super().__init__(error.message)
        self.error = error
        self.attempts = attempts


@dataclass(frozen=True, slots=True)
class Patience:
    """How often and how long to try; `sleep` and `jitter` (a draw from [0, 1)) come in so that tests need no time."""

    settings: ModelSettings
    sleep: Sleep = asyncio.sleep
    jitter: Callable[[], float] = field(default=random.random)

    async def insist(self, attempt: Callable[[], Awaitable[T]]) -> tuple[T, int]:
        """Return the first success of `attempt` and how many attempts it took.

        Raises `GaveUp` at an error that is not retryable, after the last attempt, and when the server asks for a
        longer wait than `retry_after_cap`. Anything but `ExecutionFailed` passes through.
        """
        number = 0
        while True:
            number += 1
            try:
                return await attempt(), number
            except ExecutionFailed as error:
                delay = self._delay_after(error, number)
                if delay is None:
                    raise GaveUp(error, number) from error
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
