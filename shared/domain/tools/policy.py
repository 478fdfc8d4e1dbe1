"""Which tools may be called: at once, after a person has agreed, or never; by names of tools, with `*` and `?`.

There may be a policy of the server, of agents and of requests. All of them count, also those of the jobs above: the
strictest permission that any of their patterns gives a tool is the one that holds, `deny` over `ask` over `auto`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, TypeAlias

from shared.domain.tools.names import to_registry
from shared.domain.values import strict_json
from shared.domain.values.describe import excerpt
from shared.domain.values.encoding import encode


class Permission(StrEnum):
    """Whether a tool may be called, from the mildest to the strictest."""

    AUTO = "auto"
    ASK = "ask"
    DENY = "deny"


ToolPolicy: TypeAlias = Mapping[str, str]
"""Permissions by patterns of tools' names."""

_STRICTNESS = tuple(Permission)
_MAX_PATTERN = 200


def permission_of(tool_name: str, policies: Iterable[ToolPolicy]) -> Permission:
    """Return the strictest permission that the policies give a tool; `auto` where none of their patterns fits."""
    found = Permission.AUTO
    for policy in policies:
        for pattern, permission in policy.items():
            if _STRICTNESS.index(Permission(permission)) > _STRICTNESS.index(found) and fits(pattern, tool_name):
                found = Permission(permission)
    return found


def fits(pattern: str, tool_name: str) -> bool:
    """Return whether a pattern means a tool, under any of its spellings (`web.fetch`, `web_fetch`)."""
    folded = to_registry(pattern)
    return any(_matches(folded, name) for name in {tool_name, to_registry(tool_name)})


def _matches(pattern: str, text: str) -> bool:
    """Match by going back to the last star alone: time grows with the lengths' product, whatever the pattern."""
    at, place, star, resumed = 0, 0, -1, 0
    while place < len(text):
        if at < len(pattern) and pattern[at] == "*":
            star, resumed, at = at, place, at + 1
        elif at < len(pattern) and pattern[at] in ("?", text[place]):
            at, place = at + 1, place + 1
        elif star >= 0:
            resumed += 1
            at, place = star + 1, resumed
        else:
            return False
    return all(char == "*" for char in pattern[at:])


def argument_digest(arguments: Mapping[str, Any]) -> str:
    """Return the SHA-256 of arguments, whatever the order of their keys: an approval holds for these alone."""
    return hashlib.sha256(encode(_in_order(arguments))).hexdigest()


def _in_order(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _in_order(value[key]) for key in sorted(value)}
    return [_in_order(item) for item in value] if isinstance(value, list | tuple) else value


def read_tool_policy(raw: Any) -> dict[str, str]:
    """Return a policy, from JSON text or a decoded object: `{"mail_*": "ask", "shell_*": "deny"}`.

    Raises `ValueError` that names every defect by its pattern.
    """
    found = raw
    if isinstance(raw, str):
        try:
            found = strict_json.loads(raw, is_unique=True) if raw.strip() else {}
        except (ValueError, RecursionError):
            raise ValueError(f"expected a JSON object, found {excerpt(raw)}") from None
    if not isinstance(found, Mapping):
        raise ValueError(f'expected a JSON object {{"tool": "auto|ask|deny"}}, found {excerpt(found)}')
    defects = [
        f"{excerpt(pattern)}: expected auto, ask or deny for a name of at most {_MAX_PATTERN} characters, "
        f"found {excerpt(permission)}"
        for pattern, permission in found.items()
        if permission not in _STRICTNESS or not 0 < len(pattern) <= _MAX_PATTERN
    ]
    if defects:
        raise ValueError("; ".join(defects))
    return dict(found)
