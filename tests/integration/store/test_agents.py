"""Agents and skills in the database: versions, what is unchanged, what is retired, many writers at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from planq.shared.platform.database import Database
from planq.shared.platform.errors import NotFound
from planq.shared.subjects.agents.store import DocumentStore

T = "default"


def content(kind: str, text: str) -> dict[str, Any]:
    return {"content": f'{{"description": "{text}"}}', "skills": ["b", "a"]} if kind == "agent" else {"content": text}


def run(url: str, kind: str, work: Callable[[DocumentStore, Database], Awaitable[Any]]) -> Any:
    async def inside() -> Any:
        database = Database(url, max_connections=4)
        await database.open()
        try:
            return await work(DocumentStore(database, kind), database)
        finally:
            await database.close()

    return asyncio.run(inside())


@pytest.mark.parametrize("kind", ["agent", "skill"])
def test_what_is_stored_again_unchanged_keeps_its_version(database_url: str, kind: str) -> None:
    async def work(store: DocumentStore, _: Database) -> None:
        first = await store.put(T, "a", **content(kind, "one"))
        again = await store.put(T, "a", **content(kind, "one"))
        second = await store.put(T, "a", **content(kind, "two"))
        back = await store.put(T, "a", **content(kind, "one"))

        assert [(kept.version, kept.is_new) for kept in (first, again, second, back)] == [
            (1, True),
            (1, False),
            (2, True),
            (3, True),
        ]
        assert again.created_at == first.created_at
        assert (await store.get(T, "a", 2)).content == content(kind, "two")["content"]
        assert (await store.get(T, "a")).version == 3
        assert await store.newest(T, ["a", "b", "\x00"]) == {"a": 3}
        assert [one.version for one in await store.page(T, limit=5)] == [3]

    run(database_url, kind, work)


@pytest.mark.parametrize("kind", ["agent", "skill"])
def test_what_is_retired_is_named_by_nobody_and_kept_for_those_who_have_it(database_url: str, kind: str) -> None:
    async def work(store: DocumentStore, _: Database) -> None:
        await store.put(T, "a", **content(kind, "one"))
        await store.put(T, "b", **content(kind, "one"))
        await store.retire(T, "a")

        with pytest.raises(NotFound, match="'a' is retired; there are b"):
            await store.get(T, "a")
        with pytest.raises(NotFound, match="is retired"):
            await store.retire(T, "a")
        assert (await store.get(T, "a", 1)).retired_at is not None
        assert await store.newest(T, ["a", "b"]) == {"b": 1}
        assert [one.name for one in await store.page(T, limit=5)] == ["b"]
        anew = await store.put(T, "a", **content(kind, "one"))
        assert (anew.version, anew.is_new) == (2, True)

    run(database_url, kind, work)


def test_what_is_not_there_is_told_with_what_is(database_url: str) -> None:
    async def work(store: DocumentStore, _: Database) -> None:
        with pytest.raises(NotFound, match="none: `planq agents apply`"):
            await store.get(T, "a")
        await store.put(T, "a", **content("agent", "one"))
        with pytest.raises(NotFound, match="agent 'x' does not exist; there are a"):
            await store.get(T, "x")
        with pytest.raises(NotFound, match="has no version 7; there are 1"):
            await store.get(T, "a", 7)
        with pytest.raises(NotFound, match="does not exist"):
            await store.get("another tenant", "a")
        with pytest.raises(NotFound, match="does not exist"):
            await store.get(T, "a\x00\ud800")

    run(database_url, "agent", work)


def test_an_agents_skills_are_written_beside_its_document(database_url: str) -> None:
    async def work(store: DocumentStore, database: Database) -> None:
        await store.put(T, "a", **content("agent", "one"))
        async with database.connection() as connection:
            row = await (await connection.execute("SELECT skills FROM agents")).fetchone()
        assert row == {"skills": ["b", "a"]}

    run(database_url, "agent", work)


def test_many_who_store_at_once_get_a_version_each_and_the_same_document_one(database_url: str) -> None:
    async def work(store: DocumentStore, _: Database) -> None:
        same = await asyncio.gather(*(store.put(T, "same", **content("agent", "x")) for _ in range(12)))
        assert {kept.version for kept in same} == {1}
        assert sum(kept.is_new for kept in same) == 1
        texts = [f"text {n}" for n in range(6)]
        kept = await asyncio.gather(*(store.put(T, "other", **content("agent", text)) for text in texts))
        assert sorted(one.version for one in kept) == [1, 2, 3, 4, 5, 6]

    run(database_url, "agent", work)


def test_pages_follow_each_other_by_name(database_url: str) -> None:
    async def work(store: DocumentStore, _: Database) -> None:
        for name in ("c", "a", "b", "B"):
            await store.put(T, name, **content("skill", "one"))
        first = [one.name for one in await store.page(T, limit=2)]
        rest = [one.name for one in await store.page(T, after=first[-1], limit=9)]
        assert sorted(first + rest) == ["B", "a", "b", "c"]

    run(database_url, "skill", work)
