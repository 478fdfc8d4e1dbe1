"""The rate windows in a Valkey or Redis: exact over all processes, by a script that is one step there."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit, urlunsplit

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import RedisError

from planq.shared.broker.celery_config import is_redis
from planq.shared.broker.depth import reply_of
from planq.shared.platform.errors import BrokerUnavailable, Misconfigured
from planq.shared.subjects.tenants.rates import WINDOW_SECONDS, RateRequest, Rates, RateVerdict, Window

_MICROSECONDS = 1_000_000

_PROBE = "planq:rates:{}"
"""The window of no tenant; what counts in it does so for a microsecond."""

_LOST = (RedisError, OSError, RuntimeError)
"""What a server that is away, or refuses, comes out as. uvloop, on which the API runs, raises RuntimeError for a
connection that ended by RST while it lay in the pool."""

_ENDED: Any = (ConnectionLost, RuntimeError)  # redis-py's types know of its own errors alone

_SCRIPT = resources.files("planq.shared.subjects.tenants").joinpath("admit.lua").read_text("utf-8")


class ValkeyWindows:
    """The windows of all tenants at one server; its connections open with the first message."""

    title = "Valkey/Redis"
    at_once = 2
    """One call is on its way back while the next is on its way there."""

    def __init__(self, url: str, *, patience_seconds: float, prefix: str = "") -> None:
        """`url` is one that `BROKER_URL` may be; all keys begin with `prefix`.

        Raises `Misconfigured` where redis-py cannot read the URL.
        """
        self._prefix = prefix
        try:
            pool = BlockingConnectionPool.from_url(
                redis_py_url(url),
                max_connections=self.at_once + 1,
                timeout=patience_seconds,
                socket_timeout=patience_seconds,
                socket_connect_timeout=patience_seconds,
                client_name="planq",
                # Once, for a connection that the server has closed meanwhile. The messages may then count twice.
                retry=Retry(NoBackoff(), 1, supported_errors=_ENDED),
            )
        except (ValueError, TypeError) as error:
            raise Misconfigured(f"BROKER_URL: expected a URL that redis-py can read, found {error}") from error
        self._client = Redis.from_pool(pool)
        self._admit = self._client.register_script(_SCRIPT)

    async def check(self, requests: Sequence[RateRequest]) -> Sequence[RateVerdict]:
        """Let each message in and count it, or refuse it; raises `BrokerUnavailable` for no answer."""
        keys: list[str] = []
        arguments = [int(WINDOW_SECONDS * _MICROSECONDS)]
        for request in requests:
            of_both = (key_of(request.tenant_id), key_of(request.tenant_id, request.channel))
            keys += [f"{self._prefix}{key}" for key in of_both]
            arguments += (request.rates.tenant, request.rates.channel)
        try:
            now, *numbers = await self._admit(keys=keys, args=arguments)
        except _LOST as error:
            raise _away(error) from error
        at = int(now) / _MICROSECONDS
        return [_verdict(request.rates, at, *numbers[5 * n : 5 * n + 5]) for n, request in enumerate(requests)]

    async def ping(self) -> None:
        """Raise `BrokerUnavailable` where the server does not answer, or would not count a message.

        A server may answer PING that has no memory left, takes no writes or knows another password for scripts.
        """
        try:
            await self._admit(keys=[f"{self._prefix}{_PROBE}"] * 2, args=[1, 1, 1])
        except _LOST as error:
            raise _away(error) from error

    async def close(self) -> None:
        await self._client.aclose()


def key_of(tenant_id: str, channel: str | None = None) -> str:
    return f"planq:rates:{{{tenant_id}}}" if channel is None else f"planq:rates:{{{tenant_id}}}:{channel}"


def _verdict(rates: Rates, at: float, *numbers: Any) -> RateVerdict:
    allowed, used, frees, channel_used, channel_frees = numbers
    return RateVerdict(
        bool(allowed),
        at,
        Window(rates.tenant, used, int(frees) / _MICROSECONDS),
        Window(rates.channel, channel_used, int(channel_frees) / _MICROSECONDS),
    )


def _away(error: BaseException) -> BrokerUnavailable:
    return BrokerUnavailable(reply_of(error) or f"does not answer ({type(error).__name__})")


def redis_py_url(url: str) -> str:
    """Translate a URL as kombu reads it: a socket's path and database, and its names for the checks of TLS."""
    first = url.split(";", 1)[0]  # kombu takes several, for when one is away
    if not is_redis(first):
        return first
    parts = urlsplit(first)
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    if "ssl_cert_reqs" in query:
        query["ssl_cert_reqs"] = query["ssl_cert_reqs"].removeprefix("CERT_").lower()
    if parts.scheme != "redis+socket":
        return urlunsplit(parts._replace(query=urlencode(query)))
    login, at, place = parts.netloc.rpartition("@")
    if "virtual_host" in query:
        query["db"] = query.pop("virtual_host")
    return f"unix://{login}{at}{unquote(place + parts.path)}?{urlencode(query)}".removesuffix("?")
