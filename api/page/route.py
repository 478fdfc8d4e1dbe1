"""Routes of pages: each handler calls the API route that does the same, and shows what that answered.

page_router()         a router whose handlers return pages, and raise as those of the API do
values_of(answer)     the JSON value that a route of the API answered with
lines_of(answer)      the same of one that streams lines of JSON
fields_of(request)    the fields of its form, whose token was checked
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from time import time
from typing import Annotated, Any, TypeVar
from urllib.parse import parse_qsl, urlencode

import orjson
from fastapi import APIRouter, Query
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, TypeAdapter, ValidationError
from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.types import Scope

from planq.api.access.guard import LOGIN
from planq.api.access.scopes import LOCAL, Caller, Who
from planq.api.access.sessions import UI
from planq.api.deps import Services, Use, check_query, query_names
from planq.api.http.exchange import HttpRefusal, check_fields, error_response, json_bytes
from planq.api.page.rendering import assets, home_of, is_open, keep, page, session_of, sessions_of
from planq.shared.platform.computing import INLINE_CHARS, off_loop
from planq.shared.platform.errors import InvalidRequest, NotFound, PlanqError, TooLarge, Unauthorized
from planq.shared.platform.values.decoding import decode_stored

_FORM = "planq.form"
_MAX_FIELDS = 200
_MAX_PART_BYTES = 64 * 1024
"""Maximum size of a field beside a file: the address of `POST /batches`, which takes the same, holds no more."""

Body = TypeVar("Body", bound=BaseModel)
Handler = TypeVar("Handler", bound=Callable[..., Any])


def page_router() -> APIRouter:
    return APIRouter(route_class=_PageRoute, include_in_schema=False)


def add_acts(router: APIRouter, place: str, **routes: Callable[..., Coroutine[Any, Any, Response]]) -> None:
    """Add a form for each of these routes of the API, which take the id in `place`, and lead back to that page."""
    for name, route in routes.items():
        router.add_api_route(f"{UI}{place}/{name}", _act(place, route), methods=["POST"])


def _act(place: str, route: Callable[..., Coroutine[Any, Any, Response]]) -> Callable[..., Any]:
    async def act(request: Request, services: Use, who: Who) -> Response:
        await route(*request.path_params.values(), services, who)
        return seen(place.format(**request.path_params))

    return act


_READS = "planq_reads"


def reads(*names: str) -> Callable[[Handler], Handler]:
    """Declare parameters of the query that a handler of a page reads itself; all others are refused."""

    def declared(handler: Handler) -> Handler:
        setattr(handler, _READS, names)
        return handler

    return declared


class _PageRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        known = [*query_names(self.dependant), *getattr(self.endpoint, _READS, ())]

        async def shown(request: Request) -> Response:
            try:
                if request.scope["query_string"]:
                    check_query(request, known)
                if request.method == "POST":
                    form = request.scope[_FORM] = await _form_in(request)
                    _check_token(request, form)
                return await handle(request)
            except RequestValidationError as error:
                names = ", ".join(sorted({str(one["loc"][-1]) for one in error.errors()}))
                return refusal_page(request.scope, InvalidRequest(f"the address has values that do not fit: {names}"))
            except (PlanqError, HTTPException) as error:
                return refusal_page(request.scope, error)
            finally:
                if _FORM in request.scope:
                    await sent_form(request).close()  # a long file of it lies on disk

        return shown


async def _form_in(request: Request) -> FormData:
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    if options.get(b"charset", b"utf-8").lower() not in (b"utf-8", b"utf8"):
        # Python knows codecs, punycode for one, that take minutes for a megabyte.
        raise HttpRefusal(415, "unsupported_media_type", "expected a form in UTF-8, found another charset")
    if kind == b"multipart/form-data":
        return await request.form(max_fields=_MAX_FIELDS, max_files=1, max_part_size=_MAX_PART_BYTES)
    body = await request.body()
    return await off_loop(_fields_in, body) if len(body) > INLINE_CHARS else _fields_in(body)


def _fields_in(body: bytes) -> FormData:
    try:
        pairs = parse_qsl(body.decode("latin-1"), keep_blank_values=True, max_num_fields=_MAX_FIELDS)
    except ValueError:
        message = f"expected a form of at most {_MAX_FIELDS} fields, found more"
        raise HttpRefusal(413, TooLarge.code, message, limit=_MAX_FIELDS) from None
    return FormData([*pairs])


def _check_token(request: Request, form: FormData) -> None:
    given = form.get("token") or request.headers.get("x-planq-token", "")
    if not isinstance(given, str) or not sessions_of(request).has_token(session_of(request), given):
        raise HttpRefusal(
            403,
            "stale_form",
            "the form is not of this session, or that has ended; load the page again, and send it anew",
        )


def fields_of(request: Request) -> dict[str, str]:
    """Return the fields of the form of a request, files left out."""
    form: FormData = request.scope[_FORM]
    return {name: value for name, value in form.items() if isinstance(value, str) and name != "token"}


def sent_form(request: Request) -> FormData:
    form: FormData = request.scope[_FORM]
    return form


def values_of(answer: Response) -> Any:
    return decode_stored(bytes(answer.body))


async def lines_of(answer: StreamingResponse) -> list[Any]:
    """Return the values of the lines of JSON that a route of the API streams; for few of them."""
    pieces = [bytes(piece) async for piece in answer.body_iterator if not isinstance(piece, str)]
    return [decode_stored(one) for one in b"".join(pieces).split(b"\n") if one]


async def body_of(model: type[Body], value: Mapping[str, Any]) -> Body:
    """Return the body that a route of the API takes; raises `InvalidRequest` with what does not fit."""
    return await off_loop(_checked, model, value)


def _checked(model: type[Body], value: Mapping[str, Any]) -> Body:
    check_fields(TypeAdapter(model), value)
    try:
        return model.model_validate(value)
    except ValidationError as error:
        found = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors(include_url=False)]
        raise InvalidRequest("; ".join(found[:10])) from None


def json_request(request: Request, sent: Any) -> Request:
    """Return a form's request as one that brings `sent` as its JSON body, and no headers of the form's."""
    asked = Request({**request.scope, "headers": []})
    asked._json = sent
    asked._body = json_bytes(sent)
    return asked


def refusal_page(scope: Scope, error: PlanqError | HTTPException) -> Response:
    """Return the page that tells of a refusal, with its status; who has to log in first is led there."""
    answer = error_response(error)
    request = Request(scope)
    if "text/event-stream" in request.headers.get("accept", ""):
        return answer
    if answer.status_code == 401 and request.method == "GET":
        where = scope["path"] + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse(f"{LOGIN}?{urlencode({'next': where})}", 303)
    response = page(request, "refused.html", status=answer.status_code, problem=orjson.loads(answer.body))
    if retry := answer.headers.get("retry-after"):
        response.headers["Retry-After"] = retry
    return response


def seen(path: str) -> Response:
    """Lead the browser on to a page, after a form too: then a reload repeats nothing."""
    return RedirectResponse(f"{UI}{path}", 303)  # the guard puts the prefix before it


visit_routes = page_router()

_KEPT = "public, max-age=31536000, immutable"


@visit_routes.get("/")
@visit_routes.get(UI)
async def get_start(request: Request, services: Use) -> Response:
    return seen(home_of(await services.access.visitor(session_of(request))))


@visit_routes.get(f"{UI}/assets/{{name}}")
async def get_asset(name: str) -> Response:
    asset = assets().get(name)
    if asset is None:
        raise NotFound("there is no such file; load the page again")
    return Response(asset.body, media_type=asset.media_type, headers={"Cache-Control": _KEPT})


@visit_routes.get(LOGIN)
async def get_login(request: Request, services: Use, next: Annotated[str, Query()] = "") -> Response:
    if not services.access.is_required:
        return seen(home_of(LOCAL))
    return page(request, "login.html", next=next, refused=None)


@visit_routes.post(LOGIN)
async def post_login(request: Request, services: Use) -> Response:
    """Begin a session with a key, and go on to where the visitor wanted to."""
    fields = fields_of(request)
    try:
        digest = await services.access.digest_of(fields.get("key", "").strip())
    except (Unauthorized, HttpRefusal) as error:
        message = error.message if isinstance(error, Unauthorized) else str(error.detail)
        return page(request, "login.html", status=403, next=fields.get("next", ""), refused=message)
    await _end(services, request)
    session = services.sessions.begin(digest, time())
    response = RedirectResponse(_way_on(fields.get("next", ""), await services.access.visitor(session)), 303)
    keep(request, response, session)
    return response


@visit_routes.post(f"{UI}/logout")
async def post_logout(request: Request, services: Use) -> Response:
    """End the session, wherever its cookie is."""
    await _end(services, request)
    response = seen("/login")
    keep(request, response, None)
    return response


async def _end(services: Services, request: Request) -> None:
    session = session_of(request)
    if session is not None and session.digest is not None:
        await services.ended_sessions.end(session.nonce, services.sessions.last_end(session))


def _way_on(wanted: str, who: Caller) -> str:
    """Return where to go after the login: only to one of our own pages, and to one that the key opens."""
    is_ours = wanted.startswith(f"{UI}/") and "\\" not in wanted and "//" not in wanted
    path = wanted.partition("?")[0].partition("#")[0].removeprefix(UI)
    return wanted if is_ours and is_open(who, path) else f"{UI}{home_of(who)}"
