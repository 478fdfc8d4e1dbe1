"""A closed loop of jobs: so many are always under way, and whenever one ends the next one is submitted."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.bench.client import Client
from tests.bench.scaling.gauges import Gauges
from tests.bench.scaling.usage import Usage

_WAIT_SECONDS = 30
_PATIENCE_SECONDS = 120.0
"""Of the whole beyond what is asked for: until the first jobs and the last ones have ended."""

_SETTLE_SECONDS = 2.0
"""PostgreSQL's processes report their transactions about once a second (pgstat.c, PGSTAT_MIN_INTERVAL)."""


class Loop:
    """Keeps jobs under way until it is told to stop."""

    def __init__(self, client: Client, body: dict[str, Any]) -> None:
        self._client = client
        self._body = body
        self._ended: asyncio.Condition = asyncio.Condition()
        self._is_over = False
        self.ended = 0

    async def run(self) -> None:
        """Submit one job after the other; raises RuntimeError when one does not complete."""
        while not self._is_over:
            answer = await self._client.post("/jobs", self._body)
            if answer.status != 202:
                raise RuntimeError(f"a job was refused: {answer.status} {answer.body[:500]!r}")
            await self._wait(answer.json()["id"])
            async with self._ended:
                self.ended += 1
                self._ended.notify_all()

    async def reach(self, ended: int) -> None:
        """Wait until so many jobs have ended."""
        async with self._ended:
            await self._ended.wait_for(lambda: self.ended >= ended)

    def finish(self) -> None:
        """Let the jobs under way be the last ones."""
        self._is_over = True

    async def _wait(self, job: str) -> None:
        while True:
            found = (await self._client.get(f"/jobs/{job}?wait={_WAIT_SECONDS}")).json()
            if found["status"] == "completed":
                return
            if found["status"] in ("failed", "cancelled"):
                raise RuntimeError(f"job {job} ended as {found['status']}: {found['error']}")


async def under_load(
    url: str,
    gauges: Gauges,
    body: dict[str, Any],
    *,
    in_flight: int,
    seconds: float,
    warm_up: int,
    slots: int = 0,
    tool_seconds: float = 0.0,
) -> Usage:
    """Keep `in_flight` jobs under way; return what was used in `seconds`, from the end of `warm_up` jobs on."""
    async with asyncio.timeout(seconds + _PATIENCE_SECONDS), Client(url, connections=in_flight) as client:
        loop = Loop(client, body)
        async with asyncio.TaskGroup() as group:
            for _ in range(in_flight):
                group.create_task(loop.run())
            await loop.reach(warm_up)
            before = gauges.read()
            await asyncio.sleep(seconds)
            after = gauges.read()
            loop.finish()
    return gauges.between(before, after, slots=slots, tool_seconds=tool_seconds)


async def at_rest(gauges: Gauges, seconds: float) -> Usage:
    """Return what is used while nothing is asked for, once what the start used has been counted."""
    await asyncio.sleep(_SETTLE_SECONDS)
    before = gauges.read()
    await asyncio.sleep(seconds)
    return gauges.between(before, gauges.read())
