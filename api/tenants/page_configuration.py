"""A tenant's configuration as a form: what it has set stands in its fields, and an empty field means the default."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from planq.api.page.fields import FormField, content_of, fields_in, json_in
from planq.shared.subjects.tenants.config import TenantConfig

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
