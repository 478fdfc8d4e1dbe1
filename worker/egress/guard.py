"""Requests to addresses that others have named: a transport that obeys `planq.shared.platform.addresses`.

A host is resolved once, every address is checked, and the connection goes to a checked address: a second resolution
could differ (DNS rebinding). The `Host` header and the name that TLS verifies stay those of the URL. Redirects are
checked again. A proxy resolves the name itself, so the operator has to bound what it reaches. `HostPlaces` bounds the
concurrent requests of a tenant to one host.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from time import monotonic
from typing import Any

import httpx2
import psutil

from planq.shared.platform.addresses import DEFAULT_PORTS, IPAddress, endpoints_of, why_refused
from planq.shared.platform.errors import HostBusy, InvalidArguments, PolicyDenied, Transient
from planq.worker.egress.bodies import BoundedBody
from planq.worker.egress.wire import Wire, host_of

_log = logging.getLogger("planq.egress")

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""`(host, port) -> addresses`, as text; raises `OSError` if the name does not resolve."""


async def resolve_with_system(host: str, port: int) -> Sequence[str]:
    """Return the addresses of `host` from the operating system, in its order and without duplicates."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class OwnAddresses:
    """The addresses of this machine's interfaces, queried again after `_OWN_SECONDS` because they change."""

    def __init__(
        self,
        ask: Callable[[], Mapping[str, Sequence[Any]]] = psutil.net_if_addrs,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`ask` returns the addresses of each interface, as psutil does."""
        self._ask = ask
        self._clock = clock
        self._known: frozenset[IPAddress] = frozenset()
        self._until = 0.0

    def __contains__(self, address: IPAddress) -> bool:
        if self._clock() >= self._until:
            texts = [str(one.address) for several in self._ask().values() for one in several]
            self._known = frozenset(map(ipaddress.ip_address, filter(_is_address, texts)))
            self._until = self._clock() + _OWN_SECONDS
        return any(one in self._known for one in endpoints_of(address))


_OWN_SECONDS = 1.0
_own_addresses = OwnAddresses()


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False  # that of a network card, say
    return True


_LONGEST_WAIT = timedelta(days=1)
_MOST_DIGITS = 9
"""Maximum digits read: more would not fit into a `timedelta`."""


def retry_after(response: httpx2.Response, now: datetime | None = None) -> timedelta | None:
    """Return the wait of a `Retry-After` header (RFC 9110 §10.2.3: seconds or a date), at most a day; None without
    one.
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


@dataclass(slots=True)
class _Host:
    places: asyncio.Semaphore
    users: int = 0


@dataclass(frozen=True, slots=True)
class HostPlaces:
    """The bound of a tenant's concurrent requests to one host name: `most`, others wait `wait_seconds`."""

    most: int = 16
    wait_seconds: float = 10.0
    _hosts: dict[tuple[str, str], _Host] = field(default_factory=dict, compare=False, repr=False)

    async def take(self, tenant_id: str, host: str, caller: str) -> Callable[[], None]:
        """Take a place and return the function that gives it back; raise `HostBusy` if none was free in time."""
        key = tenant_id, host
        found = self._hosts.setdefault(key, _Host(asyncio.Semaphore(self.most)))
        found.users += 1
        try:
            async with asyncio.timeout(self.wait_seconds):
                await found.places.acquire()
        except TimeoutError:
            self._leave(key)
            raise HostBusy(
                f"{caller}: expected at most {self.most} requests of a tenant at once to {host!r}, found as many "
                f"under way for {self.wait_seconds:g} s; nothing was sent",
                retry_after=timedelta(seconds=self.wait_seconds),
            ) from None
        except BaseException:
            self._leave(key)
            raise

        def give_up() -> None:
            found.places.release()
            self._leave(key)

        return give_up

    def __len__(self) -> int:
        return len(self._hosts)

    def _leave(self, key: tuple[str, str]) -> None:
        self._hosts[key].users -= 1
        if not self._hosts[key].users:
            del self._hosts[key]


class GuardedTransport(httpx2.AsyncBaseTransport):
    """An HTTP transport to checked addresses, without reuse: names at one address must share no TLS session."""

    def __init__(
        self,
        wire: Wire,
        resolve: Resolver,
        allow_private_hosts: frozenset[str] = frozenset(),
        caller: str = "http_fetch",
        *,
        tenant_id: str = "",
        places: HostPlaces | None = None,
        own: OwnAddresses = _own_addresses,
    ) -> None:
        """`caller` is for messages; `own` are the addresses of this machine, including public ones."""
        self._name = caller
        self._own = own
        self._tenant_id = tenant_id
        self._places = places
        self._resolve = resolve
        self._allowed = frozenset(host.lower() for host in allow_private_hosts)
        self._wire = wire

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send the request to the first checked address that accepts a connection, or through the proxy.

        Raises `InvalidArguments` for another scheme than http and https, `PolicyDenied` if any address of the host is
        refused, `Transient` if the name does not resolve, `HostBusy` without a place at the host, and what httpx2
        raises; reading the body, `TooSlow` and `BodyRefused`.
        """
        proxy = self._wire.proxy_of(request.url)
        # A host that the operator allows may have a name that only the proxy resolves.
        is_known = proxy is not None and self._is_allowed(*self._place_of(request.url))
        addresses = [] if is_known else await self.checked_addresses(request.url)
        name = host_of(request.url)
        give_up = None if self._places is None else await self._places.take(self._tenant_id, name, self._name)
        try:
            source = f"{self._name}: {name}"
            if proxy is not None:
                response = await self._wire.send(request, proxy, source)
            else:
                response = await self._send(request, name, addresses, source)
        except BaseException:
            if give_up is not None:
                give_up()
            raise
        assert isinstance(response.stream, BoundedBody)
        response.stream.on_close = give_up
        return response

    async def _send(
        self, request: httpx2.Request, name: str, addresses: Sequence[IPAddress], source: str
    ) -> httpx2.Response:
        for position, address in enumerate(addresses):
            pinned = httpx2.Request(
                request.method,
                request.url.copy_with(host=str(address)),
                headers=request.headers,
                stream=request.stream,
                extensions={**request.extensions, "sni_hostname": name},
            )
            try:
                return await self._wire.send(pinned, None, source)
            except httpx2.ConnectError:
                if position == len(addresses) - 1:
                    raise
        raise AssertionError("checked_addresses returns at least one address")

    def _place_of(self, url: httpx2.URL) -> tuple[str, int]:
        if url.scheme not in DEFAULT_PORTS:
            raise InvalidArguments(f"{self._name} reads http and https addresses only, found {url.scheme!r}")
        host = host_of(url)
        if not host:
            raise InvalidArguments(f"{self._name}: the address has no host; expected https://host/path")
        if "xn--" in url.host:  # it only looks like an internationalised name
            raise InvalidArguments(f"{self._name}: {host!r} is no valid host name")
        return host, url.port or DEFAULT_PORTS[url.scheme]

    def _is_allowed(self, host: str, port: int) -> bool:
        return bool({host, f"{host}:{port}"} & self._allowed)

    async def checked_addresses(self, url: httpx2.URL) -> list[IPAddress]:
        """Return the addresses of the URL's host, at least one, all of them allowed."""
        host, port = self._place_of(url)
        try:
            found = await self._resolve(host, port)
        except (OSError, UnicodeError) as error:
            raise Transient(f"{self._name}: the host {host!r} does not resolve ({error})") from error
        addresses = [ipaddress.ip_address(text) for text in found]
        if not addresses:
            raise Transient(f"{self._name}: the host {host!r} has no address")
        if not self._is_allowed(host, port):
            for address in addresses:
                reason = "this machine's own address" if address in self._own else why_refused(address)
                if reason is not None:
                    # Internal addresses are not shown to a tenant: only the log has them.
                    about = {"host": host, "address": str(address), "reason": reason, "tenant": self._tenant_id}
                    _log.warning("egress_refused", extra=about)
                    raise PolicyDenied(
                        f"{self._name} may not reach {host!r}: it is not at a public address of others. An operator "
                        "can allow the host by name in the settings"
                    )
        return addresses

    async def aclose(self) -> None:
        await self._wire.aclose()
