"""Pages of tenants, for the scope `admin`: usage, keys, channels, and the configuration as a form.

A field of the form shows what the tenant has set; an empty field means the default.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, NamedTuple

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from planq.api.access.scopes import Caller, Who
from planq.api.deps import Services, Use
from planq.api.page.fields import FormField, content_of, fields_in, json_in
from planq.api.page.rendering import page
from planq.api.page.route import body_of, fields_of, page_router, seen, values_of
from planq.api.page.words import bars_of
from planq.api.tenants.routes import (
    KeyRequest,
    TenantChange,
    TenantRequest,
    change_tenant,
    create_key,
    delete_key,
    get_channels_of_tenant,
    get_tenant,
    get_tenant_limits,
    get_usage,
    list_keys,
    list_tenants,
    replace_tenant,
)
from planq.shared.kernel.ids import TENANT
from planq.shared.platform.computing import off_loop
from planq.shared.platform.errors import Conflict, InvalidRequest, NotFound
from planq.shared.subjects.tenants.config import TenantConfig
from planq.shared.subjects.tenants.keys import KeyScope

_GROUPS = {
    "Models": ("model", "planner_model", "fallback_models", "models", "on_incomplete"),
    "Budget, limits and retention": ("budget", "limits", "retention", "max_tool_steps", "plan_timeout_seconds"),
    "How much at once": tuple(
        name
        for name in TenantConfig.model_fields
        if name.endswith("rate_limit") or (name.startswith("max_") and name != "max_tool_steps")
    ),
    "What its jobs are told and may use": (
        *("prompt", "tools", "mcp_servers", "knowledge_prefixes", "tool_policy", "insights"),
        *("planning_enabled", "strategy"),
    ),
}
_REST = "Conversations"
_BOUNDS = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most"}


class FieldGroup(NamedTuple):
    """Fields of one subject, and how many of them the tenant has set."""

    name: str
    fields: list[FormField]
    set_here: int


def config_groups(given: Mapping[str, Any]) -> list[FieldGroup]:
    """Return the fields of a form for a configuration, by subject, filled with what was `given`."""
    schema = _schema()
    shown = {name: _text(schema["properties"][name], value) for name, value in given.items()}
    fields = {one.label: one for one in fields_in(schema, shown)}
    named = {name for names in _GROUPS.values() for name in names}
    groups = {**_GROUPS, _REST: tuple(name for name in fields if name not in named)}
    return [
        FieldGroup(group, [fields[name] for name in names], sum(name in given for name in names))
        for group, names in groups.items()
    ]


def config_change(given: Mapping[str, Any], fields: Mapping[str, str]) -> dict[str, Any]:
    """Return the merge patch that makes of a configuration what stands in a form; raises `InvalidRequest`."""
    schema = _schema()
    sent = {name: text.replace("\r\n", "\n") for name, text in fields.items()}  # browsers send lines so
    wanted = {name: _value(schema["properties"][name], value) for name, value in content_of(schema, sent).items()}
    return _difference(given, wanted)


def _difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    gone: dict[str, Any] = {name: None for name in before if name not in after}
    changed = {
        name: _difference(before[name], value) if _are_objects(before.get(name), value) else value
        for name, value in after.items()
        if name not in before or before[name] != value
    }
    return {**gone, **changed}


def _are_objects(one: Any, other: Any) -> bool:
    return isinstance(one, dict) and isinstance(other, dict)


def _schema() -> dict[str, Any]:
    properties = TenantConfig.model_json_schema()["properties"]
    return {"type": "object", "properties": {name: _plain(one) for name, one in properties.items()}}


def _plain(described: Mapping[str, Any]) -> dict[str, Any]:
    """Return what describes one field without null, which an empty field stands for; its default goes to the hint."""
    kinds = [one for one in described.get("anyOf", [described]) if one.get("type") != "null"]
    kind = kinds[0] if len(kinds) == 1 else {"type": "string", "x-mixed": True}
    bounds = [f"{word} {kind[name]:,}" for name, word in _BOUNDS.items() if name in kind]
    default = described.get("default")
    sentences = [str(described.get("description", ""))]
    if bounds:
        sentences.append(f"{', '.join(bounds).capitalize()}.")
    if default not in (None, "", []) and not isinstance(default, dict):
        sentences.append(f"Default: {json.dumps(default)}.")
    own = {name: value for name, value in kind.items() if name not in ("title", "default", "description")}
    if own.get("type") == "boolean":
        own = {"enum": [True, False]}
    return {**own, "description": " ".join(sentences)}


def _text(described: Mapping[str, Any], value: Any) -> Any:
    return json.dumps(value) if "x-mixed" in described and not isinstance(value, str) else value


def _value(described: Mapping[str, Any], value: Any) -> Any:
    if "x-mixed" not in described or not value.lstrip().startswith("["):
        return value
    return json_in(value, "a list of names")


tenant_page_routes = page_router()

_PAGE = 50
_SCOPE = "scope."
_MEANINGS = {
    KeyScope.JOBS: "its own work: jobs, batches, agents, webhooks",
    KeyScope.MESSAGES: "a chat client",
    KeyScope.APPROVE: "answers questions and approvals",
    KeyScope.ADMIN: "an operator of the server, for all tenants",
}
_SOURCES = {"tenant": "set here", "server": "as for all"}
_Cursor = Annotated[str | None, Query()]


@tenant_page_routes.get("/ui/tenants")
async def tenants_page(request: Request, services: Use, cursor: _Cursor = None) -> Response:
    listed = values_of(await list_tenants(services, limit=_PAGE, cursor=cursor))
    return page(request, "tenants.html", listed=listed)


@tenant_page_routes.post("/ui/tenants")
async def post_tenant(request: Request, services: Use) -> Response:
    """Create a tenant, and lead to it; one that is there is not replaced."""
    fields = fields_of(request)
    tenant_id = fields.get("id", "").strip()
    try:
        await get_tenant(tenant_id, services)
    except NotFound:
        body = await body_of(TenantRequest, {"name": fields.get("name", ""), "is_disabled": False, "config": {}})
        made = values_of(await replace_tenant(tenant_id, body, services))
        return seen(f"/tenants/{made['id']}")
    raise Conflict(f"the tenant {tenant_id!r} already exists; change it, or choose another id")


@tenant_page_routes.get("/ui/tenants/{tenant_id}")
async def tenant_page(request: Request, tenant_id: str, services: Use, who: Who, cursor: _Cursor = None) -> Response:
    return await _tenant_page(request, services, who, tenant_id, cursor=cursor)


async def _tenant_page(
    request: Request,
    services: Services,
    who: Caller,
    tenant_id: str,
    *,
    cursor: str | None = None,
    made: Mapping[str, Any] | None = None,
) -> Response:
    tenant = values_of(await get_tenant(tenant_id, services))
    keys = values_of(await list_keys(tenant_id, services, limit=_PAGE, cursor=cursor))
    limits = values_of(await get_tenant_limits(tenant_id, services))["items"]
    return page(
        request,
        "tenant.html",
        tenant=tenant,
        uses=_uses(values_of(await get_usage(tenant_id, services)), tenant["config"]),
        limits=[{**one, "source": _SOURCES[one["source"]]} for one in limits],
        channels=values_of(await get_channels_of_tenant(tenant_id, services))["items"],
        keys=[{**one, "state": _state(one), "is_own": one["id"] == str(who.key_id)} for one in keys["items"]],
        more_keys=keys["next_cursor"],
        scopes=_MEANINGS,
        groups=config_groups(tenant["config"]),
        is_everybodys=tenant["id"] == TENANT,
        made=made,
    )


def _uses(usage: Mapping[str, Any], config: Mapping[str, Any]) -> list[dict[str, Any]]:
    shown = []
    for name, one in usage.items():
        share = min(one["used"] / one["limit"], 1.0)
        kind = "bad" if share >= 0.95 else "ask" if share >= 0.8 else "ok"
        shown.append(
            {
                "name": name.replace("_", " "),
                **one,
                "bars": bars_of([(kind, share)], 1),
                "source": "set here" if f"max_{name}" in config else "default",
            }
        )
    return shown


def _state(key: Mapping[str, Any]) -> tuple[str, str]:
    if key["revoked_at"] is not None:
        return ("idle", "Revoked")
    ends = key["expires_at"]
    if ends is not None and datetime.fromisoformat(ends) <= datetime.now(UTC):
        return ("idle", "Expired")
    return ("ok", "Good")


@tenant_page_routes.post("/ui/tenants/{tenant_id}/keys")
async def post_new_key(request: Request, tenant_id: str, services: Use, who: Who) -> Response:
    """Make a key, and show it: this once, so that nobody is led on."""
    fields = fields_of(request)
    scopes = [name.removeprefix(_SCOPE) for name in fields if name.startswith(_SCOPE)]
    try:
        days = float(fields["days"]) if fields.get("days") else None
    except ValueError:
        raise InvalidRequest("days: expected a number, found something else") from None
    sent = {"name": fields.get("name", ""), "scopes": scopes, "expires_in_days": days}
    made = values_of(await create_key(tenant_id, await body_of(KeyRequest, sent), services))
    return await _tenant_page(request, services, who, tenant_id, made=made)


@tenant_page_routes.post("/ui/tenants/{tenant_id}/keys/{key_id}/revoke")
async def post_revocation(tenant_id: str, key_id: str, services: Use) -> Response:
    await delete_key(tenant_id, key_id, services)
    return seen(f"/tenants/{tenant_id}#keys")


@tenant_page_routes.post("/ui/tenants/{tenant_id}/switch")
async def post_switch(request: Request, tenant_id: str, services: Use) -> Response:
    """Let a tenant's keys in again, or none of them any more: then somebody has to type its id."""
    fields = fields_of(request)
    is_disabled = "on" not in fields
    if is_disabled and fields.get("confirm", "").strip() != tenant_id:
        raise InvalidRequest(f"expected the id {tenant_id} to be typed, found something else: nothing was changed")
    await change_tenant(tenant_id, await body_of(TenantChange, {"is_disabled": is_disabled}), services)
    return seen(f"/tenants/{tenant_id}")


@tenant_page_routes.post("/ui/tenants/{tenant_id}/config")
async def post_config(request: Request, tenant_id: str, services: Use) -> Response:
    """Store the name and configuration of a form, unless somebody has changed the tenant since it was shown."""
    fields = fields_of(request)
    present = values_of(await get_tenant(tenant_id, services))
    if fields.get("seen") != present["updated_at"]:
        raise Conflict(f"the tenant {tenant_id!r} was changed by somebody else; read it again")
    sent = {"name": fields.get("name", ""), "config": await off_loop(config_change, present["config"], fields)}
    await change_tenant(tenant_id, await body_of(TenantChange, sent), services)
    return seen(f"/tenants/{tenant_id}")
