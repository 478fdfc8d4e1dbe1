"""How a client reaches the API through a proxy: below which path, and whether over TLS."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from contextvars import ContextVar

from starlette.types import Scope

from planq.shared.settings.kinds import is_prefix

_PROTO = re.compile(r'(?:^|[;,\s])proto\s*=\s*"?(\w+)', re.IGNORECASE)

_present: ContextVar[str] = ContextVar("prefix", default="")


def below_prefix(path: str) -> str:
    """Return a path of the API as the client of the present request reaches it."""
    return _present.get() + path


class Prefix:
    """Finds for each request the path below which its client sees the API, and whether it came over TLS.

    A proxy that is trusted (`proxies`, addresses or networks) may name the path in `X-Forwarded-Prefix`; otherwise it
    is `own`. Its `X-Forwarded-Proto`, or else `Forwarded` (RFC 7239), says how the client reached it.
    """

    def __init__(self, own: str, proxies: Sequence[str]) -> None:
        """Raises ValueError for what is neither an address nor a network."""
        self._own = own
        self._proxies = [ipaddress.ip_network(proxy) for proxy in proxies]

    def enter(self, scope: Scope) -> tuple[Scope, str]:
        """Return the request as the API's routes know it, and its prefix, which `below_prefix` uses from now on."""
        is_trusted = self._is_trusted(scope)
        prefix = self._named_in(scope) if is_trusted else self._own
        if is_trusted and _came_over_tls(scope):
            scope = {**scope, "scheme": "https"}
        _present.set(prefix)
        path = scope["path"]
        if prefix and path.startswith(f"{prefix}/"):
            # Some proxies take the prefix off, others do not.
            raw = scope.get("raw_path") or path.encode()
            scope = {**scope, "path": path[len(prefix) :], "raw_path": raw[len(prefix) :]}
        return scope, prefix

    def _named_in(self, scope: Scope) -> str:
        given = [value for name, value in scope["headers"] if name == b"x-forwarded-prefix"]
        if len(given) != 1:
            return self._own
        named = given[0].decode("latin-1").rstrip("/")
        return named if is_prefix(named) else self._own

    def _is_trusted(self, scope: Scope) -> bool:
        if not self._proxies:
            return False
        client = scope.get("client")
        try:
            address = ipaddress.ip_address(client[0]) if client else None
        except ValueError:
            return False
        return address is not None and any(address in network for network in self._proxies)


def _came_over_tls(scope: Scope) -> bool:
    """Return whether the first proxy was reached over TLS; each writes what it knows behind what it was sent."""
    fields: dict[bytes, bytes] = dict(reversed(scope["headers"]))
    if (proto := fields.get(b"x-forwarded-proto")) is not None:
        return proto.partition(b",")[0].strip().lower() == b"https"
    found = _PROTO.search(fields.get(b"forwarded", b"").partition(b",")[0].decode("latin-1"))
    return found is not None and found[1].lower() == "https"
