"""Rate limits of messages and jobs by tenant: counted at one server for all processes, or here while it is away.

A message never waits for a server that is away. After a call without an answer, messages are counted here for a
second, and then one of them tries the server again. Messages that the server let in are counted here too, so that no
sender starts from zero. Jobs are counted in the same way; unfinished jobs are counted in the database.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from time import monotonic, time

from planq.api.http.exchange import HttpRefusal
from planq.shared.broker.celery_config import is_redis
from planq.shared.platform.batching import Batcher
from planq.shared.platform.database import Database
from planq.shared.platform.errors import Unavailable
from planq.shared.settings.settings import Settings
from planq.shared.subjects.tenants.config import TenantConfig
from planq.shared.subjects.tenants.rate_counter import PostgresWindows, ValkeyWindows
from planq.shared.subjects.tenants.rates import WINDOW_SECONDS, LocalWindows, RateRequest, Rates, RateVerdict

_log = logging.getLogger("planq.limits")

_PATIENCE_SECONDS = 0.25
_COUNTED_FOR_SECONDS = 1.0
_UNFINISHED_RETRY_SECONDS = 5

_MOST_KEPT = 10_000
"""Maximum number of remembered refusals, and of leases."""

_LEASE_SECONDS = 1.0
_SHARE = 100
"""Lifetime of a lease; and its maximum size, as the divisor of the free places."""


Windows = ValkeyWindows | PostgresWindows
"""The counters that all processes share. Every method raises `Unavailable` if the server does not answer."""


def open_windows(settings: Settings, database: Database) -> Windows:
    """Return the counters: at the broker, or in the database if the broker is RabbitMQ. Opens no connection.

    Raises `Misconfigured` for a broker's URL that cannot be read.
    """
    url = settings.require_broker()
    if is_redis(url):
        return ValkeyWindows(url, patience_seconds=_PATIENCE_SECONDS, prefix=settings.broker_prefix)
    return PostgresWindows(database)


@dataclass(slots=True)
class _Lease:
    """Messages of a sender that the server let in beforehand: `left` of them; `verdict` is that on the last one."""

    verdict: RateVerdict
    until: float
    size: int = 1
    left: int = 0


class RateLimits:
    """The rates of all tenants, for one event loop.

    For a sender with many messages a process takes leases of several at once. The rest of a lease is returned with
    the next message, so a limit may be exceeded by the rests of leases that began before the window.
    """

    def __init__(
        self, windows: Windows, *, pause_seconds: float = 1.0, patience_seconds: float = _PATIENCE_SECONDS
    ) -> None:
        """If `windows` do not answer within `patience_seconds`, they are not called for `pause_seconds`."""
        self._windows = windows
        self._pause_seconds = pause_seconds
        self._patience_seconds = patience_seconds
        self._local = LocalWindows()
        self._refused: dict[RateRequest, tuple[float, RateVerdict]] = {}
        self._leases: dict[RateRequest, _Lease] = {}
        self._asking = Batcher(self._ask, at_once=windows.at_once)
        self._away: str | None = None
        self._rests_until = 0.0

    async def check(self, tenant_id: str, channel: str, config: TenantConfig) -> RateVerdict:
        """Let a message in and count it, or refuse it; never fails, and never waits long."""
        return await self._check(RateRequest(tenant_id, channel, Rates(config.rate_limit, config.channel_rate_limit)))

    async def _check(self, request: RateRequest) -> RateVerdict:
        verdict = self._known(request)
        if verdict is None and not self._is_resting:
            verdict = await self._asking.do(request)
        return verdict or self._local.check(request, time())

    async def check_job(self, tenant_id: str, config: TenantConfig) -> RateVerdict:
        """Let a job in and count it, or refuse it, as `check` does with messages."""
        return await self._check(
            RateRequest(f"{tenant_id}/jobs", "api", Rates(config.job_rate_limit, config.job_rate_limit))
        )

    async def describe(self) -> str:
        """Return a sentence on where messages are counted, after a ping."""
        try:
            async with asyncio.timeout(self._patience_seconds):
                await self._windows.ping()
        except (Unavailable, TimeoutError) as error:
            self._lose(error)
        else:
            self._find()
        if self._away is None:
            return f"counted by {self._windows.title}"
        return f"degraded: each process counts for itself, because {self._windows.title} {self._away}"

    async def close(self) -> None:
        await self._windows.close()

    @property
    def _is_resting(self) -> bool:
        return self._away is not None and monotonic() < self._rests_until

    async def _ask(self, requests: Sequence[RateRequest]) -> Sequence[RateVerdict | None]:
        """Return the server's verdicts, None if it does not answer; while it is away, one call at a time tries."""
        if self._away is not None:
            if self._is_resting:
                return [None] * len(requests)
            self._rests_until = monotonic() + self._pause_seconds
        # Requests that were answered while these waited may have filled a window, or brought a lease.
        known = [self._known(request) for request in requests]
        asked = [request for request, verdict in zip(requests, known, strict=True) if verdict is None]
        senders = dict.fromkeys(asked)
        ended = [(sender, lease) for sender in senders if (lease := self._leases.pop(sender, None)) is not None]
        returned = [sender._replace(number=-lease.left) for sender, lease in ended if _may_be_returned(lease)]
        wanted = [sender._replace(number=size) for sender, lease in ended if (size := _size_after(lease)) > 0]
        try:
            async with asyncio.timeout(self._patience_seconds):
                verdicts = await self._windows.check([*returned, *asked, *wanted]) if asked else ()
        except (Unavailable, TimeoutError) as error:
            self._lose(error)
            return known
        self._find()
        answers = iter(verdicts[len(returned) :])
        found = iter([self._noted(request, next(answers)) for request in asked])
        for request, verdict in zip(wanted, answers, strict=True):
            self._lend(request, verdict)
        return [verdict or next(found) for verdict in known]

    def _known(self, request: RateRequest) -> RateVerdict | None:
        """Return a verdict that needs no server: the sender has a lease, or is refused."""
        lease = self._leases.get(request)
        if lease is not None and lease.left and monotonic() < lease.until:
            lease.left -= 1
            return lease.verdict.before(lease.left)
        return self._still_refused(request)

    def _noted(self, request: RateRequest, verdict: RateVerdict) -> RateVerdict:
        if not verdict.is_allowed:
            if len(self._refused) >= _MOST_KEPT:
                self._refused.clear()
            self._refused[request] = monotonic(), verdict
            return verdict
        self._local.note(request, time())
        if self._windows.has_leases:
            if len(self._leases) >= _MOST_KEPT:
                self._leases.clear()
            self._leases.setdefault(request, _Lease(verdict, monotonic() + _LEASE_SECONDS))
        return verdict

    def _lend(self, request: RateRequest, verdict: RateVerdict) -> None:
        """Take a lease, and add the rest of one that came meanwhile."""
        if verdict.number > 0:
            self._local.note(request._replace(number=verdict.number), time())
            sender = request._replace(number=1)
            other = self._leases.get(sender)
            left = verdict.number + (0 if other is None else other.left)
            self._leases[sender] = _Lease(verdict, monotonic() + _LEASE_SECONDS, request.number, left)

    def _still_refused(self, request: RateRequest) -> RateVerdict | None:
        """Return the last refusal while it holds: until the oldest message of the full window leaves it."""
        asked_at, refusal = self._refused.get(request, (0.0, None))
        if refusal is None:
            return None
        now = refusal.at + monotonic() - asked_at
        if now >= refusal.lets_in_at:
            del self._refused[request]
            return None
        return refusal._replace(at=now)

    def _lose(self, error: Exception) -> None:
        cause = str(error) or f"gives no answer within {self._patience_seconds:g} s"
        if self._away is None:
            _log.warning("rates_counted_by_each_process", extra={"cause": f"{self._windows.title} {cause}"})
        self._away = cause
        self._rests_until = monotonic() + self._pause_seconds

    def _find(self) -> None:
        if self._away is not None:
            _log.warning("rates_counted_for_all_again", extra={"by": self._windows.title})
        self._away = None


def _may_be_returned(lease: _Lease) -> bool:
    return lease.left > 0 and monotonic() < lease.until + WINDOW_SECONDS - _LEASE_SECONDS


def _size_after(lease: _Lease) -> int:
    """Return the size of the next lease: double that of one that was used up in its time, otherwise 0.

    A sender with few messages has no lease, and is counted exactly; near a limit nobody has one.
    """
    if monotonic() >= lease.until:
        return 0
    return min(2 * lease.size, lease.verdict.tenant.remaining // _SHARE, lease.verdict.channel.remaining // _SHARE)


class UnfinishedJobs:
    """The number of unfinished jobs of each tenant, counted at most a second ago.

    Jobs that other processes have let in since are not counted, so they may exceed a limit.
    """

    def __init__(self, count: Callable[[str, int], Awaitable[int]]) -> None:
        """`count` returns the number of a tenant's unfinished jobs, up to a maximum."""
        self._count = count
        self._known: dict[str, tuple[float, int]] = {}

    async def check(self, tenant_id: str, config: TenantConfig) -> None:
        """Raise `HttpRefusal` (429) if a tenant has as many as it may have. The refused job is not counted."""
        most = config.max_unfinished_jobs
        counted_at, number = self._known.get(tenant_id, (-_COUNTED_FOR_SECONDS, 0))
        if monotonic() - counted_at >= _COUNTED_FOR_SECONDS:
            self._known[tenant_id] = monotonic(), number  # so that concurrent requests do not count too
            number = await self._count(tenant_id, most)
            self._known[tenant_id] = monotonic(), number
        if number >= most:
            raise HttpRefusal(
                HTTPStatus.TOO_MANY_REQUESTS,
                "too_many_unfinished_jobs",
                f"expected at most {most} unfinished jobs of this tenant at once; send this one again once some have "
                "ended",
                headers={"X-RateLimit-Unfinished-Limit": str(most), "X-RateLimit-Unfinished-Remaining": "0"}
                | {"Retry-After": str(_UNFINISHED_RETRY_SECONDS)},
            )

    def add(self, tenant_id: str) -> None:
        counted_at, number = self._known.get(tenant_id, (-_COUNTED_FOR_SECONDS, 0))
        self._known[tenant_id] = counted_at, number + 1


def too_many_jobs(verdict: RateVerdict) -> HttpRefusal:
    return HttpRefusal(
        HTTPStatus.TOO_MANY_REQUESTS,
        "too_many_jobs",
        f"expected at most {verdict.tenant.limit} jobs of this tenant within {WINDOW_SECONDS:g} seconds; send this "
        f"one again after {verdict.retry_after} s",
        headers=job_headers(verdict),
    )


def job_headers(verdict: RateVerdict) -> dict[str, str]:
    """Return the rate headers of an answer to a job; a refusal also has `Retry-After`."""
    headers = dict(verdict.tenant.headers("RateLimit"))
    return headers if verdict.is_allowed else {**headers, "Retry-After": str(verdict.retry_after)}


def too_many(verdict: RateVerdict) -> HttpRefusal:
    full = [
        f"{window.limit} messages of {whose} within {WINDOW_SECONDS:g} seconds"
        for whose, window in (("this tenant", verdict.tenant), ("this channel", verdict.channel))
        if window.is_full
    ]
    return HttpRefusal(
        HTTPStatus.TOO_MANY_REQUESTS,
        "too_many_messages",
        f"expected at most {' and '.join(full)}; send this one again after {verdict.retry_after} s",
        headers=verdict.headers(),
    )
