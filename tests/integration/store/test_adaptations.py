"""What models' servers refuse, in PostgreSQL: stored once, renewed, expired, forgotten, bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from planq.shared.agentic.models.adaptations import Adaptation
from planq.shared.platform.database import Database
from planq.shared.subjects.adaptations import store as adaptations
from planq.shared.subjects.adaptations.store import AdaptationStore
from tests.support.clock import move_clock

URL = "http://models.example/v1"


def on_database(database_url: str, use: Callable[[Database], Awaitable[None]]) -> None:
    async def run() -> None:
        async with Database(database_url, max_connections=2) as database:
            await use(database)

    asyncio.run(run())


async def known(database: Database, model: str = "m") -> frozenset[Adaptation]:
    """Return what a process that has asked nothing so far finds."""
    return await AdaptationStore(database).of(URL, model)


def test_what_one_process_learns_every_other_one_knows(database_url: str) -> None:
    async def use(database: Database) -> None:
        store = AdaptationStore(database)
        await store.learn(URL, "m", Adaptation.UNFORCED_TOOL, "not in thinking mode")
        await store.learn(URL, "m", Adaptation.MAX_TOKENS, "x" * 10_000)
        await store.learn(URL, "m", Adaptation.UNFORCED_TOOL, "still not")

        assert await known(database) == {Adaptation.UNFORCED_TOOL, Adaptation.MAX_TOKENS}
        assert await known(database, "other") == frozenset()
        assert await AdaptationStore(database).of("http://other/v1", "m") == frozenset()
        first, second = await store.all()
        assert (first.adaptation, second.adaptation, second.refusal) == ("max_tokens", "unforced_tool", "still not")
        assert len(first.refusal) < 600

    on_database(database_url, use)


def test_after_its_days_a_refusal_has_no_effect_and_goes(database_url: str) -> None:
    async def use(database: Database) -> None:
        store = AdaptationStore(database)
        await store.learn(URL, "m", Adaptation.UNFORCED_TOOL, "no")

        await move_clock(database, timedelta(days=6))
        assert await known(database) == {Adaptation.UNFORCED_TOOL}
        await move_clock(database, timedelta(days=8))
        assert await known(database) == frozenset()
        await store.learn(URL, "n", Adaptation.MAX_TOKENS, "no")
        assert [one.model for one in await store.all()] == ["n"]
        assert await database.fetch_all("adaptations_of", base_url=URL, model="m") == []

    on_database(database_url, use)


def test_a_model_or_all_are_forgotten(database_url: str) -> None:
    async def use(database: Database) -> None:
        store = AdaptationStore(database)
        for model in ("m", "n", "o"):
            await store.learn(URL, model, Adaptation.UNFORCED_TOOL, "no")

        assert await store.forget("m") == 1
        assert [one.model for one in await store.all()] == ["n", "o"]
        assert await store.forget(None) == 2
        assert await store.all() == []

    on_database(database_url, use)


def test_names_that_anybody_may_choose_do_not_fill_the_table(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use(database: Database) -> None:
        monkeypatch.setattr(adaptations, "_MAX_ROWS", 3)
        store = AdaptationStore(database)
        for number in range(6):
            await store.learn(URL, f"m{number}", Adaptation.UNFORCED_TOOL, "no")
            await move_clock(database, timedelta(seconds=number))

        assert [one.model for one in await store.all()] == ["m2", "m3", "m4", "m5"]

    on_database(database_url, use)
