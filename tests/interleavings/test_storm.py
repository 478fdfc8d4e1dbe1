"""Many clients at the same few jobs, conversations and batches: nobody waits in a circle, for there is one order."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from random import Random
from typing import Any

import pytest

from planq.shared.platform import database as database_module
from planq.shared.platform.database import Database
from tests.interleavings import batches, conversations, jobs
from tests.interleavings.arena import Session, Sessions

CLIENTS = 48
OPERATIONS_EACH = 25
SCENES = (batches, *[jobs] * 6, *[conversations] * 6)
"""Few, so that many clients meet at one; the one batch comes first, for its lines are begun while it is built."""

DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"


def test_no_two_of_many_clients_wait_for_one_another_in_a_circle(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "_TRIES", 1)
    random = Random(28)

    async def client(session: Session, scenes: list[tuple[Any, Any]]) -> list[str]:
        met = []
        for _ in range(OPERATIONS_EACH):
            kind, scene = random.choice(scenes)
            try:
                await random.choice(kind.OPERATIONS).act(session, scene)
            except Exception as error:  # most are refused, for what they are about is over
                met.append(repr(error.__cause__ or error))
        return met

    async def inside() -> None:
        async with Sessions(database_url).opened() as sessions, AsyncExitStack() as stack:
            scenes = [(kind, await kind.build(sessions.builder)) for kind in SCENES]
            opened = [
                await stack.enter_async_context(Database(database_url, max_connections=1)) for _ in range(CLIENTS)
            ]
            met = await asyncio.gather(*(client(Session(one, sessions.worker), scenes) for one in opened))
            assert [text for texts in met for text in texts if "Deadlock" in text] == []
            assert await sessions.builder.one(DEADLOCKS) == 0
            found = await sessions.builder.registry.broken_invariants()
            assert {row["invariant"] for row in found} <= {"running_without_lease"}

    asyncio.run(inside())
