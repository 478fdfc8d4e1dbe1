"""Every error as problem details: one table from the domain's errors to HTTP, and handlers for what is not ours.

An error that nothing foresaw becomes a 500 without its text; the text is logged under the id that the client gets.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any, get_args
from uuid import uuid4

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.responses import MEDIA_TYPE, Refusal, encode, problem
from shared.domain import errors as domain
from shared.domain.errors import PlanqError, capped

_log = logging.getLogger("planq.api")

RETRY_AFTER_SECONDS = 2
"""What a client is asked to wait when something that planq stands on does not answer."""

STATUS_OF: Mapping[type[PlanqError], int] = {
    domain.InvalidRequest: 422,
    domain.PlanInvalid: 422,
    domain.Unauthorized: 401,
    domain.NotFound: 404,
    domain.Conflict: 409,
    domain.TooLarge: 413,
    domain.Transient: 503,
    domain.Unreached: 503,
    domain.RateLimited: 429,
    domain.TimedOut: 504,
    domain.FirstTokenTimedOut: 504,
    domain.QueueTimedOut: 504,
    domain.PlanTimedOut: 504,
    domain.JobTimedOut: 504,
    domain.HumanWaitTimedOut: 504,
    domain.WorkerLost: 503,
    domain.OwnershipLost: 503,
    domain.InvalidArguments: 422,
    domain.InvalidOutput: 502,
    domain.AuthFailed: 502,
    domain.PolicyDenied: 403,
    domain.UnknownTool: 422,
    domain.UnknownAgent: 422,
    domain.DepthExceeded: 403,
    domain.BudgetExceeded: 403,
    domain.ToolFailed: 502,
    domain.ModelRefused: 502,
    domain.Cancelled: 409,
    domain.OutcomeUnknown: 409,
    domain.InternalFault: 500,
    domain.DatabaseUnavailable: 503,
    domain.BrokerUnavailable: 503,
    domain.StorageUnavailable: 503,
    domain.Misconfigured: 500,
}
"""The HTTP status of every error of the tree in `shared.domain.errors` that is raised itself; a test compares."""

_CODES = {
    400: "bad_request",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    413: "too_large",
    415: "unsupported_media_type",
}

_KINDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (bool, "a boolean"),
    ((int, float), "a number"),
    (str, "a string"),
    (list, "an array"),
    (dict, "an object"),
    (type(None), "null"),
)


def install(app: FastAPI) -> None:
    """Give the application its handlers; what they do not catch is `Faults`' business."""
    app.add_exception_handler(PlanqError, _on_planq_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(RequestValidationError, _on_invalid_request)


class Faults:
    """ASGI middleware: an exception that nothing foresaw becomes a problem, as long as no answer has begun.

    So does the end of this process' patience: uvicorn cancels what is still under way when it stops, because the
    database is away, say, and would answer 500 by itself.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        has_begun = False

        async def watched(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except asyncio.CancelledError:
            if has_begun:
                raise
            await _stopping()(scope, receive, send)
        except Exception as error:
            response = _fault(error)
            if has_begun:
                raise
            await response(scope, receive, send)


def respond(error: PlanqError | HTTPException) -> Response:
    """Return the problem response of a deliberate error."""
    return _of_planq_error(error) if isinstance(error, PlanqError) else _of_http_exception(error)


def _of_planq_error(error: PlanqError) -> Response:
    status = next((STATUS_OF[kind] for kind in type(error).__mro__ if kind in STATUS_OF), 500)
    if status == 500:
        return _fault(error)
    headers = {}
    if isinstance(error, domain.Unavailable):
        headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
    if isinstance(error, domain.Unauthorized):
        headers["WWW-Authenticate"] = 'Bearer realm="planq"'
    details = dict(error.details)
    found = details.pop("errors", None)
    return _response(problem(status, error.code, error.message, errors=found, members=details), headers)


def _of_http_exception(error: HTTPException) -> Response:
    if isinstance(error, Refusal):
        shown = problem(error.status_code, error.code, error.detail, members=error.members)
    else:
        shown = problem(error.status_code, _CODES.get(error.status_code, "http_error"), error.detail)
    return _response(shown, error.headers)


async def _on_planq_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, PlanqError)
    return _of_planq_error(error)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if not isinstance(error, Refusal) and error.status_code in (404, 405):
        path = capped(request.url.path, 200)
        if error.status_code == 404:
            error.detail = f"there is nothing at {path}; see /docs"
        else:
            allowed = ", ".join(_methods_at(request))
            error.detail = f"{path} does not know the method {request.method}; it knows {allowed}"
            error.headers = {"Allow": allowed}
    return _of_http_exception(error)


def _methods_at(request: Request) -> list[str]:
    """Return all methods that something at the path of a request knows; the framework names those of one route."""

    def is_known(method: str) -> bool:
        asked = {**request.scope, "method": method}
        return any(route.matches(asked)[0] is Match.FULL for route in request.app.router.routes)

    known = [method for method in ("GET", "POST", "PUT", "PATCH", "DELETE") if is_known(method)]
    return [*known[:1], "HEAD", *known[1:]] if "GET" in known else known


async def _on_invalid_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    defects = [_defect(request, item) for item in error.errors()]
    detail = "; ".join(f"{defect['field'] or defect['in']}: {defect['message']}" for defect in defects)
    return _response(problem(422, domain.InvalidRequest.code, capped(detail), errors=defects))


def _defect(request: Request, item: Mapping[str, Any]) -> dict[str, str]:
    place, *path = item["loc"]
    field = ".".join(str(part) for part in path)
    if item["type"] == "extra_forbidden":
        known = sorted(info.alias or name for name, info in _model_at(request, path[:-1]).items())
        message = f"unknown field; known fields are {', '.join(known)}"
    elif item["type"] == "missing":
        message = "is required" if path else "expected a JSON body, found none"
    else:
        given = item.get("input")
        # Outside of a body everything is text: then the text itself tells more than its type.
        found = _found(given) if place == "body" else repr(capped(str(given), 80))
        message = f"{item['msg']}; found {found}"
    return {"in": str(place), "field": capped(field, 200), "message": message}


def _model_at(request: Request, path: Sequence[Any]) -> Mapping[str, Any]:
    """Return the fields of the model that a place in the body of this request has, for naming what is known."""
    body_field = getattr(request.scope.get("route"), "body_field", None)
    annotation: Any = body_field.field_info.annotation if body_field is not None else None
    for part in path:
        field = _fields(annotation).get(part)
        annotation = None if field is None else field.annotation
    return _fields(annotation)


def _fields(annotation: Any) -> Mapping[str, Any]:
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate.model_fields
    return {}


def _found(value: Any) -> str:
    """Return what a value is, with itself where that is short: a bound or a choice is not explained by a type."""
    kind = next((name for kinds, name in _KINDS if isinstance(value, kinds)), "something else")
    if isinstance(value, str):
        return f"{kind} ({capped(value, 80)!r})"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{kind} ({value})"
    return kind


def _fault(error: Exception) -> Response:
    fault_id = str(uuid4())
    _log.error("fault", extra={"fault": fault_id}, exc_info=error)
    detail = f"planq failed on this request; the cause is in its log under {fault_id}"
    return _response(problem(500, domain.InternalFault.code, detail, instance=f"urn:uuid:{fault_id}"))


def _stopping() -> Response:
    detail = "this process stops, and the request was not done by then; ask again, another process answers"
    shown = problem(503, domain.Unavailable.code, detail)
    return _response(shown, {"Retry-After": str(RETRY_AFTER_SECONDS), "Connection": "close"})


def _response(shown: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Response:
    response = Response(encode(shown), status_code=shown["status"], media_type=MEDIA_TYPE)
    if headers:
        MutableHeaders(raw=response.raw_headers).update(headers)
    return response
