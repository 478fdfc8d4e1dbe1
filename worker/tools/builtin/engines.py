"""The services that `web_search` can ask: how each is asked, and where its answer holds the results.

An answer is untrusted: only texts are taken from it, capped, and a result without an http address is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from shared.domain.errors import AuthFailed, ExecutionFailed, Misconfigured, ToolFailed, capped
from worker.tools.services import WebSearch

MAX_TITLE_CHARS = 300
MAX_TEXT_CHARS = 2_000
MAX_URL_CHARS = 2_000


@dataclass(frozen=True, slots=True)
class Result:
    """One page that was found."""

    title: str
    url: str
    text: str
    published: str = ""


@dataclass(frozen=True, slots=True)
class Engine:
    """One service.

    `request` makes the request for a query and a number of results; `results` reads the JSON that answers it, and
    raises `ValueError`, `TypeError`, `LookupError` or `AttributeError` for anything else; `refusal` names what an
    answer outside 2xx means where that differs from its status, else it returns None.
    """

    base_url: str
    needs_key: bool
    request: Callable[[WebSearch, str, int], httpx.Request]
    results: Callable[[Any], list[Result]]
    refusal: Callable[[httpx.Response], ExecutionFailed | None] = lambda response: None


def read_access(engine: str, url: str, key: str) -> WebSearch | None:
    """Return the access that the settings describe, None when they name no service.

    Raises `Misconfigured` naming the setting that is missing or wrong.
    """
    if not engine:
        return None
    known = ENGINES.get(engine)
    if known is None:
        raise Misconfigured(f"PLANQ_WEB_SEARCH: expected one of {', '.join(ENGINES)}, found {engine[:40]!r}")
    if known.needs_key and not key:
        raise Misconfigured(f"PLANQ_WEB_SEARCH is {engine}: set PLANQ_WEB_SEARCH_API_KEY to its key")
    address = url or known.base_url
    if not address:
        raise Misconfigured(f"PLANQ_WEB_SEARCH is {engine}: set PLANQ_WEB_SEARCH_URL to its address, https://…")
    try:
        parsed = httpx.URL(address)
    except httpx.InvalidURL as error:
        raise Misconfigured(f"PLANQ_WEB_SEARCH_URL: no valid address ({error})") from error
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.query or parsed.userinfo:
        raise Misconfigured(
            "PLANQ_WEB_SEARCH_URL: expected http://host[:port][/path] or https://…, without a password or a query"
        )
    return WebSearch(engine=engine, url=str(parsed).rstrip("/"), key=key)


def _searxng_request(access: WebSearch, query: str, limit: int) -> httpx.Request:
    # Source: docs.searxng.org, "Search API"; it has no parameter for the number of results.
    headers = {"Authorization": f"Bearer {access.key}"} if access.key else {}
    return httpx.Request("GET", f"{access.url}/search", params={"q": query, "format": "json"}, headers=headers)


def _searxng_results(answer: Any) -> list[Result]:
    return _taken(answer["results"], text="content", published="publishedDate")


def _searxng_refusal(response: httpx.Response) -> ExecutionFailed | None:
    # Source: docs.searxng.org, "Search API": a format that is not switched on is answered with 403.
    if response.status_code != httpx.codes.FORBIDDEN:
        return None
    return AuthFailed(
        f"web_search: SearxNG at {response.request.url.host} answered 403: switch on `json` under search.formats in "
        "its settings.yml",
        status=403,
    )


def _brave_request(access: WebSearch, query: str, limit: int) -> httpx.Request:
    # Source: api-dashboard.search.brave.com, "Web Search": at most 20 results, markup in them can be switched off.
    params: dict[str, str | int] = {"q": query, "count": limit, "text_decorations": "false"}
    headers = {"X-Subscription-Token": access.key}
    return httpx.Request("GET", f"{access.url}/res/v1/web/search", params=params, headers=headers)


def _brave_results(answer: Any) -> list[Result]:
    # Without a match there is no `web` at all.
    found = answer.get("web") or {}
    return _taken(found.get("results") or [], text="description", published="page_age")


def _tavily_request(access: WebSearch, query: str, limit: int) -> httpx.Request:
    # Source: docs.tavily.com, "Search endpoint".
    return httpx.Request(
        "POST",
        f"{access.url}/search",
        json={"query": query, "max_results": limit},
        headers={"Authorization": f"Bearer {access.key}"},
    )


def _tavily_results(answer: Any) -> list[Result]:
    return _taken(answer["results"], text="content", published="published_date")


def _tavily_refusal(response: httpx.Response) -> ExecutionFailed | None:
    # Source: docs.tavily.com, "Search endpoint": 432 the plan's limit, 433 the pay-as-you-go limit.
    if response.status_code not in (432, 433):
        return None
    status = response.status_code
    return ToolFailed(f"web_search: Tavily answered {status}: the limit of its plan is used up", status=status)


def _taken(found: Iterable[Any], *, text: str, published: str) -> list[Result]:
    if not isinstance(found, list):
        raise TypeError("expected a list of results")
    results = [
        Result(
            title=_text(one, "title", MAX_TITLE_CHARS),
            url=_text(one, "url", MAX_URL_CHARS),
            text=_text(one, text, MAX_TEXT_CHARS),
            published=_text(one, published, 60),
        )
        for one in found
        if isinstance(one, Mapping)
    ]
    return [result for result in results if result.url.startswith(("https://", "http://"))]


def _text(one: Mapping[str, Any], field: str, limit: int) -> str:
    value = one.get(field)
    return " ".join(capped(value, limit).split()) if isinstance(value, str) else ""


ENGINES: Mapping[str, Engine] = {
    "searxng": Engine("", False, _searxng_request, _searxng_results, _searxng_refusal),
    "brave": Engine("https://api.search.brave.com", True, _brave_request, _brave_results),
    "tavily": Engine("https://api.tavily.com", True, _tavily_request, _tavily_results, _tavily_refusal),
}
