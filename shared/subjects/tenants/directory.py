"""Tenants, for operators and as every process caches them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from planq.shared.kernel.ids import TENANT
from planq.shared.kernel.limits import Limits
from planq.shared.platform.database import Database, Row, json_text, shown_time
from planq.shared.platform.errors import Conflict, InvalidRequest, NotFound, Unavailable, capped
from planq.shared.platform.refreshing_cache import MOST_KEPT, RefreshingCache
from planq.shared.platform.values.decoding import decode
from planq.shared.subjects.tenants.config import Tenant, TenantConfig, read_tenant_config

_FRESH_SECONDS = 1.0

_YOUNG_SECONDS = 30.0
"""A tenant is refreshed for this long after its last use, so that a lone job does not wait."""


@dataclass(frozen=True, slots=True)
class StoredTenant:
    """One row; `config` is as the operator wrote it."""

    id: str
    name: str
    is_disabled: bool
    config: Mapping[str, Any]
    created_at: datetime
    updated_at: datetime

    @classmethod
    def of(cls, row: Row) -> StoredTenant:
        return cls(**{**row, "config": decode(row["config"])})

    def to_json(self) -> dict[str, Any]:
        times = {"created_at": shown_time(self.created_at), "updated_at": shown_time(self.updated_at)}
        own = {"id": self.id, "name": self.name, "is_disabled": self.is_disabled, "config": self.config}
        return {**own, **times}


class TenantStore:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, tenant_id: str, name: str, config: TenantConfig) -> StoredTenant:
        """Create a tenant with a `read_tenant_id`; raises `Conflict` if it exists."""
        row = await self._database.fetch_one(
            "create_tenant", tenant_id=tenant_id, name=name, config=json_text(stored_config(config))
        )
        if row is None:
            raise Conflict(f"the tenant {tenant_id!r} already exists; change it, or choose another id")
        return StoredTenant.of(row)

    async def get(self, tenant_id: str) -> StoredTenant:
        """Return a tenant; raises `NotFound`."""
        row = await self._database.fetch_one("get_tenant", tenant_id=tenant_id)
        if row is None:
            raise no_tenant(tenant_id)
        return StoredTenant.of(row)

    async def usage(self, tenant_id: str) -> Mapping[str, int]:
        """Return a tenant's current usage, by its limits without `max_`."""
        row = await self._database.fetch_one("usage_of_tenant", tenant_id=tenant_id)
        assert row is not None
        return row

    async def page(self, *, after: str = "", limit: int) -> Sequence[StoredTenant]:
        """Return at most `limit` tenants, sorted by id, after one."""
        rows = await self._database.fetch_all("list_tenants", after=after, limit=limit)
        return [StoredTenant.of(row) for row in rows]

    async def put(
        self, tenant_id: str, name: str, config: TenantConfig, *, is_disabled: bool
    ) -> tuple[StoredTenant, bool]:
        """Create or replace a tenant; return it and whether it is new. Raises `Conflict` for disabling `default`."""
        _check_switch(tenant_id, is_disabled)
        row = await self._database.fetch_one(
            "put_tenant",
            tenant_id=tenant_id,
            name=name,
            config=json_text(stored_config(config)),
            is_disabled=is_disabled,
        )
        assert row is not None
        fields = dict(row)
        is_new = bool(fields.pop("is_new"))
        return StoredTenant.of(fields), is_new

    async def change(
        self,
        tenant_id: str,
        *,
        name: str | None = None,
        config: TenantConfig | None = None,
        is_disabled: bool | None = None,
        seen_at: datetime | None = None,
    ) -> StoredTenant:
        """Replace the given fields; other processes see it within a second.

        Raises `Conflict` if others changed it since `seen_at`, and for disabling `default`; `NotFound`.
        """
        _check_switch(tenant_id, is_disabled)
        text = None if config is None else json_text(stored_config(config))
        row = await self._database.fetch_one(
            "change_tenant", tenant_id=tenant_id, name=name, config=text, is_disabled=is_disabled, seen_at=seen_at
        )
        if row is None:
            await self.get(tenant_id)  # raises where there is none
            raise Conflict(f"the tenant {tenant_id!r} was changed by somebody else; read it again")
        return StoredTenant.of(row)


class TenantDirectory(RefreshingCache[str, Tenant]):
    """Implements `Tenants`, with the server's default `limits`; lives on one event loop."""

    def __init__(self, database: Database, limits: Limits) -> None:
        self._database = database
        self._limits = limits
        super().__init__(self._look, _FRESH_SECONDS, young_for=_YOUNG_SECONDS)

    async def _look(self, tenant_id: str) -> Tenant:
        row = await self._database.fetch_one("get_tenant", tenant_id=tenant_id)
        if row is None:
            raise no_tenant(tenant_id)
        try:
            config, *limits = _read_config(row["config"], self._limits)
        except InvalidRequest as error:
            # Not checked by this release: written directly into the database, or by a later release.
            message = f"the configuration of the tenant {tenant_id!r} cannot be read: {error.message}; store it again"
            raise Unavailable(message) from error
        return Tenant(row["id"], row["name"], row["is_disabled"], config, *limits)


@lru_cache(maxsize=MOST_KEPT)
def _read_config(text: str, limits: Limits) -> tuple[TenantConfig, Limits, Limits]:
    """Parse a stored configuration, with the limits of jobs and messages; cached, because it seldom changes."""
    config = read_tenant_config(decode(text))
    return config, config.job_limits(limits), config.message_limits(limits)


def stored_config(config: TenantConfig) -> dict[str, Any]:
    """Return a configuration in its stored form, without defaults."""
    return config.model_dump(mode="json", exclude_unset=True)


def _check_switch(tenant_id: str, is_disabled: bool | None) -> None:
    if is_disabled and tenant_id == TENANT:
        raise Conflict(f"the tenant {TENANT!r} cannot be disabled: callers without a key belong to it")


def no_tenant(tenant_id: str) -> NotFound:
    return NotFound(f"there is no tenant {capped(tenant_id, 80)!r}")
