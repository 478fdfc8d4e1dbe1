"""What follows work of its own until that has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class Following:
    """Keeps the tasks that follow what was sent; lives on one event loop."""

    def __init__(self) -> None:
        self._following: set[asyncio.Task[None]] = set()

    def follow(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin to follow, beside everything else."""
        task = asyncio.get_running_loop().create_task(work)
        self._following.add(task)
        task.add_done_callback(self._following.discard)
        return task

    async def drain(self, patience: float) -> None:
        """Wait until all that is followed has ended, at most `patience` seconds."""
        if self._following:
            await asyncio.wait(self._following, timeout=patience)

    async def close(self) -> None:
        """Give up what is still followed."""
        for task in self._following:
            task.cancel()
        await asyncio.gather(*self._following, return_exceptions=True)
