"""`planq tenants`: who may have jobs here, and how each is configured. It speaks to the database itself."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planq.api.cli.connection import AsJson, located_settings
from planq.api.cli.console import as_line, out, print_json, print_result, print_rows
from planq.api.cli.outcome import reported
from planq.deploy.cli.database import with_database
from planq.shared.platform.errors import InvalidRequest, capped
from planq.shared.platform.values.decoding import decode

if TYPE_CHECKING:
    from planq.shared.subjects.tenants.config import TenantConfig
    from planq.shared.subjects.tenants.directory import StoredTenant

TenantId = Annotated[str, typer.Argument(metavar="TENANT", help="The tenant's id.")]

_PAGE = 100

_Name = Annotated[str | None, typer.Option(help="A name for people.")]
_File = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", help="JSON file with the whole configuration; `-` reads standard input."
    ),
]


def create_tenant(
    tenant_id: Annotated[str, typer.Argument(metavar="TENANT", help="Its id: a slug, as in `acme`, or a UUID.")],
    name: _Name = None,
    config: _File = None,
    as_json: AsJson = False,
) -> None:
    """Create a tenant. `planq keys create` makes keys that speak for it."""
    from planq.shared.subjects.tenants.config import checked_tenant_config, read_tenant_id
    from planq.shared.subjects.tenants.directory import TenantStore

    with reported(as_json=as_json):
        given = checked_tenant_config({} if config is None else _decoded(config))
        id_ = read_tenant_id(tenant_id)
        made = with_database(lambda database: TenantStore(database).create(id_, name or "", given))
    said = f"tenant {made.id} created; make a key of it: planq keys create {made.id}"
    print_result(made.to_json(), said, as_json=as_json)


def list_tenants(as_json: AsJson = False) -> None:
    """List all tenants."""
    from planq.shared.platform.database import Database
    from planq.shared.subjects.tenants.directory import TenantStore

    async def everyone(database: Database) -> list[StoredTenant]:
        found: list[StoredTenant] = []
        while page := await TenantStore(database).page(after=found[-1].id if found else "", limit=_PAGE):
            found += page
        return found

    with reported(as_json=as_json):
        found = with_database(everyone)
    rows = [[one.id, "disabled" if one.is_disabled else "enabled", as_line(one.name)] for one in found]
    print_rows({"items": [one.to_json() for one in found]}, rows, as_json=as_json)


def show_tenant(tenant_id: TenantId, as_json: AsJson = False) -> None:
    """Show a tenant: what its configuration says, and the limits of its jobs that follow."""
    from planq.shared.subjects.tenants.config import read_tenant_config
    from planq.shared.subjects.tenants.directory import TenantStore

    with reported(as_json=as_json):
        settings = located_settings()
        found = with_database(lambda database: TenantStore(database).get(tenant_id))
        limits = read_tenant_config(found.config).job_limits(settings.limits)
    document = {**found.to_json(), "limits": asdict(limits)}
    if as_json:
        print_json(document)
        return
    for field, value in document.items():
        shown = json.dumps(value, ensure_ascii=False, indent=2) if isinstance(value, Mapping) else str(value)
        out.print(f"{field}: {shown}")


def set_tenant(
    tenant_id: TenantId,
    fields: Annotated[
        list[str] | None,
        typer.Argument(metavar="FIELD=VALUE", help="Fields of the configuration: JSON, or a text as it is."),
    ] = None,
    name: _Name = None,
    config: _File = None,
    as_json: AsJson = False,
) -> None:
    """Change a tenant: single fields of its configuration, or all of it; every process knows it within a second.

    `FIELD=` takes a field back, so that its default counts. docs/tenants.md lists the fields.
    """
    from planq.shared.platform.database import Database
    from planq.shared.subjects.tenants.config import checked_tenant_config
    from planq.shared.subjects.tenants.directory import TenantStore

    async def change(database: Database) -> StoredTenant:
        store = TenantStore(database)
        seen = await store.get(tenant_id)
        given: TenantConfig | None = None
        if fields or config:
            given = checked_tenant_config(_changed(seen.config if config is None else _decoded(config), fields or ()))
        return await store.change(tenant_id, name=name, config=given, seen_at=seen.updated_at)

    with reported(as_json=as_json):
        changed = with_database(change)
    said = f"tenant {changed.id}: {json.dumps(changed.config, ensure_ascii=False)}"
    print_result(changed.to_json(), said, as_json=as_json)


def disable_tenant(tenant_id: TenantId, as_json: AsJson = False) -> None:
    """Refuse every request with a key of a tenant, within a second. Its jobs go on; its reminders wait."""
    _switch(tenant_id, is_disabled=True, as_json=as_json)


def enable_tenant(tenant_id: TenantId, as_json: AsJson = False) -> None:
    """Let the keys of a disabled tenant in again."""
    _switch(tenant_id, is_disabled=False, as_json=as_json)


def _switch(tenant_id: str, *, is_disabled: bool, as_json: bool) -> None:
    from planq.shared.subjects.tenants.directory import TenantStore

    with reported(as_json=as_json):
        changed = with_database(lambda database: TenantStore(database).change(tenant_id, is_disabled=is_disabled))
    said = f"tenant {changed.id} is {'disabled' if is_disabled else 'enabled'}"
    print_result(changed.to_json(), said, as_json=as_json)


def _decoded(path: Path) -> Any:
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text("utf-8")
        return decode(text, is_unique=True)
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"--config {path}: expected a file with a JSON object: {error}") from None


def _changed(config: Any, fields: Sequence[str]) -> Any:
    if not isinstance(config, Mapping):
        return config
    changed = dict(config)
    for field in fields:
        name, separator, text = field.partition("=")
        if not separator or not name:
            raise InvalidRequest(f"expected FIELD=VALUE, as in max_tool_steps=5, found {capped(field, 80)!r}")
        changed.pop(name, None)
        if text:
            changed[name] = _value(text)
    return changed


def _value(text: str) -> Any:
    try:
        return decode(text, is_unique=True)
    except (ValueError, RecursionError):
        return text
