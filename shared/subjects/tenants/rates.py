"""Rate limits of messages: sliding windows of 60 seconds per tenant and per channel.

An admitted message counts for 60 seconds in both windows, a refused one in neither. Times are Unix times in seconds.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping
from itertools import islice
from math import ceil
from typing import NamedTuple

WINDOW_SECONDS = 60.0

_IDLE_AT_ONCE = 3
"""A message adds at most two windows, so empty ones are dropped faster."""


class Rates(NamedTuple):
    """Maximum messages of a tenant and of a channel within `WINDOW_SECONDS`."""

    tenant: int
    channel: int


class RateRequest(NamedTuple):
    """A message, or a job with the `tenant_id` `TENANT/jobs`.

    A lease asks for a `number` of messages, and gets at most what both windows have; a negative number returns unused
    ones.
    """

    tenant_id: str
    channel: str
    rates: Rates
    number: int = 1


class Window(NamedTuple):
    """A window after a request; `frees_at` is when a full one admits again, or the oldest message leaves."""

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
        """Return `X-<name>-Limit`, `-Remaining` and `-Reset` (whole Unix seconds)."""
        return {
            f"X-{name}-Limit": str(self.limit),
            f"X-{name}-Remaining": str(self.remaining),
            f"X-{name}-Reset": str(ceil(self.frees_at)),
        }


class RateVerdict(NamedTuple):
    """Whether a message, or the `number` of a lease, was admitted, with both windows."""

    is_allowed: bool
    at: float
    tenant: Window
    channel: Window
    number: int = 1

    def before(self, later: int) -> RateVerdict:
        """Return the verdict before `later` messages were admitted."""
        whose, channel = self.tenant, self.channel
        return RateVerdict(
            True,
            self.at,
            Window(whose.limit, whose.used - later, whose.frees_at),
            Window(channel.limit, channel.used - later, channel.frees_at),
        )

    @property
    def lets_in_at(self) -> float:
        """When both windows admit a message."""
        return max([self.at, *(window.frees_at for window in (self.tenant, self.channel) if window.is_full)])

    @property
    def retry_after(self) -> int:
        """The whole seconds until a refused message may be admitted, at least 1."""
        return max(ceil(self.lets_in_at - self.at), 1)

    def headers(self) -> dict[str, str]:
        """Return the headers of both windows; a refusal also has `Retry-After`."""
        headers = {**self.tenant.headers("RateLimit"), **self.channel.headers("RateLimit-Channel")}
        return headers if self.is_allowed else {**headers, "Retry-After": str(self.retry_after)}


class LocalWindows:
    """The windows of one process, in memory."""

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
    """Drop times outside the window, also future ones after a clock change."""
    while times and not now - WINDOW_SECONDS < times[0] <= now:
        times.popleft()
    return times


def _window(times: deque[float], limit: int, now: float) -> Window:
    used = len(times)
    return Window(limit, used, times[max(used - limit, 0)] + WINDOW_SECONDS if used else now)
