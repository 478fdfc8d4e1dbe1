"""User-scoped parameters: whom a tool acts for, which the engine says and no model.

A tool names them. They stand in no schema that a model or a caller sees, what is given for them all the same is
dropped, and the tool gets the tenant, the user and the conversation of the job that calls it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol
from urllib.parse import quote

PARAMETER_OVERRIDE = "parameter_override"
"""The kind of the event that tells of arguments that were dropped; it names them, not their values."""

SUSPICIOUS_ARGUMENTS = "suspicious_arguments"
"""The kind of the event that tells of arguments that look like code."""

_VISIBLE = "".join(map(chr, range(0x21, 0x7F))).replace("%", "")


class CallScope(Protocol):
    """Whom a call is made for; `ToolContext` is one. Empty where there is no user, or no conversation."""

    @property
    def tenant_id(self) -> str: ...

    @property
    def user_id(self) -> str: ...

    @property
    def conversation_id(self) -> str: ...


def unscoped(arguments: Mapping[str, Any], user_scoped: Collection[str]) -> Mapping[str, Any]:
    """Return arguments without those that are not the caller's to choose; the same object where there are none."""
    if user_scoped and any(name in arguments for name in user_scoped):
        return {name: value for name, value in arguments.items() if name not in user_scoped}
    return arguments


def unscoped_schema(schema: Mapping[str, Any], user_scoped: Collection[str]) -> dict[str, Any]:
    """Return an input schema that neither names nor requires these properties."""
    properties, required = schema.get("properties"), schema.get("required")
    changed = dict(schema)
    if isinstance(properties, Mapping):
        changed["properties"] = {name: one for name, one in properties.items() if name not in user_scoped}
    if isinstance(required, list):
        changed["required"] = [name for name in required if name not in user_scoped]
    return changed


def scoped_arguments(user_scoped: Collection[str], scope: CallScope) -> dict[str, str]:
    """Return their values: of `tenant_id` and `conversation_id` what they say, of all others the user."""
    known = {"tenant_id": scope.tenant_id, "conversation_id": scope.conversation_id}
    return {name: known.get(name, scope.user_id) for name in user_scoped}


def scope_headers(scope: CallScope) -> dict[str, str]:
    """Return the HTTP headers that say whom a call is made for, without those that are empty.

    Everything but visible ASCII characters is percent-encoded, and so is the percent sign.
    """
    known = {
        "X-Tenant-ID": scope.tenant_id,
        "X-User-External-ID": scope.user_id,
        "X-Conversation-ID": scope.conversation_id,
    }
    return {name: quote(value, safe=_VISIBLE, errors="replace") for name, value in known.items() if value}
