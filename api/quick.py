"""The hottest routes, answered before FastAPI's routing and reading of parameters.

FastAPI documents these routes. Each has a function `quick` that answers requests of the usual form, and returns None
for all others, which FastAPI answers. FastAPI's layers take longer than planq takes to store or read a job.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeAlias, TypeVar

from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from planq.api.access.guard import FIELDS
from planq.api.deps import Services, StrictRequest
from planq.api.http.exchange import HttpRefusal, error_response
from planq.shared.platform.errors import PlanqError

F = TypeVar("F", bound=Callable[..., Any])
M = TypeVar("M", bound=BaseModel)
Quick: TypeAlias = Callable[[StrictRequest, Services], Coroutine[Any, Any, Response | None]]

_WAIT = re.compile(rb"wait=(\d{1,6}(?:\.\d{1,6})?)")


def quick(answer: Quick) -> Callable[[F], F]:
    """Let `answer` answer the requests of a route; if it returns None, FastAPI does.

    The path may end with one parameter: the part after the last slash of the request's path.
    """

    def mark(endpoint: F) -> F:
        endpoint.quick = answer  # type: ignore[attr-defined]
        return endpoint

    return mark


def wait_of(scope: Scope) -> float | None:
    """Return the `WaitQuery` of a request without other parameters; None for any other query."""
    query = scope["query_string"]
    if not query:
        return 0.0
    found = _WAIT.fullmatch(query)
    return None if found is None else float(found[1])


async def usual_body(request: StrictRequest, model: type[M]) -> M | None:
    """Return the body of a request as this model; None if it is long or wrong: FastAPI explains that."""
    if not request.is_short or request.scope[FIELDS].get(b"content-type") != b"application/json":
        return None
    try:
        return model.model_validate(await request.json())
    except (ValidationError, HttpRefusal, ClientDisconnect):
        return None


def field_of(request: StrictRequest, name: bytes) -> str | None:
    value: bytes | None = request.scope[FIELDS].get(name)
    return None if value is None else value.decode("latin-1")


class QuickRoutes:
    """ASGI middleware that answers by the `quick` functions of routes, or else by `app`."""

    def __init__(self, app: ASGIApp, services: Services, routes: Iterable[BaseRoute]) -> None:
        self._app = app
        self._services = services
        self._routes: dict[tuple[str, str], tuple[Quick, APIRoute]] = {}
        self._below: dict[tuple[str, str], tuple[Quick, APIRoute]] = {}
        for route in routes:
            if isinstance(route, APIRoute) and (answer := getattr(route.endpoint, "quick", None)) is not None:
                head, _, last = route.path.rpartition("/")
                for method in route.methods or ():
                    if last.startswith("{"):
                        self._below[method, head] = answer, route
                    else:
                        self._routes[method, route.path] = answer, route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = None
        if scope["type"] == "http":
            method, path = scope["method"], scope["path"]
            head, _, last = path.rpartition("/")
            found = self._routes.get((method, path)) or (self._below.get((method, head)) if last else None)
            if found is not None:
                answer, scope["route"] = found
                request = StrictRequest(scope, receive)
                try:
                    response = await answer(request, self._services)
                except (PlanqError, HTTPException) as error:
                    response = error_response(error)
                if response is None:
                    receive = _again(request)
        await (self._app if response is None else response)(scope, receive, send)


def _again(request: StrictRequest) -> Receive:
    """Return a `receive` that replays the body if it was read already."""
    body: bytes | None = getattr(request, "_body", None)

    async def receive() -> Message:
        nonlocal body
        if body is None:
            return await request.receive()
        read, body = body, None
        return {"type": "http.request", "body": read, "more_body": False}

    return receive
