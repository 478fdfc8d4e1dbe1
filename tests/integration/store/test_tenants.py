"""Tenants in the database: created, looked at, changed by several people, and known to every process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from planq.shared.kernel.limits import Limits
from planq.shared.platform.database import Database
from planq.shared.platform.errors import Conflict, NotFound, Unavailable
from planq.shared.subjects.tenants.config import TenantConfig, read_tenant_config
from planq.shared.subjects.tenants.directory import TenantDirectory, TenantStore

CONFIG = read_tenant_config({"model": "offline", "limits": {"max_rounds": 3}})


def run(url: str, work: Callable[[TenantStore, Database], Awaitable[None]]) -> None:
    async def inside() -> None:
        async with Database(url, max_connections=2) as database:
            await work(TenantStore(database), database)

    asyncio.run(inside())


def test_a_tenant_is_created_once_listed_and_changed_by_parts(database_url: str) -> None:
    async def work(store: TenantStore, _: Database) -> None:
        made = await store.create("acme", "Acme", CONFIG)
        with pytest.raises(Conflict, match="the tenant 'acme' already exists"):
            await store.create("acme", "Other", TenantConfig())
        assert made.config == {"model": "offline", "limits": {"max_rounds": 3}}  # what was said, without the defaults
        assert [one.id for one in await store.page(limit=5)] == ["acme", "default"]
        assert [one.id for one in await store.page(after="acme", limit=5)] == ["default"]

        renamed = await store.change("acme", name="Acme & Co")
        assert (renamed.name, renamed.config, renamed.is_disabled) == ("Acme & Co", made.config, False)
        assert (await store.change("acme", is_disabled=True)).is_disabled
        assert (await store.get("acme")).config == made.config

    run(database_url, work)


def test_of_two_changes_built_on_the_same_look_the_second_is_refused(database_url: str) -> None:
    async def work(store: TenantStore, _: Database) -> None:
        seen = await store.create("acme", "", TenantConfig())
        first = await store.change("acme", config=CONFIG, seen_at=seen.updated_at)
        with pytest.raises(Conflict, match="was changed by somebody else"):
            await store.change("acme", config=TenantConfig(), seen_at=seen.updated_at)
        assert await store.get("acme") == first

    run(database_url, work)


def test_what_is_not_there_and_the_tenant_of_those_without_keys_are_refused(database_url: str) -> None:
    async def work(store: TenantStore, _: Database) -> None:
        for attempt in (store.get("nobody"), store.change("nobody", name="x")):
            with pytest.raises(NotFound, match="no tenant 'nobody'"):
                await attempt
        with pytest.raises(Conflict, match="cannot be disabled"):
            await store.change("default", is_disabled=True)

    run(database_url, work)


def test_the_directory_knows_limits_from_the_row_else_everybodys(database_url: str) -> None:
    async def work(store: TenantStore, database: Database) -> None:
        directory = TenantDirectory(database, Limits(max_rounds=9))
        await store.create("acme", "Acme", CONFIG)
        await store.create("plain", "", TenantConfig())

        found = {name: await directory.of(name) for name in ("acme", "default", "plain")}
        assert {name: one.limits.max_rounds for name, one in found.items()} == {"acme": 3, "default": 9, "plain": 9}
        assert (found["acme"].name, found["acme"].config.model) == ("Acme", "offline")
        with pytest.raises(NotFound, match="no tenant 'nobody'"):
            await directory.of("nobody")

    run(database_url, work)


def test_a_configuration_that_cannot_be_read_stops_its_tenant_alone(database_url: str) -> None:
    async def work(_: TenantStore, database: Database) -> None:
        async with database.connection() as connection:
            await connection.execute("INSERT INTO tenants (id, config) VALUES ('odd', '{\"fame\": 1}')")
        directory = TenantDirectory(database, Limits())
        with pytest.raises(Unavailable, match="'odd' cannot be read: fame"):
            await directory.of("odd")
        assert (await directory.of("default")).id == "default"

    run(database_url, work)
