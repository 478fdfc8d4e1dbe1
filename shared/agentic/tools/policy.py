"""Which tools may be called: at once, after a person has agreed, or never; by names of tools, with `*` and `?`.

    {"mail_*": "ask:asker", "refund": "ask", "payroll_*": {"ask": ["ada", "bob"]}, "shell_*": "deny"}

There may be a policy of the server, of a tenant, of agents and of requests. All of them count, also those of the jobs
above: the strictest permission that any of their patterns gives a tool is the one that holds, `deny` over `ask` over
`auto`. Where several ask, the strictest approver holds: an operator over persons by their ids over the asker.
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
"""A permission; `ask:operator` and `ask:asker` name the approver, `{"ask": [ids]}` the persons who may approve."""

ToolPolicy: TypeAlias = Mapping[str, PolicyEntry]
"""Permissions by patterns of tools' names."""

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
"""The JSON Schema of an entry."""

_STRICTNESS = tuple(Permission)
_APPROVER_STRICTNESS = tuple(AskedOf)
_MAX_PATTERN = 200


@dataclass(frozen=True, slots=True)
class Rule:
    """What policies say of a tool; of one that asks, `approver` is who approves: the asker, `ids`, or an operator."""

    permission: Permission = Permission.AUTO
    approver: AskedOf = AskedOf.ASKER
    ids: frozenset[str] = frozenset()

    @classmethod
    def of(cls, entry: PolicyEntry, approver: AskedOf) -> Rule:
        """Return the rule that an entry is; `approver` is meant by `ask` alone."""
        if not isinstance(entry, str):
            return cls(Permission.ASK, AskedOf.IDS, frozenset(entry["ask"]))
        word, _, named = entry.partition(":")
        return cls(Permission(word), AskedOf(named) if named else approver)

    def and_(self, other: Rule) -> Rule:
        """Return the stricter of two rules; two lists of persons leave those of both, or an operator."""
        if self.permission is not other.permission:
            return max(self, other, key=lambda rule: _STRICTNESS.index(rule.permission))
        if self.approver is not other.approver:
            return max(self, other, key=lambda rule: _APPROVER_STRICTNESS.index(rule.approver))
        ids = self.ids & other.ids
        return Rule(self.permission, self.approver if ids or not self.ids else AskedOf.OPERATOR, ids)

    def is_met_by(self, asked_of: AskedOf) -> bool:
        """True where an approval that was asked of these still does: the policy may have become stricter since."""
        order = _APPROVER_STRICTNESS
        return self.approver is AskedOf.ASKER or order.index(asked_of) >= order.index(self.approver)

    def to_entry(self) -> PolicyEntry:
        """Return the entry that says this in the policy of an agent or a request."""
        if self.permission is not Permission.ASK or self.approver is AskedOf.ASKER:
            return str(self.permission)
        return {"ask": sorted(self.ids)} if self.approver is AskedOf.IDS else f"ask:{self.approver}"


def rule_of(tool_name: str, policies: Iterable[ToolPolicy], *, of_operators: Iterable[ToolPolicy] = ()) -> Rule:
    """Return what all policies say of a tool; `auto` where none of their patterns fits.

    In those `of_operators`, the server's and a tenant's, `ask` means an operator, in the others the asker.
    """
    found = Rule()
    for given, approver in ((of_operators, AskedOf.OPERATOR), (policies, AskedOf.ASKER)):
        for policy in given:
            for pattern, entry in policy.items():
                if found.permission is not Permission.DENY and fits(pattern, tool_name):
                    found = found.and_(Rule.of(entry, approver))
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


def read_tool_policy(raw: Any) -> dict[str, Any]:
    """Return a policy, from JSON text or a decoded object: `{"mail_*": "ask", "shell_*": "deny"}`.

    Raises `ValueError` that names every defect by its pattern.
    """
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
    """Return what a policy says of one pattern; raises `ValueError`."""
    if isinstance(raw, str) and raw in _WORDS:
        return raw
    ids = raw.get("ask") if isinstance(raw, Mapping) and len(raw) == 1 else None
    persons = ids if isinstance(ids, list) and len(ids) <= _MOST_APPROVERS else []
    if persons and all(isinstance(one, str) and 0 < len(one) <= _MAX_ID for one in persons):
        return {"ask": persons}
    raise ValueError(f'expected {", ".join(_WORDS)} or {{"ask": [ids]}}')
