"""Which requests go through a proxy, and how bodies are cut at their bounds."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator, Sequence

import httpx2
import pytest

from planq.shared.platform.errors import Misconfigured
from planq.worker.egress import AnswerBounds, BodyDamaged, BodyRefused, BoundedBody, read_cut, read_proxies

PROXY = "http://proxy.example:3128"


@pytest.mark.parametrize(
    ("no_proxy", "host", "port", "is_direct"),
    [
        ("", "a.example", 443, False),
        ("*", "a.example", 443, True),
        ("a.example", "a.example", 443, True),
        ("a.example", "deep.a.example", 443, True),
        ("a.example", "aa.example", 443, False),
        (".example", "a.example", 443, True),
        ("*.example", "a.example", 443, True),
        (".a.example", "other.example", 443, False),
        ("a.example:443", "a.example", 443, True),
        ("a.example:443", "a.example", 80, False),
        ("b.example, A.example", "a.example", 443, True),
        ("10.0.0.0/8", "10.1.2.3", 443, True),
        ("10.0.0.0/8", "11.1.2.3", 443, False),
        ("10.1.2.3", "10.1.2.3", 443, True),
        ("::1/128,fd00::/8", "fd00::7", 443, True),
        ("10.0.0.0/8", "a.example", 443, False),
        (",,", "a.example", 443, False),
        ("", "localhost", 443, True),
        ("", "127.0.0.1", 443, True),
        ("", "::1", 443, True),
        ("", "localhost.example", 443, False),
    ],
)
def test_hosts_that_are_reached_without_the_proxy(no_proxy: str, host: str, port: int, is_direct: bool) -> None:
    found = read_proxies(PROXY, {"no_proxy": no_proxy}).of("https", host, port)

    assert found == (None if is_direct else PROXY)


@pytest.mark.parametrize(
    ("setting", "environment", "http", "https"),
    [
        ("", {"HTTPS_PROXY": PROXY}, None, None),
        (PROXY, {"HTTPS_PROXY": "http://other.example"}, PROXY, PROXY),
        ("environment", {}, None, None),
        ("environment", {"HTTPS_PROXY": PROXY}, None, PROXY),
        ("environment", {"http_proxy": PROXY, "HTTPS_PROXY": "https://s.example"}, PROXY, "https://s.example"),
        ("environment", {"ALL_PROXY": "proxy.example:3128"}, PROXY, PROXY),
    ],
)
def test_the_setting_says_which_proxy(
    setting: str, environment: dict[str, str], http: str | None, https: str | None
) -> None:
    found = read_proxies(setting, environment)

    assert (found.of("http", "a.example", 80), found.of("https", "a.example", 443)) == (http, https)


@pytest.mark.parametrize(
    ("setting", "environment", "named"),
    [
        ("socks5://me:hush-hush@p.example", {}, "PLANQ_EGRESS_PROXY"),
        ("proxy.example:3128", {}, "PLANQ_EGRESS_PROXY"),
        ("http://", {}, "PLANQ_EGRESS_PROXY"),
        ("http://p.example:0", {}, "PLANQ_EGRESS_PROXY"),
        ("environment", {"ALL_PROXY": "socks5://me:hush-hush@p.example"}, "ALL_PROXY"),
    ],
)
def test_a_proxy_that_is_none_is_refused_without_its_password(
    setting: str, environment: dict[str, str], named: str
) -> None:
    with pytest.raises(Misconfigured, match=f"{named}: expected http://") as refused:
        read_proxies(setting, environment)

    assert "hush-hush" not in refused.value.message


class Chunks(httpx2.AsyncByteStream):
    """A body in pieces."""

    def __init__(self, chunks: Sequence[bytes]) -> None:
        self._chunks = chunks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            yield chunk

    async def aclose(self) -> None:
        """Nothing is open."""


def read(
    body: bytes, coding: str = "identity", most: int = 1_000, kind: str = "text/plain", *, at_once: int = 7
) -> tuple[bytes, bool]:
    """Return a body that comes so many bytes at once, as far as its bound."""

    async def run() -> tuple[bytes, bool]:
        chunks = [body[start : start + at_once] for start in range(0, len(body), at_once)]
        headers = {"Content-Encoding": coding, "Content-Type": kind}
        response = httpx2.Response(200, headers=headers, stream=Chunks(chunks))
        bounds = AnswerBounds(most, 60.0, open_streams=True)
        BoundedBody(response, bounds, asyncio.get_running_loop().time() + bounds.seconds, "a test")
        return await read_cut(response)

    return asyncio.run(run())


@pytest.mark.parametrize("at_once", [1, 7, 100_000])
@pytest.mark.parametrize(
    ("coding", "pack"), [("identity", bytes), ("gzip", gzip.compress), ("deflate", zlib.compress)]
)
def test_a_body_is_cut_at_its_bound_whatever_packs_it(coding: str, pack: type[bytes], at_once: int) -> None:
    assert read(pack(b"x" * 1_000), coding, at_once=at_once) == (b"x" * 1_000, False)
    assert read(pack(b"x" * 1_001), coding, at_once=at_once) == (b"x" * 1_000, True)


def test_a_packed_body_longer_than_a_piece_comes_whole() -> None:
    body = bytes(range(256)) * 4_000

    assert read(gzip.compress(body), "gzip", 2_000_000, at_once=65_536) == (body, False)


def test_a_packed_body_that_stops_in_the_middle_was_cut() -> None:
    assert read(gzip.compress(b"hello " * 1_000)[:30], "gzip", 10_000)[1]


def test_an_event_stream_has_no_bound_of_all_its_events() -> None:
    assert read(b"x" * 5_000, kind="text/event-stream") == (b"x" * 5_000, False)


@pytest.mark.parametrize(("coding", "error"), [("br", BodyRefused), ("zstd", BodyRefused), ("gzip", BodyDamaged)])
def test_another_coding_or_a_damaged_body_is_refused(coding: str, error: type[Exception]) -> None:
    with pytest.raises(error, match=coding):
        read(b"no such data", coding)


def test_an_empty_packed_body_is_empty() -> None:
    assert read(b"", "gzip") == (b"", False)
