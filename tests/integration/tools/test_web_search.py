"""`web_search` against a real HTTP server that answers as SearxNG, Brave and Tavily do, and as none should."""

from __future__ import annotations

import asyncio
import dataclasses
import gzip
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest

from planq.shared.agentic.schema.schemas import violations
from planq.shared.agentic.tools.contract import ToolContext
from planq.shared.platform.errors import (
    AuthFailed,
    ExecutionFailed,
    Misconfigured,
    PolicyDenied,
    RateLimited,
    TimedOut,
    ToolFailed,
    Transient,
)
from planq.worker.egress import AnswerBounds, Egress
from planq.worker.tools import ToolServices
from planq.worker.tools.builtin import web
from planq.worker.tools.builtin.web import read_web_access
from planq.worker.tools.registry import load_registry

Search = Callable[..., Any]


class Service(ThreadingHTTPServer):
    """A search service whose answer is set by the test; it remembers the requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = 200
        self.headers: dict[str, str] = {"Content-Type": "application/json"}
        self.body = b"{}"
        self.seen: list[tuple[str, str, dict[str, str], bytes]] = []
        self.stopping = threading.Event()
        self.is_silent = False

    def answers(self, value: Any, status: int = 200, **headers: str) -> None:
        self.status, self.body = status, value if isinstance(value, bytes) else json.dumps(value).encode()
        self.headers = {"Content-Type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}


class _Handler(BaseHTTPRequestHandler):
    server: Service

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        self.server.seen.append((self.command, self.path, dict(self.headers.items()), self.rfile.read(length)))
        if self.server.is_silent:
            self.server.stopping.wait()
            return
        self.send_response(self.server.status)
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)

    do_POST = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def service() -> Iterator[Service]:
    """A running service."""
    server = Service()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.stopping.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def search(service: Service, services: ToolServices, context: ToolContext) -> Search:
    """Search with an engine, which is the service unless another `url` is named."""

    async def resolve(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.1"] if host.endswith(".example") else [host]

    def call(engine: str, url: str | None = None, **arguments: Any) -> Any:
        address = url or f"http://search.example:{service.server_port}/"
        offered = dataclasses.replace(
            services, egress=Egress(resolve=resolve), web_search=read_web_access(engine, address, "s3cret")
        )
        registry = load_registry(services=offered, entry_point_group=None, modules=["planq.worker.tools.builtin"])
        tool = registry.find("web_search")
        assert tool is not None
        output = asyncio.run(tool.call({"query": "sailing boats", **arguments}, context))
        assert violations(tool.definition.output_schema or {}, output) == []
        return output

    return call


def page(text: str, published: str) -> list[dict[str, Any]]:
    """Three results, the second without an address that could be followed."""
    return [
        {"title": "Boats", "url": "https://boats.example/a", text: "All  about\nboats.", published: "2026-01-02"},
        {"title": "Odd", "url": "javascript:alert(1)", text: "x"},
        {"title": "Sails", "url": "http://sails.example/", text: None, published: None},
    ]


FOUND = [
    {"title": "Boats", "url": "https://boats.example/a", "text": "All about boats.", "published": "2026-01-02"},
    {"title": "Sails", "url": "http://sails.example/", "text": ""},
]


def test_searxng_is_asked_and_read(service: Service, search: Search) -> None:
    service.answers({"query": "q", "results": page("content", "publishedDate")})

    output = search("searxng")

    assert (output["results"], output["count"], output["engine"]) == (FOUND, 2, "searxng")
    assert output["text"].startswith("Boats (https://boats.example/a)\nAll about boats.")
    ((method, path, headers, _),) = service.seen
    assert (method, urlsplit(path).path) == ("GET", "/search")
    assert parse_qs(urlsplit(path).query) == {"q": ["sailing boats"], "format": ["json"]}
    assert headers["Host"] == f"search.example:{service.server_port}"


def test_brave_is_asked_and_read(service: Service, search: Search) -> None:
    service.answers({"type": "search", "web": {"results": page("description", "page_age")}})

    assert search("brave", limit=7)["results"] == FOUND
    ((method, path, headers, _),) = service.seen
    assert (method, urlsplit(path).path) == ("GET", "/res/v1/web/search")
    assert parse_qs(urlsplit(path).query) == {
        "q": ["sailing boats"],
        "count": ["7"],
        "text_decorations": ["false"],
    }
    assert headers["X-Subscription-Token"] == "s3cret"
    service.answers({"type": "search"})
    assert search("brave")["text"] == "Nothing was found for: sailing boats"


def test_tavily_is_asked_and_read(service: Service, search: Search) -> None:
    service.answers({"query": "q", "results": page("content", "published_date")})

    assert search("tavily", limit=1)["results"] == FOUND[:1]
    ((method, path, headers, body),) = service.seen
    assert (method, path, json.loads(body)) == ("POST", "/search", {"query": "sailing boats", "max_results": 1})
    assert headers["Authorization"] == "Bearer s3cret"


@pytest.mark.parametrize(
    ("engine", "status", "headers", "expected", "retryable"),
    [
        ("brave", 429, {"Retry_After": "12"}, RateLimited, True),
        ("searxng", 429, {}, RateLimited, True),
        ("tavily", 432, {}, ToolFailed, False),
        ("tavily", 401, {}, AuthFailed, False),
        ("searxng", 403, {}, AuthFailed, False),
        ("brave", 503, {}, Transient, True),
        ("brave", 302, {"Location": "http://127.0.0.1/"}, ToolFailed, False),
        ("brave", 422, {}, ToolFailed, False),
    ],
)
def test_a_refusal_says_what_it_is(
    service: Service,
    search: Search,
    engine: str,
    status: int,
    headers: dict[str, str],
    expected: type[ExecutionFailed],
    retryable: bool,
) -> None:
    service.answers(b"no", status, **headers)

    with pytest.raises(expected, match="web_search: ") as caught:
        search(engine)
    assert caught.value.retryable is retryable
    assert "s3cret" not in f"{caught.value} {caught.value.details}"
    assert len(service.seen) == 1, "a redirect is not followed, and nothing is repeated here"
    if isinstance(caught.value, RateLimited) and headers:
        assert caught.value.retry_after == timedelta(seconds=12)
    if (engine, status) == ("searxng", 403):
        assert "search.formats" in str(caught.value)


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"[]", b'{"results": {}}', b'{"results": 7}', b'"x"', b"\xff", b"[" * 5_000],
)
def test_what_is_no_answer_of_the_service_is_told(service: Service, search: Search, body: bytes) -> None:
    service.answers(body)

    with pytest.raises(ToolFailed, match="expected the JSON of searxng"):
        search("searxng")


@pytest.mark.parametrize("body", [b"[]", b'"x"', b"null", b'{"web": "x"}', b'{"web": {"results": 7}}'])
def test_what_is_no_answer_of_brave_is_told(service: Service, search: Search, body: bytes) -> None:
    service.answers(body)

    with pytest.raises(ToolFailed, match="expected the JSON of brave"):
        search("brave")


def test_odd_results_are_left_out_and_long_ones_cut(service: Service, search: Search) -> None:
    odd = ["text", None, {"title": 7, "url": "https://a.example/", "content": "x" * 5_000}, {"url": ["https://b/"]}]
    service.answers({"results": odd})

    (only,) = search("searxng")["results"]

    assert (only["title"], only["url"]) == ("", "https://a.example/")
    assert only["text"].endswith("… [3000 more characters]")


def test_a_body_is_bounded_unpacked_too(service: Service, search: Search) -> None:
    service.answers(gzip.compress(b" " * 50_000_000), Content_Encoding="gzip")
    with pytest.raises(ToolFailed, match="more than 2000000 bytes"):
        search("searxng")
    service.answers(gzip.compress(json.dumps({"results": []}).encode()), Content_Encoding="gzip")
    assert search("searxng")["count"] == 0


def test_a_silent_service_is_given_up(service: Service, search: Search, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "_TIMEOUT_SECONDS", 0.1)
    service.is_silent = True

    with pytest.raises(TimedOut, match=r"did not answer in full within 0\.1 s"):
        search("searxng")


def test_only_the_chosen_service_may_be_private(service: Service, search: Search) -> None:
    """Its own host and port, and no other that a name may lead to."""
    service.answers({"results": []})
    assert search("searxng", f"http://127.0.0.1:{service.server_port}/searx/")["count"] == 0
    assert service.seen[-1][1].startswith("/searx/search?")
    chosen = frozenset({web.chosen_host(httpx2.URL("http://a.example:81"))})
    transport = Egress(resolve=this_machine).guard("web_search", AnswerBounds(1, 1.0), chosen)
    with pytest.raises(PolicyDenied, match="public address"):
        asyncio.run(transport.checked_addresses(httpx2.URL("http://a.example:82")))
    assert len(asyncio.run(transport.checked_addresses(httpx2.URL("http://a.example:81")))) == 1


async def this_machine(host: str, port: int) -> Sequence[str]:
    """Every name is this machine."""
    return ["127.0.0.1"]


@pytest.mark.parametrize(
    ("engine", "url", "key", "named"),
    [
        ("searxng", "", "", "PLANQ_WEB_SEARCH_URL"),
        ("searxng", "search.example", "", "PLANQ_WEB_SEARCH_URL"),
        ("searxng", "ftp://search.example", "", "PLANQ_WEB_SEARCH_URL"),
        ("searxng", "https://user:p4ss@search.example", "", "PLANQ_WEB_SEARCH_URL"),
        ("searxng", "https://search.example/?a=b", "", "PLANQ_WEB_SEARCH_URL"),
        ("searxng", "http://user:p4ss@[::1", "", "PLANQ_WEB_SEARCH_URL"),
        ("brave", "", "", "PLANQ_WEB_SEARCH_API_KEY"),
        ("tavily", "", "", "PLANQ_WEB_SEARCH_API_KEY"),
        ("google", "", "", "PLANQ_WEB_SEARCH"),
    ],
)
def test_a_setting_that_is_missing_or_wrong_is_named_at_the_start(
    engine: str, url: str, key: str, named: str
) -> None:
    with pytest.raises(Misconfigured, match=rf"{named}\b") as caught:
        read_web_access(engine, url, key)
    assert "p4ss" not in str(caught.value)


def test_without_settings_there_is_no_service() -> None:
    assert read_web_access("", "https://unused.example", "unused") is None
    access = read_web_access("tavily", "", "key")
    assert access is not None
    assert access.url == "https://api.tavily.com"
    assert "key=" not in repr(access)
