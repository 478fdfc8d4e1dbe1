"""Requests that wait for jobs: each at a place of its tenant, as long as its key holds and its client is there."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from time import monotonic
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from planq.api.access.places import Kind, Places
from planq.api.access.revocation import OngoingRequests
from planq.api.access.scopes import caller_of
from planq.api.http.exchange import HttpRefusal
from planq.api.streams.waiting import WAITED, Waiters
from planq.shared.kernel.store.signals import Notifier
from planq.shared.settings.settings import Settings
from planq.shared.subjects.jobs.job_view import JobView
from planq.shared.subjects.jobs.store import RequestStore
from planq.shared.subjects.tenants.directory import TenantDirectory


@dataclass(frozen=True, slots=True)
class EndAnnouncer:
    """Announces ended jobs to the workers that run them and to waiting clients."""

    cancelled: Notifier
    ended: Notifier
    waiters: Waiters

    def announce(self, ended: Iterable[UUID]) -> None:
        for one in ended:
            self.cancelled.send(one)
            self.ended.send(one)
            self.waiters.heard(one)


@dataclass(frozen=True, slots=True)
class JobWaits:
    """Lets requests wait for jobs."""

    settings: Settings
    tenants: TenantDirectory
    requests: RequestStore
    waiters: Waiters
    ongoing: OngoingRequests
    places: Places

    @contextlib.asynccontextmanager
    async def place(self, request: Request) -> AsyncIterator[bool]:
        """Take a place among the waiting requests of the tenant for a block; False if none is left."""
        tenant_id = caller_of(request.scope).tenant_id
        most = (await self.tenants.of(tenant_id)).config.max_waits
        async with contextlib.AsyncExitStack() as held:
            try:
                await held.enter_async_context(self.places.hold(Kind.WAITS, tenant_id, most))
            except HttpRefusal:
                yield False
                return
            yield True

    async def ended(
        self, job_id: UUID, seconds: float, request: Request, *, has_place: bool = False
    ) -> JobView | None:
        """Return the caller's job as soon as it has ended or asks a person, or as it is after `seconds`.

        None if the client has gone. A question that is already open ends no wait. The time waited is added to the
        scope. Raises `NotFound`; the refusal of the key if that ends meanwhile; and `HttpRefusal` (429) if the tenant
        has no place left, unless the request `has_place`.
        """
        tenant_id = caller_of(request.scope).tenant_id
        if seconds > 0:
            begun = monotonic()
            with self.waiters.watch(job_id) as waiter, self.ongoing.under(request.scope, waiter.wake) as ongoing:
                # Registered first, looked at afterwards: an ending between the two is not missed.
                if not self.waiters.has_surely_not_ended(job_id, tenant_id):
                    view = await self.requests.view(tenant_id, job_id, only_ended=True)
                    if view.is_whole:
                        return view
                seconds = min(seconds, self.settings.max_wait_seconds)
                if has_place:
                    stayed = await waiter.wait(seconds, request.receive)
                else:
                    most = (await self.tenants.of(tenant_id)).config.max_waits
                    await self.places.take(Kind.WAITS, tenant_id, most)
                    try:
                        stayed = await waiter.wait(seconds, request.receive)
                    finally:
                        self.places.give(Kind.WAITS, tenant_id)
            request.scope[WAITED] = request.scope.get(WAITED, 0.0) + monotonic() - begun
            if not stayed:
                return None
            ongoing.check()
        return await self.requests.view(tenant_id, job_id)


def client_closed_response() -> Response:
    """Return the answer to a client that has gone: only our metrics read it, under nginx' number for it."""
    return Response(status_code=499)
