"""`planq keys`: who may speak for a tenant. It speaks to the database itself: no API knows a first key."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from planq.api.cli.connection import AsJson
from planq.api.cli.console import as_line, err, out, print_json, print_result, print_rows
from planq.api.cli.outcome import reported
from planq.deploy.cli.database import with_database
from planq.deploy.cli.tenants import TenantId

if TYPE_CHECKING:
    from planq.shared.platform.database import Database
    from planq.shared.subjects.tenants.api_keys import StoredKey

_PAGE = 100


def create_key(
    tenant_id: TenantId,
    name: Annotated[str, typer.Option(help="A name for people.")] = "",
    scopes: Annotated[
        list[str] | None,
        typer.Option(
            "--scope", help="jobs, messages, approve or admin; give it again for another. Default: jobs and messages."
        ),
    ] = None,
    days: Annotated[
        float | None, typer.Option(min=0.0001, max=36_500, help="Number of days until it expires.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create a key and print it once: only its digest is stored.

    A tenant may have several at once: to rotate one, make another, give it to those who use the old one, and revoke
    that when its last use has gone by.
    """
    from planq.shared.subjects.tenants.api_keys import ApiKeyStore
    from planq.shared.subjects.tenants.keys import read_scopes

    lifetime = None if days is None else timedelta(days=days)
    with reported(as_json=as_json):
        given = read_scopes(scopes or ["jobs", "messages"])
        stored, text = with_database(lambda database: ApiKeyStore(database).create(tenant_id, name, given, lifetime))
    if as_json:
        print_json({**stored.to_json(), "key": text})
    else:
        out.print(text)
        err.print(f"the key {stored.id} of the tenant {stored.tenant_id}; it is shown this once")


def list_keys(tenant_id: TenantId, as_json: AsJson = False) -> None:
    """List the keys of a tenant, the oldest first: its beginning, scopes, last use, and whether it is good."""
    from planq.shared.subjects.tenants.api_keys import ApiKeyStore
    from planq.shared.subjects.tenants.directory import TenantStore

    async def everyone(database: Database) -> list[StoredKey]:
        await TenantStore(database).get(tenant_id)  # raises where there is none
        found: list[StoredKey] = []
        while page := await ApiKeyStore(database).page(tenant_id, after=found[-1].id if found else None, limit=_PAGE):
            found += page
        return found

    with reported(as_json=as_json):
        found = with_database(everyone)
    print_rows({"items": [one.to_json() for one in found]}, [_row(one) for one in found], as_json=as_json)


def revoke_key(
    tenant_id: TenantId,
    key_id: Annotated[UUID, typer.Argument(metavar="KEY", help="The key's id, as `planq keys list` shows it.")],
    as_json: AsJson = False,
) -> None:
    """Revoke a key for ever: every API process refuses it within a second."""
    from planq.shared.subjects.tenants.api_keys import ApiKeyStore

    with reported(as_json=as_json):
        revoked = with_database(lambda database: ApiKeyStore(database).revoke(tenant_id, key_id))
    print_result(revoked.to_json(), f"key {revoked.id} is revoked", as_json=as_json)


def _row(one: StoredKey) -> list[str]:
    used = "never used" if one.last_used_at is None else f"last used {one.last_used_at:%Y-%m-%d %H:%M}"
    expires = "" if one.expires_at is None else f"expires {one.expires_at:%Y-%m-%d %H:%M}"
    state = "revoked" if one.revoked_at is not None else expires
    return [str(one.id), f"{one.prefix}…", ",".join(sorted(one.scopes)), used, state, as_line(one.name)]
