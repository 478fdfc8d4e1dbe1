"""Names of tools: spellings of the same tool, and two foreign conventions (docs/decisions.md, D24).

The registry name is `service_method` (`web_fetch`); `service.method`, `service-method` and `service/method` mean the
same. `canonical`, `split_name`, `join` and `display` implement `service_path-method`. Reserved names are kept.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from functools import lru_cache

from planq.shared.agentic.tools.definition import RESERVED_NAME
from planq.shared.platform.errors import InvalidRequest

MAX_AGENT_NAME = 128
"""Maximum length of an agent's name."""

_NEAR = 0.7
"""Minimum similarity (difflib's ratio) for a suggestion."""

_MOST_COMPARED = 1_000

_SEPARATORS = str.maketrans(dict.fromkeys(".-/:", "_"))


class NameIndex:
    """Resolves spellings against a fixed set of registered names."""

    def __init__(self, registered: Iterable[str]) -> None:
        self._exact = frozenset(registered)
        self._folded: dict[str, list[str]] = {}
        for name in sorted(self._exact):
            if not is_reserved(name):
                self._folded.setdefault(_fold(name), []).append(name)

    def candidates(self, name: str) -> list[str]:
        """Return the registered names that `name` may mean, sorted; an exact match is the only one."""
        if name in self._exact:
            return [name]
        return [] if is_reserved(name) else list(self._folded.get(_fold(name), ()))


@lru_cache(maxsize=64)
def name_index(registered: frozenset[str]) -> NameIndex:
    """Return a cached index: every round of a job asks for the same tools."""
    return NameIndex(registered)


def resolve_name(name: str, registered: Iterable[str]) -> str | None:
    """Return the registered name that `name` means, or None; raises `InvalidRequest` if it is ambiguous."""
    found = name_index(frozenset(registered)).candidates(name)
    if len(found) > 1:
        raise InvalidRequest(f"tool name {name!r} is ambiguous; write one of {', '.join(found)}", candidates=found)
    return found[0] if found else None


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return `did you mean 'x'? ` for the nearest known name, or ""; case and separators do not count."""
    folded = {_fold(one).lower(): one for one in list(known)[:_MOST_COMPARED]}
    near = difflib.get_close_matches(_fold(name[:MAX_AGENT_NAME]).lower(), folded, n=1, cutoff=_NEAR)
    return f"did you mean {folded[near[0]]!r}? " if near else ""


def is_reserved(name: str) -> bool:
    return RESERVED_NAME.match(name) is not None


def to_registry(name: str) -> str:
    """Return the spelling `service_method`; reserved names as they are."""
    return name if is_reserved(name) else _fold(name)


def canonical(raw: str) -> str:
    """Return `service_path-method`; the method follows the last `.`, `:`, `-` or `/` (tn-001 to tn-015)."""
    raw = raw.strip()
    for separator in ".:-/":
        service, found, method = raw.rpartition(separator)
        if found:
            return join(service, method)
    return raw


def join(service: str, method: str) -> str:
    """Return `service_path-method`, or only the part that is not empty."""
    return "-".join(part for part in (service.replace("/", "_"), method) if part)


def split_name(name: str) -> tuple[str, str]:
    """Return service path and method (maybe ""); underscores of a service become `/` (case tn-020)."""
    service, _, method = name.rpartition("-") if "-" in name else (name, "", "")
    return service.replace("_", "/"), method


def display(raw: str) -> str:
    """Return `service/path/method` for people; a name without a method unchanged."""
    name = canonical(raw)
    service, method = split_name(name)
    return f"{service}/{method}" if service and method else method or name


def _fold(name: str) -> str:
    return name.translate(_SEPARATORS)
