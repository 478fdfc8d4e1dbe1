"""Requests to addresses that others have named: a transport that obeys the guard (`shared.domain.addresses`).

A host is resolved once, every address found is checked, and the connection goes to a checked address: the name is
not resolved again, so that a DNS server cannot answer differently the second time (DNS rebinding). The `Host` header
and the name that TLS verifies stay those of the URL. Each redirect is a new request and passes here again.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import cache

import httpx

from shared.domain.addresses import DEFAULT_PORTS, IPAddress, why_refused
from shared.domain.errors import InvalidArguments, PolicyDenied, Transient

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""`(host, port) -> addresses`, as text; raises `OSError` when the name does not resolve."""


async def resolve_with_system(host: str, port: int) -> Sequence[str]:
    """Return the addresses of `host` as the operating system resolves it, in its order and without repeats."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


@cache
def _tls() -> ssl.SSLContext:
    """Return what knows the certificate authorities, one for all requests: each is 0.7 MB and takes 20 ms (2026-11).

    As a client it keeps no TLS sessions, so that names behind one address share none.
    """
    return httpx.create_ssl_context(trust_env=False)


def _ascii_host(url: httpx.URL) -> str:
    """Return the host as DNS and TLS know it (IDNA-encoded); IPv6 addresses without brackets."""
    return url.raw_host.decode("ascii").lower()


_LONGEST_WAIT = timedelta(days=1)
_MOST_DIGITS = 9
"""More would be longer than a `timedelta`, and than anybody waits."""


def retry_after(response: httpx.Response, now: datetime | None = None) -> timedelta | None:
    """Return the wait that `Retry-After` asks for (RFC 9110 §10.2.3: seconds or a date), a day at most.

    None without a valid one.
    """
    value = response.headers.get("retry-after", "").strip()
    if value.isascii() and value.isdigit():
        return min(timedelta(seconds=int(value[:_MOST_DIGITS])), _LONGEST_WAIT)
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return min(max(moment - (now or datetime.now(UTC)), timedelta()), _LONGEST_WAIT)


class GuardedTransport(httpx.AsyncBaseTransport):
    """An HTTP transport that connects only to addresses that were checked.

    Connections are never kept for a second request: the pool knows them by address, and two names behind one address
    must not share a TLS session.
    """

    def __init__(
        self, resolve: Resolver, allow_private_hosts: frozenset[str] = frozenset(), caller: str = "http_fetch"
    ) -> None:
        """`caller` names who asks, in messages."""
        self._name = caller
        self._resolve = resolve
        self._allowed = frozenset(host.lower() for host in allow_private_hosts)
        self._inner = httpx.AsyncHTTPTransport(
            verify=_tls(), trust_env=False, limits=httpx.Limits(max_keepalive_connections=0), retries=0
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send the request to the first checked address that accepts a connection.

        Raises `InvalidArguments` on another scheme than http and https, `PolicyDenied` when any address of the host
        is refused, `Transient` when the name does not resolve, else what httpx raises.
        """
        addresses = await self.checked_addresses(request.url)
        name = _ascii_host(request.url)
        for position, address in enumerate(addresses):
            pinned = httpx.Request(
                request.method,
                request.url.copy_with(host=str(address)),
                headers=request.headers,
                stream=request.stream,
                extensions={**request.extensions, "sni_hostname": name},
            )
            try:
                return await self._inner.handle_async_request(pinned)
            except httpx.ConnectError:
                if position == len(addresses) - 1:
                    raise
        raise AssertionError("checked_addresses returns at least one address")

    async def checked_addresses(self, url: httpx.URL) -> list[IPAddress]:
        """Return the addresses of the URL's host, at least one, all of them allowed."""
        if url.scheme not in DEFAULT_PORTS:
            raise InvalidArguments(f"{self._name} reads http and https addresses only, found {url.scheme!r}")
        host = _ascii_host(url)
        if not host:
            raise InvalidArguments(f"{self._name}: the address has no host; expected https://host/path")
        port = url.port or DEFAULT_PORTS[url.scheme]
        try:
            found = await self._resolve(host, port)
        except (OSError, UnicodeError) as error:
            raise Transient(f"{self._name}: the host {host!r} does not resolve ({error})") from error
        addresses = [ipaddress.ip_address(text) for text in found]
        if not addresses:
            raise Transient(f"{self._name}: the host {host!r} has no address")
        if not {host, f"{host}:{port}"} & self._allowed:
            for address in addresses:
                reason = why_refused(address)
                if reason is not None:
                    raise PolicyDenied(
                        f"{self._name} may not reach {host!r}: it is {address}, {reason}. An operator can allow "
                        "the host by name in the settings"
                    )
        return addresses

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()
