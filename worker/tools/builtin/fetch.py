"""`http_fetch`: read one document over HTTP, within the guard (`worker/egress.py`) and limits of size and time."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired

from httpx2 import URL, InvalidURL, Response, TimeoutException
from pydantic import Field
from typing_extensions import TypedDict

from planq.shared.agentic.tools.contract import ToolContext
from planq.shared.kernel.states import Effect
from planq.shared.platform.addresses import DEFAULT_PORTS
from planq.shared.platform.errors import InvalidArguments, TimedOut, ToolFailed, capped
from planq.worker.egress import AnswerBounds
from planq.worker.subprocesses import Apart, Failed, WorkRefused
from planq.worker.tools.builtin.content import is_html, is_text, media_type, read_body, read_document
from planq.worker.tools.declare import tool
from planq.worker.tools.errors import from_response
from planq.worker.tools.services import ToolServices

if TYPE_CHECKING:
    from httpx2 import AsyncClient

_MOST_REDIRECTS = 5
_READING_SECONDS = 10.0
"""For a page of 5 MB, which takes half a second; some that are made for it would take hours."""

_HOST = re.compile(rb"[A-Za-z0-9._:-]+")
_USER_AGENT = "planq-http-fetch/1"
_KEY_HEADER = "Idempotency-Key"
"""The same for every attempt of a step. Only the origin that was asked for gets it, not those it redirects to."""


class Fetched(TypedDict):
    """A document; `json` is there only when the body is JSON."""

    url: Annotated[str, Field(description="The address that answered, after redirects.")]
    status: int
    content_type: Annotated[str, Field(description="The media type, such as text/html; empty when none was sent.")]
    title: Annotated[str, Field(description="The title of an HTML page, else empty.")]
    text: Annotated[str, Field(description="The readable text; of HTML without its markup.")]
    json: NotRequired[Annotated[Any, Field(description="The parsed value, when the body is JSON.")]]
    truncated: Annotated[bool, Field(description="True when the body was longer than the limit and was cut.")]


@tool(effect=Effect.READ)
async def http_fetch(
    url: Annotated[str, Field(description="An http or https address.", min_length=1, max_length=4_000)],
    services: ToolServices,
    context: ToolContext,
    method: Annotated[Literal["GET", "HEAD"], Field(description="HEAD asks for the headers only.")] = "GET",
    max_bytes: Annotated[
        int | None, Field(description="Read no more than this of the body; an operator's limit applies too.", ge=1)
    ] = None,
) -> Fetched:
    """Fetch a web page or a JSON document and return its text; private and local addresses are refused."""
    limit = min(max_bytes or services.http_max_bytes, services.http_max_bytes)
    client = services.egress.guarded(
        "http_fetch",
        AnswerBounds(limit, services.http_timeout_seconds, services.http_least_rate),
        services.allow_private_hosts,
        tenant_id=context.tenant_id,
        places=services.http_places,
        headers={"User-Agent": _USER_AGENT, "Accept": "*/*"},
    )
    try:
        async with asyncio.timeout(services.http_timeout_seconds), client:
            fetched, body, charset = await _fetch(client, method, _parsed(url), context.idempotency_key)
    except (TimeoutError, TimeoutException) as error:
        raise TimedOut(
            f"http_fetch: {capped(url, 200)} did not answer in full within {services.http_timeout_seconds:g} s"
        ) from error
    return await _readable(fetched, body, charset, services.apart, context.tenant_id)


_Received = tuple[Fetched, bytes, str | None]
"""The received parts: all but the text, the body, and the charset of its header."""


async def _fetch(client: AsyncClient, method: str, url: URL, key: str) -> _Received:
    asked = _origin(url)
    for _ in range(_MOST_REDIRECTS + 1):
        # Cookies of one hop are no business of the next one.
        client.cookies.clear()
        headers = {_KEY_HEADER: key} if _origin(url) == asked else {}
        async with client.stream(method, url, headers=headers) as response:
            if not response.has_redirect_location:
                return await _read(response, method)
            url = _redirected(response)
    raise ToolFailed(f"http_fetch: more than {_MOST_REDIRECTS} redirects, the last one to {capped(str(url), 200)}")


async def _read(response: Response, method: str) -> _Received:
    if not response.is_success:
        raise await from_response(response, "http_fetch")
    kind = media_type(response.headers.get("content-type", ""))
    if method == "HEAD":
        body, truncated = b"", False
    else:
        if kind and not is_text(kind, b""):
            raise _unreadable(response.url, kind)
        body, truncated = await read_body(response, "http_fetch")
        if not is_text(kind, body):
            raise _unreadable(response.url, "data without a media type")
    fetched = Fetched(
        url=str(response.url),
        status=response.status_code,
        content_type=kind,
        title="",
        text="",
        truncated=truncated,
    )
    return fetched, body, response.charset_encoding


async def _readable(fetched: Fetched, body: bytes, charset: str | None, apart: Apart, tenant_id: str) -> Fetched:
    if is_html(fetched["content_type"]) and body:
        try:
            title, text = await apart.call(tenant_id, "page", body, charset, seconds=_READING_SECONDS)
        except (WorkRefused, Failed) as error:
            message = f"http_fetch: the page at {capped(fetched['url'], 200)} cannot be read: {error}"
            is_starved = isinstance(error, Failed) and error.is_starved
            raise (TimedOut(message) if is_starved else ToolFailed(message)) from error
        return {**fetched, "title": title, "text": text}
    document = await asyncio.to_thread(read_document, body, fetched["content_type"], charset)
    fetched["text"] = document.text
    if document.has_json:
        fetched["json"] = document.json
    return fetched


def _origin(url: URL) -> tuple[str, bytes, int]:
    return url.scheme, url.raw_host, url.port or DEFAULT_PORTS[url.scheme]


def _redirected(response: Response) -> URL:
    location = capped(response.headers["location"], 200)
    try:
        return _parsed(str(response.url.join(response.headers["location"])))
    except (InvalidURL, InvalidArguments) as error:
        raise ToolFailed(
            f"http_fetch: {response.url.host} redirects to {location!r}, which cannot be read"
        ) from error


def _parsed(url: str) -> URL:
    try:
        parsed = URL(url.strip())
    except (InvalidURL, ValueError) as error:
        raise InvalidArguments(f"http_fetch: {capped(url, 200)!r} is no valid address ({error})") from error
    if parsed.scheme not in ("http", "https") or not parsed.raw_host:
        raise InvalidArguments(f"http_fetch expects http://… or https://…, found {capped(url, 200)!r}")
    if not _HOST.fullmatch(parsed.raw_host):
        raise InvalidArguments(f"http_fetch: {capped(url, 200)!r} has no valid host name")
    if parsed.userinfo:
        # The address is stored and shown; a password in it would be, too.
        raise InvalidArguments("http_fetch takes no user name or password in an address; leave out the part before @")
    return parsed.copy_with(fragment=None)


def _unreadable(url: URL, kind: str) -> ToolFailed:
    return ToolFailed(
        f"http_fetch: {capped(str(url), 200)} is {capped(kind, 100)}, which has no readable text; "
        "expected HTML, JSON, XML or plain text"
    )
