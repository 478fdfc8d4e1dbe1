"""Secrets of tenants in the database: sealed, replaced, removed, and sealed anew under another master key."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable

import pytest

from planq.shared.platform.database import Database
from planq.shared.platform.errors import InvalidRequest, Misconfigured, NotFound
from planq.shared.subjects.tenants.config import TenantConfig
from planq.shared.subjects.tenants.directory import TenantStore
from planq.shared.subjects.tenants.master_keys import MasterKeyMissing, read_master_keys
from planq.shared.subjects.tenants.secrets import SecretStore

OLD, NEW = (read_master_keys(base64.b64encode(bytes([number]) * 32).decode()) for number in (1, 2))
NAME = "openai_api_key"


def run(url: str, work: Callable[[Database], Awaitable[None]]) -> None:
    async def inside() -> None:
        async with Database(url, max_connections=2) as database:
            await TenantStore(database).create("acme", "", TenantConfig())
            await work(database)

    asyncio.run(inside())


def test_a_secret_is_stored_sealed_replaced_and_removed(database_url: str) -> None:
    async def work(database: Database) -> None:
        learned: list[str] = []
        await SecretStore(database, OLD).put("acme", NAME, "sk-first")
        await SecretStore(database, OLD).put("acme", NAME, "sk-second\n")

        store = SecretStore(database, OLD, learned.append)
        assert await store.get("acme", NAME) == "sk-second"
        assert learned == ["sk-second"]
        assert await store.get("default", NAME) is None
        assert await store.get("acme", "google_api_key") is None
        (listed,) = await store.list("acme")
        assert (listed.name, listed.key_id) == (NAME, OLD[0].id)
        async with database.connection() as connection:
            rows = await (await connection.execute("SELECT t::text, sealed FROM tenant_secrets t")).fetchall()
        assert b"sk-second" not in bytes(rows[0]["sealed"])
        assert "sk-second" not in repr(rows)

        await store.remove("acme", NAME)
        assert await SecretStore(database, OLD).get("acme", NAME) is None
        with pytest.raises(NotFound, match="has no secret"):
            await store.remove("acme", NAME)

    run(database_url, work)


def test_rotation_seals_all_anew_and_tells_what_no_key_opens(database_url: str) -> None:
    async def work(database: Database) -> None:
        await SecretStore(database, OLD).put("acme", NAME, "sk-of-acme")
        await SecretStore(database, OLD).put("default", NAME, "sk-second")
        lost = await SecretStore(database, NEW).rotate()
        assert (lost.resealed, len(lost.unopened)) == (0, 2)

        both = SecretStore(database, [*NEW, *OLD])
        assert (await both.rotate()).resealed == 2
        assert (await both.rotate()).resealed == 0
        alone = SecretStore(database, NEW)
        assert [await alone.get(tenant, NAME) for tenant in ("acme", "default")] == ["sk-of-acme", "sk-second"]

    run(database_url, work)


def test_a_secret_that_is_replaced_during_a_rotation_stays_replaced(database_url: str) -> None:
    async def work(database: Database) -> None:
        await SecretStore(database, OLD).put("acme", NAME, "sk-of-acme")
        row = await database.fetch_one("sealed_secrets", tenant_id="acme")
        assert row is not None
        await SecretStore(database, NEW).put("acme", NAME, "sk-second")
        stale = {"seen": bytes(row["sealed"]), "key_id": "x", "sealed": b"x"}

        assert await database.execute("reseal_secret", tenant_id="acme", name=NAME, **stale) == 0
        assert await SecretStore(database, NEW).get("acme", NAME) == "sk-second"

    run(database_url, work)


def test_what_cannot_be_stored_or_opened_is_refused(database_url: str) -> None:
    async def work(database: Database) -> None:
        with pytest.raises(NotFound, match="no tenant 'nobody'"):
            await SecretStore(database, OLD).put("nobody", NAME, "sk-of-acme")
        with pytest.raises(InvalidRequest, match="expected a name of small letters"):
            await SecretStore(database, OLD).put("acme", "webhook/1", "sk-of-acme")
        for attempt in (
            SecretStore(database, []).put("acme", NAME, "sk-of-acme"),
            SecretStore(database, []).rotate(),
        ):
            with pytest.raises(Misconfigured, match="PLANQ_SECRET_KEYS is not set"):
                await attempt
        await SecretStore(database, OLD).put("acme", NAME, "sk-of-acme")
        for masters in ([], NEW):
            with pytest.raises(MasterKeyMissing, match=f"{NAME} of the tenant 'acme' cannot be opened"):
                await SecretStore(database, masters).get("acme", NAME)

    run(database_url, work)
