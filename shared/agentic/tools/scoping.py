"""User-scoped parameters: tenant, user and conversation of the job, which the engine fills in.

They are in no schema that models or callers see; values that these send are dropped.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import quote

from planq.shared.agentic.tools.contract import ToolContext

PARAMETER_OVERRIDE = "parameter_override"
"""Event kind for dropped arguments; it names them without their values."""

SUSPICIOUS_ARGUMENTS = "suspicious_arguments"
"""Event kind for arguments that look like code."""

_VISIBLE = "".join(map(chr, range(0x21, 0x7F))).replace("%", "")


def unscoped(arguments: Mapping[str, Any], user_scoped: Collection[str]) -> Mapping[str, Any]:
    """Return arguments without user-scoped ones; the same object if there are none."""
    if user_scoped and any(name in arguments for name in user_scoped):
        return {name: value for name, value in arguments.items() if name not in user_scoped}
    return arguments


def unscoped_schema(schema: Mapping[str, Any], user_scoped: Collection[str]) -> dict[str, Any]:
    """Return an input schema without these properties."""
    properties, required = schema.get("properties"), schema.get("required")
    changed = dict(schema)
    if isinstance(properties, Mapping):
        changed["properties"] = {name: one for name, one in properties.items() if name not in user_scoped}
    if isinstance(required, list):
        changed["required"] = [name for name in required if name not in user_scoped]
    return changed


def scoped_arguments(user_scoped: Collection[str], scope: ToolContext) -> dict[str, str]:
    """Return the parameters' values: tenant and conversation by name, the user for all others."""
    known = {"tenant_id": scope.tenant_id, "conversation_id": scope.conversation_id}
    return {name: known.get(name, scope.user_id) for name in user_scoped}


def scope_headers(scope: ToolContext) -> dict[str, str]:
    """Return the HTTP headers of the caller that are not empty, percent-encoded to visible ASCII."""
    known = {
        "X-Tenant-ID": scope.tenant_id,
        "X-User-External-ID": scope.user_id,
        "X-Conversation-ID": scope.conversation_id,
    }
    return {name: quote(value, safe=_VISIBLE, errors="replace") for name, value in known.items() if value}
