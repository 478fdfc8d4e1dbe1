"""What a route may ask for: the services of the application, and bodies decoded strictly."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Path
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from api.body import decode
from api.metrics import Metrics
from api.problems import error_responses
from api.readiness import Readiness
from api.waiting import Waiters
from shared.broker.publisher import CeleryPublisher
from shared.domain.errors import NotFound, capped
from shared.settings import Settings
from shared.store.agents import DocumentStore
from shared.store.catalogue import Catalogue
from shared.store.payloads import PayloadStore
from shared.store.requests import RequestStore
from shared.store.schedules import Schedules
from shared.store.signals import Notifier


@dataclass(frozen=True, slots=True)
class Services:
    """What the composition root has put together for one application."""

    settings: Settings
    requests: RequestStore
    catalogue: Catalogue
    payloads: PayloadStore
    publisher: CeleryPublisher
    ended: Notifier
    cancelled: Notifier
    waiters: Waiters
    agents: DocumentStore
    skills: DocumentStore
    schedules: Schedules
    readiness: Readiness
    metrics: Metrics


async def _services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


Use = Annotated[Services, Depends(_services)]


def job_id_of(text: str) -> UUID:
    """Return the id in a path; what is no UUID names no job: `NotFound`."""
    try:
        return UUID(text)
    except ValueError:
        raise NotFound(f"there is no job {capped(text, 80)!r}; job ids are UUIDs") from None


StepPath = Annotated[
    str, Path(json_schema_extra={"format": "int32", "pattern": "^[0-9]+$"}, description="The step's index.")
]

_MAX_DIGITS = 9
"""No plan has as many steps; the database's type ends one digit later."""


def step_index_of(job_id: UUID, text: str) -> int:
    """Return the index of a step in a path; what is no number names no step: `NotFound`."""
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        raise NotFound(f"job {job_id} has no step {capped(text, 20)!r}; steps are numbered from 0")
    return int(text)


def router(tag: str) -> APIRouter:
    """Return a router whose routes decode bodies strictly and document the errors that every route may have."""
    return APIRouter(route_class=_StrictRoute, tags=[tag], responses=error_responses(401, 403, 421, 422, 500, 503))


class _StrictRequest(Request):
    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            self._json = decode(await self.body())
        return self._json


class _StrictRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handle(_StrictRequest(request.scope, request.receive))

        return strict
