"""`web_search`: the web, through the search service that the operator has chosen.

The service's address comes from the settings, so its host may be a private one; everything else is as for
`http_fetch`: guarded addresses, limits of size and time. No redirect is followed. An answer is untrusted: only texts
are taken from it, capped, and a result without an http address is left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NotRequired

from httpx2 import URL, InvalidURL, Request, Response, TimeoutException, codes
from pydantic import Field
from typing_extensions import TypedDict

from planq.shared.agentic.tools.contract import ToolContext
from planq.shared.kernel.states import Effect
from planq.shared.platform.addresses import DEFAULT_PORTS
from planq.shared.platform.errors import AuthFailed, ExecutionFailed, Misconfigured, TimedOut, ToolFailed, capped
from planq.shared.platform.values.decoding import decode
from planq.worker.egress import AnswerBounds
from planq.worker.tools.builtin.content import read_body
from planq.worker.tools.declare import tool
from planq.worker.tools.errors import from_response
from planq.worker.tools.services import ToolServices, WebSearch

_NAME = "web_search"
_MOST_RESULTS = 20
_MAX_BYTES = 2_000_000
_TIMEOUT_SECONDS = 20.0
_USER_AGENT = "planq-web-search/1"


class WebResult(TypedDict):
    """One page that was found."""

    title: str
    url: str
    text: Annotated[str, Field(description="An excerpt of the page.")]
    published: NotRequired[Annotated[str, Field(description="When it was published, as the service says it.")]]


class WebResults(TypedDict):
    """The pages, best first, as data and as one readable text."""

    results: list[WebResult]
    text: Annotated[str, Field(description="All results as one text, each under its title and address.")]
    count: Annotated[int, Field(description="The number of results.")]
    engine: Annotated[str, Field(description="The service that was asked.")]


@tool(effect=Effect.READ, timeout_seconds=30)
async def web_search(
    query: Annotated[str, Field(description="What to look for.", min_length=1, max_length=400)],
    services: ToolServices,
    context: ToolContext,
    limit: Annotated[int, Field(description="The most results to return.", ge=1, le=_MOST_RESULTS)] = 5,
) -> WebResults:
    """Search the web and return titles, addresses and excerpts of the best pages."""
    access = services.web_search
    if access is None:
        raise Misconfigured(
            "no search service is configured: set PLANQ_WEB_SEARCH to searxng, brave or tavily, with "
            "PLANQ_WEB_SEARCH_URL for SearxNG, or PLANQ_WEB_SEARCH_API_KEY for the others, and restart the workers"
        )
    service = _SERVICES[access.engine]
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            found = await _ask(service, access, services, context.tenant_id, query, limit)
    except (TimeoutError, TimeoutException) as error:
        raise TimedOut(f"{_NAME}: {access.engine} did not answer in full within {_TIMEOUT_SECONDS:g} s") from error
    results = found[:limit]
    return {"results": results, "text": _readable(query, results), "count": len(results), "engine": access.engine}


async def _ask(
    service: SearchService, access: WebSearch, services: ToolServices, tenant_id: str, query: str, limit: int
) -> list[WebResult]:
    request = service.request(access, query, limit)
    client = services.egress.guarded(
        _NAME,
        AnswerBounds(_MAX_BYTES, _TIMEOUT_SECONDS, services.http_least_rate),
        services.allow_private_hosts | {chosen_host(request.url)},
        tenant_id=tenant_id,
        places=services.http_places,
    )
    request.headers.update(
        {
            "User-Agent": _USER_AGENT,
            "Accept": "application/json",
            "Accept-Encoding": client.headers["Accept-Encoding"],
        }
    )
    async with client:
        response = await client.send(request, stream=True)
        try:
            if not response.is_success:
                raise service.refusal(response) or await from_response(response, _NAME)
            body, is_cut = await read_body(response, _NAME)
        finally:
            await response.aclose()
    if is_cut:
        raise ToolFailed(f"{_NAME}: {access.engine} answered with more than {_MAX_BYTES} bytes")
    try:
        return service.results(decode(body.decode()))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ToolFailed(
            f"{_NAME}: expected the JSON of {access.engine}, found something else at {request.url.host}; "
            "check PLANQ_WEB_SEARCH_URL"
        ) from error


def chosen_host(url: URL) -> str:
    return f"{url.raw_host.decode('ascii').lower()}:{url.port or DEFAULT_PORTS.get(url.scheme, 0)}"


def _readable(query: str, results: list[WebResult]) -> str:
    if not results:
        return f"Nothing was found for: {query}"
    return "\n\n".join(f"{result['title']} ({result['url']})\n{result['text']}" for result in results)


_TITLE_CHARS = 300
_TEXT_CHARS = 2_000
_URL_CHARS = 2_000


@dataclass(frozen=True, slots=True)
class SearchService:
    """One service: builds its request, reads its JSON, and may explain a `refusal` better than the status."""

    base_url: str
    needs_key: bool
    request: Callable[[WebSearch, str, int], Request]
    results: Callable[[Any], list[WebResult]]
    refusal: Callable[[Response], ExecutionFailed | None] = lambda response: None


def read_web_access(engine: str, url: str, key: str) -> WebSearch | None:
    """Return the configured service, None if there is none; raise `Misconfigured` with the wrong setting."""
    if not engine:
        return None
    known = _SERVICES.get(engine)
    if known is None:
        raise Misconfigured(f"PLANQ_WEB_SEARCH: expected one of {', '.join(_SERVICES)}, found {engine[:40]!r}")
    if known.needs_key and not key:
        raise Misconfigured(f"PLANQ_WEB_SEARCH is {engine}: set PLANQ_WEB_SEARCH_API_KEY to its key")
    address = url or known.base_url
    if not address:
        raise Misconfigured(f"PLANQ_WEB_SEARCH is {engine}: set PLANQ_WEB_SEARCH_URL to its address, https://…")
    try:
        parsed = URL(address)
    except InvalidURL as error:
        raise Misconfigured(f"PLANQ_WEB_SEARCH_URL: no valid address ({error})") from error
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.query or parsed.userinfo:
        raise Misconfigured(
            "PLANQ_WEB_SEARCH_URL: expected http://host[:port][/path] or https://…, without a password or a query"
        )
    return WebSearch(engine=engine, url=str(parsed).rstrip("/"), key=key)


def _searxng_request(access: WebSearch, query: str, limit: int) -> Request:
    # Source: docs.searxng.org, "Search API"; it has no parameter for the number of results.
    headers = {"Authorization": f"Bearer {access.key}"} if access.key else {}
    return Request("GET", f"{access.url}/search", params={"q": query, "format": "json"}, headers=headers)


def _searxng_refusal(response: Response) -> ExecutionFailed | None:
    # Source: docs.searxng.org, "Search API": a format that is not switched on is answered with 403.
    if response.status_code != codes.FORBIDDEN:
        return None
    return AuthFailed(
        f"web_search: SearxNG at {response.request.url.host} answered 403: switch on `json` under search.formats in "
        "its settings.yml",
        status=403,
    )


def _brave_request(access: WebSearch, query: str, limit: int) -> Request:
    # Source: api-dashboard.search.brave.com, "Web Search": at most 20 results, markup in them can be switched off.
    params: dict[str, str | int] = {"q": query, "count": limit, "text_decorations": "false"}
    headers = {"X-Subscription-Token": access.key}
    return Request("GET", f"{access.url}/res/v1/web/search", params=params, headers=headers)


def _brave_results(answer: Any) -> list[WebResult]:
    # Without a match there is no `web` at all.
    found = answer.get("web") or {}
    return _taken(found.get("results") or [], text="description", published="page_age")


def _tavily_request(access: WebSearch, query: str, limit: int) -> Request:
    # Source: docs.tavily.com, "Search endpoint".
    return Request(
        "POST",
        f"{access.url}/search",
        json={"query": query, "max_results": limit},
        headers={"Authorization": f"Bearer {access.key}"},
    )


def _tavily_refusal(response: Response) -> ExecutionFailed | None:
    # Source: docs.tavily.com, "Search endpoint": 432 the plan's limit, 433 the pay-as-you-go limit.
    if response.status_code not in (432, 433):
        return None
    status = response.status_code
    return ToolFailed(f"web_search: Tavily answered {status}: the limit of its plan is used up", status=status)


def _taken(found: Iterable[Any], *, text: str, published: str) -> list[WebResult]:
    if not isinstance(found, list):
        raise TypeError("expected a list of results")
    results = []
    for one in found:
        if not isinstance(one, Mapping):
            continue
        result = WebResult(
            title=_text(one, "title", _TITLE_CHARS),
            url=_text(one, "url", _URL_CHARS),
            text=_text(one, text, _TEXT_CHARS),
        )
        if at := _text(one, published, 60):
            result["published"] = at
        if result["url"].startswith(("https://", "http://")):
            results.append(result)
    return results


def _text(one: Mapping[str, Any], field: str, limit: int) -> str:
    value = one.get(field)
    return " ".join(capped(value, limit).split()) if isinstance(value, str) else ""


_SERVICES: Mapping[str, SearchService] = {
    "searxng": SearchService(
        "",
        False,
        _searxng_request,
        lambda answer: _taken(answer["results"], text="content", published="publishedDate"),
        _searxng_refusal,
    ),
    "brave": SearchService("https://api.search.brave.com", True, _brave_request, _brave_results),
    "tavily": SearchService(
        "https://api.tavily.com",
        True,
        _tavily_request,
        lambda answer: _taken(answer["results"], text="content", published="published_date"),
        _tavily_refusal,
    ),
}
