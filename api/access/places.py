"""Limits of concurrent streams and waits of a tenant, over all API processes.

A process takes a place from the database if it has no spare one. The count is exact over all processes, because the
takers of one tenant take turns. Every second a process renews the places in use and returns the others, so a client
that waits again within a second costs nothing. The places of a dead process are free after its lease. While the
database is away, each process counts for itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from time import monotonic
from typing import NamedTuple

from planq.api.http.exchange import RETRY_AFTER_SECONDS, HttpRefusal
from planq.shared.platform.batching import Batcher
from planq.shared.platform.errors import DatabaseUnavailable
from planq.shared.platform.timers import every
from planq.shared.subjects.tenants.places import PlaceKey, PlaceStore

_log = logging.getLogger("planq.api")

LEASE_SECONDS = 5.0
_KEEP_SECONDS = 1.0
_TIDY_SECONDS = 60.0

_ASKING_AT_ONCE = 10_000
_REFUSED_SECONDS = 0.25
"""Seconds for which a refusal holds without a query, so that a flood beyond the limit costs little."""


class Kind(StrEnum):
    """What takes a place."""

    STREAMS = "streams"
    WAITS = "waits"


@dataclass(slots=True)
class _KeyPlaces:
    """Places of one key: `granted` to this process, `used` of these, and used `elsewhere` a second ago."""

    granted: int = 0
    used: int = 0
    elsewhere: int = 0
    refused_until: float = 0.0


class _PlaceRequest(NamedTuple):
    key: PlaceKey
    most: int


class Places:
    """The places of a process; lives on one event loop."""

    def __init__(self, store: PlaceStore) -> None:
        self._store = store
        self._held: dict[PlaceKey, _KeyPlaces] = {}
        self._asking = Batcher(self._ask, max_weight=_ASKING_AT_ONCE)
        self._turn = asyncio.Lock()
        self._is_known_there = False
        self._is_away = False
        self._tidied = monotonic()

    async def take(self, kind: Kind, tenant_id: str, most: int) -> dict[str, str]:
        """Take a place, and return the headers of its answer; `give` returns it.

        Raises `HttpRefusal` (429) if the tenant uses `most` already.
        """
        key = PlaceKey(tenant_id, kind)
        while True:
            held = self._held.setdefault(key, _KeyPlaces())
            if held.used < held.granted:
                held.used += 1
                return _headers(kind, most, most - held.elsewhere - held.used)
            if monotonic() < held.refused_until or not await self._asking.do(_PlaceRequest(key, most)):
                raise _refused(kind, most)

    def give(self, kind: Kind, tenant_id: str) -> None:
        self._held[PlaceKey(tenant_id, kind)].used -= 1

    @contextlib.asynccontextmanager
    async def hold(self, kind: Kind, tenant_id: str, most: int) -> AsyncIterator[None]:
        """Take a place for a block; raises as `take` does."""
        await self.take(kind, tenant_id, most)
        try:
            yield
        finally:
            self.give(kind, tenant_id)

    async def keep(self) -> None:
        """Renew the places every second; cancel to stop."""
        await every(_KEEP_SECONDS, self._keep, name="places", waits_first=True)

    async def _keep(self) -> None:
        try:
            await self.say()
            if monotonic() - self._tidied >= _TIDY_SECONDS:
                self._tidied = monotonic()
                await self._store.forget()
            self._is_away = False
        except DatabaseUnavailable as error:
            self._lose(error)

    async def say(self) -> None:
        """Renew the places in use, and return the others; raises `DatabaseUnavailable`."""
        async with self._turn:
            for key, held in list(self._held.items()):
                held.granted = held.used
                if not held.used:
                    del self._held[key]
            if not self._held and not self._is_known_there:
                return
            elsewhere = await self._store.keep({key: held.used for key, held in self._held.items() if held.used})
            self._is_known_there = bool(elsewhere)
            for key, number in elsewhere.items():
                self._held.setdefault(key, _KeyPlaces()).elsewhere = number

    async def close(self) -> None:
        """Return all places: the process stops."""
        with contextlib.suppress(DatabaseUnavailable):
            await self._store.keep({})

    async def _ask(self, wants: Sequence[_PlaceRequest]) -> Sequence[bool]:
        """Return for each whether this process has a place for it now; its caller then takes it."""
        async with self._turn:
            left = {want: await self._granted(want, number) for want, number in Counter(wants).items()}
        answers = []
        for want in wants:
            left[want] -= 1
            answers.append(left[want] >= 0)
        return answers

    async def _granted(self, want: _PlaceRequest, number: int) -> int:
        """Return how many of `number` requests get a place."""
        held = self._held.setdefault(want.key, _KeyPlaces())
        # Repeated if another request took a spare place during the query: that is no refusal.
        while (missing := number - (held.granted - held.used)) > 0:
            wanted = held.granted + missing
            try:
                held.granted, held.elsewhere = await self._store.take(
                    want.key, held=held.granted, wanted=missing, most=want.most
                )
                self._is_known_there = True
            except DatabaseUnavailable as error:
                self._lose(error)
                held.granted = max(held.granted, min(wanted, want.most))
            if held.granted < wanted:
                held.refused_until = monotonic() + _REFUSED_SECONDS
                break
        return held.granted - held.used

    def _lose(self, error: DatabaseUnavailable) -> None:
        if not self._is_away:
            _log.warning("places_counted_by_each_process", extra={"cause": error.message})
        self._is_away = True


def _refused(kind: Kind, most: int) -> HttpRefusal:
    return HttpRefusal(
        HTTPStatus.TOO_MANY_REQUESTS,
        f"too_many_tenant_{kind}",
        f"expected at most {most} {kind} of this tenant at once, over all processes; end some, or come back later",
        headers={**_headers(kind, most, 0), "Retry-After": str(RETRY_AFTER_SECONDS)},
    )


def _headers(kind: Kind, most: int, left: int) -> dict[str, str]:
    name = kind.value.capitalize()
    return {f"X-RateLimit-{name}-Limit": str(most), f"X-RateLimit-{name}-Remaining": str(max(left, 0))}
