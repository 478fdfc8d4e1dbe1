"""Which tools may be called: at once, after a person's approval, or never; by name patterns with `*` and `?`.

    {"mail_*": "ask:asker", "refund": "ask", "payroll_*": {"ask": ["ada", "bob"]}, "shell_*": "deny"}

Policies of the server, the tenant, agents, requests and parent jobs all apply: the strictest permission wins, `deny`
over `ask` over `auto`, and the strictest approver: an operator over persons by id over the asker.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

from planq.shared.agentic.tools.names import to_registry
from planq.shared.kernel.states import AskedOf
from planq.shared.platform.values.decoding import decode
from planq.shared.platform.values.describe import excerpt
from planq.shared.platform.values.encoding import encode


class Permission(StrEnum):
    """Whether a tool may be called, from the mildest to the strictest."""

    AUTO = "auto"
    ASK = "ask"
    DENY = "deny"


PolicyEntry: TypeAlias = str | Mapping[str, Sequence[str]]
"""A permission; `ask:operator` and `ask:asker` name the approver, `{"ask": [ids]}` the persons."""

ToolPolicy: TypeAlias = Mapping[str, PolicyEntry]
"""Permissions by patterns of tool names."""

_WORDS = ("auto", "ask", "ask:asker", "ask:operator", "deny")
_MOST_APPROVERS = 100
_MAX_ID = 200

POLICY_ENTRY_SCHEMA: Mapping[str, Any] = {
    "anyOf": [
        {"enum": list(_WORDS)},
        {
            "type": "object",
            "properties": {"ask": {"type": "array", "items": {"type": "string"}}},
            "required": ["ask"],
        },
    ]
}

_STRICTNESS = tuple(Permission)
_APPROVER_STRICTNESS = tuple(AskedOf)
_MAX_PATTERN = 200


@dataclass(frozen=True, slots=True)
class Rule:
    """The rule for a tool; with `ask`, `approver` is the asker, the `ids`, or an operator."""

    permission: Permission = Permission.AUTO
    approver: AskedOf = AskedOf.ASKER
    ids: frozenset[str] = frozenset()

    @classmethod
    def of(cls, entry: PolicyEntry, approver: AskedOf) -> Rule:
        """Return the rule of an entry; `approver` is that of a plain `ask`."""
        if not isinstance(entry, str):
            return cls(Permission.ASK, AskedOf.IDS, frozenset(entry["ask"]))
        word, _, named = entry.partition(":")
        return cls(Permission(word), AskedOf(named) if named else approver)

    def and_(self, other: Rule) -> Rule:
        """Return the stricter rule; of two lists of persons the common ones, or an operator."""
        if self.permission is not other.permission:
            return max(self, other, key=lambda rule: _STRICTNESS.index(rule.permission))
        if self.approver is not other.approver:
            return max(self, other, key=lambda rule: _APPROVER_STRICTNESS.index(rule.approver))
        ids = self.ids & other.ids
        return Rule(self.permission, self.approver if ids or not self.ids else AskedOf.OPERATOR, ids)

    def is_met_by(self, asked_of: AskedOf) -> bool:
        """True if an approval by these still suffices: the policy may have become stricter."""
        order = _APPROVER_STRICTNESS
        return self.approver is AskedOf.ASKER or order.index(asked_of) >= order.index(self.approver)

    def to_entry(self) -> PolicyEntry:
        """Return the entry for the policy of an agent or a request."""
        if self.permission is not Permission.ASK or self.approver is AskedOf.ASKER:
            return str(self.permission)
        return {"ask": sorted(self.ids)} if self.approver is AskedOf.IDS else f"ask:{self.approver}"


def rule_of(tool_name: str, policies: Iterable[ToolPolicy], *, of_operators: Iterable[ToolPolicy] = ()) -> Rule:
    """Return the rule of all policies for a tool, `auto` by default; `ask` in `of_operators` means an operator."""
    found = Rule()
    for given, approver in ((of_operators, AskedOf.OPERATOR), (policies, AskedOf.ASKER)):
        for policy in given:
            for pattern, entry in policy.items():
                if found.permission is not Permission.DENY and fits(pattern, tool_name):
                    found = found.and_(Rule.of(entry, approver))
    return found


def fits(pattern: str, tool_name: str) -> bool:
    """Return whether a pattern matches a tool in any spelling (`web.fetch`, `web_fetch`)."""
    folded = to_registry(pattern)
    return any(_matches(folded, name) for name in {tool_name, to_registry(tool_name)})


def _matches(pattern: str, text: str) -> bool:
    """Backtrack to the last star only, so time is bounded by the product of the lengths."""
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
    """Return the SHA-256 of arguments in sorted order: an approval is for these only."""
    return hashlib.sha256(encode(_in_order(arguments))).hexdigest()


def _in_order(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _in_order(value[key]) for key in sorted(value)}
    return [_in_order(item) for item in value] if isinstance(value, list | tuple) else value


def read_tool_policy(raw: Any) -> dict[str, Any]:
    """Return a policy from JSON text or an object; raises `ValueError` naming every defect by pattern."""
    found = raw
    if isinstance(raw, str):
        try:
            found = decode(raw, is_unique=True) if raw.strip() else {}
        except (ValueError, RecursionError):
            raise ValueError(f"expected a JSON object, found {excerpt(raw)}") from None
    if not isinstance(found, Mapping):
        raise ValueError(f'expected a JSON object {{"tool": "auto|ask|deny"}}, found {excerpt(found)}')
    defects = []
    for pattern, entry in found.items():
        try:
            read_policy_entry(entry)
        except ValueError as error:
            defects.append(f"{excerpt(pattern)}: {error}, found {excerpt(entry)}")
        if not 0 < len(pattern) <= _MAX_PATTERN:
            defects.append(f"{excerpt(pattern)}: expected a name of at most {_MAX_PATTERN} characters")
    if defects:
        raise ValueError("; ".join(defects))
    return dict(found)


def read_policy_entry(raw: Any) -> PolicyEntry:
    """Return the entry of one pattern; raises `ValueError`."""
    if isinstance(raw, str) and raw in _WORDS:
        return raw
    ids = raw.get("ask") if isinstance(raw, Mapping) and len(raw) == 1 else None
    persons = ids if isinstance(ids, list) and len(ids) <= _MOST_APPROVERS else []
    if persons and all(isinstance(one, str) and 0 < len(one) <= _MAX_ID for one in persons):
        return {"ask": persons}
    raise ValueError(f'expected {", ".join(_WORDS)} or {{"ask": [ids]}}')
