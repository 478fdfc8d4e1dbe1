"""Rate limits of messages: a tenant has a sliding window of 60 seconds, and so has each of its channels.

A message counts for 60 seconds from its admission; a refused message counts in neither window. Both windows are
checked before either counts the message. Times are Unix times, in seconds.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping
from itertools import islice
from math import ceil
from typing import NamedTuple

WINDOW_SECONDS = 60.0

_IDLE_AT_ONCE = 3
"""A message adds two windows at most: those in which nothing counts any more are forgotten faster."""


class Rates(NamedTuple):
    """The most messages of a tenant, and of one of its channels, within `WINDOW_SECONDS`."""

    tenant: int
    channel: int


class RateRequest(NamedTuple):
    """A request to admit a message, or a job: its `tenant_id` is then `TENANT/jobs`, which no tenant has.

    A request for a lease has a `number` of messages, of which as many are admitted as both windows have places for.
    A negative number takes back as many that were admitted and have not come.
    """

    tenant_id: str
    channel: str
    rates: Rates
    number: int = 1


class Window(NamedTuple):
    """The state of one window after a message was admitted or refused.

    `frees_at` is when a full window admits the next message, or when the oldest message leaves any other window.
    """

    limit: int
    used: int
    frees_at: float

    @property
    def is_full(self) -> bool:
        return self.used >= self.limit

    @property
    def remaining(self) -> int:
        return max(self.limit - self.used, 0)

    def headers(self, name: str) -> Mapping[str, str]:
        """Return the window as `X-<name>-Limit`, `-Remaining` and `-Reset`, a Unix time in whole seconds."""
        return {
            f"X-{name}-Limit": str(self.limit),
            f"X-{name}-Remaining": str(self.remaining),
            f"X-{name}-Reset": str(ceil(self.frees_at)),
        }


class RateVerdict(NamedTuple):
    """Whether a message, or the `number` of a lease, was let in `at` that time, and how both windows stand then."""

    is_allowed: bool
    at: float
    tenant: Window
    channel: Window
    number: int = 1

    def before(self, later: int) -> RateVerdict:
        """Return the verdict as it was before so many `later` messages were let in."""
        whose, channel = self.tenant, self.channel
        return RateVerdict(
            True,
            self.at,
            Window(whose.limit, whose.used - later, whose.frees_at),
            Window(channel.limit, channel.used - later, channel.frees_at),
        )

    @property
    def lets_in_at(self) -> float:
        """When both windows let a message in: now, or when each full one has a place."""
        return max([self.at, *(window.frees_at for window in (self.tenant, self.channel) if window.is_full)])

    @property
    def retry_after(self) -> int:
        """The whole seconds after which a refused message is let in, if nobody else takes the place; at least 1."""
        return max(ceil(self.lets_in_at - self.at), 1)

    def headers(self) -> dict[str, str]:
        """Return what every answer says of the windows; a refusal also carries `Retry-After`."""
        headers = {**self.tenant.headers("RateLimit"), **self.channel.headers("RateLimit-Channel")}
        return headers if self.is_allowed else {**headers, "Retry-After": str(self.retry_after)}


class LocalWindows:
    """The windows of one process, in memory: exact for what this process lets in."""

    def __init__(self) -> None:
        self._by_key: OrderedDict[tuple[str, str | None], deque[float]] = OrderedDict()

    def check(self, request: RateRequest, now: float) -> RateVerdict:
        rates = request.rates
        of_tenant, of_channel = self._times(request, now)
        is_allowed = len(of_tenant) < rates.tenant and len(of_channel) < rates.channel
        if is_allowed:
            of_tenant.append(now)
            of_channel.append(now)
        return RateVerdict(
            is_allowed, now, _window(of_tenant, rates.tenant, now), _window(of_channel, rates.channel, now)
        )

    def note(self, request: RateRequest, now: float) -> None:
        for times in self._times(request, now):
            times.extend([now] * request.number)

    def __len__(self) -> int:
        return len(self._by_key)

    def _times(self, request: RateRequest, now: float) -> tuple[deque[float], deque[float]]:
        for idle in list(islice(self._by_key, _IDLE_AT_ONCE)):
            if not _counting(self._by_key[idle], now):
                del self._by_key[idle]
        of_tenant = _counting(self._latest((request.tenant_id, None)), now)
        return of_tenant, _counting(self._latest((request.tenant_id, request.channel)), now)

    def _latest(self, key: tuple[str, str | None]) -> deque[float]:
        times = self._by_key.setdefault(key, deque())
        self._by_key.move_to_end(key)
        return times


def _counting(times: deque[float], now: float) -> deque[float]:
    """Drop what has left the window, and what a clock that was put back since has left in the future."""
    while times and not now - WINDOW_SECONDS < times[0] <= now:
        times.popleft()
    return times


def _window(times: deque[float], limit: int, now: float) -> Window:
    used = len(times)
    return Window(limit, used, times[max(used - limit, 0)] + WINDOW_SECONDS if used else now)
