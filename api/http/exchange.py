"""HTTP as every route speaks it: strict JSON in, exact JSON out, and every error as problem details.

**In** (RFC 8259): what is not JSON (NaN, lone surrogates, a byte order mark) is refused with its line and column. So
are integers beyond 64 bits, which a decoder would silently turn into floats, and a key that an object has twice, of
which a decoder silently takes the last.

**Out**: an error has the one shape of RFC 9457, as `application/problem+json`:

    {"type": "about:blank", "title": "Not Found", "status": 404, "detail": "there is no job …", "code": "not_found"}

`code` is stable and made for programs, `detail` for people. `errors` lists single defects where there are several.
One table maps the domain's errors to HTTP. An error that nothing foresaw becomes a 500 without its text; the log has
the text under the id that the client gets.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from http import HTTPStatus
from itertools import islice
from typing import Any, get_args
from uuid import UUID, uuid4

import orjson
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from planq.shared.platform import errors as domain
from planq.shared.platform.database import shown_time
from planq.shared.platform.errors import InvalidRequest, PlanqError, TooLarge, capped
from planq.shared.platform.values.decoding import (
    LongInteger,
    RepeatedKey,
    TooManyParts,
    decode_bounded,
    decode_stored,
)
from planq.shared.platform.values.defects import Defect
from planq.shared.platform.values.encoding import JsonText

_log = logging.getLogger("planq.api")

PROBLEM_TYPE = "application/problem+json"

_TITLES = {413: "Content Too Large", 414: "URI Too Long", 416: "Range Not Satisfiable", 422: "Unprocessable Content"}
"""What RFC 9110 calls statuses for which Python before 3.13 has the names of RFC 2616 and RFC 4918."""


def _title_of(status: int) -> str:
    return _TITLES.get(status) or HTTPStatus(status).phrase


class Problem(BaseModel):
    """Problem details (RFC 9457, section 3) with planq's members `code`, `errors` and `retryable`."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(default="about:blank", description="A URI reference; `code` tells the kinds apart.")
    title: str = Field(description="The HTTP status in words.")
    status: int = Field(description="The HTTP status.")
    detail: str = Field(description="What was expected, what was found, what to do.")
    code: str = Field(description="A stable name of the kind of problem, for programs.")
    retryable: bool = Field(default=False, description="Whether the same request may succeed later.")
    instance: str | None = Field(default=None, description="The id under which a fault was logged.")
    errors: list[dict[str, Any]] | None = Field(default=None, description="The first defects, where there are some.")
    errors_left_out: int | None = Field(default=None, description="How many more there are; absent for none.")


class HttpRefusal(HTTPException):
    """A refusal that is about HTTP itself, so that it has no place in the domain's tree of errors.

    It is an `HTTPException` because FastAPI lets only those through while it reads a body.
    """

    def __init__(
        self, status: int, code: str, detail: str, *, headers: Mapping[str, str] | None = None, **members: Any
    ) -> None:
        super().__init__(status, detail, dict(headers) if headers else None)
        self.code = code
        self.members = members


_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""What a browser may do with an answer: the page at `/docs` needs this much, and no other answer is a page."""

_PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
"""What a browser may do with one of the pages below `/ui`: nothing stands in the page itself but text."""

GUARDING_FIELDS: Sequence[tuple[bytes, bytes]] = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", _POLICY.encode()),
)
"""Header fields of every answer, whoever gives it: no browser takes it for a page, a frame or a script of its own."""

PAGE_FIELDS: Sequence[tuple[bytes, bytes]] = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    # `no-referrer` would take the Origin from forms, by which the guard tells our own pages from others.
    (b"referrer-policy", b"same-origin"),
    (b"content-security-policy", _PAGE_POLICY.encode()),
)
"""The same of a page below `/ui`."""


def problem(
    status: int,
    code: str,
    detail: str,
    *,
    errors: Sequence[Mapping[str, Any]] | None = None,
    instance: str | None = None,
    members: Mapping[str, Any] | None = None,
    is_retryable: bool | None = None,
) -> dict[str, Any]:
    """Return problem details as a JSON object; `members` are further ones and never replace these.

    Where nobody says whether the same request may succeed later, the status does.
    """
    shown: dict[str, Any] = {
        "type": "about:blank",  # RFC 9457 §4.2.1: the title is then that of the status
        "title": _title_of(status),
        "status": status,
        "detail": detail,
        "code": code,
        "retryable": status in _PASSING if is_retryable is None else is_retryable,
    }
    if instance is not None:
        shown["instance"] = instance
    if errors is not None:
        shown["errors"] = list(errors)
    return {**(members or {}), **shown}


_PASSING = (429, 503)
"""Statuses that say: ask again later."""


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI description of these error statuses, each a problem."""
    content = {PROBLEM_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"description": _title_of(status), "content": content} for status in statuses}


def accepted_response(description: str, place: str, replay: str) -> dict[str, Any]:
    """Return the OpenAPI description of a 202: where its `Location` leads, and what a replay under its key means."""
    replayed = {"description": replay, "schema": {"type": "string", "enum": ["true"]}}
    located = {"description": place, "schema": {"type": "string"}}
    return {"description": description, "headers": {"Location": located, "Idempotency-Replayed": replayed}}


MAX_BODY_PARTS = 200_000
"""Most values, keys and elements of a body, counted on its bytes before anything is built of them."""

MAX_DEFECTS = 20
"""Most defects that one answer tells; none of their texts is longer than `MAX_DEFECT_CHARS`."""

MAX_DEFECT_CHARS = 500


def decode_body(body: bytes, *, is_unique: bool = True, name: str = "the body") -> Any:
    """Return the value of a JSON text; raises `HttpRefusal` (400, 413, 422) that says where and why it cannot.

    Without `is_unique` keys may be repeated, for a reader that reports them itself. `name` is what it is called.
    """
    if not body:
        raise HttpRefusal(400, "malformed_json", "expected a JSON document, found an empty body")
    try:
        return decode_bounded(body, MAX_BODY_PARTS, is_unique=is_unique)
    except TooManyParts as error:
        message = f"{name}: expected at most {MAX_BODY_PARTS} values and keys, found more; send less at once"
        raise HttpRefusal(413, TooLarge.code, message, limit=MAX_BODY_PARTS) from error
    except json.JSONDecodeError as error:
        # The message of the decoder ends with its own rendering of the place.
        reason = error.msg.partition(": line ")[0]
        raise HttpRefusal(
            400,
            "malformed_json",
            f"{name} is no valid JSON (RFC 8259): {reason} at line {error.lineno}, column {error.colno}",
            line=error.lineno,
            column=error.colno,
        ) from error
    except RecursionError as error:
        raise HttpRefusal(400, "malformed_json", "the body is nested too deeply") from error
    except LongInteger as error:
        message = f"expected integers of at most 64 bits, found {error.text}; send it as a string"
        raise HttpRefusal(422, "invalid_request", message) from error
    except RepeatedKey as error:
        field = error.pointer.removeprefix("/")
        message = "the key stands there more than once, and which value counts is open; send it once"
        defect = Defect(field, "", message).of_body()
        raise HttpRefusal(422, "invalid_request", f"{capped(field, 200)}: {message}", errors=[defect]) from error


def body_digest(value: Any) -> str:
    """Return the SHA-256 of a decoded body, the same for every spelling of it (order of keys, white space, escapes).

    Raises `InvalidRequest` when it is nested too deeply to be written again.
    """
    try:
        text = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError as error:
        raise InvalidRequest("the body is nested too deeply; expected at most 100 levels") from error
    return hashlib.sha256(text).hexdigest()


def json_bytes(value: Any) -> bytes:
    """Return JSON text in UTF-8 for what the store holds: integers of any size, and strings of any code points.

    Ids and times may stay as the database returns them: a time is shown in ISO 8601, a `Decimal` as a number. A
    `JsonText` is part of the text as it is.
    """
    try:
        return orjson.dumps(value, default=_as_it_is, option=_AS_STORED)
    except TypeError:
        # Tools may return integers beyond 64 bits and lone surrogates; both have a JSON form, only not in orjson.
        return json.dumps(value, allow_nan=False, separators=(",", ":"), default=_value_of).encode("ascii")


_LINE_BREAKS = tuple((mark.encode(), b"\\u%04x" % ord(mark)) for mark in "\u0085\u2028\u2029")


def on_one_line(body: bytes) -> bytes:
    """Return JSON text without any character at which a reader of lines may split it.

    JSON escapes those of ASCII in strings. Python's `splitlines`, JavaScript's parsers and editors also split at
    U+0085, U+2028 and U+2029, which JSON allows as they are.
    """
    for mark, escape in _LINE_BREAKS:
        body = body.replace(mark, escape)
    return body


_AS_STORED = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME


def _as_it_is(value: Any) -> Any:
    return orjson.Fragment(value.body) if isinstance(value, JsonText) else _value_of(value)


def _value_of(value: Any) -> Any:
    if isinstance(value, datetime):
        return shown_time(value)
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, JsonText):
        return decode_stored(value.body)
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


class JsonResponse(Response):
    """A response whose content is encoded by `json_bytes`."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return json_bytes(content)


RETRY_AFTER_SECONDS = 2
"""What a client is asked to wait when something that planq stands on does not answer."""

_BY_STATUS: Mapping[int, Sequence[type[PlanqError]]] = {
    400: (domain.TenantRequired,),
    401: (domain.Unauthorized,),
    402: (domain.BudgetExceeded,),
    403: (domain.ForeignTenant, domain.NotAsked, domain.PolicyDenied, domain.DepthExceeded),
    404: (domain.NotFound,),
    409: (
        *(domain.Conflict, domain.SecretInChat, domain.Aborted, domain.Cancelled),
        *(domain.AnswerDeclined, domain.OutcomeUnknown),
    ),
    410: (domain.Erased,),
    413: (domain.TooLarge,),
    422: (
        domain.InvalidRequest,
        domain.PlanInvalid,
        domain.InvalidArguments,
        domain.UnknownTool,
        domain.UnknownAgent,
    ),
    429: (domain.RateLimited, domain.HostBusy, domain.TooManyQuestions, domain.StorageFull),
    500: (domain.InternalFault, domain.Misconfigured),
    502: (
        domain.InvalidOutput,
        domain.UnreadableReply,
        domain.AuthFailed,
        domain.ToolFailed,
        domain.ModelRefused,
        domain.ProviderBatchFailed,
        domain.AnswerIncomplete,
        domain.ContextExceeded,
    ),
    503: (
        domain.Transient,
        domain.Unreached,
        domain.JobDeleted,
        domain.WorkerLost,
        domain.OwnershipLost,
        domain.DatabaseUnavailable,
        domain.BrokerUnavailable,
        domain.StorageUnavailable,
    ),
    504: (
        domain.TimedOut,
        domain.FirstTokenTimedOut,
        domain.TooSlow,
        domain.QueueTimedOut,
        domain.PlanTimedOut,
        domain.JobTimedOut,
        domain.HumanWaitTimedOut,
    ),
}
STATUS_OF = {kind: status for status, kinds in _BY_STATUS.items() for kind in kinds}
"""The HTTP status of every error of the tree in `planq.shared.platform.errors` that is raised; a test compares."""

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
    """Give the application its handlers; `Faults` answers what they do not catch."""
    app.add_exception_handler(PlanqError, _on_planq_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(RequestValidationError, _on_invalid_request)


class Faults:
    """ASGI middleware: an exception that nothing foresaw becomes a problem, as long as no answer has begun.

    So does a request that the stopping process cuts off: uvicorn cancels it, and would answer 500 by itself.
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


def error_response(error: PlanqError | HTTPException) -> Response:
    """Return the problem response of a deliberate error."""
    if isinstance(error, HttpRefusal):
        return _response(problem(error.status_code, error.code, error.detail, members=error.members), error.headers)
    if isinstance(error, HTTPException):
        code = _CODES.get(error.status_code, "http_error")
        return _response(problem(error.status_code, code, error.detail), error.headers)
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
    if found is not None:
        details |= left_out(len(found))
        found = shown_defects(found)
    return _response(
        problem(status, error.code, error.message, errors=found, members=details, is_retryable=error.retryable),
        headers,
    )


def shown_defects(defects: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what one answer tells of defects: the first `MAX_DEFECTS`, their texts and lists cut."""
    return [{name: _cut(value) for name, value in defect.items()} for defect in defects[:MAX_DEFECTS]]


def left_out(count: int) -> dict[str, int]:
    """Return the member that says how many of so many defects `shown_defects` leaves out; none where none is."""
    return {"errors_left_out": count - MAX_DEFECTS} if count > MAX_DEFECTS else {}


def _cut(value: Any) -> Any:
    if isinstance(value, str):
        return capped(value, MAX_DEFECT_CHARS)
    if isinstance(value, list | tuple):
        return [_cut(one) for one in value[:MAX_DEFECTS]]
    return {name: _cut(one) for name, one in value.items()} if isinstance(value, Mapping) else value


def check_fields(model: TypeAdapter[Any], sent: Any) -> None:
    """Raise `InvalidRequest` where a body has so many defects that listing them would cost more than all else.

    pydantic makes a record of each in one go, under the interpreter's lock. What is told then is what is wrong with
    the beginning of each list and object.
    """
    count = 0
    try:
        model.validate_python(sent)
    except ValidationError as error:
        count = error.error_count()
    if count <= _MANY_DEFECTS:
        return
    defects: list[dict[str, Any]] = []
    try:
        model.validate_python(_beginning(sent))
    except ValidationError as error:
        defects = [
            {"in": "body", "field": capped(".".join(map(str, item["loc"])), 200), "message": item["msg"]}
            for item in error.errors(include_url=False, include_input=False, include_context=False)
            if item["type"] != "missing"  # it may stand in what was left out
        ]
    raise InvalidRequest(f"the body has {count} defects; correct what `errors` begins to list", errors=defects)


_MANY_DEFECTS = 1_000


def _beginning(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _beginning(one) for name, one in islice(value.items(), 2 * MAX_DEFECTS)}
    return [_beginning(one) for one in value[:MAX_DEFECTS]] if isinstance(value, list) else value


async def _on_planq_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, PlanqError)
    return error_response(error)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405 and request.method == "OPTIONS":
        return Response(status_code=204, headers={"Allow": ", ".join([*_methods_at(request), "OPTIONS"])})
    if not isinstance(error, HttpRefusal) and error.status_code in (404, 405):
        path = capped(request.url.path, 200)
        if error.status_code == 404:
            error.detail = f"there is nothing at {path}; see /docs"
        else:
            allowed = ", ".join([*_methods_at(request), "OPTIONS"])
            error.detail = f"{path} does not know the method {request.method}; it knows {allowed}"
            error.headers = {"Allow": allowed}
    return error_response(error)


def _methods_at(request: Request) -> list[str]:
    """Return all methods that something at the path of a request knows; the framework names those of one route."""

    def is_known(method: str) -> bool:
        asked = {**request.scope, "method": method}
        return any(route.matches(asked)[0] is Match.FULL for route in request.app.router.routes)

    known = [method for method in ("GET", "POST", "PUT", "PATCH", "DELETE") if is_known(method)]
    return [*known[:1], "HEAD", *known[1:]] if "GET" in known else known


async def _on_invalid_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    found = error.errors()
    defects = [_defect(request, item) for item in found[:MAX_DEFECTS]]
    detail = "; ".join(f"{defect['field'] or defect['in']}: {defect['message']}" for defect in defects)
    is_partial = any(item["type"] == "missing" and len(item["loc"]) > 1 for item in found)
    if request.method == "PUT" and is_partial and "PATCH" in _methods_at(request):
        detail += "; PUT replaces the whole, PATCH changes what it is given"
    code = domain.InvalidRequest.code
    shown = shown_defects(defects)
    return _response(problem(422, code, capped(detail), errors=shown, members=left_out(len(found))))


def _defect(request: Request, item: Mapping[str, Any]) -> dict[str, str]:
    place, *path = item["loc"]
    field = ".".join(str(part) for part in path)
    if item["type"] == "extra_forbidden":
        known = _known_fields(request, path[:-1])
        message = f"unknown field; known fields are {', '.join(known)}" if known else "unknown field"
    elif item["type"] == "missing":
        message = "is required" if path else "expected a JSON body, found none"
    else:
        given = item.get("input")
        # Outside of a body everything is text: then the text itself tells more than its type.
        found = _found(given) if place == "body" else repr(capped(str(given), 80))
        message = f"{item['msg']}; found {found}"
    return {"in": str(place), "field": capped(field, 200), "message": message}


def _known_fields(request: Request, path: Sequence[Any]) -> list[str]:
    body_field = getattr(request.scope.get("route"), "body_field", None)
    models = [] if body_field is None else _models(body_field.field_info.annotation)
    for part in path:
        fields = [info.annotation for model in models for name, info in _fields(model) if name == part]
        # What names no field is the index of an item, or the branch of a union: the models of both are those of all.
        models = [inner for field in fields for inner in _models(field)] if fields else models
    return sorted({name for model in models for name, _ in _fields(model)})


def _fields(model: type[BaseModel]) -> Iterator[tuple[str, FieldInfo]]:
    return ((info.alias or name, info) for name, info in model.model_fields.items())


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models(part)]


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
    return Response(json_bytes(shown), status_code=shown["status"], headers=headers, media_type=PROBLEM_TYPE)
