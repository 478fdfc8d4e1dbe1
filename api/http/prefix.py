"""Below which path of a web server the API stands, so that what it tells of its own paths leads there."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from contextvars import ContextVar

from starlette.types import Scope

from planq.shared.setting_kinds import is_prefix

_present: ContextVar[str] = ContextVar("prefix", default="")


def below_prefix(path: str) -> str:
    """Return a path of the API as the client of the present request reaches it."""
    return _present.get() + path


class Prefix:
    """Finds for each request the path below which its client sees the API.

    A proxy that is trusted (`proxies`, addresses or networks) may name it in `X-Forwarded-Prefix`; else it is `own`.
    """

    def __init__(self, own: str, proxies: Sequence[str]) -> None:
        """Raises ValueError for what is neither an address nor a network."""
        self._own = own
        self._proxies = [ipaddress.ip_network(proxy) for proxy in proxies]

    def enter(self, scope: Scope) -> tuple[Scope, str]:
        """Return the request as the API's routes know it, and its prefix, which `below_prefix` uses from now on."""
        prefix = self._named_in(scope) if self._proxies else self._own
        _present.set(prefix)
        path = scope["path"]
        if prefix and path.startswith(f"{prefix}/"):
            # Some proxies take the prefix off, others do not.
            raw = scope.get("raw_path") or path.encode()
            scope = {**scope, "path": path[len(prefix) :], "raw_path": raw[len(prefix) :]}
        return scope, prefix

    def _named_in(self, scope: Scope) -> str:
        given = [value for name, value in scope["headers"] if name == b"x-forwarded-prefix"]
        if len(given) != 1 or not self._is_trusted(scope):
            return self._own
        named = given[0].decode("latin-1").rstrip("/")
        return named if is_prefix(named) else self._own

    def _is_trusted(self, scope: Scope) -> bool:
        client = scope.get("client")
        try:
            address = ipaddress.ip_address(client[0]) if client else None
        except ValueError:
            return False
        return address is not None and any(address in network for network in self._proxies)
