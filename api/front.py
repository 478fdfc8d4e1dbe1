"""The outermost layer: lets a request in or not, counts it, and hands it on.

One layer instead of several, because each costs every request a closure and a coroutine or two. What lies behind it
is an ASGI application that turns its own faults into problems.
"""

from __future__ import annotations

from time import perf_counter

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import respond
from api.guard import Guard
from api.metrics import Metrics, route_of
from api.waiting import WAITED
from shared.domain.errors import PlanqError


class Front:
    """ASGI application; only for HTTP requests."""

    def __init__(self, app: ASGIApp, guard: Guard, metrics: Metrics) -> None:
        self._app = app
        self._guard = guard
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status = 500
        begun = perf_counter()

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            try:
                self._guard.check(scope)
            except (PlanqError, HTTPException) as refusal:
                await respond(refusal)(scope, receive, watched)
                return
            await self._app(scope, self._guard.measured(receive), watched)
        finally:
            seconds = max(0.0, perf_counter() - begun - scope.get(WAITED, 0.0))
            self._metrics.count(scope["method"], route_of(scope), status, seconds)
