"""Addresses that may be reached on behalf of others: the guard against server-side request forgery."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

# Who may be reached is decided by the blocks written here: what `ipaddress` takes for global changes between the
# patch releases of Python. They follow IANA's special-purpose address registries for IPv4 and IPv6 as of 2025-10-09
# (all that is not globally reachable; the few exceptions inside 192.0.0.0/24 and 2001::/23 too), RFC 5771, RFC 3879.

NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
"""RFC 6052 §2.1: an IPv4 address in its last 32 bits."""

UNICAST = ipaddress.IPv6Network("2000::/3")
"""RFC 4291 §2.4, RFC 3587: the only global unicast addresses of IPv6."""

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
"""Blocks that are not public, by description; IPv6 outside `UNICAST` and `NAT64` is reserved too."""

METADATA = frozenset({ipaddress.ip_address("168.63.129.16")})
"""Azure's cloud metadata service; the others have link-local, private or shared addresses."""

DEFAULT_PORTS = {"http": 80, "https": 443}


_NETWORKS = [(ipaddress.ip_network(block), reason) for reason, blocks in BLOCKS.items() for block in blocks]


def why_refused(address: IPAddress) -> str | None:
    """Return why `address` is not public, None if it is; also judges IPv4 inside IPv6 (mapped, 6to4, NAT64)."""
    for one in endpoints_of(address):
        if one in METADATA:
            return "a cloud metadata service"
        for network, reason in _NETWORKS:
            if one in network:
                return reason
        if isinstance(one, ipaddress.IPv6Address) and one not in UNICAST and one not in NAT64:
            return "a reserved address"
    return None


def endpoints_of(address: IPAddress) -> Iterator[IPAddress]:
    """Yield the addresses where a connection may end: itself, and what it embeds."""
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
