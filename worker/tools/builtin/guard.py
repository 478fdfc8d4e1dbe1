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

# Who may be reached is decided by the blocks written here: what `ipaddress` takes for global changes between the
# patch releases of Python. They follow IANA's special-purpose address registries for IPv4 and IPv6 as of 2025-10-09
# (all that is not globally reachable; the few exceptions inside 192.0.0.0/24 and 2001::/23 too), RFC 5771, RFC 3879.

NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
"""RFC 6052 §2.1: an IPv4 address in its last 32 bits."""

UNICAST = ipaddress.IPv6Network("2000::/3")
"""RFC 4291 §2.4, RFC 3587: the only IPv6 addresses that are given out as global unicast addresses."""

BLOCKS = {
    "a loopback address": ("127.0.0.0/8", "::1/128"),
    "a link-local address": ("169.254.0.0/16", "fe80::/10"),
    "a site-local address": ("fec0::/10",),
    "a multicast address": ("224.0.0.0/4", "ff00::/8"),
    "a private address": ("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"),
    "a reserved address": (
        "0.0.0.0/8",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "240.0.0.0/4",
        "2001::/23",
        "2001:db8::/32",
        "3fff::/20",
    ),
}
"""Blocks that are not public, by what is said of them; of IPv6 all outside `UNICAST` and `NAT64` is reserved too."""

METADATA = frozenset({ipaddress.ip_address("168.63.129.16")})
"""Cloud metadata services on public addresses (Azure's); the others are link-local, private or shared."""

DEFAULT_PORTS = {"http": 80, "https": 443}


_NETWORKS = [(ipaddress.ip_network(block), reason) for reason, blocks in BLOCKS.items() for block in blocks]


def why_refused(address: IPAddress) -> str | None:
    """Return why no tool may connect to `address`; None when it is an ordinary public unicast address.

    IPv4 addresses carried inside IPv6 ones (mapped, 6to4, NAT64) are judged as well.
    """
    for one in _carried(address):
        if one in METADATA:
            return "a cloud metadata service"
        for network, reason in _NETWORKS:
            if one in network:
                return reason
        if isinstance(one, ipaddress.IPv6Address) and one not in UNICAST and one not in NAT64:
            return "a reserved address"
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
