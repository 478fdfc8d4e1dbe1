"""The published tools are read again only after one was published or removed."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg

from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.platform.database import Database
from planq.shared.subjects.tools.catalogue import PublishedTools

PUBLISH = """
    INSERT INTO tools (name, definition) VALUES (%s, %s)
    ON CONFLICT (name) DO UPDATE SET definition = excluded.definition, published_at = planq_now()"""


def publish(connection: psycopg.Connection[Any], name: str, description: str = "") -> None:
    definition = ToolDefinition(name=name, description=description)
    connection.execute(PUBLISH, [name, definition.model_dump_json()])


def test_definitions_are_read_again_after_each_change_and_not_without_one(database_url: str) -> None:
    async def look(connection: psycopg.Connection[Any], late: psycopg.Connection[Any]) -> None:
        async with Database(database_url, max_connections=2) as database:
            tools = PublishedTools(database)
            assert await tools.list() == {}
            publish(connection, "one")
            found = await tools.list()
            assert list(found) == ["one"]
            assert await tools.list() is found

            publish(late, "two")  # begins here, and is committed after a later one
            publish(connection, "one", "Changed.")
            assert (await tools.list())["one"].description == "Changed."
            late.commit()
            assert list(await tools.list()) == ["one", "two"]

            connection.execute("DELETE FROM tools WHERE name = 'two'")
            assert list(await tools.list()) == ["one"]
            connection.execute("DELETE FROM tools")
            assert await tools.list() == {}

    with psycopg.connect(database_url, autocommit=True) as connection, psycopg.connect(database_url) as late:
        asyncio.run(look(connection, late))
