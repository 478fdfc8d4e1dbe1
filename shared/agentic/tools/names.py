"""Names of tools: which spellings mean the same tool, and the two foreign conventions. docs/decisions.md, D24.

planq's registry name is `service_method` (`web_fetch`); `service.method`, `service-method` and `service/method` are
accepted for it. `canonical`, `split_name`, `join` and `display` are another convention
(`service_path-method`), kept for what speaks it. Reserved names (`cp__…`, `__planning__`) are never converted.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from functools import lru_cache

from planq.shared.agentic.tools.definition import RESERVED_NAME
from planq.shared.platform.errors import InvalidRequest

MAX_AGENT_NAME = 128
"""Characters of the name of an agent; a longer name means no agent."""

_NEAR = 0.7
"""How much of two names must be the same for one to be a misspelling of the other (difflib's ratio)."""

_MOST_COMPARED = 1_000

_SEPARATORS = str.maketrans(dict.fromkeys(".-/:", "_"))


class NameIndex:
    """Resolves spellings against a fixed set of registered names; making one is linear in their number."""

    def __init__(self, registered: Iterable[str]) -> None:
        self._exact = frozenset(registered)
        self._folded: dict[str, list[str]] = {}
        for name in sorted(self._exact):
            if not is_reserved(name):
                self._folded.setdefault(_fold(name), []).append(name)

    def candidates(self, name: str) -> list[str]:
        """Return the registered names that `name` may mean, sorted: none, exactly one, or several when ambiguous.

        An exact match is the only candidate, whatever else is spelt alike.
        """
        if name in self._exact:
            return [name]
        return [] if is_reserved(name) else list(self._folded.get(_fold(name), ()))


@lru_cache(maxsize=64)
def name_index(registered: frozenset[str]) -> NameIndex:
    """Return an index that is made once for the same names: every round of a job asks about the same tools."""
    return NameIndex(registered)


def resolve_name(name: str, registered: Iterable[str]) -> str | None:
    """Return the registered name that `name` means, or None when there is none.

    Raises `InvalidRequest` when several are spelt alike and none of them is exactly `name`.
    """
    found = name_index(frozenset(registered)).candidates(name)
    if len(found) > 1:
        raise InvalidRequest(f"tool name {name!r} is ambiguous; write one of {', '.join(found)}", candidates=found)
    return found[0] if found else None


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return `did you mean 'x'? ` for the known name that is nearest to an unknown one, "" where none is near.

    Case and separators do not count. What is compared is bounded, for both may come from anybody.
    """
    folded = {_fold(one).lower(): one for one in list(known)[:_MOST_COMPARED]}
    near = difflib.get_close_matches(_fold(name[:MAX_AGENT_NAME]).lower(), folded, n=1, cutoff=_NEAR)
    return f"did you mean {folded[near[0]]!r}? " if near else ""


def is_reserved(name: str) -> bool:
    return RESERVED_NAME.match(name) is not None


def to_registry(name: str) -> str:
    """Return the spelling `service_method` of any accepted spelling; reserved names as they are."""
    return name if is_reserved(name) else _fold(name)


def canonical(raw: str) -> str:
    """Return a name in the form `service_path-method`.

    The method follows the last `.`, else the last `:`, else the last `-`, else the last `/`; in what precedes it `/`
    becomes `_`. A name without any of them is returned as it is (cases tn-001…tn-015).
    """
    raw = raw.strip()
    for separator in ".:-/":
        service, found, method = raw.rpartition(separator)
        if found:
            return join(service, method)
    return raw


def join(service: str, method: str) -> str:
    """Return `service_path-method`; just the method when there is no service, and the other way round."""
    return "-".join(part for part in (service.replace("/", "_"), method) if part)


def split_name(name: str) -> tuple[str, str]:
    """Return service path and method of such a name; a name without `-` is a service, and its method `""`.

    Lossy: an underscore in a service name comes back as `/` (case tn-020).
    """
    service, _, method = name.rpartition("-") if "-" in name else (name, "", "")
    return service.replace("_", "/"), method


def display(raw: str) -> str:
    """Return `service/path/method` for people; a name without a method as it is."""
    name = canonical(raw)
    service, method = split_name(name)
    return f"{service}/{method}" if service and method else method or name


def _fold(name: str) -> str:
    return name.translate(_SEPARATORS)
