"""`http_fetch` against a real HTTP server on this machine: contents, failures, limits, and the guard on the way."""

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

import pytest

from planq.shared.agentic.schema.schemas import violations
from planq.shared.agentic.tools.contract import ToolContext
from planq.shared.platform.errors import (
    AuthFailed,
    ExecutionFailed,
    InvalidArguments,
    PolicyDenied,
    RateLimited,
    TimedOut,
    ToolFailed,
    Transient,
)
from planq.worker.egress import Egress
from planq.worker.tools import ToolServices
from planq.worker.tools.registry import load_registry

PAGE = """<?xml version="1.0"?><!doctype html><html><head><title> The
Page </title><style>p {}</style><script>alert(1)</script></head>
<body><h1>Heading</h1><p>One &amp; <b>two</b></p><p>Straße</p><noscript>no</noscript></body></html>"""

Answer = tuple[int, dict[str, str], bytes]


class Site(ThreadingHTTPServer):
    """A site whose pages are set by the test; it remembers the requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.pages: dict[str, Answer | Callable[[BaseHTTPRequestHandler], None]] = {}
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        self.stopping = threading.Event()

    @property
    def host(self) -> str:
        return f"site.example:{self.server_port}"

    def url(self, path: str) -> str:
        return f"http://{self.host}{path}"


class _Handler(BaseHTTPRequestHandler):
    server: Site

    def do_GET(self) -> None:
        self.server.seen.append((self.command, self.path, dict(self.headers.items())))
        page = self.server.pages.get(self.path, (404, {"Content-Type": "text/plain"}, b"gone"))
        if callable(page):
            page(self)
            return
        status, headers, body = page
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def site() -> Iterator[Site]:
    """A running site."""
    server = Site()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.stopping.set()
    server.shutdown()
    thread.join()
    server.server_close()


Fetch = Callable[..., Any]


@pytest.fixture
def fetch(site: Site, services: ToolServices, context: ToolContext) -> Fetch:
    """Call `http_fetch` where `site.example` is the site (allowed) and `evil.example` this machine (not allowed)."""

    async def resolve(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.1"] if host.endswith(".example") else [host]

    def call(url: str, max_total: float = 10.0, limit: int = 100_000, also: str = "", **arguments: Any) -> Any:
        offered = dataclasses.replace(
            services,
            egress=Egress(resolve=resolve),
            allow_private_hosts=frozenset({site.host, also}),
            http_timeout_seconds=max_total,
            http_max_bytes=limit,
        )
        registry = load_registry(services=offered, entry_point_group=None, modules=["planq.worker.tools.builtin"])
        tool = registry.find("http_fetch")
        assert tool is not None
        output = asyncio.run(tool.call({"url": url, **arguments}, context))
        assert violations(tool.definition.output_schema or {}, output) == []
        return output

    return call


def test_html_becomes_title_and_text(site: Site, fetch: Fetch) -> None:
    site.pages["/page"] = (200, {"Content-Type": "Text/HTML; charset=utf-8"}, PAGE.encode())

    output = fetch(site.url("/page#part"))

    assert output == {
        "url": site.url("/page"),
        "status": 200,
        "content_type": "text/html",
        "title": "The Page",
        "text": "Heading\nOne &\ntwo\nStraße",
        "truncated": False,
    }
    assert site.seen[0][2]["Host"] == site.host


def test_charset_of_the_header_and_of_the_page_are_honoured(site: Site, fetch: Fetch) -> None:
    site.pages["/header"] = (
        200,
        {"Content-Type": "text/html; charset=iso-8859-1"},
        "<p>Straße</p>".encode("latin-1"),
    )
    site.pages["/meta"] = (
        200,
        {"Content-Type": "text/html"},
        '<meta charset="windows-1252"><p>Straße – €</p>'.encode("cp1252"),
    )
    site.pages["/odd"] = (200, {"Content-Type": "text/plain; charset=klingon"}, "Straße\x00".encode())

    assert fetch(site.url("/header"))["text"] == "Straße"
    assert fetch(site.url("/meta"))["text"] == "Straße – €"
    assert fetch(site.url("/odd"))["text"] == "Straße"


def test_json_is_parsed_as_well(site: Site, fetch: Fetch) -> None:
    body = json.dumps({"a": [1, None, "ü"]}).encode()
    site.pages["/data"] = (200, {"Content-Type": "application/problem+json"}, body)
    site.pages["/broken"] = (200, {"Content-Type": "application/json"}, b'{"a": NaN}')

    assert fetch(site.url("/data"))["json"] == {"a": [1, None, "ü"]}
    assert fetch(site.url("/data"))["text"] == body.decode()
    assert "json" not in fetch(site.url("/broken"))


@pytest.mark.parametrize("body", [b"", b"https://example.org/a", b"notes.txt", b"\xff\xfe\x00broken", b"<" * 5_000])
@pytest.mark.parametrize("kind", ["text/html", "text/plain", "application/xml", "application/json"])
def test_any_body_is_read_without_a_warning(site: Site, fetch: Fetch, kind: str, body: bytes) -> None:
    site.pages["/odd"] = (200, {"Content-Type": kind}, body)

    assert fetch(site.url("/odd"))["status"] == 200


@pytest.mark.parametrize("kind", ["image/png", "application/pdf", "application/octet-stream", "video/mp4"])
def test_binary_is_refused_by_name(site: Site, fetch: Fetch, kind: str) -> None:
    site.pages["/binary"] = (200, {"Content-Type": kind}, b"\x89PNG\x00")

    with pytest.raises(ToolFailed, match=f"{kind}, which has no readable text"):
        fetch(site.url("/binary"))


def test_body_without_a_type_is_read_when_it_is_text(site: Site, fetch: Fetch) -> None:
    site.pages["/text"] = (200, {}, b"plain")
    site.pages["/data"] = (200, {}, b"\x00\x01\x02")

    assert fetch(site.url("/text"))["text"] == "plain"
    with pytest.raises(ToolFailed, match="no readable text"):
        fetch(site.url("/data"))


def test_head_reads_no_body(site: Site, fetch: Fetch) -> None:
    site.pages["/page"] = (200, {"Content-Type": "text/html"}, PAGE.encode())

    output = fetch(site.url("/page"), method="HEAD")

    assert site.seen[0][0] == "HEAD"
    assert (output["status"], output["text"]) == (200, "")


def test_size_limit_cuts_and_says_so(site: Site, fetch: Fetch) -> None:
    site.pages["/long"] = (200, {"Content-Type": "text/plain"}, b"x" * 50_000)

    assert len(fetch(site.url("/long"), limit=1_000)["text"]) == 1_000
    cut = fetch(site.url("/long"), max_bytes=10)
    assert (cut["text"], cut["truncated"]) == ("x" * 10, True)
    assert fetch(site.url("/long"), max_bytes=50_000)["truncated"] is False


def test_compressed_body_is_unpacked_within_the_limit(site: Site, fetch: Fetch) -> None:
    headers = {"Content-Type": "text/plain", "Content-Encoding": "gzip"}
    site.pages["/small"] = (200, headers, gzip.compress(b"hello"))
    site.pages["/bomb"] = (200, headers, gzip.compress(b"\x41" * 200_000_000, 1))
    site.pages["/damaged"] = (200, headers, b"no gzip at all")
    site.pages["/unknown"] = (200, {"Content-Type": "text/plain", "Content-Encoding": "br"}, b"x")

    assert fetch(site.url("/small"))["text"] == "hello"
    bomb = fetch(site.url("/bomb"))
    assert (len(bomb["text"]), bomb["truncated"]) == (100_000, True)
    with pytest.raises(ToolFailed, match="no valid gzip"):
        fetch(site.url("/damaged"))
    with pytest.raises(ToolFailed, match="content coding 'br'"):
        fetch(site.url("/unknown"))


@pytest.mark.parametrize(
    ("status", "headers", "expected", "retryable"),
    [
        (400, {}, ToolFailed, False),
        (401, {}, AuthFailed, False),
        (403, {}, AuthFailed, False),
        (404, {}, ToolFailed, False),
        (429, {"Retry-After": "12"}, RateLimited, True),
        (500, {}, Transient, True),
        (503, {}, Transient, True),
        (304, {}, ToolFailed, False),
    ],
)
def test_status_decides_the_failure(
    site: Site,
    fetch: Fetch,
    status: int,
    headers: dict[str, str],
    expected: type[ExecutionFailed],
    retryable: bool,
) -> None:
    site.pages["/page"] = (status, {"Content-Type": "text/plain", **headers}, b"")

    with pytest.raises(expected, match=str(status)) as caught:
        fetch(site.url("/page"))

    assert caught.value.retryable is retryable
    if isinstance(caught.value, RateLimited):
        assert caught.value.retry_after == timedelta(seconds=12)


def test_redirects_are_followed_up_to_the_limit(site: Site, fetch: Fetch) -> None:
    for number in range(7):
        site.pages[f"/{number}"] = (302, {"Location": f"/{number + 1}"}, b"")
    site.pages["/5"] = (200, {"Content-Type": "text/plain"}, b"here")

    assert fetch(site.url("/0"))["url"] == site.url("/5")
    site.pages["/5"] = (307, {"Location": "/6"}, b"")
    with pytest.raises(ToolFailed, match="more than 5 redirects"):
        fetch(site.url("/0"))


@pytest.mark.parametrize(
    "target",
    [
        "http://evil.example:{port}/secret",
        "http://127.0.0.1:{port}/secret",
        "http://[::ffff:127.0.0.1]:{port}/secret",
        "//evil.example:{port}/secret",
    ],
)
def test_redirect_to_a_private_address_is_refused(site: Site, fetch: Fetch, target: str) -> None:
    site.pages["/secret"] = (200, {"Content-Type": "text/plain"}, b"secret")
    site.pages["/away"] = (302, {"Location": target.format(port=site.server_port)}, b"")

    with pytest.raises(PolicyDenied, match="may not reach"):
        fetch(site.url("/away"))

    assert [path for _, path, _ in site.seen] == ["/away"]


@pytest.mark.parametrize(
    "target", ["ftp://site.example/", "file:///etc/passwd", "http://user:pw@site.example/", "http://["]
)
def test_redirect_to_something_else_is_refused(site: Site, fetch: Fetch, target: str) -> None:
    site.pages["/away"] = (302, {"Location": target}, b"")

    with pytest.raises(ToolFailed, match="redirects to"):
        fetch(site.url("/away"))


def test_name_that_resolves_to_a_private_address_is_never_connected_to(site: Site, fetch: Fetch) -> None:
    with pytest.raises(PolicyDenied, match="not at a public address"):
        fetch(f"http://evil.example:{site.server_port}/")

    assert site.seen == []


def test_connection_goes_to_the_address_that_was_checked(
    site: Site, services: ToolServices, context: ToolContext
) -> None:
    asked: list[str] = []

    async def rebinding(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["203.0.113.1"]

    site.pages["/"] = (200, {"Content-Type": "text/plain"}, b"checked")
    offered = dataclasses.replace(
        services, egress=Egress(resolve=rebinding), allow_private_hosts=frozenset({site.host})
    )
    registry = load_registry(services=offered, entry_point_group=None, modules=["planq.worker.tools.builtin"])
    tool = registry.find("http_fetch")
    assert tool is not None

    output = asyncio.run(tool.call({"url": site.url("/")}, context))

    assert output["text"] == "checked"
    assert asked == ["site.example"]


@pytest.mark.parametrize(
    "url", ["", " ", "site.example", "http://", "mailto:a@b", "http://u:p@site.example/", "http://[1", "http://xn--/"]
)
def test_address_that_is_none_is_invalid(fetch: Fetch, url: str) -> None:
    with pytest.raises(InvalidArguments):
        fetch(url)


def test_body_that_never_ends_meets_the_time_limit(site: Site, fetch: Fetch) -> None:
    def drip(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "text/plain")
        handler.end_headers()
        try:
            while not site.stopping.wait(0.02):
                handler.wfile.write(b".")
        except OSError:
            return

    site.pages["/drip"] = drip

    with pytest.raises(TimedOut, match=r"within 0\.3 s"):
        fetch(site.url("/drip"), max_total=0.3)


def test_connection_that_breaks_is_a_passing_fault(site: Site, fetch: Fetch) -> None:
    def hang_up(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "text/plain")
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        handler.wfile.write(b"half")
        handler.close_connection = True

    site.pages["/half"] = hang_up

    with pytest.raises(Transient):
        fetch(site.url("/half"))
    closed = Site()
    closed.server_close()
    with pytest.raises((Transient, PolicyDenied)):
        fetch(f"http://site.example:{closed.server_port}/")


def test_the_key_of_the_step_goes_to_the_origin_that_was_asked_and_to_no_other(
    site: Site, fetch: Fetch, context: ToolContext
) -> None:
    """The site redirects to itself under another name, which is another origin, and from there back."""
    other = f"http://other.example:{site.server_port}"
    site.pages["/start"] = (302, {"Location": "/same"}, b"")
    site.pages["/same"] = (307, {"Location": f"{other}/away"}, b"")
    site.pages["/away"] = (302, {"Location": site.url("/back")}, b"")
    site.pages["/back"] = (200, {"Content-Type": "text/plain"}, b"here")

    assert fetch(site.url("/start"), also=f"other.example:{site.server_port}")["text"] == "here"
    keys = [(path, headers.get("Idempotency-Key")) for _, path, headers in site.seen]
    key = context.idempotency_key
    assert keys == [("/start", key), ("/same", key), ("/away", None), ("/back", key)]
