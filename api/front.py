"""The outermost layer: lets a request in or not, counts it, and hands it on.

One layer instead of several, because each costs every request a closure and a coroutine or two. What lies behind it
is an ASGI application that turns its own faults into problems. HEAD is answered as GET, without the body. An answer
ends only when the request's body has come to its end, or has had its chance to: a client that sends all before it
reads would else find its connection reset, in the place of the answer.
"""

from __future__ import annotations

import asyncio
from time import perf_counter

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import respond
from api.guard import Guard
from api.metrics import Metrics, route_of
from api.waiting import WAITED
from shared.domain.errors import PlanqError

_UNREAD_BYTES = 64 * 1024 * 1024
_UNREAD_SECONDS = 10.0
"""How much of a body that nobody wants is read, and how long; who sends more finds the connection closed."""


class Front:
    """ASGI application; only for HTTP requests."""

    def __init__(self, app: ASGIApp, guard: Guard, metrics: Metrics) -> None:
        self._app = app
        self._guard = guard
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status = 500
        begun = perf_counter()
        body = Body(scope, receive)
        is_head = scope["method"] == "HEAD"

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                if is_head and message.get("body"):
                    message = {**message, "body": b""}
                if not body.is_read and not message.get("more_body", False):
                    await send({**message, "more_body": True})
                    await body.read_out()
                    message = {"type": "http.response.body"}
            await send(message)

        asked = {**scope, "method": "GET"} if is_head else scope
        try:
            try:
                self._guard.check(asked)
            except (PlanqError, HTTPException) as refusal:
                await respond(refusal)(asked, body.receive, watched)
                return
            await self._app(asked, self._guard.measured(body.receive), watched)
        finally:
            seconds = max(0.0, perf_counter() - begun - asked.get(WAITED, 0.0))
            self._metrics.count(scope["method"], route_of(asked), status, seconds)


class Body:
    """The body of a request as it is received; `is_read` says that nothing more of it is to come."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._receive = receive
        names = {name for name, _ in scope["headers"]}
        # A client that waits to be told to go on has sent nothing, and need not.
        self.is_read = not names & {b"content-length", b"transfer-encoding"} or b"expect" in names

    async def receive(self) -> Message:
        """Return what comes next."""
        message = await self._receive()
        if not message.get("more_body", False):
            self.is_read = True
        return message

    async def read_out(self) -> None:
        """Receive what is left, within bounds, and forget it."""
        left = _UNREAD_BYTES
        try:
            async with asyncio.timeout(_UNREAD_SECONDS):
                while not self.is_read and left > 0:
                    left -= len((await self.receive()).get("body", b""))
        except TimeoutError:
            pass
