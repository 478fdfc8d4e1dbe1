"""Connections to the outside: which authorities are trusted, through which proxy, within which bounds."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable
from functools import cache
from pathlib import Path

import certifi
import httpx2

from planq.shared.platform.addresses import DEFAULT_PORTS
from planq.shared.platform.errors import Misconfigured
from planq.worker.egress.bodies import AnswerBounds, BoundedBody, out_of_time
from planq.worker.egress.proxies import Proxies

UNSENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)
"""Errors that are raised before any byte of a request was sent."""


@cache
def tls_of(ca_file: Path | None) -> ssl.SSLContext:
    """Return the TLS context of all requests; it takes 0.7 MB and 20 ms (2026-11).

    `SSL_CERT_FILE` and `SSL_CERT_DIR` replace the public authorities; those of `ca_file` (`PLANQ_CA_FILE`) are added.
    Raises `Misconfigured` for an unreadable file. As a client it keeps no TLS sessions, so names at one address share
    none.
    """
    variable = "SSL_CERT_FILE"
    path: object = os.environ.get(variable)
    try:
        context = httpx2.create_ssl_context()
        if not path and not os.environ.get("SSL_CERT_DIR"):
            context.load_verify_locations(certifi.where())  # some images have no authorities of their own
        if ca_file is not None:
            variable, path = "PLANQ_CA_FILE", ca_file
            context.load_verify_locations(ca_file)
    except (OSError, ValueError) as error:  # an `SSLError` is an `OSError`
        raise Misconfigured(
            f"{variable}: expected a readable file of certificates in PEM form, found {str(path)!r} ({error})"
        ) from error
    return context


def host_of(url: httpx2.URL) -> str:
    """Return the host as DNS and TLS know it (IDNA-encoded); IPv6 addresses without brackets."""
    return url.raw_host.decode("ascii").lower()


class Wire(httpx2.AsyncBaseTransport):
    """An HTTP transport within bounds, without checks of addresses: for hosts that the operator has named."""

    def __init__(
        self,
        tls: ssl.SSLContext,
        proxies: Proxies,
        bounds: AnswerBounds,
        *,
        limits: httpx2.Limits,
        not_sent: Callable[[httpx2.Request], None] = lambda request: None,
    ) -> None:
        """`not_sent` is called with each request that was not sent at all, before its error is raised."""
        self._tls = tls
        self._proxies = proxies
        self._bounds = bounds
        self._limits = limits
        self._not_sent = not_sent
        self._opened: dict[str | None, httpx2.AsyncHTTPTransport] = {}

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        return await self.send(request, self.proxy_of(request.url), host_of(request.url))

    def proxy_of(self, url: httpx2.URL) -> str | None:
        return self._proxies.of(url.scheme, host_of(url), url.port or DEFAULT_PORTS.get(url.scheme, 0))

    async def send(self, request: httpx2.Request, proxy: str | None, source: str) -> httpx2.Response:
        """Send a request; raise what httpx2 raises, and `ReadTimeout` if the response is late. `source` is for
        messages.
        """
        until = asyncio.get_running_loop().time() + self._bounds.seconds
        try:
            async with asyncio.timeout_at(until):
                response = await self._transport(proxy).handle_async_request(request)
        except TimeoutError:
            raise out_of_time(source, self._bounds) from None
        except UNSENT:
            self._not_sent(request)
            raise
        BoundedBody(response, self._bounds, until, source)
        return response

    def _transport(self, proxy: str | None) -> httpx2.AsyncHTTPTransport:
        found = self._opened.get(proxy)
        if found is None:
            has_tls = proxy is not None and proxy.startswith("https:")
            via = None if proxy is None else httpx2.Proxy(proxy, ssl_context=self._tls if has_tls else None)
            found = httpx2.AsyncHTTPTransport(
                verify=self._tls, trust_env=False, limits=self._limits, retries=0, proxy=via
            )
            self._opened[proxy] = found
        return found

    async def aclose(self) -> None:
        for transport in self._opened.values():
            await transport.aclose()
