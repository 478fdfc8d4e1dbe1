"""`web_search`: the web, through the search service that the operator has chosen (`engines.py`).

The service's address comes from the settings, so its host may be a private one; everything else is as for
`http_fetch`: guarded addresses, limits of size and time. No redirect is followed. What comes back is untrusted text.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, NotRequired

import httpx
from pydantic import Field
from typing_extensions import TypedDict

from shared.domain import strict_json
from shared.domain.errors import Misconfigured, TimedOut, ToolFailed
from shared.domain.states import Effect
from worker.tools.builtin.content import read_limited
from worker.tools.builtin.engines import ENGINES, Engine, Result
from worker.tools.builtin.guard import DEFAULT_PORTS, GuardedTransport
from worker.tools.declare import tool
from worker.tools.errors import from_status
from worker.tools.services import ToolServices, WebSearch

NAME = "web_search"
MAX_RESULTS = 20
MAX_BYTES = 2_000_000
TIMEOUT_SECONDS = 20.0
USER_AGENT = "planq-web-search/1"


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
    limit: Annotated[int, Field(description="The most results to return.", ge=1, le=MAX_RESULTS)] = 5,
) -> WebResults:
    """Search the web and return titles, addresses and excerpts of the best pages."""
    access = services.web_search
    if access is None:
        raise Misconfigured(
            "no search service is configured: set PLANQ_WEB_SEARCH to searxng, brave or tavily, with "
            "PLANQ_WEB_SEARCH_URL for SearxNG, or PLANQ_WEB_SEARCH_API_KEY for the others, and restart the workers"
        )
    engine = ENGINES[access.engine]
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            found = await _ask(engine, access, services, query, limit)
    except TimeoutError as error:
        raise TimedOut(f"{NAME}: {access.engine} did not answer in full within {TIMEOUT_SECONDS:g} s") from error
    results = [_shown(result) for result in found[:limit]]
    return {"results": results, "text": _readable(query, results), "count": len(results), "engine": access.engine}


async def _ask(engine: Engine, access: WebSearch, services: ToolServices, query: str, limit: int) -> list[Result]:
    request = engine.request(access, query, limit)
    request.headers.update(
        {"User-Agent": USER_AGENT, "Accept": "application/json", "Accept-Encoding": "gzip, deflate"}
    )
    transport = GuardedTransport(services.resolve, services.allow_private_hosts | {chosen_host(request.url)}, NAME)
    async with httpx.AsyncClient(transport=transport, timeout=TIMEOUT_SECONDS, trust_env=False) as client:
        response = await client.send(request, stream=True)
        try:
            if not response.is_success:
                raise engine.refusal(response) or from_status(response, NAME)
            coding = response.headers.get("content-encoding", "")
            body, is_cut = await read_limited(response.aiter_raw(), coding, MAX_BYTES, NAME)
        finally:
            await response.aclose()
    if is_cut:
        raise ToolFailed(f"{NAME}: {access.engine} answered with more than {MAX_BYTES} bytes")
    try:
        return engine.results(strict_json.loads(body.decode()))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ToolFailed(
            f"{NAME}: expected the JSON of {access.engine}, found something else at {request.url.host}; "
            "check PLANQ_WEB_SEARCH_URL"
        ) from error


def chosen_host(url: httpx.URL) -> str:
    """Return the one `host:port` that the operator has chosen."""
    return f"{url.raw_host.decode('ascii').lower()}:{url.port or DEFAULT_PORTS.get(url.scheme, 0)}"


def _shown(result: Result) -> WebResult:
    shown = WebResult(title=result.title, url=result.url, text=result.text)
    if result.published:
        shown["published"] = result.published
    return shown


def _readable(query: str, results: list[WebResult]) -> str:
    if not results:
        return f"Nothing was found for: {query}"
    return "\n\n".join(f"{result['title']} ({result['url']})\n{result['text']}" for result in results)
