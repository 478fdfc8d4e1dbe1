"""Tenants and their keys, for the scope `admin`, which is for all tenants."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from operator import attrgetter
from typing import Annotated, Any, Literal

from fastapi import Path, Query
from pydantic import Field
from starlette.responses import Response

from planq.api.channels.routes import ChannelList
from planq.api.deps import Use, strict_router
from planq.api.http.exchange import JsonResponse, error_responses
from planq.api.http.ids import MAX_PAGE, CursorQuery, Limit, cursor_of, id_of_cursor, no_cursor, page_of, uuid_of
from planq.api.schemas import Answer, Id, PageDocument, RequestBody, Time
from planq.shared.agentic.schema.schemas import MAX_DEPTH
from planq.shared.platform.errors import InvalidRequest
from planq.shared.platform.values.describe import is_deeper_than
from planq.shared.platform.values.merge_patch import merge_patch
from planq.shared.subjects.tenants.api_keys import StoredKey
from planq.shared.subjects.tenants.config import (
    TenantConfig,
    check_storable,
    checked_tenant_config,
    is_tenant_id,
    read_tenant_id,
)
from planq.shared.subjects.tenants.directory import StoredTenant, no_tenant
from planq.shared.subjects.tenants.keys import read_scopes

tenant_routes = strict_router("tenants")

_MAX_NAME_CHARS = 200
_MOST_DAYS = 36_500
_Name = Annotated[str, Field(max_length=_MAX_NAME_CHARS, pattern=r"^[^\x00-\x1f\x7f]*$", description="For people.")]
_Scopes = Annotated[list[Literal["jobs", "messages", "approve", "admin"]], Field(min_length=1, max_length=4)]

_TenantPath = Annotated[
    str,
    Path(
        json_schema_extra={"pattern": "^[a-z0-9][a-z0-9-]{0,62}$"}, description="The tenant's id: a slug, or a UUID."
    ),
]
_KeyPath = Annotated[str, Path(json_schema_extra={"format": "uuid"}, description="The key's id.")]
_TenantCursor = Annotated[
    str | None,
    Query(
        max_length=63,
        json_schema_extra={"pattern": "^[a-z0-9][a-z0-9-]*$"},
        description="`next_cursor` of the page before.",
    ),
]


class TenantRequest(RequestBody):
    """All that is said of a tenant."""

    name: _Name
    is_disabled: bool = Field(description="No key of it is let in; what it has begun goes on.")
    config: TenantConfig = Field(description="All of it: a field that is left out has its default.")


class TenantChange(RequestBody):
    """What is to change, as a JSON merge patch (RFC 7396): null gives a field its default, what is absent stays."""

    name: _Name | None = None
    is_disabled: bool | None = Field(default=None, description="No key of it is let in; what it has begun goes on.")
    config: dict[str, Any] | None = Field(
        default=None,
        description="Fields of the configuration; those of `limits`, `budget` and `retention` one by one.",
    )


class TenantDocument(Answer):
    """A tenant."""

    id: str
    name: str
    is_disabled: bool
    config: dict[str, Any] = Field(description="As it was given: what is left out has its default.")
    created_at: Time
    updated_at: Time


class UsageOfBound(Answer):
    """How much of a bound is used."""

    used: int
    limit: int


class TenantUsage(Answer):
    """What a tenant has open or keeps now, of what its configuration bounds; streams and waits a second ago."""

    streams: UsageOfBound
    waits: UsageOfBound
    open_questions: UsageOfBound
    reminders: UsageOfBound = Field(description="Of all its users, still to come.")
    endpoints: UsageOfBound
    stored_bytes: UsageOfBound = Field(description="Of large outputs and artifacts.")


class LimitDocument(Answer):
    """What bounds each job of a tenant, and who has said so."""

    name: str
    value: float
    source: Literal["tenant", "server"] = Field(description="Its configuration, or what the server has for all.")


class TenantLimitsDocument(Answer):
    """The limits of a tenant's jobs, as they count now."""

    items: list[LimitDocument]


class TenantPage(PageDocument[TenantDocument]):
    """Tenants by their ids; `next_cursor` is null on the last page."""


class KeyRequest(RequestBody):
    """A key that is to be made."""

    name: _Name = ""
    scopes: _Scopes = Field(["jobs", "messages"])
    expires_in_days: Annotated[
        float | None, Field(gt=0.0001, le=_MOST_DAYS, description="Null for a key that never expires.")
    ] = None


class KeyDocument(Answer):
    """A key, of which only the beginning is known."""

    id: Id
    tenant_id: str
    name: str
    prefix: str = Field(description="Its beginning.")
    scopes: list[str]
    expires_at: Time | None
    revoked_at: Time | None
    last_used_at: Time | None = Field(description="To the minute.")
    created_at: Time


class NewKeyDocument(KeyDocument):
    """A key that was made."""

    key: str = Field(description="The key itself, shown this once.")


class KeyPage(PageDocument[KeyDocument]):
    """Keys, the oldest first; `next_cursor` is null on the last page."""


@tenant_routes.get("/tenants", response_model=TenantPage)
async def list_tenants(services: Use, limit: Limit = MAX_PAGE, cursor: _TenantCursor = None) -> Response:
    """List all tenants, by their ids."""
    if cursor is not None and not is_tenant_id(cursor):
        raise no_cursor()
    found = await services.tenant_store.page(after=cursor or "", limit=limit + 1)
    return page_of(found, limit, StoredTenant.to_json, attrgetter("id"))


@tenant_routes.get("/tenants/{tenant_id}", response_model=TenantDocument, responses=error_responses(404))
async def get_tenant(tenant_id: _TenantPath, services: Use) -> Response:
    """Return a tenant."""
    return JsonResponse((await services.tenant_store.get(_known_form(tenant_id))).to_json())


@tenant_routes.get("/tenants/{tenant_id}/usage", response_model=TenantUsage, responses=error_responses(404))
async def get_usage(tenant_id: _TenantPath, services: Use) -> Response:
    """Return how much of its bounds a tenant uses now, over all processes."""
    id_ = _known_form(tenant_id)
    config = (await services.tenants.of(id_)).config
    used = await services.tenant_store.usage(id_)
    return JsonResponse(
        {name: {"used": number, "limit": getattr(config, f"max_{name}")} for name, number in used.items()}
    )


@tenant_routes.get("/tenants/{tenant_id}/limits", response_model=TenantLimitsDocument, responses=error_responses(404))
async def get_tenant_limits(tenant_id: _TenantPath, services: Use) -> Response:
    """Return the limits of a tenant's jobs with who has set each."""
    stored = await services.tenant_store.get(_known_form(tenant_id))
    config = checked_tenant_config(stored.config)
    limits = asdict(config.job_limits(services.settings.limits))
    items = [
        {"name": name, "value": value, "source": "tenant" if name in config.limits else "server"}
        for name, value in limits.items()
    ]
    return JsonResponse({"items": items})


@tenant_routes.get("/tenants/{tenant_id}/channels", response_model=ChannelList, responses=error_responses(404))
async def get_channels_of_tenant(tenant_id: _TenantPath, services: Use) -> Response:
    """List the channels of a tenant that are sent to, and what keeps planq from doing so."""
    stored = await services.tenant_store.get(_known_form(tenant_id))
    return JsonResponse({"items": [one.to_json() for one in await services.channels.list(stored.id)]})


@tenant_routes.put(
    "/tenants/{tenant_id}",
    response_model=TenantDocument,
    responses={
        201: {"description": "The tenant is new.", "model": TenantDocument},
        **error_responses(400, 409, 413, 415),
    },
)
async def replace_tenant(tenant_id: _TenantPath, body: TenantRequest, services: Use) -> Response:
    """Create a tenant, or replace all that is said of one; every process knows it within a second.

    `PATCH` changes single fields. `config` is described in docs/tenants.md. The tenant `default` cannot be disabled.
    """
    check_storable(body.config)
    stored, is_new = await services.tenant_store.put(
        read_tenant_id(tenant_id), body.name, body.config, is_disabled=body.is_disabled
    )
    return JsonResponse(stored.to_json(), status_code=201 if is_new else 200)


@tenant_routes.patch(
    "/tenants/{tenant_id}", response_model=TenantDocument, responses=error_responses(400, 404, 409, 413, 415)
)
async def change_tenant(tenant_id: _TenantPath, body: TenantChange, services: Use) -> Response:
    """Change what is given of a tenant, and leave the rest; every process knows it within a second.

    409 where somebody else has changed the tenant at the same moment: send it again.
    """
    if is_deeper_than(body.config, MAX_DEPTH):
        raise InvalidRequest(f"config: expected at most {MAX_DEPTH} levels, found more")
    seen = await services.tenant_store.get(_known_form(tenant_id))
    present = {"name": seen.name, "is_disabled": seen.is_disabled, "config": seen.config}
    defaults = {"name": "", "is_disabled": False, "config": {}}
    changed = {**defaults, **merge_patch(present, body.model_dump(include=body.model_fields_set))}
    config = checked_tenant_config(changed.pop("config"))
    stored = await services.tenant_store.change(seen.id, **changed, config=config, seen_at=seen.updated_at)
    return JsonResponse(stored.to_json())


@tenant_routes.get("/tenants/{tenant_id}/keys", response_model=KeyPage, responses=error_responses(404))
async def list_keys(
    tenant_id: _TenantPath, services: Use, limit: Limit = MAX_PAGE, cursor: CursorQuery = None
) -> Response:
    """List the keys of a tenant, the oldest first, revoked and expired ones, too."""
    after = id_of_cursor(cursor)
    tenant = await services.tenant_store.get(_known_form(tenant_id))
    found = await services.api_keys.page(tenant.id, after=after, limit=limit + 1)
    return page_of(found, limit, StoredKey.to_json, lambda key: cursor_of(key.id.bytes))


@tenant_routes.post(
    "/tenants/{tenant_id}/keys",
    status_code=201,
    response_model=NewKeyDocument,
    responses=error_responses(400, 404, 413, 415),
)
async def create_key(tenant_id: _TenantPath, body: KeyRequest, services: Use) -> Response:
    """Make a key that speaks for a tenant, and show it this once: only its digest is stored."""
    days = body.expires_in_days
    lifetime = None if days is None else timedelta(days=days)
    stored, text = await services.api_keys.create(
        _known_form(tenant_id), body.name, read_scopes(body.scopes), lifetime
    )
    return JsonResponse({**stored.to_json(), "key": text}, status_code=201, headers={"Cache-Control": "no-store"})


@tenant_routes.delete(
    "/tenants/{tenant_id}/keys/{key_id}", status_code=204, response_class=Response, responses=error_responses(404)
)
async def delete_key(tenant_id: _TenantPath, key_id: _KeyPath, services: Use) -> Response:
    """Revoke a key for ever: every API process refuses it within a second. It stays in the list."""
    id_ = uuid_of("key", key_id)
    await services.api_keys.revoke(_known_form(tenant_id), id_)
    return Response(status_code=204)


def _known_form(tenant_id: str) -> str:
    """Return a tenant's id as it would be stored; what can be none names no tenant: `NotFound`."""
    try:
        return read_tenant_id(tenant_id)
    except InvalidRequest:
        raise no_tenant(tenant_id) from None
