"""Rate windows over all processes: in Valkey or Redis by an atomic script, otherwise in PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import resources
from itertools import groupby
from time import monotonic
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit, urlunsplit

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import RedisError

from planq.shared.broker.celery_config import is_redis
from planq.shared.broker.depth import reply_of
from planq.shared.platform.database import Database, Row
from planq.shared.platform.errors import BrokerUnavailable, Misconfigured
from planq.shared.subjects.tenants.rates import WINDOW_SECONDS, RateRequest, Rates, RateVerdict, Window

_MICROSECONDS = 1_000_000

_PROBE = "planq:rates:{}"
"""A window of no tenant; its counts last a microsecond."""

_LOST = (RedisError, OSError, RuntimeError)
"""Errors of an unavailable server; uvloop raises RuntimeError for a pooled connection ended by RST."""

_ENDED: Any = (ConnectionLost, RuntimeError)  # redis-py's types know of its own errors alone

_SCRIPT = resources.files("planq.shared.subjects.tenants").joinpath("admit.lua").read_text("utf-8")


class ValkeyWindows:
    """The windows at one server, which the first message connects to."""

    title = "Valkey/Redis"
    at_once = 2
    """One call is on its way back while the next is on its way there."""
    has_leases = True

    def __init__(self, url: str, *, patience_seconds: float, prefix: str = "") -> None:
        """`url` is like `BROKER_URL`; keys begin with `prefix`. Raises `Misconfigured`."""
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
        """Admit and count each message, or refuse it; raises `BrokerUnavailable`."""
        keys: list[str] = []
        arguments = [int(WINDOW_SECONDS * _MICROSECONDS)]
        runs = [list(run) for _, run in groupby(requests, _sender_of)]
        for run in runs:
            tenant_id, channel, rates, _ = run[0]
            keys += [f"{self._prefix}{key_of(tenant_id)}", f"{self._prefix}{key_of(tenant_id, channel)}"]
            arguments += (*rates, sum(request.number for request in run))
        try:
            now, *numbers = await self._admit(keys=keys, args=arguments)
        except _LOST as error:
            raise _away(error) from error
        at = int(now) / _MICROSECONDS
        return [verdict for n, run in enumerate(runs) for verdict in _verdicts(run, at, *numbers[5 * n : 5 * n + 5])]

    async def ping(self) -> None:
        """Raise `BrokerUnavailable` unless the server would count a message: PING may work without memory."""
        try:
            await self._admit(keys=[f"{self._prefix}{_PROBE}"] * 2, args=[1, 1, 1, 1])
        except _LOST as error:
            raise _away(error) from error

    async def close(self) -> None:
        await self._client.aclose()


def key_of(tenant_id: str, channel: str | None = None) -> str:
    return f"planq:rates:{{{tenant_id}}}" if channel is None else f"planq:rates:{{{tenant_id}}}:{channel}"


def _sender_of(request: RateRequest) -> tuple[str, str, Rates, bool]:
    return request.tenant_id, request.channel, request.rates, request.number < 0


def _verdicts(run: Sequence[RateRequest], at: float, allowed: int, *state: Any) -> Iterator[RateVerdict]:
    """Yield the verdicts for requests of one sender, of which the first `allowed` messages pass."""
    used, frees, channel_used, channel_frees = map(int, state)
    left = allowed
    for request in run:
        number = min(request.number, left)
        left -= max(number, 0)
        yield RateVerdict(
            number > 0,
            at,
            Window(request.rates.tenant, used - left, frees / _MICROSECONDS),
            Window(request.rates.channel, channel_used - left, channel_frees / _MICROSECONDS),
            number,
        )


def _away(error: BaseException) -> BrokerUnavailable:
    return BrokerUnavailable(reply_of(error) or f"does not answer ({type(error).__name__})")


def redis_py_url(url: str) -> str:
    """Translate kombu's URL for redis-py: sockets, databases and TLS checks."""
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


class PostgresWindows:
    """The windows in one database."""

    title = "the database"
    at_once = 2
    """Of the process's connections: messages of one tenant wait for one another, and others need some too."""
    has_leases = False

    def __init__(self, database: Database) -> None:
        self._database = database
        self._tidied = monotonic()

    async def check(self, requests: Sequence[RateRequest]) -> Sequence[RateVerdict]:
        """Admit and count each message, or refuse it; raises `DatabaseUnavailable`."""
        # By tenant: two processes that wait for each other's turns would not end.
        order = sorted(range(len(requests)), key=lambda place: requests[place].tenant_id)
        rows = await self._database.fetch_all(
            "admit_messages",
            tenant_ids=[requests[place].tenant_id for place in order],
            channels=[requests[place].channel for place in order],
            limits=[requests[place].rates.tenant for place in order],
            channel_limits=[requests[place].rates.channel for place in order],
            window_seconds=WINDOW_SECONDS,
        )
        if monotonic() - self._tidied >= WINDOW_SECONDS:
            self._tidied = monotonic()
            await self.tidy()
        verdicts = {place: _verdict_of(requests[place].rates, row) for place, row in zip(order, rows, strict=True)}
        return [verdicts[place] for place in range(len(requests))]

    async def tidy(self) -> None:
        """Remove expired counts of tenants that stopped sending."""
        await self._database.execute("forget_rate_marks", window_seconds=WINDOW_SECONDS)

    async def ping(self) -> None:
        await self._database.call("planq_now")

    async def close(self) -> None:
        """Do nothing: the database has another owner."""


def _verdict_of(rates: Rates, row: Row) -> RateVerdict:
    return RateVerdict(
        row["allowed"],
        row["now"],
        Window(rates.tenant, row["used"], row["frees_at"]),
        Window(rates.channel, row["channel_used"], row["channel_frees_at"]),
    )
