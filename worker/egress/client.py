"""`Egress`: the only place where workers create HTTP clients.

Two kinds: `guarded` for addresses that others have named, which reach public addresses only, and `trusted` for hosts
that the operator has named (models, MCP servers). Both have the same bounds, authorities and proxies.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx2

from planq.worker.egress.bodies import ACCEPT_ENCODING, AnswerBounds
from planq.worker.egress.guard import GuardedTransport, HostPlaces, Resolver, resolve_with_system
from planq.worker.egress.proxies import Proxies, read_proxies
from planq.worker.egress.wire import Wire, tls_of

_NO_REUSE = httpx2.Limits(max_keepalive_connections=0)
"""For guarded requests: the pool identifies connections by address, and two names there must not share a TLS
session."""

_MANY = httpx2.Limits(max_connections=1_000, max_keepalive_connections=100)


@dataclass(frozen=True, slots=True)
class Egress:
    """The access of this process to the internet; constant for its life."""

    tls: ssl.SSLContext = field(default_factory=partial(tls_of, None))
    proxies: Proxies = field(default_factory=Proxies)
    resolve: Resolver = resolve_with_system

    @classmethod
    def read(cls, ca_file: Path | None, proxy: str, environment: Mapping[str, str]) -> Egress:
        """Read the settings; raise `Misconfigured` for an unreadable file or an invalid proxy."""
        return cls(tls_of(ca_file), read_proxies(proxy, environment))

    def guard(
        self,
        caller: str,
        bounds: AnswerBounds,
        allowed: frozenset[str] = frozenset(),
        *,
        tenant_id: str = "",
        places: HostPlaces | None = None,
    ) -> GuardedTransport:
        """Return a transport to public addresses and the `allowed` hosts (`host` or `host:port`); `caller` is for
        messages.
        """
        wire = Wire(self.tls, self.proxies, bounds, limits=_NO_REUSE)
        return GuardedTransport(wire, self.resolve, allowed, caller, tenant_id=tenant_id, places=places)

    def guarded(
        self,
        caller: str,
        bounds: AnswerBounds,
        allowed: frozenset[str] = frozenset(),
        *,
        tenant_id: str = "",
        places: HostPlaces | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: httpx2.Timeout | None = None,
    ) -> httpx2.AsyncClient:
        """Return a client over `guard`. It follows no redirects; `timeout` bounds the parts of an exchange."""
        return httpx2.AsyncClient(
            transport=self.guard(caller, bounds, allowed, tenant_id=tenant_id, places=places),
            follow_redirects=False,
            timeout=timeout or httpx2.Timeout(bounds.seconds),
            headers={"Accept-Encoding": ACCEPT_ENCODING, **(headers or {})},
            trust_env=False,
        )

    def trusted(
        self,
        bounds: AnswerBounds,
        timeout: httpx2.Timeout,
        *,
        headers: Mapping[str, str] | None = None,
        event_hooks: Mapping[str, Sequence[Callable[[Any], Awaitable[None]]]] | None = None,
        not_sent: Callable[[httpx2.Request], None] = lambda request: None,
    ) -> httpx2.AsyncClient:
        """Return a client for hosts that the operator has named; it reuses connections."""
        return httpx2.AsyncClient(
            transport=Wire(self.tls, self.proxies, bounds, limits=_MANY, not_sent=not_sent),
            follow_redirects=False,
            timeout=timeout,
            headers={**(headers or {}), "Accept-Encoding": ACCEPT_ENCODING},
            event_hooks={kind: list(hooks) for kind, hooks in (event_hooks or {}).items()},
            trust_env=False,
        )
