"""The guard against server-side request forgery: which addresses a tool may reach, and a transport that obeys.

A host is resolved once, every address found is checked, and the connection goes to a checked address: the name is
not resolved again, so that a DNS server cannot answer differently the second time (DNS rebinding). The `Host` header
and the name that TLS verifies stay those of the URL. Each redirect is a new request and passes here again.
"""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Iterator
from functools import cache

import httpx

from shared.domain.errors import InvalidArguments, PolicyDenied, Transient
from worker.tools.services import Resolver

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
"""RFC 6052 §2.1: an IPv4 address in its last 32 bits."""

RESERVED = tuple(
    ipaddress.ip_network(text) for text in ("192.0.0.0/24", "192.88.99.0/24", "64:ff9b:1::/48", "2001::/23")
)
"""Special-purpose blocks (IANA registries, RFC 6890) that some releases of `ipaddress` take for global."""

METADATA = frozenset({ipaddress.ip_address("168.63.129.16")})
"""Cloud metadata services on public addresses (Azure's); the others are link-local, private or shared."""

DEFAULT_PORTS = {"http": 80, "https": 443}


def why_refused(address: IPAddress) -> str | None:
    """Return why no tool may connect to `address`; None when it is an ordinary public unicast address.

    IPv4 addresses carried inside IPv6 ones (mapped, 6to4, Teredo, NAT64) are judged as well.
    """
    for inner in _carried(address):
        if inner in METADATA:
            return "a cloud metadata service"
        if inner.is_loopback:
            return "a loopback address"
        if inner.is_link_local:
            return "a link-local address"
        if isinstance(inner, ipaddress.IPv6Address) and inner.is_site_local:
            return "a site-local address"
        if inner.is_multicast:
            return "a multicast address"
        if any(inner in network for network in RESERVED):
            return "a reserved address"
        if not inner.is_global or (inner.is_reserved and inner not in NAT64):
            return "a private or reserved address"
    return None


@cache
def _tls() -> ssl.SSLContext:
    """Return what knows the certificate authorities, one for all requests: each is 0.7 MB and takes 20 ms (2026-11).

    As a client it keeps no TLS sessions, so that names behind one address share none.
    """
    return httpx.create_ssl_context(trust_env=False)


def _ascii_host(url: httpx.URL) -> str:
    """Return the host as DNS and TLS know it (IDNA-encoded); IPv6 addresses without brackets."""
    return url.raw_host.decode("ascii").lower()


def _carried(address: IPAddress) -> Iterator[IPAddress]:
    if isinstance(address, ipaddress.IPv4Address):
        yield address
        return
    if address.ipv4_mapped is not None:
        # `::ffff:1.2.3.4` is the IPv4 address itself, so only that one is judged.
        yield address.ipv4_mapped
        return
    yield address
    if address.sixtofour is not None:
        yield address.sixtofour
    if address.teredo is not None:
        yield from address.teredo
    if address in NAT64:
        yield ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)


class GuardedTransport(httpx.AsyncBaseTransport):
    """An HTTP transport that connects only to addresses that were checked.

    Connections are never kept for a second request: the pool knows them by address, and two names behind one address
    must not share a TLS session.
    """

    def __init__(
        self, resolve: Resolver, allow_private_hosts: frozenset[str] = frozenset(), tool_name: str = "http_fetch"
    ) -> None:
        """`tool_name` is for messages."""
        self._name = tool_name
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
